//! What an operator may want of an election: that somebody else leads it, a certain somebody, or nobody for now.
//!
//! Nothing here makes a leader stop: it is asked to, finishes, and gives its lease back. [`Asked::is_done`] tells from a
//! later look whether it has.

use tenure_core::election::may_lead;
use tenure_core::port::{Ask, AskKind, CandidateView, Directory, ElectionView, Pause, Store, StoreError};
use tenure_core::{ElectionKey, SessionId};

/// What an operator asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// That these terms end and others begin.
    Resign(Vec<Ask>),
    /// That this session leads.
    Transfer(SessionId),
    /// That nobody leads.
    Pause,
}

/// Why an operator's wish was refused. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is nobody to ask.
    #[error("nobody leads {0}; it elects by itself")]
    NobodyLeads(ElectionKey),
    /// Nobody at all stands.
    #[error("nobody stands for {election}, so {to} can not lead it")]
    NobodyStands {
        /// Which election.
        election: ElectionKey,
        /// Who was to lead.
        to: String,
    },
    /// The successor does not stand.
    #[error("{to} does not stand for {election}; these do: {standing}")]
    NotStanding {
        /// Which election.
        election: ElectionKey,
        /// Who was to lead.
        to: String,
        /// Who stands.
        standing: String,
    },
    /// Several candidates go by that id.
    #[error("{to} is ambiguous; name one by its session: {found}")]
    Ambiguous {
        /// Who was to lead.
        to: String,
        /// Who goes by that id.
        found: String,
    },
    /// The successor is there, and may not lead.
    #[error("{to} may not lead {election}: {why}")]
    MayNotLead {
        /// Which election.
        election: ElectionKey,
        /// Who was to lead.
        to: String,
        /// Why not.
        why: &'static str,
    },
    /// The successor leads already.
    #[error("{to} leads {election} already")]
    LeadsAlready {
        /// Which election.
        election: ElectionKey,
        /// Who was to lead.
        to: String,
    },
    /// The store failed. Whether it was asked is unknown.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Asked {
    /// Whether it has happened, in an election as it was seen later.
    pub fn is_done(&self, now: &ElectionView) -> bool {
        match self {
            Asked::Resign(asks) => asks
                .iter()
                .all(|ask| now.leases.iter().all(|lease| lease.slot != ask.slot || lease.token > ask.token)),
            Asked::Transfer(to) => now.held_by(to).next().is_some(),
            Asked::Pause => now.holders().next().is_none(),
        }
    }
}

/// Asks the leaders of an election to resign, or the one of this slot.
pub async fn resign(
    store: &(impl Store + ?Sized),
    election: &ElectionView,
    slot: Option<u32>,
    by: &str,
) -> Result<Asked, Refusal> {
    let mut asked = Vec::new();
    for (lease, _) in election.holders().filter(|(lease, _)| slot.is_none_or(|slot| slot == lease.slot)) {
        let ask = Ask {
            election: election.key.clone(),
            slot: lease.slot,
            token: lease.token,
            kind: AskKind::Resign,
            by: by.into(),
        };
        if store.ask(&ask).await? {
            asked.push(ask);
        }
    }
    if asked.is_empty() { Err(Refusal::NobodyLeads(election.key.clone())) } else { Ok(Asked::Resign(asked)) }
}

/// Asks the leader to hand over to a candidate: an id, or a session or its beginning. Of several leaders, the least
/// makes way.
pub async fn transfer(
    store: &(impl Store + ?Sized),
    election: &ElectionView,
    to: &str,
    by: &str,
) -> Result<Asked, Refusal> {
    let target = &candidate(election, to)?.session.id;
    if election.held_by(target).next().is_some() {
        return Err(Refusal::LeadsAlready { election: election.key.clone(), to: to.into() });
    }
    let priority = |session: &SessionId| election.candidate(session).map_or(i32::MIN, |c| c.priority);
    let least = election.holders().min_by_key(|(_, holder)| priority(&holder.id));
    let (lease, _) = least.ok_or_else(|| Refusal::NobodyLeads(election.key.clone()))?;
    let ask = Ask {
        election: election.key.clone(),
        slot: lease.slot,
        token: lease.token,
        kind: AskKind::Transfer(target.clone()),
        by: by.into(),
    };
    // A term that ended meanwhile: whoever leads next was not asked.
    if store.ask(&ask).await? {
        Ok(Asked::Transfer(target.clone()))
    } else {
        Err(Refusal::NobodyLeads(election.key.clone()))
    }
}

/// Lets nobody lead an election until it is resumed. `None` if it was paused already.
pub async fn pause(
    store: &(impl Directory + ?Sized),
    election: &ElectionKey,
    pause: &Pause,
) -> Result<Option<Asked>, StoreError> {
    Ok(store.set_paused(election, Some(pause)).await?.then_some(Asked::Pause))
}

/// Lets an election be led again. `false` if it was not paused.
pub async fn resume(store: &(impl Directory + ?Sized), election: &ElectionKey) -> Result<bool, StoreError> {
    store.set_paused(election, None).await
}

/// The candidate that an operator means: by id, by session, or by the beginning of its session.
pub fn candidate<'v>(election: &'v ElectionView, to: &str) -> Result<&'v CandidateView, Refusal> {
    let meant = |candidate: &&CandidateView| {
        candidate.id == to || (to.len() >= 4 && candidate.session.id.as_str().starts_with(to))
    };
    let found: Vec<_> = election.candidates.iter().filter(meant).collect();
    let named = |candidates: &[&CandidateView]| {
        let each = candidates.iter().map(|c| format!("{} ({})", c.id, c.session.id.short()));
        each.collect::<Vec<_>>().join(", ")
    };
    let (key, to) = (election.key.clone(), to.to_owned());
    match found.as_slice() {
        [candidate] if may_lead(candidate, &election.requires) => Ok(candidate),
        [candidate] => {
            let why = if candidate.observer { "it is an observer" } else { "it lacks a required capability" };
            Err(Refusal::MayNotLead { election: key, to, why })
        }
        [] if election.candidates.is_empty() => Err(Refusal::NobodyStands { election: key, to }),
        [] => {
            let all: Vec<_> = election.candidates.iter().collect();
            Err(Refusal::NotStanding { election: key, to, standing: named(&all) })
        }
        several => Err(Refusal::Ambiguous { to, found: named(several) }),
    }
}
