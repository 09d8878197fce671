//! Assignment of partitions to the members of a group.

use std::collections::BTreeMap;

use crate::port::{GroupAssignment, GroupMember, PartitionLease};
use crate::{SessionId, Token};

/// How long a group that was empty keeps partitions free for their previous members, in milliseconds.
pub const REBALANCE_DELAY_MS: u64 = 3_000;

/// What a member must do about its partitions. Partitions are ordered by number and carry their observed tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebalancePlan {
    /// Partitions to release after the events already read are finished.
    pub release: Vec<(u32, Token)>,
    /// Free partitions to take.
    pub take: Vec<(u32, Token)>,
    /// Partitions to take once another member releases them or dies.
    pub awaited: Vec<u32>,
    /// When to plan again, in milliseconds, because partitions are being kept for members that may return.
    pub replan_in_ms: Option<u64>,
}

impl RebalancePlan {
    /// Whether there is nothing to do and nothing to wait for.
    pub fn is_settled(&self) -> bool {
        *self == RebalancePlan::default()
    }
}

/// Plans what the member of this session must do so that the partitions are distributed evenly.
///
/// Every member plans for itself from what it observes; there is no coordinator. Members with equal observations
/// compute the same assignment. Each partition changes hands by compare-and-swap, and planning again after a partly
/// executed plan leads to the same result. The order in which members act does not matter, and outdated observations
/// are harmless.
///
/// - *Even*: no member has two partitions more than another.
/// - *Minimal*: a member with at most its share keeps all its partitions; a member with more releases only the
///   excess.
/// - *Sticky*: a free partition returns to the member name that held it last, as far as that member has room.
/// - *Delayed*: in the first [`REBALANCE_DELAY_MS`] after a group was empty, partitions of absent member names stay
///   free. When all members restart, each gets its partitions back, in whatever order they start.
///
/// ```
/// use tenure_core::rules::event::plan_rebalance;
/// use tenure_core::port::{GroupAssignment, GroupMember, GroupSettings, PartitionLease};
/// use tenure_core::{SessionId, Token};
///
/// let session = |id: &str| SessionId::from_stored(id);
/// let member = |id: &str| GroupMember { session: session(id), name: id.into() };
/// let lease = |partition| PartitionLease {
///     partition,
///     token: Token::from_u64(1),
///     holder: Some(session("a")),
///     last_member: "a".into(),
///     committed_offset: 0,
/// };
/// let group = GroupAssignment {
///     members: vec![member("a"), member("b")],
///     partition_leases: (0..4).map(lease).collect(),
///     settings: GroupSettings::default(),
///     paused: None,
///     active_ms: 60_000,
/// };
/// assert_eq!(plan_rebalance(&group, &session("a")).release, [(2, Token::from_u64(1)), (3, Token::from_u64(1))]);
/// assert_eq!(plan_rebalance(&group, &session("b")).awaited, [2, 3]);
/// ```
pub fn plan_rebalance(assignment: &GroupAssignment, me: &SessionId) -> RebalancePlan {
    let members = ranked(&assignment.members);
    let my_index = members.iter().position(|member| member.session == *me);
    let delayed = assignment.active_ms < REBALANCE_DELAY_MS;
    let plan = PartitionAssignment::of(&members, &assignment.partition_leases, delayed);
    let mut balance = RebalancePlan::default();
    for (lease, owner) in assignment.partition_leases.iter().zip(&plan.owners) {
        let (mine, held) = (my_index.is_some() && *owner == my_index, lease.holder.as_ref());
        match held {
            Some(holder) if holder == me && !mine => balance.release.push((lease.partition, lease.token)),
            Some(holder) if holder != me && mine => balance.awaited.push(lease.partition),
            None if mine => balance.take.push((lease.partition, lease.token)),
            _ => {}
        }
    }
    if plan.left > 0 && my_index.is_some() {
        balance.replan_in_ms = Some(REBALANCE_DELAY_MS - assignment.active_ms);
    }
    balance
}

