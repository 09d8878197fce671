//! A Lease as JSON. Unknown fields are preserved.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Label with the kind of a Tenure object; lists select by it.
pub(super) const KIND: &str = "tenure.dev/kind";
pub(super) const ELECTION: &str = "election";
pub(super) const SESSION: &str = "session";

/// Label with the election of an object, so that a read lists no others: a digest of the election's name, or one of the
/// next two values.
pub(super) const ELECTION_LABEL: &str = "tenure.dev/election-id";
/// A session that uses several elections; every read includes it.
pub(super) const SEVERAL: &str = "several";
/// A session that uses no election.
pub(super) const NONE: &str = "none";

const API_VERSION: &str = "coordination.k8s.io/v1";
const LEASE: &str = "Lease";

/// A Lease as JSON.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LeaseObject(Value);

impl LeaseObject {
    /// Create a new Lease.
    pub(super) fn new(namespace: &str, name: &str) -> LeaseObject {
        LeaseObject(json!({
            "apiVersion": API_VERSION,
            "kind": LEASE,
            "metadata": { "name": name, "namespace": namespace },
            "spec": {},
        }))
    }

    /// Read a Lease, if the value is one. Objects in a list lack `apiVersion` and `kind`, so both are set.
    pub(super) fn read(mut value: Value) -> Option<LeaseObject> {
        if !value.is_object() {
            return None;
        }
        (value["apiVersion"], value["kind"]) = (API_VERSION.into(), LEASE.into());
        let object = LeaseObject(value);
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

    /// Unique id of the object; differs from that of a deleted object of the same name.
    pub(super) fn uid(&self) -> &str {
        self.text("uid").unwrap_or_default()
    }

    /// Resource version; empty if the object was never written.
    pub(super) fn version(&self) -> &str {
        self.text("resourceVersion").unwrap_or_default()
    }

    /// Kind of the Tenure object.
    pub(super) fn kind(&self) -> Option<&str> {
        self.0["metadata"]["labels"][KIND].as_str()
    }

    /// Value of the election label.
    pub(super) fn election_label(&self) -> Option<&str> {
        self.0["metadata"]["labels"][ELECTION_LABEL].as_str()
    }

    /// Set the kind and the election label.
    pub(super) fn set_kind(&mut self, kind: &str, election_label: &str) {
        let labels = self.part("labels");
        labels.insert(KIND.into(), kind.into());
        labels.insert(ELECTION_LABEL.into(), election_label.into());
    }

    /// Decode an annotation; `None` if it is missing or invalid.
    pub(super) fn note<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        serde_json::from_str(self.annotation(key)?).ok()
    }

    /// Text of an annotation.
    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.0["metadata"]["annotations"][key].as_str()
    }

    pub(super) fn set_annotation(&mut self, key: &str, annotation: &str) {
        self.part("annotations").insert(key.into(), annotation.into());
    }

    pub(super) fn set_note(&mut self, key: &str, value: &impl Serialize) {
        // Records are plain structs; serialization cannot fail.
        self.set_annotation(key, &serde_json::to_string(value).unwrap_or_default());
    }

    fn part(&mut self, field: &str) -> &mut Map<String, Value> {
        let part = &mut self.0["metadata"][field];
        if !part.is_object() {
            *part = json!({});
        }
        match part {
            Value::Object(map) => map,
            _ => unreachable!("the value was replaced by an object above"),
        }
    }

    pub(super) fn spec(&self) -> &Value {
        &self.0["spec"]
    }

    /// Holder of the Lease, if it has one.
    pub(super) fn holder(&self) -> Option<&str> {
        self.spec()["holderIdentity"].as_str().filter(|holder| !holder.is_empty())
    }

    /// Number of holder changes, if the Lease ever had a holder.
    pub(super) fn transitions(&self) -> Option<u64> {
        self.spec()["leaseTransitions"].as_u64()
    }

    pub(super) fn lease_ms(&self) -> Option<u64> {
        Some(self.spec()["leaseDurationSeconds"].as_u64()? * 1000)
    }

    /// Time of a field in microseconds since 1970.
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

    /// Next renewal time: now, but later than the last renewal, so that observers see a change.
    pub(super) fn next_time(&self, wall_ms: i64) -> i64 {
        let last = self.time("renewTime").unwrap_or(i64::MIN);
        wall_ms.saturating_mul(1000).max(last.saturating_add(1))
    }
}
