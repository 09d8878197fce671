//! Registered names and changes between two observations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::is_reserved;
use crate::port::ElectionView;
use crate::{Name, SessionId, Token};

/// A registered name and its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RegisteredName {
    /// The name.
    pub name: Name,
    /// Name of the process that holds it.
    pub holder: String,
    /// Session of the holder, or its member id in a soft cluster.
    pub session: SessionId,
    /// Token of the holder. `None` in a soft cluster, which does not guarantee a single holder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// Metadata of the holder.
    pub metadata: BTreeMap<String, String>,
    /// Time of registration, by the wall clock of the store or the holder. For display only.
    pub since_at_ms: Option<i64>,
}

impl RegisteredName {
    /// The registered name that an election of a registry represents. `None` if it has no holder.
    pub fn of(election: &ElectionView) -> Option<RegisteredName> {
        if is_reserved(&election.key.name) {
            return None;
        }
        let (lease, holder) = election.holders().next()?;
        let candidate = election.candidate(&holder.id);
        let mut metadata = candidate.map(|candidate| candidate.metadata.clone()).unwrap_or_default();
        metadata.retain(|key, _| !key.starts_with("tenure."));
        Some(RegisteredName {
            name: election.key.name.clone(),
            holder: candidate.map_or_else(|| holder.name.clone(), |candidate| candidate.name.clone()),
            session: holder.id.clone(),
            token: Some(lease.token),
            metadata,
            since_at_ms: lease.granted_at_ms,
        })
    }
}

/// A change of a registered name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
#[non_exhaustive]
pub enum NameChange {
    /// The name was registered.
    Registered(RegisteredName),
    /// The metadata of the holder changed.
    Updated(RegisteredName),
    /// Another process holds the name.
    Moved {
        /// Name of the previous holder.
        from: String,
        /// The new holder.
        #[serde(flatten)]
        to: RegisteredName,
    },
    /// The name was unregistered; its last state.
    Unregistered(RegisteredName),
}

impl NameChange {
    /// The name.
    pub fn name(&self) -> &Name {
        match self {
            NameChange::Registered(view) | NameChange::Updated(view) | NameChange::Unregistered(view) => {
                &view.name
            }
            NameChange::Moved { to, .. } => &to.name,
        }
    }
}

/// The changes between two observations, ordered by name.
///
/// Changes that were undone between the two observations are not visible.
pub fn changes(
    before: &BTreeMap<Name, RegisteredName>,
    after: &BTreeMap<Name, RegisteredName>,
) -> Vec<NameChange> {
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
    let removed = before.iter().filter(|(name, _)| !after.contains_key(*name));
    changes.extend(removed.map(|(_, view)| NameChange::Unregistered(view.clone())));
    changes.sort_by(|a, b| a.name().cmp(b.name()));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(name: &str, session: &str, token: u64) -> (Name, RegisteredName) {
        let name: Name = name.parse().unwrap();
        let view = RegisteredName {
            name: name.clone(),
            holder: session.into(),
            session: SessionId::from_stored(session),
            token: Some(Token::from_u64(token)),
            metadata: BTreeMap::new(),
            since_at_ms: None,
        };
        (name, view)
    }

    #[test]
    fn each_change_is_reported_once_and_in_order() {
        let before =
            BTreeMap::from([view("a", "x", 1), view("b", "x", 2), view("c", "x", 3), view("d", "x", 4)]);
        let mut after =
            BTreeMap::from([view("b", "y", 5), view("c", "x", 3), view("d", "x", 9), view("e", "z", 1)]);
        let c: Name = "c".parse().unwrap();
        after.get_mut(&c).unwrap().metadata.insert("zone".into(), "b".into());
        let reported = changes(&before, &after);
        let words: Vec<String> = reported
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
