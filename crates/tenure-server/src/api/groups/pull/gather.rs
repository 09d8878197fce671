//! What there is for a member: what failed and is due, then what is new.

use std::collections::{BTreeMap, HashSet};

use tenure::port::{
    Aside, AsideFilter, AsideKey, AsideView, Committed, Event, EventId, GroupKey, GroupLook, Join,
    PUBLISH_MAX, Position, ReadAsk, SetAside, Share, ShareCommit, StoreError, Taken,
};
use tenure_core::event::Parked;

use super::{Delivery, PulledShare, Retried};
use crate::App;
use crate::api::events::{ANSWER_MAX, fitting};
use crate::problem::Problem;

/// What was found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) deliveries: Vec<Delivery>,
    pub(super) shares: Vec<PulledShare>,
    /// In how long something that failed is due.
    pub(super) due_in_ms: Option<u64>,
    /// Whether there was something that only had to be set aside, so that there may be more.
    pub(super) again: bool,
}

/// Gathers what there is in the slots that a member has.
pub(super) async fn gathered(app: &App, join: &Join, look: &GroupLook, max: u32) -> Result<Found, Problem> {
    let group = &join.group;
    let held: Vec<&Share> =
        look.shares.iter().filter(|share| share.holder.as_ref() == Some(&join.session)).collect();
    let mut found = Found::default();
    if held.is_empty() {
        return Ok(found);
    }
    let slots: Vec<u32> = held.iter().map(|share| share.slot).collect();
    let asides = asides(app, group, &slots).await?;
    let mut shares: BTreeMap<u32, PulledShare> = BTreeMap::new();
    let entry = |share: &Share| PulledShare {
        slot: share.slot,
        token: share.token,
        position: None,
        retried: Vec::new(),
        aside: Vec::new(),
        events: 0,
    };
    for share in &held {
        for aside in asides.get(&share.slot).into_iter().flatten() {
            let Some(due_in_ms) = aside.due_in_ms else { continue };
            if due_in_ms > 0 {
                found.due_in_ms = Some(found.due_in_ms.map_or(due_in_ms, |soonest| soonest.min(due_in_ms)));
            } else if found.deliveries.len() < max as usize
                && let Some(view) = view_of(app, group, share.slot, aside.event).await?
            {
                let attempt = view.attempts.saturating_add(1);
                found.deliveries.push(Delivery { event: view.event, attempt, token: share.token });
                let told = shares.entry(share.slot).or_insert_with(|| entry(share));
                told.retried.push(Retried { event: aside.event, attempt });
                told.events += 1;
            }
        }
    }
    let room = max.saturating_sub(u32::try_from(found.deliveries.len()).unwrap_or(max));
    if room > 0 {
        let after = held.iter().map(|share| (share.slot, share.position)).collect();
        let ask = ReadAsk { topic: group.topic.clone(), after, limit: room };
        let _large = app.limits.large_answer().await?;
        let read = fitting(app.store.read_events(&ask).await?, ANSWER_MAX);
        let mut parts = Vec::new();
        for events in read.chunk_by(|a, b| a.slot == b.slot) {
            let Some(share) = held.iter().find(|share| share.slot == events[0].slot) else { continue };
            let known = asides.get(&share.slot).map(Vec::as_slice).unwrap_or_default();
            let (parked, already) = (Parked::of(known), firsts(known));
            let (behind, new): (Vec<&Event>, _) = events
                .iter()
                .filter(|event| !already.contains(&event.id))
                .partition(|event| parked.has(event));
            let position = events[events.len() - 1].position;
            // What waits behind others is set aside here and now: whoever acknowledges has not heard of it, and by then its key may
            // wait no more. Up to the first that is to be heard of, the position passes them.
            let set_aside = behind.into_iter().map(|event| aside(event, Aside::Behind)).collect();
            let heard_from = new.first().map_or(Position::MAX, |event| event.position);
            let passed = events.iter().map(|event| event.position).rfind(|position| *position < heard_from);
            let commit = ShareCommit { position: passed, set_aside, ..said(group, share.slot, share.token) };
            let go: HashSet<EventId> = new.iter().map(|event| event.id).collect();
            let withheld: Vec<EventId> = events
                .iter()
                .filter(|event| event.position >= heard_from && !go.contains(&event.id))
                .map(|event| event.id)
                .collect();
            parts.push((*share, position, new, withheld, commit));
        }
        let says = |commit: &&ShareCommit| commit.position.is_some() || !commit.set_aside.is_empty();
        let commits: Vec<ShareCommit> =
            parts.iter().map(|(.., commit)| commit).filter(says).cloned().collect();
        let committed = match commits.is_empty() {
            true => Vec::new(),
            false => app.store.commit_shares(&commits).await?,
        };
        let lost = |slot: u32| {
            let how = commits.iter().position(|commit| commit.slot == slot).and_then(|n| committed.get(n));
            how.is_some_and(|how| *how != Committed::Yes)
        };
        for (share, position, new, withheld, _) in parts.into_iter().filter(|(share, ..)| !lost(share.slot)) {
            if new.is_empty() {
                found.again = true;
                continue;
            }
            let delivery = |event: &Event| Delivery { event: event.clone(), attempt: 1, token: share.token };
            let told = shares.entry(share.slot).or_insert_with(|| entry(share));
            told.events += u32::try_from(new.len()).unwrap_or(u32::MAX);
            found.deliveries.extend(new.into_iter().map(delivery));
            (told.position, told.aside) = (Some(position), withheld);
        }
    }
    found.shares = shares.into_values().collect();
    Ok(found)
}

