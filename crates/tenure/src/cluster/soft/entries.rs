//! Gossip entries about names and singletons.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tenure_core::Name;
use tenure_core::port::StoreError;
use tenure_core::rules::cluster::{decoded, encoded};

use crate::Error;
use crate::store::gossip::{Gossip, GossipEntry};

/// Prefix of claims to names.
pub(super) const NAME: &str = "tenure/name/";
/// Singletons that a member offers to run.
pub(super) const OFFERS: &str = "tenure/offers";
/// Prefix of singletons that a member runs.
pub(super) const RUN: &str = "tenure/run/";
/// Prefix of handoff states.
pub(super) const HANDOFF: &str = "tenure/handoff/";

/// Maximum length of one part of a state: an entry has at most 8 KiB.
const PART: usize = 6000;

/// Singletons that a member offers to run, and its capacity.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Offers {
    pub(super) capacity: u32,
    pub(super) offers: Vec<String>,
}

/// A singleton that a member runs. The run number is one more than the highest that the member has seen.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SingletonRunEntry {
    pub(super) number: u64,
    pub(super) since_ms: i64,
}

/// One part of a handoff state.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    number: u64,
    parts: usize,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    state: String,
}

/// A handoff state published by a member.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GossipHandoff {
    pub(super) number: u64,
    pub(super) state: Option<Vec<u8>>,
}

/// Publishes an entry under one of Tenure's own keys.
pub(super) async fn publish(gossip: &Gossip, key: &str, what: &impl Serialize) -> Result<(), Error> {
    // Plain data structures always serialize.
    let text = serde_json::to_string(what).unwrap_or_default();
    Ok(gossip.shared().put(key, &text).await?)
}

/// Removes an entry.
pub(super) async fn remove(gossip: &Gossip, key: &str) -> Result<(), Error> {
    Ok(gossip.shared().remove(key).await?)
}

/// Decodes an entry. Returns `None` for an unknown format, for example of a later version.
pub(super) fn decode<T: DeserializeOwned>(entry: &GossipEntry) -> Option<T> {
    serde_json::from_str(&entry.value).ok()
}

/// Publishes a handoff state, or its absence, for the next run.
pub(super) async fn publish_handoff(
    gossip: &Gossip,
    name: &Name,
    handoff: &GossipHandoff,
) -> Result<(), StoreError> {
    let text = handoff.state.as_ref().map(|state| encoded(state)).unwrap_or_default();
    let some = handoff.state.is_some();
    let parts: Vec<&[u8]> =
        if some && text.is_empty() { vec![&[][..]] } else { text.as_bytes().chunks(PART).collect() };
    for (at, part) in parts.iter().enumerate() {
        let state = String::from_utf8_lossy(part).into_owned();
        put(gossip, &format!("{HANDOFF}{name}/{}", at + 1), handoff.number, parts.len(), state).await?;
    }
    // The header goes last: a member that sees it sees the parts, too.
    put(gossip, &format!("{HANDOFF}{name}/0"), handoff.number, parts.len(), String::new()).await
}

async fn put(gossip: &Gossip, key: &str, number: u64, parts: usize, state: String) -> Result<(), StoreError> {
    let text = serde_json::to_string(&Part { number, parts, state }).unwrap_or_default();
    gossip.shared().put(key, &text).await
}

/// Removes a handoff state.
pub(super) async fn remove_handoff(gossip: &Gossip, name: &Name) {
    let prefix = format!("{HANDOFF}{name}/");
    let own = gossip.entries(&prefix).into_iter().filter(|entry| entry.member.id == gossip.id());
    for entry in own {
        // A member that has left has no entries.
        let _ = remove(gossip, &entry.key).await;
    }
}

/// The handoff state of the last run of a singleton.
pub(super) fn handoff(gossip: &Gossip, name: &Name) -> Option<GossipHandoff> {
    let prefix = format!("{HANDOFF}{name}/");
    let entries = gossip.entries(&prefix);
    let part = |entry: &GossipEntry| decode::<Part>(entry);
    let heads = entries.iter().filter(|entry| entry.key.ends_with("/0"));
    let (head, entry) =
        heads.filter_map(|entry| Some((part(entry)?, entry))).max_by_key(|(head, _)| head.number)?;
    if head.parts == 0 {
        return Some(GossipHandoff { number: head.number, state: None });
    }
    let of = |at: usize| {
        let key = format!("{prefix}{at}");
        let found = entries.iter().find(|other| other.key == key && other.member.id == entry.member.id)?;
        part(found).filter(|part| part.number == head.number).map(|part| part.state)
    };
    let text: String = (1..=head.parts).map(of).collect::<Option<Vec<_>>>()?.concat();
    Some(GossipHandoff { number: head.number, state: decoded(&text) })
}

/// The highest known run number.
pub(super) fn last_number(gossip: &Gossip, name: &Name) -> u64 {
    let runs = gossip.entries(&format!("{RUN}{name}"));
    let runs = runs.iter().filter(|entry| entry.key == format!("{RUN}{name}"));
    let numbers = runs.filter_map(decode::<SingletonRunEntry>).map(|runs| runs.number);
    numbers.chain(handoff(gossip, name).map(|handoff| handoff.number)).max().unwrap_or_default()
}
