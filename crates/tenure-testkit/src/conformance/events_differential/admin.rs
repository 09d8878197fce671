//! Operator calls (replay, drop, reset, pause, set, delete) and pruning.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::port::{
    Backoff, DeadLetterAction, GroupSettings, StartOffset, TopicSettings, WebhookSettings,
};

use super::EventDifferential;
use super::side::without_numbers;
use crate::conformance::test_queue::pause;
use crate::conformance::test_topic::everything;

impl EventDifferential {
    pub(super) async fn order_dead(&mut self) {
        let group = self.group();
        let order = if self.chance(60) { DeadLetterAction::Replay } else { DeadLetterAction::Drop };
        let Ok(views) = self.sides[1].store.parked_events(&everything(&group)).await else { return };
        let mut places = Vec::new();
        for view in &views {
            if self.chance(50) {
                places.push(self.sides[1].place(view.event.id));
            }
        }
        let mut responses = Vec::new();
        for side in &self.sides {
            let ids: Vec<_> = places.iter().map(|place| side.ids[*place]).collect();
            let done = side.store.apply_dead_letter_action(&group, &ids, order).await.expect("order_dead");
            responses.push(done.iter().map(|id| side.place(*id)).collect::<BTreeSet<_>>());
        }
        self.same(&format!("{order:?} of {places:?}"), responses);
    }

    pub(super) async fn reset(&mut self) {
        let group = self.group();
        let one = u32::try_from(self.roll(self.partitions(&group.topic).into())).expect("small");
        let batches = self.sides[1].batches.get(&(group.topic.clone(), one)).map_or(0, BTreeSet::len);
        let rank = self.roll(batches as u64 + 1) as usize;
        let (dry_run, what) = (self.chance(25), self.roll(5));
        let mut responses = Vec::new();
        for side in &self.sides {
            // An offset is valid for one partition only.
            let (to, partition) = match what {
                0 => (StartOffset::Earliest, None),
                1 => (StartOffset::Latest, Some(one)),
                2 => (StartOffset::PublishedAtMs(0), None),
                3 => (StartOffset::PublishedAtMs(4_000_000_000_000), Some(one)),
                _ => (StartOffset::Offset(side.offset(&group.topic, one, rank)), Some(one)),
            };
            let moved = side.store.reset_group(&group, to, partition, dry_run).await;
            let rank = |partition, offset| side.rank(&group.topic, partition, offset);
            responses.push(match &moved {
                Ok(moved) => Ok(moved
                    .iter()
                    .map(|it| {
                        (it.partition, rank(it.partition, it.from_offset), rank(it.partition, it.to_offset))
                    })
                    .collect::<Vec<_>>()),
                Err(error) => Err(without_numbers(error)),
            });
        }
        self.same(&format!("reset {what} of {group} {one} to {rank}, dry: {dry_run}"), responses);
    }

    pub(super) async fn pause(&mut self) {
        let (group, on) = (self.group(), self.chance(40).then(pause));
        let mut responses = Vec::new();
        for side in &self.sides {
            let set = side.store.set_group_paused(&group, on.as_ref()).await;
            responses.push(set.map_err(|error| error.kind));
        }
        self.same("set_group_paused", responses);
    }

    pub(super) async fn set_group(&mut self) {
        let group = self.group();
        let max_attempts = 1 + u32::try_from(self.roll(5)).expect("small");
        let settings = GroupSettings { max_attempts, backoff: Backoff { initial_ms: 1, max_ms: 9 } };
        let mut responses = Vec::new();
        for side in &self.sides {
            responses.push(
                side.store.set_group(&group, &settings, StartOffset::Earliest).await.expect("set_group"),
            );
        }
        self.same("set_group", responses);
    }

    pub(super) async fn delete_group(&mut self) {
        let group = self.group();
        let mut responses = Vec::new();
        for side in &self.sides {
            responses.push(side.store.delete_group(&group).await.map_err(|error| error.kind));
        }
        self.same("delete_group", responses);
    }

    pub(super) async fn set_webhook(&mut self) {
        let (group, on) = (self.group(), self.chance(50));
        let (url, secret) = ("https://example.org/".to_owned(), "0123456789abcdef".to_owned());
        let webhook = WebhookSettings { url, secret, timeout_ms: 1_000 };
        let mut responses = Vec::new();
        for side in &self.sides {
            responses.push(
                side.store.set_webhook(&group, on.then_some(&webhook)).await.map_err(|error| error.kind),
            );
        }
        self.same("set_webhook", responses);
    }

    /// Sets the retention of read events to zero and prunes. This is the only call that waits for the clock.
    pub(super) async fn prune(&mut self) {
        let (key, unread) = (self.topic(), self.chance(20));
        let partitions = self.partitions(&key);
        let usual = TopicSettings { partitions, ..TopicSettings::default() };
        let mut responses = Vec::new();
        for side in &self.sides {
            let keep_unread_ms = unread.then_some(0);
            let short = TopicSettings { retention_ms: 0, unread_retention_ms: keep_unread_ms, ..usual };
            side.store.set_topic(&key, &short).await.expect("set_topic");
            tokio::time::sleep(Duration::from_millis(3)).await;
            let mut sum = 0;
            loop {
                let (forgotten, more) =
                    side.store.prune_events(&side.maintenance_request(3)).await.expect("prune_events");
                sum += forgotten;
                if !more && forgotten == 0 {
                    break;
                }
            }
            responses.push(sum);
            side.store.set_topic(&key, &usual).await.expect("set_topic");
        }
        self.same(&format!("prune of {key}, unread: {unread}"), responses);
    }
}
