//! Messages of the etcd JSON gateway: 64-bit numbers are strings, bytes are base64.

use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};

/// A transaction: runs `success` if all comparisons hold, otherwise `failure`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Txn {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<Op>,
    pub(super) failure: Vec<Op>,
}

/// A condition of a transaction.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Compare {
    key: String,
    result: &'static str,
    target: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    mod_revision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    create_revision: Option<String>,
}

impl Compare {
    /// The key was last changed at this revision; 0 means that it does not exist.
    pub(super) fn unchanged(key: &str, revision: i64) -> Compare {
        let mod_revision = Some(revision.to_string());
        Compare { key: encoded(key), result: "EQUAL", target: "MOD", mod_revision, create_revision: None }
    }

    /// The key exists.
    pub(super) fn exists(key: &str) -> Compare {
        let create_revision = Some("0".into());
        Compare {
            key: encoded(key),
            result: "GREATER",
            target: "CREATE",
            mod_revision: None,
            create_revision,
        }
    }
}

/// An operation of a transaction.
#[derive(Clone, Debug, Serialize)]
pub(super) enum Op {
    /// Read keys.
    #[serde(rename = "request_range")]
    Range(Range),
    /// Write a key.
    #[serde(rename = "request_put")]
    Put(Put),
    /// Delete keys.
    #[serde(rename = "request_delete_range")]
    Delete(Range),
}

/// A key, or all keys with a prefix.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Range {
    pub(super) key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) range_end: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
}

impl Range {
    pub(super) fn one(key: &str) -> Range {
        Range { key: encoded(key), range_end: None, revision: None }
    }

    pub(super) fn below(prefix: &str) -> Range {
        // All prefixes end with a slash; the next character ends the range.
        let end = format!("{}0", prefix.strip_suffix('/').unwrap_or(prefix));
        Range { key: encoded(prefix), range_end: Some(encoded(&end)), revision: None }
    }

    /// The range as of a revision; 0 means the current one.
    pub(super) fn at(&self, revision: i64) -> Range {
        Range { revision: (revision > 0).then(|| revision.to_string()), ..self.clone() }
    }
}

/// A key and its new value.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Put {
    key: String,
    value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
}

impl Put {
    pub(super) fn new(key: &str, value: &impl Serialize, lease: Option<i64>) -> Put {
        // The port types are plain data; serialization cannot fail.
        let value = serde_json::to_vec(value).unwrap_or_default();
        Put { key: encoded(key), value: STANDARD.encode(value), lease: lease.map(|lease| lease.to_string()) }
    }
}

/// Response to a transaction.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct TxnAnswer {
    pub(super) header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    responses: Vec<Response>,
}

impl TxnAnswer {
    /// Results of the reads, in order.
    pub(super) fn reads(self) -> impl Iterator<Item = Vec<Kv>> {
        self.responses.into_iter().filter_map(|response| response.response_range).map(|range| range.kvs)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Header {
    #[serde(default, deserialize_with = "number")]
    pub(super) cluster_id: u64,
    #[serde(default, deserialize_with = "number")]
    pub(super) revision: i64,
}

#[derive(Clone, Debug, Deserialize)]
struct Response {
    response_range: Option<RangeAnswer>,
}

#[derive(Clone, Debug, Deserialize)]
struct RangeAnswer {
    #[serde(default)]
    kvs: Vec<Kv>,
}

/// A key and its value.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Kv {
    #[serde(default, deserialize_with = "text")]
    pub(super) key: String,
    #[serde(default, deserialize_with = "text")]
    pub(super) value: String,
    #[serde(default, deserialize_with = "number")]
    pub(super) mod_revision: i64,
    #[serde(default, deserialize_with = "number")]
    pub(super) lease: i64,
}

/// An etcd lease.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LeaseAnswer {
    #[serde(rename = "ID", default, deserialize_with = "number")]
    pub(super) id: i64,
}

/// One message of a watch stream.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WatchMessage {
    pub(super) result: Option<WatchAnswer>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct WatchAnswer {
    #[serde(default)]
    pub(super) canceled: bool,
    #[serde(default)]
    pub(super) events: Vec<WatchEvent>,
}

/// A change of a watched key.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct WatchEvent {
    /// `DELETE`, or empty for a write.
    #[serde(rename = "type", default)]
    pub(super) kind: String,
    pub(super) kv: Kv,
    pub(super) prev_kv: Option<Kv>,
}

/// Status of a member.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Status {
    pub(super) version: String,
    #[serde(rename = "dbSize", default, deserialize_with = "number")]
    pub(super) db_size: u64,
    #[serde(default, deserialize_with = "number")]
    pub(super) leader: u64,
}

/// An error of the gateway. Some versions fill both text fields.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Problem {
    #[serde(default)]
    pub(super) code: u32,
    #[serde(default)]
    message: String,
    #[serde(default)]
    error: String,
}

impl Problem {
    /// Keep the beginning of a plain-text error body.
    pub(super) fn plain(body: &[u8]) -> Problem {
        let text = String::from_utf8_lossy(&body[..body.len().min(300)]).trim().to_owned();
        Problem { message: text, ..Problem::default() }
    }

    pub(super) fn message(&self) -> &str {
        if self.message.is_empty() { &self.error } else { &self.message }
    }
}

/// Encode a key for the gateway.
pub(super) fn encoded(key: &str) -> String {
    STANDARD.encode(key)
}

fn number<'de, D: Deserializer<'de>, N: FromStr>(from: D) -> Result<N, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|_| serde::de::Error::custom(format!("{text:?} is not a number")))
}

fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let encoded = String::deserialize(from)?;
    let bytes = STANDARD.decode(encoded).map_err(serde::de::Error::custom)?;
    String::from_utf8(bytes).map_err(serde::de::Error::custom)
}
