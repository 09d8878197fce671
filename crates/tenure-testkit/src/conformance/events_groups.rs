//! Claims about groups: who is in them, and who has which slot under which token.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::port::{
    Begin, Expire, GroupSettings, Join, Member, NewEvent, Payload, Position, TakeShares, Taken, Tend, Trouble,
};
use tenure_core::{SessionId, Token};

use super::Subject;
use super::events_hall::{Guest, Hall, SLOTS, joining, keyed, keys_in, nothing, numbered, refused, topic};

/// With the usual settings, and a share for each slot that nobody has.
pub async fn a_group_is_made_by_its_first_member(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let actor = subject.actor("a").await;
    let group = hall.group("g");
    assert_eq!(actor.store.look_group(&group).await, Ok(None));
    assert_eq!(actor.store.group(&group).await, Ok(None));
    let look = actor.store.join_group(&joining(&actor, &group, "a 'b' \"c\"")).await.unwrap();
    assert_eq!(look.members, [Member { session: actor.id.clone(), name: "a 'b' \"c\"".into() }]);
    assert_eq!((look.settings, look.paused), (GroupSettings::default(), None));
    assert_eq!(
        look.shares.iter().map(|share| share.slot).collect::<Vec<_>>(),
        (0..SLOTS).collect::<Vec<_>>()
    );
    for share in &look.shares {
        assert_eq!((share.holder.as_ref(), share.last.as_str(), share.position), (None, "", 0));
    }
    assert_eq!(hall.view().await.groups, std::slice::from_ref(&group.name));
    let other = hall.again(subject).await.store.look_group(&group).await.unwrap().expect("it is there");
    assert_eq!((other.members, other.shares), (look.members, look.shares));
}

/// At the beginning, at the end, after a position, or at a moment.
pub async fn a_group_begins_where_it_wants(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let actor = subject.actor("a").await;
    let key = keys_in(1, 1).remove(0);
    hall.publish(vec![numbered(&key, 0), numbered(&key, 1)]).await;
    let first = hall.latest(1).await;
    hall.publish(vec![numbered(&key, 2)]).await;
    let before = hall.all().await.last().expect("three").at_ms;
    hall.after_moment(before).await;
    hall.publish(vec![numbered(&key, 3)]).await;
    let last = hall.all().await.pop().expect("four");
    let cases = [
        ("earliest", Begin::Earliest, 4),
        ("latest", Begin::Latest, 0),
        ("position", Begin::Position(first), 2),
        ("beyond", Begin::Position(i64::MAX as u64), 0),
        ("time", Begin::Time(last.at_ms), 1),
        ("past", Begin::Time(0), 4),
        ("future", Begin::Time(last.at_ms + 3_600_000), 0),
    ];
    for (name, from, expected) in cases {
        let join = Join { from, ..joining(&actor, &hall.group(name), "a") };
        let look = actor.store.join_group(&join).await.unwrap();
        let share = &look.shares[1];
        assert_eq!(hall.read(&[(1, share.position)], 100).await.len(), expected, "{name}");
        assert!(share.position <= last.position, "{name}: nothing to come is passed over");
        let set = hall.group(&format!("set-{name}"));
        assert_eq!(hall.store.set_group(&set, &GroupSettings::default(), from).await, Ok(true));
        let view = hall.store.group(&set).await.unwrap().expect("it is there");
        assert_eq!(view.slots[1].share.position, share.position, "{name}");
        // What it is said again is no matter: it has begun.
        let again = Join { from: Begin::Earliest, ..join };
        assert_eq!(actor.store.join_group(&again).await.unwrap().shares[1].position, share.position);
    }
    hall.publish(vec![numbered(&key, 4)]).await;
    for name in ["latest", "beyond", "future"] {
        let view = hall.store.group(&hall.group(name)).await.unwrap().expect("it is there");
        assert_eq!(hall.read(&[(1, view.slots[1].share.position)], 100).await.len(), 1, "{name}");
    }
}

