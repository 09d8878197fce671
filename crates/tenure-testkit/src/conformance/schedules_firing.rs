//! Claims about firing: under the lease, from what was seen, all of it or nothing, and once.

use std::collections::BTreeSet;

use tenure_core::Token;
use tenure_core::port::{
    Cause, DUE_MAX, Effect, Expect, Fire, Fired, Firing, NewTask, ScheduleSet, ScheduleView, SetSchedule,
    Submission, TaskId, TickState, TopicKey, TopicSettings, Wake, scheduler_election,
};
use tenure_core::schedule::{Misfire, Progress, SCHEDULE_HEADER, TICK_HEADER, put_off, tick_of};

use super::floor::{Floor, hints_until, listening, pause, queue};
use super::schedules_wall::{
    Chief, FAR_MS, HOUR_MS, Wall, event, far, hourly, json, key, refused, seen, setting, task, times,
};
use super::{Actor, Subject};

/// Nobody else fires anything: not under an old token, not in another's name.
pub async fn who_does_not_lead_fires_nothing(subject: &Subject) {
    let (wall, first) = (Wall::of(subject).await, Chief::of(subject).await);
    let view = wall.make(hourly("n", task())).await;
    let right = first.firing(vec![first.plan(&view, FAR_MS)]);
    let second = first.after(subject).await;
    let stranger = subject.actor("stranger").await;
    let wrong = [
        right.clone(),
        Fire { token: second.token, ..right.clone() },
        Fire { session: second.actor.id.clone(), ..right.clone() },
        Fire {
            session: second.actor.id.clone(),
            token: Token::from_u64(second.token.as_u64() + 1),
            ..right.clone()
        },
        Fire { session: stranger.id.clone(), token: second.token, ..right.clone() },
        Fire { firings: vec![], ..right.clone() },
    ];
    for fire in &wrong {
        assert_eq!(second.actor.store.fire(fire).await, Ok(None), "{fire:?}");
        let pruned = wall.store.prune_ticks(&fire.session, fire.token, 10).await;
        assert_eq!(pruned, Ok((0, false)));
    }
    assert_eq!((wall.view(&key("n")).await, wall.ticks(&key("n")).await), (view.clone(), vec![]));
    assert_eq!(wall.tasks().await, 0);
    let again = second.firing(vec![second.plan(&view, FAR_MS)]);
    second.actor.release(&scheduler_election(), 0, second.token).await;
    assert_eq!(second.actor.store.fire(&again).await, Ok(None), "nobody leads");
    assert_eq!(wall.tasks().await, 0);
}

/// A leader whose session has ended does not lead.
pub async fn who_is_gone_fires_nothing(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let view = wall.make(hourly("n", task())).await;
    let fire = chief.firing(vec![chief.plan(&view, FAR_MS)]);
    chief.actor.store.end(&chief.actor.id).await.unwrap();
    assert_eq!(wall.store.fire(&fire).await, Ok(None));
    assert_eq!((wall.view(&key("n")).await, wall.tasks().await), (view, 0));
}

