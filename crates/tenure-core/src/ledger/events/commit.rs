//! What members say about their shares.

use super::aside::AsideRow;
use super::{Ledger, Topic};
use crate::event::{check_commit, nothing_to_set_aside};
use crate::port::{Aside, Committed, Event, EventId, Position, SetAside, ShareCommit, StoreError};

impl Ledger {
    /// See [`Events::commit_shares`](crate::port::Events::commit_shares). All in one: if one makes no sense, none counts.
    pub fn commit_shares(
        &mut self,
        commits: &[ShareCommit],
        now_ms: i64,
    ) -> Result<Vec<Committed>, StoreError> {
        for commit in commits {
            check_commit(commit)?;
            self.find_aside_events(commit)?;
        }
        commits.iter().map(|commit| self.commit_share(commit, now_ms)).collect()
    }

    fn commit_share(&mut self, commit: &ShareCommit, now_ms: i64) -> Result<Committed, StoreError> {
        let events = self.find_aside_events(commit)?;
        let Some(topic) = self.outbox.topics.get_mut(&commit.group.topic) else {
            return Ok(Committed::Stale);
        };
        let there = |(id, position): &&(EventId, Position)| topic.find(commit.slot, *position, *id).is_some();
        let done: Vec<_> = commit.done.iter().filter(there).map(|(id, position)| (*position, *id)).collect();
        let Some(group) = topic.groups.get_mut(&commit.group.name) else { return Ok(Committed::Stale) };
        let held = |share: &&mut super::ShareRow| share.token == commit.token && share.holder.is_some();
        let Some(share) = group.share_mut(commit.slot).filter(held) else { return Ok(Committed::Stale) };
        share.position = share.position.max(commit.position.unwrap_or(0));
        share.done.extend(done);
        let read_to = share.position;
        share.done.retain(|(position, _)| *position > read_to);
        for (event, aside) in events.into_iter().zip(&commit.set_aside) {
            let place = (commit.slot, event.position, event.id);
            // What is aside already, and waits behind others, stays as it is; and what is dead stays dead.
            let known = group.asides.get(&place);
            if known.is_some_and(|known| known.dead || aside.how == Aside::Behind) {
                continue;
            }
            group.asides.insert(place, AsideRow::new(event, &aside.how, now_ms));
        }
        for (id, how) in &commit.settled {
            group.settle(commit.slot, *id, how, now_ms);
        }
        Ok(Committed::Yes)
    }

    /// The events that are to be set aside. One that is not there is no reason to refuse who has lost the share anyway.
    fn find_aside_events(&self, commit: &ShareCommit) -> Result<Vec<Event>, StoreError> {
        let Some((topic, group)) = self.outbox.find_group(&commit.group) else { return Ok(Vec::new()) };
        let share = group.shares.get(commit.slot as usize);
        if share.is_none_or(|share| share.token != commit.token || share.holder.is_none()) {
            return Ok(Vec::new());
        }
        let find = |aside: &SetAside| {
            let event = topic.find(commit.slot, aside.position, aside.event);
            event.cloned().ok_or_else(|| nothing_to_set_aside(&commit.group, commit.slot, aside.event))
        };
        commit.set_aside.iter().map(find).collect()
    }
}

impl Topic {
    fn find(&self, slot: u32, position: Position, id: EventId) -> Option<&Event> {
        let unit = self.slots.get(slot as usize)?.units.get(&position)?;
        unit.iter().map(|stored| &stored.event).find(|event| event.id == id)
    }
}