/// A slot was taken of which somebody else has done a part, by marks that only who takes it is told. What of that part is not done
/// is set aside, due at once, so that nothing has to be remembered.
pub(super) async fn recover(app: &App, group: &GroupKey, taken: &Taken) -> Result<(), Problem> {
    if taken.done.is_empty() {
        return Ok(());
    }
    let done: HashSet<EventId> = taken.done.iter().copied().collect();
    let already = firsts(&taken.aside);
    let (mut left, mut after) = (done.len(), taken.position);
    let mut part: Vec<Event> = Vec::new();
    while left > 0 {
        let read = after_in(app, group, taken.slot, after, Position::MAX).await?;
        let Some(last) = read.last() else { break };
        after = last.position;
        left = left.saturating_sub(read.iter().filter(|event| done.contains(&event.id)).count());
        part.extend(read);
    }
    let Some(end) = part.iter().rfind(|event| done.contains(&event.id)).map(|event| event.position) else {
        return Ok(());
    };
    let open = part
        .iter()
        .filter(|event| event.position <= end && !done.contains(&event.id) && !already.contains(&event.id));
    let set_aside = open.map(|event| aside(event, Aside::Behind)).collect();
    let commit = ShareCommit { position: Some(end), set_aside, ..said(group, taken.slot, taken.token) };
    // If it is stale, somebody else does it.
    app.store.commit_shares(&[commit]).await?;
    Ok(())
}

/// The keys that are aside in these slots.
pub(super) async fn asides(
    app: &App,
    group: &GroupKey,
    slots: &[u32],
) -> Result<BTreeMap<u32, Vec<AsideKey>>, StoreError> {
    if slots.is_empty() { Ok(BTreeMap::new()) } else { app.store.aside_keys_in(group, slots).await }
}

/// Events of a slot after a position, up to another; at least a unit, and not more than fit.
pub(super) async fn after_in(
    app: &App,
    group: &GroupKey,
    slot: u32,
    after: Position,
    up_to: Position,
) -> Result<Vec<Event>, StoreError> {
    let limit = u32::try_from(PUBLISH_MAX).unwrap_or(1);
    let ask = ReadAsk { topic: group.topic.clone(), after: vec![(slot, after)], limit };
    let mut read = app.store.read_events(&ask).await?;
    read.retain(|event| event.position <= up_to);
    Ok(read)
}

/// The first events of keys that are aside: they are so, and not behind themselves.
pub(super) fn firsts(aside: &[AsideKey]) -> HashSet<EventId> {
    aside.iter().map(|aside| aside.event).collect()
}

pub(super) fn aside(event: &Event, how: Aside) -> SetAside {
    SetAside { event: event.id, position: event.position, how }
}

/// Nothing, yet, about a slot.
pub(super) fn said(group: &GroupKey, slot: u32, token: tenure::Token) -> ShareCommit {
    ShareCommit {
        group: group.clone(),
        slot,
        token,
        position: None,
        done: Vec::new(),
        set_aside: Vec::new(),
        settled: Vec::new(),
    }
}

/// An event that is aside.
async fn view_of(
    app: &App,
    group: &GroupKey,
    slot: u32,
    event: EventId,
) -> Result<Option<AsideView>, StoreError> {
    let filter = AsideFilter { slot: Some(slot), ..AsideFilter::from(group.clone(), event) };
    Ok(app.store.aside(&filter).await?.into_iter().find(|view| view.event.id == event))
}