/// By name: a session that is over, a topic that is not there, a name that is none.
pub async fn who_can_not_join_is_refused(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let (gone, here) = (subject.actor("gone").await, subject.actor("here").await);
    gone.store.end(&gone.id).await.unwrap();
    let group = hall.group("g");
    let error = hall.store.join_group(&joining(&gone, &group, "gone")).await.expect_err("it is over");
    assert!(matches!(error.kind, Trouble::Request | Trouble::Denied), "{error}");
    assert_eq!(hall.store.group(&group).await.unwrap().map_or(0, |view| view.members.len()), 0);
    let nowhere = tenure_core::port::GroupKey::new(topic("nowhere"), "g".parse().unwrap());
    let said = refused(here.store.join_group(&joining(&here, &nowhere, "a")).await);
    assert!(said.contains("nowhere") && said.contains("topics create"), "{said}");
    let said = refused(here.store.set_group(&nowhere, &GroupSettings::default(), Begin::Earliest).await);
    assert!(said.contains("nowhere"), "{said}");
    for bad in ["", "a\nb"] {
        assert!(refused(here.store.join_group(&joining(&here, &group, bad)).await).contains("member's name"));
    }
}

/// The last word counts, and nobody is there twice.
pub async fn joining_again_changes_the_name(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let a = Guest::of(subject, &hall, "a").await;
    let b = Guest::of(subject, &hall, "b").await;
    a.take(&[0]).await;
    let renamed = Guest::by(a.actor, a.group, "c").await;
    let look = b.look().await;
    let mut names: Vec<_> = look.members.iter().map(|member| member.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["b", "c"]);
    assert!(look.members.is_sorted_by_key(|member| &member.session), "by session");
    assert_eq!(look.shares[0].holder, Some(renamed.actor.id.clone()), "what it has it keeps");
}

/// With all that its holder must know; the others see it.
pub async fn a_free_share_is_taken(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let (a, b) = (Guest::of(subject, &hall, "a").await, Guest::of(subject, &hall, "b").await);
    let before = b.look().await;
    let taken = a.take(&[0, 2]).await;
    assert_eq!(taken.iter().map(|it| it.slot).collect::<Vec<_>>(), [0, 2]);
    for it in &taken {
        assert!(it.token > before.shares[it.slot as usize].token && it.token.grant() > 0);
        assert_eq!((it.position, &it.done, &it.aside), (0, &vec![], &vec![]));
        let share = b.share(it.slot).await;
        assert_eq!((share.token, share.holder, share.last), (it.token, Some(a.actor.id.clone()), "a".into()));
    }
    assert_eq!(b.share(1).await, before.shares[1]);
    assert_eq!(taken[0].token.epoch(), a.actor.epoch);
}

/// Not by another, and not twice by the same one.
pub async fn a_held_share_is_not_taken(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let (a, b) = (Guest::of(subject, &hall, "a").await, Guest::of(subject, &hall, "b").await);
    let taken = a.take_one(1).await;
    for guest in [&a, &b] {
        assert_eq!(guest.take(&[1]).await, []);
    }
    assert_eq!(b.share(1).await.token, taken.token);
    assert_eq!(b.take(&[0, 1, 2]).await.len(), 2, "the others are to be had");
}

/// The token is compared: whoever looked before somebody had it looks again.
pub async fn what_was_seen_of_a_share_must_still_be_so(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let (a, b) = (Guest::of(subject, &hall, "a").await, Guest::of(subject, &hall, "b").await);
    let seen = b.bid(&[0, 1]).await;
    let taken = a.take_one(0).await;
    a.free(&[(0, taken.token)]).await;
    let got = b.actor.store.take_shares(&seen).await.unwrap();
    assert_eq!(got.iter().map(|it| it.slot).collect::<Vec<_>>(), [1]);
    let never = TakeShares { slots: vec![(0, Token::from_u64(12_345)), (99, Token::ZERO)], ..seen };
    assert_eq!(b.actor.store.take_shares(&never).await, Ok(vec![]));
    assert_eq!(b.take_one(0).await.token, taken.token.next(b.actor.epoch));
}

/// Neither somebody who never joined, nor who left, nor a session that is over.
pub async fn who_is_no_member_takes_nothing(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let a = Guest::of(subject, &hall, "a").await;
    let stranger = subject.actor("stranger").await;
    let bid = TakeShares { session: stranger.id.clone(), ..a.bid(&[0]).await };
    assert_eq!(stranger.store.take_shares(&bid).await, Ok(vec![]));
    let left = Guest::of(subject, &hall, "left").await;
    left.leave().await;
    assert_eq!(left.take(&[0]).await, []);
    let dead = Guest::of(subject, &hall, "dead").await;
    let bid = dead.bid(&[0]).await;
    dead.actor.store.end(&dead.actor.id).await.unwrap();
    match dead.actor.store.take_shares(&bid).await {
        Ok(taken) => assert_eq!(taken, []),
        Err(error) => assert!(matches!(error.kind, Trouble::Request | Trouble::Denied), "{error}"),
    }
    assert_eq!(a.share(0).await.holder, None);
    let nowhere = TakeShares { group: hall.group("nowhere"), ..a.bid(&[0]).await };
    nothing(a.actor.store.take_shares(&nowhere).await, "nowhere");
}

