//! Calls of people: they replay, drop, reset, pause, set and delete; and of the keeper, which prunes.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::port::{Backoff, Begin, DeadOrder, GroupSettings, Push, TopicSettings};

use super::Pair;
use super::side::without_numbers;
use crate::conformance::events_hall::everything;
use crate::conformance::floor::pause;

impl Pair {
    pub(super) async fn order_dead(&mut self) {
        let group = self.group();
        let order = if self.chance(60) { DeadOrder::Replay } else { DeadOrder::Drop };
        let Ok(views) = self.sides[1].store.aside(&everything(&group)).await else { return };
        let mut places = Vec::new();
        for view in &views {
            if self.chance(50) {
                places.push(self.sides[1].place(view.event.id));
            }
        }
        let mut answers = Vec::new();
        for side in &self.sides {
            let ids: Vec<_> = places.iter().map(|place| side.ids[*place]).collect();
            let done = side.store.order_dead(&group, &ids, order).await.expect("order_dead");
            answers.push(done.iter().map(|id| side.place(*id)).collect::<BTreeSet<_>>());
        }
        self.same(&format!("{order:?} of {places:?}"), answers);
    }

    pub(super) async fn reset(&mut self) {
        let group = self.group();
        let one = u32::try_from(self.roll(self.slots(&group.topic).into())).expect("small");
        let units = self.sides[1].units.get(&(group.topic.clone(), one)).map_or(0, BTreeSet::len);
        let rank = self.roll(units as u64 + 1) as usize;
        let (dry_run, what) = (self.chance(25), self.roll(5));
        let mut answers = Vec::new();
        for side in &self.sides {
            // Positions of one slot say nothing about those of another.
            let (to, slot) = match what {
                0 => (Begin::Earliest, None),
                1 => (Begin::Latest, Some(one)),
                2 => (Begin::Time(0), None),
                3 => (Begin::Time(4_000_000_000_000), Some(one)),
                _ => (Begin::Position(side.position(&group.topic, one, rank)), Some(one)),
            };
            let moved = side.store.reset_group(&group, to, slot, dry_run).await;
            let rank = |slot, position| side.rank(&group.topic, slot, position);
            answers.push(match &moved {
                Ok(moved) => Ok(moved
                    .iter()
                    .map(|it| (it.slot, rank(it.slot, it.from), rank(it.slot, it.to)))
                    .collect::<Vec<_>>()),
                Err(error) => Err(without_numbers(error)),
            });
        }
        self.same(&format!("reset {what} of {group} {one} to {rank}, dry: {dry_run}"), answers);
    }

    pub(super) async fn pause(&mut self) {
        let (group, on) = (self.group(), self.chance(40).then(pause));
        let mut answers = Vec::new();
        for side in &self.sides {
            let set = side.store.set_group_paused(&group, on.as_ref()).await;
            answers.push(set.map_err(|error| error.kind));
        }
        self.same("set_group_paused", answers);
    }

    pub(super) async fn set_group(&mut self) {
        let group = self.group();
        let max_attempts = 1 + u32::try_from(self.roll(5)).expect("small");
        let settings = GroupSettings { max_attempts, backoff: Backoff { first_ms: 1, most_ms: 9 } };
        let mut answers = Vec::new();
        for side in &self.sides {
            answers.push(side.store.set_group(&group, &settings, Begin::Earliest).await.expect("set_group"));
        }
        self.same("set_group", answers);
    }

    pub(super) async fn delete_group(&mut self) {
        let group = self.group();
        let mut answers = Vec::new();
        for side in &self.sides {
            answers.push(side.store.delete_group(&group).await.map_err(|error| error.kind));
        }
        self.same("delete_group", answers);
    }

    pub(super) async fn push(&mut self) {
        let (group, on) = (self.group(), self.chance(50));
        let (url, secret) = ("https://example.org/".to_owned(), "0123456789abcdef".to_owned());
        let push = Push { url, secret, timeout_ms: 1_000 };
        let mut answers = Vec::new();
        for side in &self.sides {
            answers.push(side.store.set_push(&group, on.then_some(&push)).await.map_err(|error| error.kind));
        }
        self.same("set_push", answers);
    }

    /// What is read is not kept for a moment longer: the only call that waits for the clock.
    pub(super) async fn prune(&mut self) {
        let (key, unread) = (self.topic(), self.chance(20));
        let slots = self.slots(&key);
        let usual = TopicSettings { slots, ..TopicSettings::default() };
        let mut answers = Vec::new();
        for side in &self.sides {
            let keep_unread_ms = unread.then_some(0);
            let short = TopicSettings { keep_ms: 0, keep_unread_ms, ..usual };
            side.store.set_topic(&key, &short).await.expect("set_topic");
            tokio::time::sleep(Duration::from_millis(3)).await;
            let mut sum = 0;
            loop {
                let (forgotten, more) = side.store.prune_events(&side.tend(3)).await.expect("prune_events");
                sum += forgotten;
                if !more && forgotten == 0 {
                    break;
                }
            }
            answers.push(sum);
            side.store.set_topic(&key, &usual).await.expect("set_topic");
        }
        self.same(&format!("prune of {key}, unread: {unread}"), answers);
    }
}
