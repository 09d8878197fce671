//! Calls of members: they join, take, say how far they have read, and leave.

use std::collections::BTreeSet;

use tenure_core::port::{
    Aside, AsideFilter, Begin, Event, EventId, Join, Position, SetAside, ShareCommit, TakeShares,
};

use super::Pair;
use super::side::without_numbers;
use crate::conformance::events_hall::everything;
use crate::conformance::floor::HOUR_MS;

impl Pair {
    pub(super) async fn join(&mut self) {
        let from = if self.chance(70) { Begin::Earliest } else { Begin::Latest };
        let (group, session) = (self.group(), self.session());
        let join = Join { group, session, member: format!("m{}", self.roll(3)), from };
        let mut answers = Vec::new();
        for side in &self.sides {
            let look = side.store.join_group(&join).await;
            answers.push(match &look {
                Ok(look) => {
                    let shares: Vec<_> =
                        look.shares.iter().map(|share| side.share(&join.group.topic, share)).collect();
                    Ok((look.members.clone(), shares, look.settings, look.paused.clone()))
                }
                Err(error) => Err(without_numbers(error)),
            });
        }
        self.same(&format!("{join:?}"), answers);
    }

    pub(super) async fn leave(&mut self) {
        let (group, session) = (self.group(), self.session());
        for side in &self.sides {
            side.store.leave_group(&group, &session).await.expect("leave_group");
        }
    }

    pub(super) async fn take(&mut self) {
        let (group, session) = (self.group(), self.session());
        let mut wanted = Vec::new();
        for slot in 0..self.slots(&group.topic) {
            if self.chance(60) {
                wanted.push((slot, u64::from(self.chance(5))));
            }
        }
        let mut answers = Vec::new();
        for side in &self.sides {
            let Some(look) = side.store.look_group(&group).await.expect("look_group") else { continue };
            let seen = |(slot, off): &(u32, u64)| {
                (*slot, side.token(look.shares[*slot as usize].token.grant() + off))
            };
            let slots = wanted.iter().map(seen).collect();
            let take = TakeShares { group: group.clone(), session: session.clone(), slots };
            let mut taken = side.store.take_shares(&take).await.expect("take_shares");
            taken.sort_by_key(|it| it.slot);
            for it in &mut taken {
                side.keep_kept(&group.topic, &mut it.done).await;
            }
            answers.push(taken.iter().map(|it| side.taken(&group.topic, it)).collect::<Vec<_>>());
        }
        if !answers.is_empty() {
            self.same(&format!("take of {wanted:?} in {group}"), answers);
        }
    }

    pub(super) async fn free(&mut self) {
        let group = self.group();
        let slot = u32::try_from(self.roll(self.slots(&group.topic).into())).expect("small");
        for side in &self.sides {
            let Some(look) = side.store.look_group(&group).await.expect("look_group") else { return };
            let token = look.shares[slot as usize].token;
            side.store.free_shares(&group, &[(slot, token)]).await.expect("free_shares");
        }
    }

    /// Says something about a share: mostly who has it, as it is.
    pub(super) async fn commit(&mut self) {
        if self.chance(30) {
            return self.commit_positions().await;
        }
        let group = self.group();
        let slot = u32::try_from(self.roll(self.slots(&group.topic).into())).expect("small");
        let Some(look) = self.sides[1].store.look_group(&group).await.expect("look_group") else { return };
        let mut share = look.shares[slot as usize].clone();
        if share.holder.is_none() && self.chance(70) {
            let held = look.shares.iter().find(|share| share.holder.is_some());
            share = held.cloned().unwrap_or(share);
        }
        let rank = self.sides[1].rank(&group.topic, share.slot, share.position);
        let (mut unread, mut asides) = (Vec::new(), Vec::new());
        for side in &self.sides {
            let after = side.position(&group.topic, share.slot, rank);
            unread.push(side.read(&group.topic, share.slot, after).await);
            let filter = AsideFilter { slot: Some(share.slot), ..everything(&group) };
            asides.push(side.store.aside(&filter).await.expect("aside"));
        }
        let told = |n: usize| {
            let side = &self.sides[n];
            unread[n].iter().map(|event| side.event(&group.topic, event)).collect::<Vec<_>>()
        };
        self.same(&format!("read of {group} {}", share.slot), vec![told(0), told(1)]);
        let draft = self.commit_draft(unread[0].len(), asides[0].len());
        let grant = share.token.grant() + u64::from(self.chance(6));
        let mut answers = Vec::new();
        for (n, side) in self.sides.iter().enumerate() {
            let commit = ShareCommit {
                group: group.clone(),
                slot: share.slot,
                token: side.token(grant),
                position: draft.upto.map(|place| unread[n][place].position),
                done: draft.done.iter().map(|place| mark(&unread[n][*place])).collect(),
                set_aside: draft
                    .set_aside
                    .iter()
                    .map(|(place, how)| set_aside(&unread[n][*place], how))
                    .collect(),
                settled: draft
                    .settled
                    .iter()
                    .map(|(n_th, how)| (asides[n][*n_th].event.id, how.clone()))
                    .collect(),
            };
            answers.push(side.store.commit_shares(&[commit]).await.map_err(|error| error.message));
        }
        self.same(&format!("commit of {draft:?} to {group} {}", share.slot), answers);
    }