/// Whoever asks at the same time.
pub async fn of_concurrent_takers_of_a_share_one_wins(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let mut tokens = BTreeSet::new();
    let mut guests = Vec::new();
    for n in 0..6 {
        guests.push(Guest::of(subject, &hall, &format!("m{n}")).await);
    }
    for _ in 0..5 {
        let mut calls = tokio::task::JoinSet::new();
        for guest in &guests {
            let (store, bid) = (guest.actor.store.clone(), guest.bid(&[0, 1, 2, 3]).await);
            calls.spawn(async move { store.take_shares(&bid).await.expect("take_shares") });
        }
        let taken: Vec<Taken> = calls.join_all().await.concat();
        let mut slots: Vec<_> = taken.iter().map(|it| it.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2, 3], "each by one");
        for it in &taken {
            assert!(tokens.insert((it.slot, it.token)), "never the same token twice");
        }
        guests[0].free(&taken.iter().map(|it| (it.slot, it.token)).collect::<Vec<_>>()).await;
    }
}

/// And is no member any more, however it went: by itself, or because somebody saw it silent for too long.
pub async fn the_shares_of_a_dead_session_are_free(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let heir = Guest::of(subject, &hall, "heir").await;
    for (slot, expired) in [(0, false), (1, true)] {
        let gone = Guest::of(subject, &hall, "gone").await;
        let taken = gone.take_one(slot).await;
        if expired {
            let sessions =
                heir.actor.store.sessions(Some(std::slice::from_ref(&gone.actor.id))).await.unwrap();
            let beat = Some(sessions[0].beat);
            let expire = Expire { session: gone.actor.id.clone(), epoch: heir.actor.epoch, beat };
            heir.actor.store.expire(&expire).await.unwrap();
        } else {
            gone.actor.store.end(&gone.actor.id).await.unwrap();
        }
        let look = heir.look().await;
        assert_eq!(look.members.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["heir"]);
        let share = &look.shares[slot as usize];
        assert_eq!((share.holder.as_ref(), share.last.as_str(), share.token), (None, "gone", taken.token));
        assert!(heir.take_one(slot).await.token > taken.token);
        assert_eq!(hall.group_view().await.members.len(), 1);
    }
}

/// At once; it may come back.
pub async fn who_leaves_frees_all_that_it_has(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let (a, b) = (Guest::of(subject, &hall, "a").await, Guest::of(subject, &hall, "b").await);
    let taken = a.take(&[0, 1]).await;
    b.take_one(2).await;
    a.leave().await;
    a.leave().await;
    let look = b.look().await;
    assert_eq!(look.members.len(), 1);
    let holders: Vec<Option<SessionId>> = look.shares.iter().map(|share| share.holder.clone()).collect();
    assert_eq!(holders, [None, None, Some(b.actor.id.clone()), None]);
    assert_eq!((look.shares[0].last.as_str(), look.shares[0].token), ("a", taken[0].token));
    a.join().await.unwrap();
    assert!(a.take_one(0).await.token > taken[0].token);
    let never = subject.actor("never").await;
    never.store.leave_group(&hall.group("nowhere"), &never.id).await.unwrap();
}

/// And only then.
pub async fn a_share_is_freed_under_its_token(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let (a, b) = (Guest::of(subject, &hall, "a").await, Guest::of(subject, &hall, "b").await);
    let taken = a.take_one(0).await;
    a.free(&[(0, Token::from_u64(taken.token.as_u64() + 1)), (1, taken.token), (99, taken.token)]).await;
    assert_eq!(b.share(0).await.holder, Some(a.actor.id.clone()));
    a.free(&[(0, taken.token)]).await;
    assert_eq!(b.share(0).await.holder, None);
    let next = b.take_one(0).await;
    a.free(&[(0, taken.token)]).await;
    let share = a.share(0).await;
    assert_eq!((share.holder, share.token, share.last), (Some(b.actor.id.clone()), next.token, "b".into()));
    a.actor.store.free_shares(&hall.group("nowhere"), &[(0, taken.token)]).await.unwrap();
}

