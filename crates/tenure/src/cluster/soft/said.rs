//! What members say to each other about singletons, as entries of gossip.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tenure_core::Name;
use tenure_core::cluster::{decoded, encoded};
use tenure_core::port::StoreError;

use crate::Error;
use crate::backend::gossip::{Entry, Gossip};

/// Where claims to names are.
pub(super) const NAME: &str = "tenure/name/";
/// What a member offers to run.
pub(super) const OFFERS: &str = "tenure/offers";
/// What a member runs.
pub(super) const RUN: &str = "tenure/run/";
/// What a member leaves to who runs it next.
pub(super) const HAND: &str = "tenure/hand/";

/// The longest part of a state in one entry: there are 8 KiB for each.
const PART: usize = 6000;

/// What a member offers to run, and how much it counts for.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Offers {
    pub(super) capacity: u32,
    pub(super) offers: Vec<String>,
}

/// A singleton runs at a member: the how-manieth time, as far as that knows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Runs {
    pub(super) number: u64,
    pub(super) since_ms: i64,
}

/// A part of what a run left.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    number: u64,
    parts: usize,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    state: String,
}

/// What a run left, at a member.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) number: u64,
    pub(super) state: Option<Vec<u8>>,
}

/// Says something under one of Tenure's own keys.
pub(super) async fn say(gossip: &Gossip, key: &str, what: &impl Serialize) -> Result<(), Error> {
    // Plain data structures, which can not fail to serialize.
    let text = serde_json::to_string(what).unwrap_or_default();
    Ok(gossip.shared().put(key, &text).await?)
}

/// Says it no longer.
pub(super) async fn hush(gossip: &Gossip, key: &str) -> Result<(), Error> {
    Ok(gossip.shared().remove(key).await?)
}

/// What an entry says; what is not understood, of a later version perhaps, is not heard.
pub(super) fn heard<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_str(&entry.value).ok()
}

/// Leaves a state, or nothing, to who runs the singleton next.
pub(super) async fn leave(gossip: &Gossip, name: &Name, left: &Left) -> Result<(), StoreError> {
    let text = left.state.as_ref().map(|state| encoded(state)).unwrap_or_default();
    let some = left.state.is_some();
    let parts: Vec<&[u8]> =
        if some && text.is_empty() { vec![&[][..]] } else { text.as_bytes().chunks(PART).collect() };
    for (at, part) in parts.iter().enumerate() {
        let state = String::from_utf8_lossy(part).into_owned();
        put(gossip, &format!("{HAND}{name}/{}", at + 1), left.number, parts.len(), state).await?;
    }
    // The head last: who sees it sees the parts, too.
    put(gossip, &format!("{HAND}{name}/0"), left.number, parts.len(), String::new()).await
}

async fn put(gossip: &Gossip, key: &str, number: u64, parts: usize, state: String) -> Result<(), StoreError> {
    let text = serde_json::to_string(&Part { number, parts, state }).unwrap_or_default();
    gossip.shared().put(key, &text).await
}

/// Leaves it no longer.
pub(super) async fn forget(gossip: &Gossip, name: &Name) {
    let prefix = format!("{HAND}{name}/");
    let mine = gossip.entries(&prefix).into_iter().filter(|entry| entry.member.id == gossip.id());
    for entry in mine {
        // A member that has left says nothing any more.
        let _ = hush(gossip, &entry.key).await;
    }
}

/// What was left for who runs a singleton next, by the last one that ran it.
pub(super) fn left(gossip: &Gossip, name: &Name) -> Option<Left> {
    let prefix = format!("{HAND}{name}/");
    let entries = gossip.entries(&prefix);
    let part = |entry: &Entry| heard::<Part>(entry);
    let heads = entries.iter().filter(|entry| entry.key.ends_with("/0"));
    let (head, entry) =
        heads.filter_map(|entry| Some((part(entry)?, entry))).max_by_key(|(head, _)| head.number)?;
    if head.parts == 0 {
        return Some(Left { number: head.number, state: None });
    }
    let of = |at: usize| {
        let key = format!("{prefix}{at}");
        let found = entries.iter().find(|other| other.key == key && other.member.id == entry.member.id)?;
        part(found).filter(|part| part.number == head.number).map(|part| part.state)
    };
    let text: String = (1..=head.parts).map(of).collect::<Option<Vec<_>>>()?.concat();
    Some(Left { number: head.number, state: decoded(&text) })
}

/// The greatest number of any run that is known.
pub(super) fn last_number(gossip: &Gossip, name: &Name) -> u64 {
    let runs = gossip.entries(&format!("{RUN}{name}"));
    let runs = runs.iter().filter(|entry| entry.key == format!("{RUN}{name}"));
    let numbers = runs.filter_map(heard::<Runs>).map(|runs| runs.number);
    numbers.chain(left(gossip, name).map(|left| left.number)).max().unwrap_or_default()
}