    /// How far several shares are read, in one call: each counts for itself.
    async fn commit_positions(&mut self) {
        let group = self.group();
        let Some(look) = self.sides[1].store.look_group(&group).await.expect("look_group") else { return };
        let mut drafts = Vec::new();
        for share in &look.shares {
            let units = self.sides[1].units.get(&(group.topic.clone(), share.slot)).map_or(0, BTreeSet::len);
            let rank = self.roll(units as u64 + 1) as usize;
            if self.chance(70) {
                drafts.push((share.slot, share.token.grant() + u64::from(self.chance(10)), rank));
            }
        }
        let mut answers = Vec::new();
        for side in &self.sides {
            let commit = |(slot, grant, rank): &(u32, u64, usize)| ShareCommit {
                group: group.clone(),
                slot: *slot,
                token: side.token(*grant),
                position: Some(side.position(&group.topic, *slot, *rank)),
                done: Vec::new(),
                set_aside: Vec::new(),
                settled: Vec::new(),
            };
            let commits: Vec<_> = drafts.iter().map(commit).collect();
            answers.push(side.store.commit_shares(&commits).await.map_err(|error| error.message));
        }
        self.same(&format!("commits of {drafts:?} to {group}"), answers);
    }

    fn commit_draft(&mut self, unread: usize, asides: usize) -> CommitDraft {
        let upto = (unread > 0 && self.chance(60)).then(|| self.roll(unread as u64) as usize);
        let mut draft = CommitDraft { upto, ..CommitDraft::default() };
        for place in 0..unread.min(6) {
            match self.roll(10) {
                0..2 => draft.done.push(place),
                2..4 => {
                    let how = self.how(true);
                    draft.set_aside.push((place, how));
                }
                _ => {}
            }
        }
        for place in 0..asides.min(6) {
            if self.chance(25) {
                let how = self.how(false);
                draft.settled.push((place, how));
            }
        }
        // One that is unread and aside already, for it was said so before, is named once.
        if !draft.set_aside.is_empty() || !draft.done.is_empty() {
            draft.settled.clear();
        }
        draft
    }

    fn how(&mut self, new: bool) -> Aside {
        let attempts = 1 + u32::try_from(self.roll(5)).expect("small");
        let error = format!("e{}", self.roll(3));
        match self.roll(4) {
            0 if new => Aside::Behind,
            0 => Aside::Done,
            1 => Aside::Dead { attempts, error },
            2 => Aside::Retry { attempts, after_ms: 0, error },
            _ => Aside::Retry { attempts, after_ms: HOUR_MS, error },
        }
    }
}

/// What is said about a share on both sides: places of events that are unread, and of those that are aside.
#[derive(Debug, Default)]
struct CommitDraft {
    upto: Option<usize>,
    done: Vec<usize>,
    set_aside: Vec<(usize, Aside)>,
    settled: Vec<(usize, Aside)>,
}

fn mark(event: &Event) -> (EventId, Position) {
    (event.id, event.position)
}

fn set_aside(event: &Event, how: &Aside) -> SetAside {
    SetAside { event: event.id, position: event.position, how: how.clone() }
}