/// Over takings, resets, deaths.
pub async fn tokens_of_a_share_only_grow(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let group = hall.group("g");
    let mut last = Token::ZERO;
    for n in 0..3 {
        let guest = Guest::of(subject, &hall, "m").await;
        let taken = guest.take_one(0).await;
        assert!(taken.token > last, "taken {n}");
        last = taken.token;
        hall.store.reset_group(&group, Begin::Earliest, None, false).await.unwrap();
        let share = guest.share(0).await;
        assert!(share.token > last && share.holder.is_none(), "reset {n}");
        last = share.token;
        let taken = guest.take_one(0).await;
        assert!(taken.token > last);
        last = taken.token;
        guest.actor.store.end(&guest.actor.id).await.unwrap();
    }
}

/// From one name to another; not a taking, and not a return.
pub async fn moves_are_counted_by_name(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let a = Guest::of(subject, &hall, "a").await;
    let mine = a.take(&[0, 1]).await;
    assert_eq!(hall.group_view().await.moves, 0);
    a.leave().await;
    let again = Guest::of(subject, &hall, "a").await;
    again.take(&[0]).await;
    assert_eq!(hall.group_view().await.moves, 0, "another session of the same name");
    let b = Guest::of(subject, &hall, "b").await;
    b.take(&[0, 1, 2]).await;
    assert_eq!(hall.group_view().await.moves, 1, "slot 1 alone: {mine:?}");
}

/// Since it was last empty. A group without members gathers nothing.
pub async fn a_group_gathers_anew_after_it_was_empty(subject: &Subject) {
    let hall = Hall::of(subject).await;
    let a = Guest::of(subject, &hall, "a").await;
    let mut gathered = 0;
    while gathered < 500 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        gathered = a.look().await.gathered_ms;
    }
    let b = Guest::of(subject, &hall, "b").await;
    assert!(b.look().await.gathered_ms >= gathered, "who comes later changes nothing");
    assert!(a.join().await.unwrap().gathered_ms >= gathered, "nor who says so again");
    a.leave().await;
    assert!(b.look().await.gathered_ms >= gathered, "nor who goes, while somebody is there");
    // One goes by itself, and another dies.
    b.actor.store.end(&b.actor.id).await.unwrap();
    assert_eq!(a.look().await.gathered_ms, 0);
    assert!(a.join().await.unwrap().gathered_ms < gathered);
}

/// Members that do as they are told spread the slots, and move only what must move.
pub async fn members_share_the_slots_evenly(subject: &Subject) {
    let settings = tenure_core::port::TopicSettings { slots: 13, ..Default::default() };
    let hall = Hall::with(subject, settings).await;
    let mut guests = Vec::new();
    let mut moves = 0;
    for (name, must) in [("a", 0), ("b", 6), ("c", 4)] {
        guests.push(Guest::of(subject, &hall, name).await);
        settle(&guests).await;
        moves += must;
        assert_eq!(hall.group_view().await.moves, moves, "{name} comes");
    }
    assert_eq!(loads(&guests).await, [5, 4, 4]);
    let gone = guests.remove(0);
    gone.actor.store.end(&gone.actor.id).await.unwrap();
    settle(&guests).await;
    assert_eq!(hall.group_view().await.moves, moves + 5, "those of the dead one");
    let mut now = loads(&guests).await;
    now.sort_unstable();
    assert_eq!(now, [6, 7]);
}

async fn settle(guests: &[Guest]) {
    loop {
        let mut busy = false;
        for guest in guests.iter().rev() {
            busy |= guest.balance().await;
        }
        if !busy {
            return;
        }
    }
}

async fn loads(guests: &[Guest]) -> Vec<usize> {
    let look = guests[0].look().await;
    let load = |guest: &Guest| {
        look.shares.iter().filter(|share| share.holder.as_ref() == Some(&guest.actor.id)).count()
    };
    guests.iter().map(load).collect()
}

