//! Resolution of conflicts about a name.
//!
//! The two sides of a network split may register the same name. When the split heals, each member sees both claims and
//! decides for itself; members with the same claims reach the same decision. Two policies need a published
//! [`ConflictRuling`]. With `stop both`, the first member that sees the conflict publishes the ruling, because the
//! other member may see only that the first one has withdrawn. With a user-defined rule, the lowest member calls the
//! rule once, and the others wait for its ruling.

use super::{ConflictRuling, NameClaim, NameClaimRef, NameClaimant, NameMap};
use crate::Name;

/// How a name with several claims is resolved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConflictPolicy {
    /// The member with the lower name keeps it.
    KeepLower,
    /// The first registration by the members' wall clocks is kept; of equals, the lower member.
    #[default]
    KeepOlder,
    /// No claim is kept: all holders stop, and the next registration gets the name.
    StopBoth,
    /// A user-defined rule. The lowest member calls it once and publishes the ruling.
    UserRule,
}

impl ConflictPolicy {
    /// Name of the policy.
    pub fn as_str(self) -> &'static str {
        match self {
            ConflictPolicy::KeepLower => "keep lower",
            ConflictPolicy::KeepOlder => "keep older",
            ConflictPolicy::StopBoth => "stop both",
            ConflictPolicy::UserRule => "user rule",
        }
    }
}

/// What a member must do about its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictDecision {
    /// Keep it: there is no conflict, or this claim is kept.
    Keep,
    /// Withdraw it: another claim is kept, or none.
    GiveUp {
        /// Member whose claim is kept.
        kept_by: Option<NameClaimant>,
    },
    /// Publish this ruling and withdraw.
    StopAll(ConflictRuling),
    /// Call the user-defined rule with these claims, the lowest first, and publish the ruling.
    ApplyUserRule(Vec<NameClaimRef>),
    /// Wait for the ruling of another member.
    Wait,
}

/// What the member `me` must do about its claim, given the received entries and the live members.
pub fn resolve_conflict(
    resolver: ConflictPolicy,
    map: &NameMap,
    name: &Name,
    me: &NameClaimant,
    lives: impl Fn(&NameClaimant) -> bool + Copy,
) -> ConflictDecision {
    let claims: Vec<NameClaimRef> = map.claims(name, lives).map(which).collect();
    let Some(mine) = claims.iter().find(|claim| claim.by == *me).cloned() else {
        return ConflictDecision::GiveUp { kept_by: None };
    };
    let mine = &mine;
    let about_mine = || map.rulings(name, lives).filter(|ruling| ruling.of.contains(mine));
    if let Some(ruling) = about_mine().find(|ruling| ruling.keep.as_ref() != Some(mine)) {
        return ConflictDecision::GiveUp { kept_by: ruling.keep.as_ref().map(|kept| kept.by.clone()) };
    }
    if claims.len() == 1 {
        return ConflictDecision::Keep;
    }
    let best = match resolver {
        ConflictPolicy::KeepLower => claims.iter().min_by_key(|claim| &claim.by),
        ConflictPolicy::KeepOlder => claims.iter().min_by_key(|claim| (claim.since_ms, &claim.by)),
        ConflictPolicy::StopBoth => {
            return ConflictDecision::StopAll(ConflictRuling { keep: None, of: claims });
        }
        ConflictPolicy::UserRule => return by_user_rule(&claims, mine, about_mine()),
    };
    match best {
        Some(best) if best != mine => ConflictDecision::GiveUp { kept_by: Some(best.by.clone()) },
        _ => ConflictDecision::Keep,
    }
}

fn by_user_rule<'r>(
    claims: &[NameClaimRef],
    mine: &NameClaimRef,
    mut rulings: impl Iterator<Item = &'r ConflictRuling>,
) -> ConflictDecision {
    let settled = rulings.any(|ruling| claims.iter().all(|claim| ruling.of.contains(claim)));
    match claims.iter().min() {
        // A ruling keeps this claim; the other members will receive it.
        _ if settled => ConflictDecision::Keep,
        Some(first) if first == mine => ConflictDecision::ApplyUserRule(claims.to_vec()),
        _ => ConflictDecision::Wait,
    }
}

/// The holder of a name, for readers. During an unresolved conflict, returns the member that the policy would keep, or
/// else the lowest member.
pub fn holder<'m>(
    resolver: ConflictPolicy,
    map: &'m NameMap,
    name: &Name,
    lives: impl Fn(&NameClaimant) -> bool + Copy + 'm,
) -> Option<(&'m NameClaimant, &'m NameClaim)> {
    map.claims(name, lives).min_by_key(|(by, claim)| match resolver {
        ConflictPolicy::KeepOlder => (claim.since_ms, *by),
        _ => (0, *by),
    })
}

fn which((by, claim): (&NameClaimant, &NameClaim)) -> NameClaimRef {
    NameClaimRef { by: by.clone(), since_ms: claim.since_ms }
}

#[cfg(test)]
#[path = "conflict_tests.rs"]
mod tests;
