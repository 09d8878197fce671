//! A Lease as the API server has it, word for word: what we do not know of it stays as it is.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Says what an object of ours is; it is by this label that they are found.
pub(super) const KIND: &str = "tenure.dev/kind";
pub(super) const ELECTION: &str = "election";
pub(super) const SESSION: &str = "session";

/// Says which election an object has to do with, so that a look reads no others: its [`about`](super::names::about), or one of the next two.
pub(super) const ABOUT: &str = "tenure.dev/about";
/// A session that has to do with several elections: whoever looks for one of them reads it too.
pub(super) const SEVERAL: &str = "several";
/// A session that has to do with none.
pub(super) const NONE: &str = "none";

const API_VERSION: &str = "coordination.k8s.io/v1";
const LEASE: &str = "Lease";

/// A Lease, as JSON.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Object(Value);

impl Object {
    /// A new one.
    pub(super) fn new(namespace: &str, name: &str) -> Object {
        Object(json!({
            "apiVersion": API_VERSION,
            "kind": LEASE,
            "metadata": { "name": name, "namespace": namespace },
            "spec": {},
        }))
    }

    /// As it was read, if it is one. In a list, objects do not say what they are: the list does.
    pub(super) fn read(mut value: Value) -> Option<Object> {
        if !value.is_object() {
            return None;
        }
        (value["apiVersion"], value["kind"]) = (API_VERSION.into(), LEASE.into());
        let object = Object(value);
        object.text("name").filter(|name| !name.is_empty()).is_some().then_some(object)
    }

    pub(super) fn json(&self) -> &Value {
        &self.0
    }

    fn text(&self, field: &str) -> Option<&str> {
        self.0["metadata"][field].as_str()
    }

    pub(super) fn name(&self) -> &str {
        self.text("name").unwrap_or_default()
    }

    /// What tells it from others of its name, before and after it.
    pub(super) fn uid(&self) -> &str {
        self.text("uid").unwrap_or_default()
    }

    /// Empty if it was never written.
    pub(super) fn version(&self) -> &str {
        self.text("resourceVersion").unwrap_or_default()
    }

    /// What kind of object of ours it is.
    pub(super) fn kind(&self) -> Option<&str> {
        self.0["metadata"]["labels"][KIND].as_str()
    }

    /// What it has to do with.
    pub(super) fn about(&self) -> Option<&str> {
        self.0["metadata"]["labels"][ABOUT].as_str()
    }

    /// Labels it: what it is, and what it has to do with.
    pub(super) fn set_kind(&mut self, kind: &str, about: &str) {
        let labels = self.part("labels");
        labels.insert(KIND.into(), kind.into());
        labels.insert(ABOUT.into(), about.into());
    }

    /// What an annotation says; nothing if it is not there, or makes no sense.
    pub(super) fn note<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        serde_json::from_str(self.words(key)?).ok()
    }

    /// An annotation, word for word.
    pub(super) fn words(&self, key: &str) -> Option<&str> {
        self.0["metadata"]["annotations"][key].as_str()
    }

    pub(super) fn set_words(&mut self, key: &str, words: &str) {
        self.part("annotations").insert(key.into(), words.into());
    }

    pub(super) fn set_note(&mut self, key: &str, value: &impl Serialize) {
        // What is noted are plain structs: writing them can not fail.
        self.set_words(key, &serde_json::to_string(value).unwrap_or_default());
    }

    fn part(&mut self, field: &str) -> &mut Map<String, Value> {
        let part = &mut self.0["metadata"][field];
        if !part.is_object() {
            *part = json!({});
        }
        match part {
            Value::Object(map) => map,
            _ => unreachable!("it was made one"),
        }
    }

    pub(super) fn spec(&self) -> &Value {
        &self.0["spec"]
    }

    /// Who holds it, if anybody.
    pub(super) fn holder(&self) -> Option<&str> {
        self.spec()["holderIdentity"].as_str().filter(|holder| !holder.is_empty())
    }

    /// How often it has changed hands, if it ever had an owner.
    pub(super) fn transitions(&self) -> Option<u64> {
        self.spec()["leaseTransitions"].as_u64()
    }

    pub(super) fn lease_ms(&self) -> Option<u64> {
        Some(self.spec()["leaseDurationSeconds"].as_u64()? * 1000)
    }

    /// In microseconds since 1970.
    pub(super) fn time(&self, field: &str) -> Option<i64> {
        let time: jiff::Timestamp = self.spec()[field].as_str()?.parse().ok()?;
        Some(time.as_microsecond())
    }

    pub(super) fn set_spec(&mut self, field: &str, value: impl Into<Value>) {
        if !self.0["spec"].is_object() {
            self.0["spec"] = json!({});
        }
        self.0["spec"][field] = value.into();
    }

    pub(super) fn set_time(&mut self, field: &str, micros: i64) {
        if let Ok(time) = jiff::Timestamp::from_microsecond(micros) {
            self.set_spec(field, format!("{time:.6}"));
        }
    }

    /// A time to renew it at: now, and later than it was renewed before, so that whoever looks sees that it was.
    pub(super) fn next_time(&self, wall_ms: i64) -> i64 {
        let last = self.time("renewTime").unwrap_or(i64::MIN);
        wall_ms.saturating_mul(1000).max(last.saturating_add(1))
    }
}
