//! What is said to the store about events that were acknowledged, or failed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use http::StatusCode;
use tenure::port::{
    Aside, AsideKey, EventId, GroupKey, GroupLook, GroupSettings, Position, Share, ShareCommit,
};
use tenure::runtime::Draw;
use tenure::{SessionId, Token};
use tenure_core::claim::clip;
use tenure_core::event::{Parked, after_failure};

use super::ack::{AckShare, Failure, Nacked, SPAN_MAX};
use super::gather::{after_in, aside, asides, firsts, said};
use super::looked;
use crate::App;
use crate::access::Principal;
use crate::api::owned::owned;
use crate::api::sessions::unfit;
use crate::metrics;
use crate::problem::Problem;

/// What has to be known to say what became of events.
pub(super) struct Settling<'a> {
    app: &'a App,
    group: &'a GroupKey,
    look: GroupLook,
    /// The position of each slot's last event.
    ends: BTreeMap<u32, Position>,
    asides: BTreeMap<u32, Vec<AsideKey>>,
    /// Whose sessions have the slots that are named.
    holders: BTreeSet<SessionId>,
}

impl<'a> Settling<'a> {
    pub(super) async fn new(
        app: &'a App,
        group: &'a GroupKey,
        shares: &[AckShare],
    ) -> Result<Settling<'a>, Problem> {
        let look = looked(app, group).await?;
        let ends = app.store.slot_ends(&group.topic).await?.unwrap_or_default();
        let ends = ends.into_iter().map(|ends| (ends.slot, ends.latest)).collect();
        // Of slots that are lost nothing has to be known.
        let held = |named: &AckShare| {
            look.shares.iter().find(|share| share.slot == named.slot && share.token == named.token)
        };
        let held: Vec<&Share> = shares.iter().filter_map(held).collect();
        let slots: Vec<u32> = held.iter().map(|share| share.slot).collect();
        let holders = held.into_iter().filter_map(|share| share.holder.clone()).collect();
        let asides = asides(app, group, &slots).await?;
        Ok(Settling { app, group, look, ends, asides, holders })
    }

    /// Refuses to settle what somebody else's sessions have. `renewed` is the principal's own.
    pub(super) async fn whose(
        &self,
        principal: &Principal,
        renewed: Option<&SessionId>,
    ) -> Result<(), Problem> {
        for holder in self.holders.iter().filter(|holder| Some(*holder) != renewed) {
            owned(self.app, principal, holder).await?;
        }
        Ok(())
    }

    /// The slot, if it is held under this token.
    pub(super) fn held(&self, slot: u32, token: Token) -> Result<Option<&Share>, Problem> {
        let Some(known) = self.look.shares.iter().find(|share| share.slot == slot) else {
            return Err(unfit("slot", format!("{} has no slot {slot}", self.group.topic)));
        };
        Ok(Some(known).filter(|known| known.token == token && known.holder.is_some()))
    }

    fn asides(&self, slot: u32) -> &[AsideKey] {
        self.asides.get(&slot).map(Vec::as_slice).unwrap_or_default()
    }

    /// What is to be said about a slot.
    pub(super) async fn commit(&self, known: &Share, share: AckShare) -> Result<ShareCommit, Problem> {
        let AckShare { slot, token, position, retried, aside: withheld, failed, events: _ } = share;
        let mut commit = said(self.group, slot, token);
        let end = self.ends.get(&slot).copied().unwrap_or(0).max(known.position);
        if position.is_some_and(|position| position > end) {
            // What is acknowledged before it was published would never be read.
            let detail = format!("slot {slot} ends at position {end}");
            return Err(unfit("position", detail).remedy("acknowledge the position that was pulled"));
        }
        let aside_keys = self.asides(slot);
        let mut already = firsts(aside_keys);
        already.extend(withheld);
        let failure = |event: &EventId| failed.iter().find(|failure| failure.event == *event);
        let again = |event: &EventId| retried.iter().find(|told| told.event == *event);
        // Only the first of a key was pulled, when it was due. What was settled, dropped or died meanwhile stays as it is, and so does
        // what was said of an attempt before.
        for first in aside_keys.iter().filter(|first| first.due_in_ms == Some(0)) {
            if again(&first.event).is_some_and(|told| told.attempt > first.attempts) {
                let how = failure(&first.event)
                    .map_or(Aside::Done, |failure| self.verdict(first.attempts, failure));
                commit.settled.push((first.event, how));
            }
        }
        let mut unmet: HashSet<EventId> = failed.iter().map(|failure| failure.event).collect();
        unmet.retain(|event| again(event).is_none() && !already.contains(event));
        commit.position = position;
        let mut parked = Parked::of(aside_keys);
        if parked.is_empty() && failed.is_empty() {
            return Ok(commit);
        }
        let (mut after, mut count) = (known.position, 0);
        while after < position.unwrap_or(0) {
            let read = after_in(self.app, self.group, slot, after, position.unwrap_or(0)).await?;
            let Some(last) = read.last() else { break };
            (after, count) = (last.position, count + read.len());
            if count > SPAN_MAX {
                let detail = format!("slot {slot} is read up to position {}", known.position);
                return Err(unfit("position", detail).remedy("acknowledge what was pulled, and not more"));
            }
            for event in read.iter().filter(|event| !already.contains(&event.id)) {
                unmet.remove(&event.id);
                let how = match failure(&event.id) {
                    Some(failure) => self.verdict(0, failure),
                    None if parked.has(event) => Aside::Behind,
                    None => continue,
                };
                parked.add(event);
                commit.set_aside.push(aside(event, how));
            }
        }
        for event in unmet {
            self.was_said(known, event).await?;
        }
        Ok(commit)
    }

    /// Counts what was said and counts. `pulled`: how many events it was said of, as the member says. Said a second time, it moves no
    /// position and settles nothing, and is not counted again.
    pub(super) fn count(&self, commit: &ShareCommit, pulled: u32) {
        let hows =
            commit.set_aside.iter().map(|aside| &aside.how).chain(commit.settled.iter().map(|(_, how)| how));
        let failed = hows.filter(|how| matches!(how, Aside::Retry { .. } | Aside::Dead { .. }));
        failed.clone().for_each(|how| metrics::failed(self.group, matches!(how, Aside::Dead { .. })));
        let known = self.look.shares.iter().find(|share| share.slot == commit.slot);
        let moves =
            known.is_some_and(|known| commit.position.is_some_and(|position| position > known.position));
        if moves || !commit.settled.is_empty() {
            let not_done =
                commit.set_aside.len() + commit.settled.iter().filter(|(_, how)| *how != Aside::Done).count();
            let most = pulled.min(u32::try_from(2 * SPAN_MAX).unwrap_or(u32::MAX)) as usize;
            metrics::consumed(self.group, most.saturating_sub(not_done));
        }
    }

    /// Refuses a failure that is not one of this slot: to pass over it would be to say that it is done.
    async fn was_said(&self, known: &Share, event: EventId) -> Result<(), Problem> {
        let found = self.app.store.event(&self.group.topic, event).await?;
        // It was said before, and is aside, or done since.
        if found.is_some_and(|found| found.slot == known.slot && found.position <= known.position) {
            return Ok(());
        }
        let detail = format!("event {event} is not among what was pulled of slot {}", known.slot);
        Err(unfit("failed", detail)
            .remedy("name it in the share of its own slot, with the position that was pulled"))
    }

    /// What is to be said of an event that failed, and what becomes of it.
    pub(super) async fn failure(
        &self,
        known: &Share,
        position: Position,
        attempt: Option<u32>,
        failure: &Failure,
    ) -> Result<(Vec<ShareCommit>, Nacked), Problem> {
        let (slot, event) = (known.slot, failure.event);
        let commit = || said(self.group, slot, known.token);
        if let Some(first) = self.asides(slot).iter().find(|aside| aside.event == event) {
            if first.due_in_ms == Some(0) && attempt.is_none_or(|attempt| attempt > first.attempts) {
                let how = self.verdict(first.attempts, failure);
                let nacked = Nacked::new(event, &how);
                return Ok((vec![ShareCommit { settled: vec![(event, how)], ..commit() }], nacked));
            }
            // It was said before.
            let (attempts, retry_in_ms) = (first.attempts, first.due_in_ms);
            return Ok((Vec::new(), Nacked { event, attempts, dead: retry_in_ms.is_none(), retry_in_ms }));
        }
        let unit = match position > known.position {
            true => after_in(self.app, self.group, slot, position - 1, position).await?,
            false => Vec::new(),
        };
        let Some(found) = unit.iter().find(|found| found.id == event) else {
            let detail =
                format!("event {event} is not at position {position} of slot {slot}, or is done already");
            return Err(Problem::new(StatusCode::NOT_FOUND, "no-such-event", detail)
                .field("event")
                .remedy("name the event, its slot and its position as they were pulled"));
        };
        let how = self.verdict(0, failure);
        let nacked = Nacked::new(event, &how);
        let set_aside = ShareCommit { set_aside: vec![aside(found, how)], ..commit() };
        // The position stays, for nothing is said of the others; who takes the slot next is told not to read this one again.
        let mark = ShareCommit { done: vec![(event, found.position)], ..commit() };
        Ok((vec![set_aside, mark], nacked))
    }

    fn verdict(&self, attempts: u32, failure: &Failure) -> Aside {
        let mut draw = Draw(self.app.runtime.as_ref());
        let settings: &GroupSettings = &self.look.settings;
        let error = failure.error.replace('\0', "\u{fffd}");
        match after_failure(settings, attempts, &error, &mut draw) {
            Aside::Retry { attempts, error, .. } if !failure.retry => {
                Aside::Dead { attempts, error: clip(&error) }
            }
            Aside::Retry { attempts, after_ms, error } => {
                let after_ms = failure.after_ms.unwrap_or(after_ms);
                Aside::Retry { attempts, after_ms, error }
            }
            how => how,
        }
    }
}