/// The tick, the task, how far the schedule is, and what is counted; the token of the leader on all of them.
pub async fn a_firing_does_all_of_it(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let mut definition = hourly("n", task());
    (definition.payload, definition.jitter_ms) = (json(r#"{"n":1}"#), 600_000);
    let view = wall.make(definition).await;
    let due_ms = view.due_ms.unwrap();
    let firing = chief.plan(&view, due_ms);
    let next_due_ms = firing.due_ms.unwrap();
    chief.fire_one(firing).await;
    let ticks = wall.ticks(&key("n")).await;
    assert_eq!(ticks.len(), 1);
    let tick = &ticks[0];
    assert_eq!((tick.at_ms, tick.state, tick.cause), (FAR_MS, TickState::Fired, Cause::Clock));
    assert_eq!((tick.count, tick.first_ms, tick.token), (1, None, Some(chief.token)));
    assert_eq!((tick.late_ms, tick.event), (tick.decided_ms - due_ms, None));
    assert!(!tick.by.is_empty(), "the leader's name");
    let task = wall.task(tick.task.expect("a task")).await;
    assert_eq!((task.leader_token, task.payload.as_str()), (Some(chief.token), r#"{"n":1}"#));
    assert_eq!(tick_of(task.key.as_deref().unwrap()), Some((key("n"), FAR_MS)));
    let after = wall.view(&key("n")).await;
    let progress = Progress { next_at_ms: FAR_MS + HOUR_MS, last_at_ms: Some(FAR_MS) };
    assert_eq!((after.progress, after.due_ms), (Some(progress), Some(next_due_ms)));
    assert_eq!((after.fired, after.skipped, after.overlapped), (1, 0, 0));
    assert_eq!((after.last_fired_ms, after.version), (Some(tick.decided_ms), view.version));
    assert_eq!((after.updated_ms, after.trouble), (view.updated_ms, None));
    // A worker can read the tick.
    let claimed = Floor { store: wall.store.clone(), key: queue("q") }.claim_one().await;
    assert_eq!((claimed.key, claimed.leader_token), (task.key, Some(chief.token)));
}

/// It names its schedule and tick, and the leader's token.
pub async fn an_event_is_published_with_its_tick(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let view = wall.make(hourly("n", event("t"))).await;
    chief.run(&view, FAR_MS + 2 * HOUR_MS).await;
    let ticks = wall.ticks(&key("n")).await;
    assert_eq!((ticks.len(), wall.events().await), (3, 3));
    let topic = TopicKey::new(key("n").namespace, "t".parse().unwrap());
    let mut before = None;
    for (tick, at) in ticks.iter().rev().zip(["00", "01", "02"]) {
        let event = wall.store.event(&topic, tick.event.unwrap()).await.unwrap().expect("it is published");
        assert_eq!(event.headers[TICK_HEADER], format!("2100-01-01T{at}:00:00Z"));
        assert_eq!((event.headers[SCHEDULE_HEADER].as_str(), event.leader_token), ("n", Some(chief.token)));
        assert!(before < Some(event.id), "in their order");
        before = Some(event.id);
    }
}

/// Said twice, by the same leader or its successor, it counts once.
pub async fn the_same_firing_counts_once(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let view = wall.make(hourly("n", task())).await;
    let firing = chief.plan(&view, FAR_MS);
    chief.fire_one(firing.clone()).await;
    let after = wall.view(&key("n")).await;
    assert_eq!(chief.fire(vec![firing.clone()]).await, [Fired::Stale]);
    let other = chief.after(subject).await;
    assert_eq!(other.fire(vec![firing]).await, [Fired::Stale]);
    assert_eq!((wall.view(&key("n")).await, wall.tasks().await), (after, 1));
}

/// As when an answer is lost, and the question asked again through another connection.
pub async fn of_concurrent_firings_one_counts(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let mut views = Vec::new();
    for n in 0..5 {
        let target = if n % 2 == 0 { task() } else { event("t") };
        views.push(wall.make(hourly(&format!("n{n}"), target)).await);
    }
    let fire = chief.firing(views.iter().map(|view| chief.plan(view, FAR_MS + HOUR_MS)).collect());
    let mut clients = Vec::new();
    for _ in 0..6 {
        let (client, fire) = (subject.client().await, fire.clone());
        clients.push(tokio::spawn(async move { client.fire(&fire).await.expect("fire").expect("it leads") }));
    }
    let mut counted = 0;
    for client in clients {
        let fired = client.await.unwrap();
        assert!(fired.iter().all(|it| matches!(it, Fired::Yes | Fired::Stale)), "{fired:?}");
        counted += fired.iter().filter(|it| **it == Fired::Yes).count();
    }
    assert_eq!(counted, 5, "each of them once");
    assert_eq!((wall.tasks().await, wall.events().await), (6, 4));
    for view in views {
        assert_eq!((wall.view(&view.key()).await.fired, wall.ticks(&view.key()).await.len()), (2, 2));
    }
}

/// Of another version, paused, deleted, or further already: nothing of it is done, and the others do not mind.
pub async fn what_is_not_as_it_was_seen_does_not_fire(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let mut views = Vec::new();
    for name in ["changed", "paused", "deleted", "further", "fine"] {
        views.push(wall.make(hourly(name, task())).await);
    }
    let firings: Vec<Firing> = views.iter().map(|view| chief.plan(view, FAR_MS)).collect();
    assert_eq!(wall.set(&setting(hourly("changed", event("t")))).await, ScheduleSet::Changed(2));
    wall.store.set_schedule_paused(&key("paused"), Some(&pause())).await.unwrap();
    wall.store.delete_schedule(&key("deleted"), None).await.unwrap();
    chief.fire_one(Firing { ticks: vec![], ..chief.plan(&views[3], FAR_MS) }).await;
    let before = stand(&wall, &views).await;
    let fired = chief.fire(firings.clone()).await;
    assert_eq!(fired, [Fired::Stale, Fired::Stale, Fired::Stale, Fired::Stale, Fired::Yes]);
    let after = stand(&wall, &views).await;
    assert_eq!(after[..4], before[..4]);
    assert_ne!(after[4], before[4]);
    assert_eq!((wall.tasks().await, wall.events().await), (1, 0));
    // Resumed, it stands as it did.
    wall.store.set_schedule_paused(&key("paused"), None).await.unwrap();
    assert_eq!(chief.fire(vec![firings[1].clone()]).await, [Fired::Yes]);
    let wrong = Firing { next_at_ms: FAR_MS + 1, ..firings[0].clone() };
    assert_eq!(chief.fire(vec![Firing { version: 2, ..wrong }]).await, [Fired::Stale]);
}

async fn stand(wall: &Wall, views: &[ScheduleView]) -> Vec<Option<ScheduleView>> {
    let mut stand = Vec::new();
    for view in views {
        stand.push(wall.find(&view.key()).await);
    }
    stand
}

/// Its topic is gone, or takes no event so long: all or nothing of it, and the others do not mind.
pub async fn what_can_not_be_is_refused_alone(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let (gone, small) = (wall.make_topic("gone").await, wall.make_topic("small").await);
    let mut long = hourly("long", event("small"));
    long.payload = json(&format!("\"{}\"", "x".repeat(2_000)));
    let definitions = [hourly("a", task()), hourly("lost", event("gone")), long, hourly("z", event("t"))];
    let mut views = Vec::new();
    for definition in definitions {
        views.push(wall.make(definition).await);
    }
    wall.store.delete_topic(&gone).await.unwrap();
    let settings = TopicSettings { slots: 2, max_bytes: 1_024, ..TopicSettings::default() };
    wall.store.set_topic(&small, &settings).await.unwrap();
    let before = stand(&wall, &views).await;
    let fired = chief.fire(views.iter().map(|view| chief.plan(view, FAR_MS + HOUR_MS)).collect()).await;
    let [Fired::Yes, Fired::Refused(lost), Fired::Refused(long), Fired::Yes] = &fired[..] else {
        panic!("{fired:?}")
    };
    assert!(lost.contains("tenure events topics create gone"), "{lost}");
    assert!(long.contains("max_bytes"), "{long}");
    assert_eq!(stand(&wall, &views).await[1..3], before[1..3]);
    assert_eq!((wall.tasks().await, wall.events().await), (2, 2));
    for name in ["lost", "long"] {
        assert_eq!(wall.ticks(&key(name)).await, []);
    }
}

/// It is tried again from where it is, later each time, until it fires: then the trouble is over.
pub async fn what_could_not_fire_is_tried_again(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let topic = wall.make_topic("bells").await;
    let view = wall.make(hourly("n", event("bells"))).await;
    wall.store.delete_topic(&topic).await.unwrap();
    for strikes in 0..3 {
        let due = tenure_core::port::DueSchedule { strikes, ..seen(&view) };
        chief.fire_one(Firing { due_ms: Some(i64::from(strikes) + 1), ..put_off(&due, "no bells", 5) }).await;
        let after = wall.view(&key("n")).await;
        assert_eq!(after.trouble.as_deref(), Some("no bells"));
        assert_eq!((after.progress, after.due_ms), (view.progress, Some(i64::from(strikes) + 1)));
        assert_eq!((after.fired, after.skipped, after.version), (0, 0, view.version));
        let look = wall.due(10).await;
        assert_eq!((look.schedules.len(), look.schedules[0].strikes), (1, strikes + 1));
    }
    assert_eq!(wall.store.schedule_stats().await.unwrap()[0].troubled, 1);
    assert_eq!(wall.ticks(&key("n")).await, []);
    wall.make_topic("bells").await;
    chief.run_and_come_back(&view, FAR_MS).await;
    let after = wall.view(&key("n")).await;
    assert_eq!((after.trouble, after.fired), (None, 1));
    assert_eq!(wall.due(10).await.schedules[0].strikes, 0);
    // A stale one does not even trouble it.
    assert_eq!(chief.fire(vec![put_off(&seen(&view), "late", 5)]).await, [Fired::Stale]);
    assert_eq!(wall.view(&key("n")).await.trouble, None);
}

/// One that is deleted and made anew under its name is another, whatever it has in common with the first.
pub async fn what_was_decided_from_a_deleted_schedule_does_not_fire(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let seen = wall.make(hourly("n", task())).await;
    wall.store.delete_schedule(&key("n"), None).await.unwrap();
    let mut other = hourly("n", event("t"));
    other.payload = json("2");
    let view = wall.make(other.clone()).await;
    assert!(view.version > seen.version, "{} after {}", view.version, seen.version);
    assert_eq!(view.progress, seen.progress);
    assert_eq!(chief.fire(vec![chief.plan(&seen, FAR_MS)]).await, [Fired::Stale]);
    assert_eq!((wall.tasks().await, wall.view(&key("n")).await.progress), (0, view.progress));
    let edit = SetSchedule { expect: Expect::Version(seen.version), ..setting(hourly("n", task())) };
    assert_eq!(wall.set(&edit).await, ScheduleSet::Conflict(Some(view.version)));
    assert_eq!(wall.store.delete_schedule(&key("n"), Some(seen.version)).await, Ok(Some(false)));
    chief.run(&view, FAR_MS).await;
    assert_eq!(wall.events().await, 1);
}

/// Whoever submits under its key first would be its task.
pub async fn nobody_else_submits_under_the_key_of_a_tick(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let view = wall.make(hourly("n", task())).await;
    let firing = chief.plan(&view, FAR_MS);
    let Some(Effect::Task { queue, task }) = firing.ticks[0].effect.clone() else { panic!("{firing:?}") };
    let forged = NewTask { payload: json("\"forged\""), leader_token: None, ..*task };
    let said = refused(wall.store.submit(&Submission { queue, tasks: vec![forged] }).await);
    assert!(said.contains("default/n@2100-01-01T00:00:00Z"), "{said}");
    chief.fire_one(firing).await;
    let task = wall.task(wall.ticks(&key("n")).await[0].task.unwrap()).await;
    assert_eq!((task.payload.as_str(), task.leader_token), ("{}", Some(chief.token)));
}

/// Whoever defines it anew, or resumes it, may have mended it: it is tried at once.
pub async fn a_new_definition_ends_the_trouble(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let view = wall.make(hourly("n", event("t"))).await;
    chief.fire_one(put_off(&seen(&view), "no bells", FAR_MS + HOUR_MS)).await;
    assert!(wall.view(&key("n")).await.due_ms > Some(FAR_MS + HOUR_MS));
    assert_eq!(wall.set(&setting(hourly("n", task()))).await, ScheduleSet::Changed(2));
    let view = wall.view(&key("n")).await;
    assert_eq!((&view.trouble, view.due_ms), (&None, Some(FAR_MS)));
    chief.fire_one(put_off(&seen(&view), "no bells", FAR_MS + HOUR_MS)).await;
    wall.store.set_schedule_paused(&key("n"), Some(&pause())).await.unwrap();
    wall.store.set_schedule_paused(&key("n"), None).await.unwrap();
    assert_eq!(wall.view(&key("n")).await.due_ms, Some(FAR_MS));
}

/// The newest fire, as many as its policy says; those before them are a range, however many they are.
pub async fn missed_ticks_go_by_their_policy(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let late = FAR_MS + 9 * HOUR_MS + 120_000;
    for (name, misfire, fires) in [
        ("skip", Misfire::Skip, 0),
        ("once", Misfire::FireOnce, 1),
        ("some", Misfire::FireAll { cap: 3 }, 3),
        ("all", Misfire::FireAll { cap: 10_000 }, 10),
        ("within", Misfire::Within { grace_ms: 2 * 3_600_000 }, 2),
    ] {
        let mut definition = hourly(name, task());
        definition.misfire = misfire;
        let view = wall.make(definition).await;
        chief.run(&view, late).await;
        let after = wall.view(&key(name)).await;
        assert_eq!((after.fired, after.skipped), (fires, 10 - fires), "{name}");
        assert_eq!(after.progress.unwrap().next_at_ms, FAR_MS + 10 * HOUR_MS, "{name}");
        let ticks = wall.ticks(&key(name)).await;
        let (fired, skipped) = ticks.split_at(usize::try_from(fires).unwrap());
        let newest: Vec<i64> = (0..10).rev().take(fired.len()).map(|n| FAR_MS + n * HOUR_MS).collect();
        assert_eq!(fired.iter().map(|tick| tick.at_ms).collect::<Vec<_>>(), newest, "{name}");
        assert!(fired.iter().all(|tick| tick.state == TickState::Fired && tick.task.is_some()));
        if fires < 10 {
            let range = &skipped[0];
            assert_eq!((skipped.len(), range.state, range.count), (1, TickState::Skipped, 10 - fires));
            let last = FAR_MS + (9 - fires.cast_signed()) * HOUR_MS;
            assert_eq!((range.first_ms, range.at_ms), (Some(FAR_MS), last), "{name}");
            assert_eq!((range.cause, range.task), (Cause::Clock, None));
        } else {
            assert_eq!(skipped, []);
        }
    }
}

/// Centuries of them are one row.
pub async fn millions_of_missed_ticks_are_one_range(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let mut definition = far("n", "every 1s", task());
    definition.misfire = Misfire::FireOnce;
    let view = wall.make(definition).await;
    let seconds = 100 * 365 * 86_400_u64;
    chief.run(&view, FAR_MS + seconds.cast_signed() * 1_000).await;
    let after = wall.view(&key("n")).await;
    assert_eq!((after.fired, after.skipped), (1, seconds));
    assert_eq!(wall.ticks(&key("n")).await[1].count, seconds);
}

/// Whatever is stored about the next tick: as when a clock was put back, and the schedule was defined anew.
pub async fn a_tick_that_was_decided_about_fires_never_again(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    for (name, target) in [("n", task()), ("m", event("t"))] {
        let view = wall.make(hourly(name, target)).await;
        let back = Firing { progress: view.progress, due_ms: view.due_ms, ..chief.plan(&view, FAR_MS) };
        chief.fire_one(back).await;
        let view = wall.view(&key(name)).await;
        assert_eq!((view.progress.unwrap().next_at_ms, view.fired), (FAR_MS, 1), "{name}");
        // The same once more, with one that is new.
        chief.run(&view, FAR_MS + HOUR_MS).await;
        let ticks = wall.ticks(&key(name)).await;
        let at: Vec<i64> = ticks.iter().map(|tick| tick.at_ms).collect();
        assert_eq!(at, [FAR_MS + HOUR_MS, FAR_MS], "{name}");
        let after = wall.view(&key(name)).await;
        let progress = Progress { next_at_ms: FAR_MS + 2 * HOUR_MS, last_at_ms: Some(FAR_MS + HOUR_MS) };
        assert_eq!((after.fired, after.progress), (2, Some(progress)), "{name}");
    }
    assert_eq!((wall.tasks().await, wall.events().await), (2, 2));
}

/// Then it is never due again.
pub async fn the_last_tick_is_the_last(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let mut definition = hourly("n", task());
    definition.end_ms = Some(FAR_MS + 2 * HOUR_MS);
    let view = wall.make(definition).await;
    chief.run(&view, FAR_MS + 5 * HOUR_MS).await;
    let after = wall.view(&key("n")).await;
    assert_eq!((after.fired, after.progress, after.due_ms), (2, None, None));
    assert_eq!(chief.fire(vec![chief.plan(&view, FAR_MS)]).await, [Fired::Stale]);
}

/// To several topics and queues; each result, tick, event and task in its place.
pub async fn many_fire_in_one_call(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    wall.make_topic("u").await;
    let mut views = Vec::new();
    for n in 0..60 {
        let target = match n % 4 {
            0 => task(),
            1 => event("t"),
            2 => event("u"),
            _ => tenure_core::schedule::Target::Task { queue: "r".parse().unwrap(), task: Box::default() },
        };
        let mut definition = hourly(&format!("n{n}"), target);
        definition.payload = json(&n.to_string());
        views.push(wall.make(definition).await);
    }
    let mut firings: Vec<Firing> = views.iter().map(|view| chief.plan(view, FAR_MS + HOUR_MS)).collect();
    firings[17].version = 9;
    let fired = chief.fire(firings).await;
    let mut tasks: BTreeSet<TaskId> = BTreeSet::new();
    for (n, (view, fired)) in views.iter().zip(fired).enumerate() {
        if n == 17 {
            assert_eq!(fired, Fired::Stale);
            continue;
        }
        assert_eq!(fired, Fired::Yes, "{n}");
        for (tick, at_ms) in wall.ticks(&view.key()).await.iter().zip([FAR_MS + HOUR_MS, FAR_MS]) {
            assert_eq!(tick.at_ms, at_ms, "{n}");
            match (tick.event, tick.task) {
                (Some(id), None) => {
                    let topic = if n % 4 == 1 { "t" } else { "u" };
                    let topic = TopicKey::new(view.namespace.clone(), topic.parse().unwrap());
                    let event = wall.store.event(&topic, id).await.unwrap().expect("it is there");
                    assert_eq!(event.headers[SCHEDULE_HEADER], format!("n{n}"));
                }
                (None, Some(id)) => {
                    let task = wall.task(id).await;
                    assert_eq!(tick_of(task.key.as_deref().unwrap()), Some((view.key(), at_ms)));
                    assert_eq!(task.payload.as_str(), n.to_string());
                    assert!(tasks.insert(id), "each its own");
                }
                other => panic!("{n}: {other:?}"),
            }
        }
    }
    assert_eq!((wall.tasks().await, wall.events().await), (60, 28));
}

/// A schedule that is named twice, ticks in disorder, and more than can go together.
pub async fn bad_firings_are_refused(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let view = wall.make(hourly("n", task())).await;
    let firing = chief.plan(&view, FAR_MS + HOUR_MS);
    let said = refused(wall.store.fire(&chief.firing(vec![firing.clone(), firing.clone()])).await);
    assert!(said.contains("twice"), "{said}");
    let many = (0..=DUE_MAX).map(|n| Firing { key: key(&format!("m{n}")), ticks: vec![], ..firing.clone() });
    let said = refused(wall.store.fire(&chief.firing(many.collect())).await);
    assert!(said.contains("10000"), "{said}");
    assert_eq!((wall.ticks(&key("n")).await, wall.tasks().await), (vec![], 0));
}

/// Who sleeps until its queue or topic has something.
pub async fn a_firing_wakes_who_waits_for_it(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let sleeper: Actor = subject.actor("sleeper").await;
    let mut hints = listening(&sleeper).await;
    let topic = TopicKey::new(key("n").namespace, "t".parse().unwrap());
    let queue = queue("q");
    let (a, b) = (wall.make(hourly("a", task())).await, wall.make(hourly("b", event("t"))).await);
    sleeper.store.doze(&sleeper.id, std::slice::from_ref(&queue)).await.unwrap();
    chief.run(&a, FAR_MS).await;
    hints_until(&mut hints, &Wake::Work(queue)).await;
    sleeper.store.doze_topic(&sleeper.id, &topic).await.unwrap();
    chief.run(&b, FAR_MS).await;
    hints_until(&mut hints, &Wake::Events(topic)).await;
}

/// What the leader was told and did not decide by itself: it does what it is told, a tick without effect included.
pub async fn ticks_without_an_effect_are_counted_apart(subject: &Subject) {
    let (wall, chief) = (Wall::of(subject).await, Chief::of(subject).await);
    let mut definition = hourly("n", task());
    definition.when = times("every 2h");
    let view = wall.make(definition).await;
    let mut firing = chief.plan(&view, FAR_MS + 4 * HOUR_MS);
    assert!(matches!(firing.ticks[1].effect, Some(Effect::Task { .. })));
    firing.ticks[1].effect = None;
    chief.fire_one(firing).await;
    let after = wall.view(&key("n")).await;
    assert_eq!((after.fired, after.overlapped, after.skipped), (2, 1, 0));
    let states: Vec<TickState> = wall.ticks(&key("n")).await.iter().map(|tick| tick.state).collect();
    assert_eq!(states, [TickState::Fired, TickState::Overlapped, TickState::Fired]);
    assert_eq!(wall.tasks().await, 2);
}