/// Up to the position, as far as every group has read, as long as the topic keeps it.
pub async fn old_events_are_forgotten_when_they_are_read(subject: &Subject) {
    let keeper = super::floor::Keeper::of(subject).await;
    let settings = tenure_core::port::TopicSettings { slots: SLOTS, keep_ms: 0, ..Default::default() };
    let hall = Hall::with(subject, settings).await;
    let key = keys_in(1, 1).remove(0);
    let once = NewEvent { idempotency_key: Some("once".into()), ..keyed(&key) };
    hall.publish(vec![once.clone(), keyed(&key)]).await;
    hall.publish(vec![keyed(&key)]).await;
    let (a, b) = (Guest::of(subject, &hall, "a").await, subject.actor("b").await);
    let slow = Guest::by(b, hall.group("slow"), "b").await;
    let last = hall.all().await.pop().expect("three");
    hall.after_moment(last.at_ms).await;
    let tend = keeper.tending();
    assert_eq!(hall.prune(&tend).await, (0, false), "nobody has read anything");
    let taken = a.take_one(1).await;
    a.commit(a.read_to(&taken, last.position)).await;
    assert_eq!(hall.prune(&tend).await, (0, false), "one group has not");
    let first = hall.all().await[0].clone();
    let taken = slow.take_one(1).await;
    slow.commit(slow.read_to(&taken, first.position)).await;
    for refused in [
        Tend { token: Token::from_u64(keeper.token.as_u64() + 1), ..tend.clone() },
        Tend { session: a.actor.id.clone(), ..tend.clone() },
        Tend { clock_ms: None, ..tend.clone() },
        Tend { clock_ms: Some(first.at_ms), ..tend.clone() },
    ] {
        assert_eq!(hall.prune(&refused).await, (0, false), "{refused:?}");
    }
    hall.prune_until(&keeper, 2).await;
    assert_eq!(hall.all().await.len(), 1);
    assert_eq!(hall.view().await.events, 1);
    assert_eq!(hall.store.event(&hall.key, first.id).await, Ok(None));
    let ends = hall.ends().await[1];
    assert!(ends.earliest >= first.position && ends.earliest < last.position, "{ends:?}");
    assert_eq!(ends.latest, last.position);
    assert!(hall.publish(vec![once]).await[0].new, "its idempotency key is forgotten with it");
    let late = hall.group("late");
    hall.store.set_group(&late, &GroupSettings::default(), Begin::Earliest).await.unwrap();
    let begins = hall.store.group(&late).await.unwrap().expect("it is there").slots[1].clone();
    assert_eq!((begins.share.position, begins.lag), (ends.earliest, 2));
}

/// When the topic says so.
pub async fn unread_events_are_forgotten_if_that_is_wanted(subject: &Subject) {
    let keeper = super::floor::Keeper::of(subject).await;
    let settings = tenure_core::port::TopicSettings {
        slots: 1,
        keep_ms: 0,
        keep_unread_ms: Some(0),
        ..Default::default()
    };
    let hall = Hall::with(subject, settings).await;
    let guest = Guest::of(subject, &hall, "a").await;
    for _ in 0..3 {
        hall.publish(vec![keyed("a"), keyed("b")]).await;
    }
    let last = hall.all().await.pop().expect("six");
    hall.after_moment(last.at_ms).await;
    let part = Tend { limit: 2, ..keeper.tending() };
    assert_eq!(hall.prune(&part).await, (4, true), "units are forgotten whole, and so many at a time");
    assert_eq!(hall.prune(&part).await, (2, false));
    let view = hall.group_view().await;
    assert_eq!((view.slots[0].lag, view.lag()), (0, (0, true)));
    assert_eq!(hall.view().await.oldest_at_ms, None);
    hall.publish(vec![keyed("a")]).await;
    let taken = guest.take_one(0).await;
    assert_eq!(guest.read(&taken).await.len(), 1, "it goes on behind what it missed");
}

/// Positions never come again, nor is a reset to the end a step back.
pub async fn an_empty_slot_keeps_its_place(subject: &Subject) {
    let keeper = super::floor::Keeper::of(subject).await;
    let settings = tenure_core::port::TopicSettings { slots: 1, keep_ms: 0, ..Default::default() };
    let hall = Hall::with(subject, settings).await;
    let guest = Guest::of(subject, &hall, "a").await;
    hall.publish(vec![keyed("a"), keyed("b")]).await;
    let read = hall.all().await;
    let taken = guest.take_one(0).await;
    let position: Position = read[1].position;
    let parked = super::events_hall::aside(&read[0], super::events_hall::dead(1));
    guest
        .commit(tenure_core::port::ShareCommit { set_aside: vec![parked], ..guest.read_to(&taken, position) })
        .await;
    hall.after_moment(read[1].at_ms).await;
    hall.prune_until(&keeper, 2).await;
    let moved = hall.store.reset_group(&guest.group, Begin::Latest, None, false).await.unwrap();
    assert_eq!((moved[0].from, moved[0].to >= position), (position, true), "{moved:?}");
    assert_eq!(hall.aside().await.len(), 1, "what is aside and will not be read again is kept");
    hall.publish(vec![NewEvent { payload: Payload::Bytes(vec![1]), ..keyed("a") }]).await;
    let taken = guest.take_one(0).await;
    let read = guest.read(&taken).await;
    assert!(read.len() == 1 && read[0].position > position);
}
