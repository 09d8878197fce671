//! Names as they are seen, and what changed since.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::is_reserved;
use crate::port::ElectionView;
use crate::{Name, SessionId, Token};

/// Who has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NameView {
    /// Which name.
    pub name: Name,
    /// What people call the process that has it.
    pub holder: String,
    /// Its session, or its identity among the members that gossip.
    pub session: SessionId,
    /// Under which token; none where nobody promises that there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// What it said of itself.
    pub metadata: BTreeMap<String, String>,
    /// Since when, by the store's or the holder's wall clock; for people.
    pub since_ms: Option<i64>,
}

impl NameView {
    /// The name that an election of a registry stands for; `None` while nobody has it.
    pub fn of(election: &ElectionView) -> Option<NameView> {
        if is_reserved(&election.key.name) {
            return None;
        }
        let (lease, holder) = election.holders().next()?;
        let candidate = election.candidate(&holder.id);
        let mut metadata = candidate.map(|candidate| candidate.metadata.clone()).unwrap_or_default();
        metadata.retain(|key, _| !key.starts_with("tenure."));
        Some(NameView {
            name: election.key.name.clone(),
            holder: candidate.map_or_else(|| holder.name.clone(), |candidate| candidate.id.clone()),
            session: holder.id.clone(),
            token: Some(lease.token),
            metadata,
            since_ms: lease.granted_at_ms,
        })
    }
}

/// Something changed about a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
#[non_exhaustive]
pub enum NameChange {
    /// Somebody has it who did not.
    Registered(NameView),
    /// Who has it says something else about itself.
    Updated(NameView),
    /// Somebody else has it.
    Moved {
        /// What people call the process that had it.
        from: String,
        /// Who has it now.
        #[serde(flatten)]
        to: NameView,
    },
    /// Nobody has it any more. As it was.
    Unregistered(NameView),
}

impl NameChange {
    /// Which name.
    pub fn name(&self) -> &Name {
        match self {
            NameChange::Registered(view) | NameChange::Updated(view) | NameChange::Unregistered(view) => {
                &view.name
            }
            NameChange::Moved { to, .. } => &to.name,
        }
    }
}

/// What changed between two looks, in the order of names.
///
/// What came and went between the two is not told, as it was not seen.
pub fn changes(before: &BTreeMap<Name, NameView>, after: &BTreeMap<Name, NameView>) -> Vec<NameChange> {
    let mut changes = Vec::new();
    for (name, view) in after {
        match before.get(name) {
            None => changes.push(NameChange::Registered(view.clone())),
            Some(was) if (&was.session, was.token) != (&view.session, view.token) => {
                changes.push(NameChange::Moved { from: was.holder.clone(), to: view.clone() });
            }
            Some(was) if was.metadata != view.metadata => changes.push(NameChange::Updated(view.clone())),
            Some(_) => {}
        }
    }
    let gone = before.iter().filter(|(name, _)| !after.contains_key(*name));
    changes.extend(gone.map(|(_, view)| NameChange::Unregistered(view.clone())));
    changes.sort_by(|a, b| a.name().cmp(b.name()));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(name: &str, session: &str, token: u64) -> (Name, NameView) {
        let name: Name = name.parse().unwrap();
        let view = NameView {
            name: name.clone(),
            holder: session.into(),
            session: SessionId::from_stored(session),
            token: Some(Token::from_u64(token)),
            metadata: BTreeMap::new(),
            since_ms: None,
        };
        (name, view)
    }

    #[test]
    fn each_change_is_told_once_and_in_order() {
        let before =
            BTreeMap::from([view("a", "x", 1), view("b", "x", 2), view("c", "x", 3), view("d", "x", 4)]);
        let mut after =
            BTreeMap::from([view("b", "y", 5), view("c", "x", 3), view("d", "x", 9), view("e", "z", 1)]);
        let c: Name = "c".parse().unwrap();
        after.get_mut(&c).unwrap().metadata.insert("zone".into(), "b".into());
        let told = changes(&before, &after);
        let words: Vec<String> = told
            .iter()
            .map(|change| match change {
                NameChange::Registered(view) => format!("+{}", view.name),
                NameChange::Updated(view) => format!("~{}", view.name),
                NameChange::Moved { from, to } => format!("{from}>{} {}", to.holder, to.name),
                NameChange::Unregistered(view) => format!("-{}", view.name),
            })
            .collect();
        assert_eq!(words, ["-a", "x>y b", "~c", "x>x d", "+e"]);
        assert!(changes(&after, &after).is_empty());
    }
}
