//! Who keeps a name that several have.
//!
//! Two sides of a netsplit register the same name without hearing of each other; when they meet, each sees both claims, and decides
//! by this for itself: all who see the same claims come to the same end. Two rules need a word between them, a [`Ruling`]. Where both
//! are to stop, whoever sees it first says so, since the other may see only that the first has gone. Where a rule of the user's is to
//! decide, the lowest asks it, once, and the others wait for what it says.

use super::{Claim, ClaimId, NameMap, Ruling, Which};
use crate::Name;

/// How a name that several claim is settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resolver {
    /// The member whose name is the lower keeps it.
    KeepLower,
    /// Who registered first keeps it, by the members' wall clocks; of equals, the lower.
    #[default]
    KeepOlder,
    /// Nobody keeps it: all who have it stop, and whoever registers it next has it.
    StopBoth,
    /// A rule of your own. The lowest of those who have it is asked, once, and says it to the others.
    Ask,
}

impl Resolver {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Resolver::KeepLower => "keep lower",
            Resolver::KeepOlder => "keep older",
            Resolver::StopBoth => "stop both",
            Resolver::Ask => "ask",
        }
    }
}

/// What a member has to do about its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: nobody else claims the name, or it is this member's to keep.
    Keep,
    /// It is another's, or, where there is none, nobody's.
    GiveUp {
        /// Who keeps it.
        kept_by: Option<ClaimId>,
    },
    /// To say this, and to give it up.
    StopAll(Ruling),
    /// To ask the user's rule about these claims, the lowest first, and to say what came of it.
    Ask(Vec<Which>),
    /// Another asks.
    Wait,
}

/// What the member `me` has to do about its claim to a name, given what was heard and who lives.
pub fn settle(
    resolver: Resolver,
    map: &NameMap,
    name: &Name,
    me: &ClaimId,
    lives: impl Fn(&ClaimId) -> bool + Copy,
) -> Verdict {
    let claims: Vec<Which> = map.claims(name, lives).map(which).collect();
    let Some(mine) = claims.iter().find(|claim| claim.by == *me).cloned() else {
        return Verdict::GiveUp { kept_by: None };
    };
    let mine = &mine;
    let about_mine = || map.rulings(name, lives).filter(|ruling| ruling.of.contains(mine));
    if let Some(ruling) = about_mine().find(|ruling| ruling.keep.as_ref() != Some(mine)) {
        return Verdict::GiveUp { kept_by: ruling.keep.as_ref().map(|kept| kept.by.clone()) };
    }
    if claims.len() == 1 {
        return Verdict::Keep;
    }
    let best = match resolver {
        Resolver::KeepLower => claims.iter().min_by_key(|claim| &claim.by),
        Resolver::KeepOlder => claims.iter().min_by_key(|claim| (claim.since_ms, &claim.by)),
        Resolver::StopBoth => return Verdict::StopAll(Ruling { keep: None, of: claims }),
        Resolver::Ask => return asked(&claims, mine, about_mine()),
    };
    match best {
        Some(best) if best != mine => Verdict::GiveUp { kept_by: Some(best.by.clone()) },
        _ => Verdict::Keep,
    }
}

fn asked<'r>(claims: &[Which], mine: &Which, mut rulings: impl Iterator<Item = &'r Ruling>) -> Verdict {
    let settled = rulings.any(|ruling| claims.iter().all(|claim| ruling.of.contains(claim)));
    match claims.iter().min() {
        // It stands, and the others are about to hear of it.
        _ if settled => Verdict::Keep,
        Some(first) if first == mine => Verdict::Ask(claims.to_vec()),
        _ => Verdict::Wait,
    }
}

/// Who has a name, for those who only look. While a conflict is not settled, whoever the rule would keep, or the lowest.
pub fn holder<'m>(
    resolver: Resolver,
    map: &'m NameMap,
    name: &Name,
    lives: impl Fn(&ClaimId) -> bool + Copy + 'm,
) -> Option<(&'m ClaimId, &'m Claim)> {
    map.claims(name, lives).min_by_key(|(by, claim)| match resolver {
        Resolver::KeepOlder => (claim.since_ms, *by),
        _ => (0, *by),
    })
}

fn which((by, claim): (&ClaimId, &Claim)) -> Which {
    Which { by: by.clone(), since_ms: claim.since_ms }
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