/// The members in a deterministic order: by name, which survives a restart, then by session.
fn ranked(members: &[GroupMember]) -> Vec<&GroupMember> {
    let mut ranked: Vec<&GroupMember> = members.iter().collect();
    ranked.sort_by(|a, b| (&a.name, &a.session).cmp(&(&b.name, &b.session)));
    ranked.dedup_by(|a, b| a.session == b.session);
    ranked
}

/// The target owner of each partition.
struct PartitionAssignment {
    /// Index of the owning member, in the order of the leases. `None` if the partition is kept for an absent member
    /// or the group has no members.
    owners: Vec<Option<usize>>,
    /// Number of partitions kept for absent members.
    left: usize,
}

impl PartitionAssignment {
    fn of(members: &[&GroupMember], leases: &[PartitionLease], delayed: bool) -> PartitionAssignment {
        let preferences = preferences(members, leases);
        let quotas = quotas(&preferences, leases.len());
        let mut owners: Vec<Option<usize>> = vec![None; leases.len()];
        let mut loads = vec![0; members.len()];
        for (index, preference) in preferences.iter().enumerate() {
            // Cut the excess from the end, where the free partitions are, so that a release does not change the plan.
            for lease in preference.iter().take(quotas[index]) {
                owners[*lease] = Some(index);
                loads[index] += 1;
            }
        }
        let mut left = 0;
        for (lease, owner) in leases.iter().zip(&mut owners) {
            if owner.is_some() {
                continue;
            }
            let known = |name: &str| members.iter().any(|member| member.name == name);
            if delayed
                && lease.holder.is_none()
                && !lease.last_member.is_empty()
                && !known(&lease.last_member)
            {
                left += 1;
                continue;
            }
            let room = (0..members.len()).filter(|index| loads[*index] < quotas[*index]);
            if let Some(index) = room.min_by_key(|index| (loads[*index], *index)) {
                *owner = Some(index);
                loads[index] += 1;
            }
        }
        PartitionAssignment { owners, left }
    }
}

/// The partitions that each member would keep: those it holds, then free ones last held under its name. If a name
/// occurs twice, the member with fewer partitions gets them.
fn preferences(members: &[&GroupMember], leases: &[PartitionLease]) -> Vec<Vec<usize>> {
    let by_session: BTreeMap<&SessionId, usize> =
        members.iter().enumerate().map(|(index, member)| (&member.session, index)).collect();
    let mut preferences: Vec<Vec<usize>> = vec![Vec::new(); members.len()];
    for (i, lease) in leases.iter().enumerate() {
        if let Some(index) = lease.holder.as_ref().and_then(|holder| by_session.get(holder)) {
            preferences[*index].push(i);
        }
    }
    for (i, lease) in leases.iter().enumerate().filter(|(_, lease)| lease.holder.is_none()) {
        // Sorted by name, so equal names are adjacent.
        let from = members.partition_point(|member| member.name < lease.last_member);
        let same_name = (from..members.len()).take_while(|index| members[*index].name == lease.last_member);
        if let Some(index) = same_name.min_by_key(|index| (preferences[*index].len(), *index)) {
            preferences[index].push(i);
        }
    }
    preferences
}

/// The number of partitions of each member. If the partitions do not divide evenly, members that prefer more than their
/// share get one more, so that they need not release it; then the first members get one more. The rule does not favour
/// the member that prefers the *most*, because that member changes while partitions move.
fn quotas(preferences: &[Vec<usize>], partitions: usize) -> Vec<usize> {
    let Some(least) = partitions.checked_div(preferences.len()) else { return Vec::new() };
    let mut order: Vec<usize> = (0..preferences.len()).collect();
    order.sort_by_key(|index| (preferences[*index].len() <= least, *index));
    let mut quotas = vec![least; preferences.len()];
    for index in order.into_iter().take(partitions % preferences.len()) {
        quotas[index] += 1;
    }
    quotas
}

#[cfg(test)]
#[path = "rebalance_tests.rs"]
mod tests;
