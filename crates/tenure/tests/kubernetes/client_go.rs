//! The leader elector of client-go, ported line by line from its `leaderelection` package: `tryAcquireOrRenew`,
//! `release`, `isLeaseValid`, and the loops around them.
//!
//! It uses the same API server and is independent of Tenure. The names are those of client-go.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::runtime;
use tenure_core::BootInstant;
use tenure_testkit::rig::KubeApi;

/// `LeaderElectionConfig`.
#[derive(Clone)]
pub struct Config {
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
    pub identity: String,
    pub name: String,
}

impl Config {
    /// The proportions of client-go's defaults, with another lease duration.
    pub fn of(identity: &str, name: &str, lease_seconds: u64) -> Config {
        let lease = Duration::from_secs(lease_seconds);
        Config {
            lease_duration: lease,
            renew_deadline: lease * 2 / 3,
            retry_period: lease * 2 / 15,
            identity: identity.into(),
            name: name.into(),
        }
    }
}

/// `LeaderElectionRecord`.
#[derive(Clone, Debug, PartialEq, Default)]
struct Record {
    holder_identity: String,
    lease_duration_seconds: i64,
    acquire_time: String,
    renew_time: String,
    leader_transitions: i64,
}

impl Record {
    /// `LeaseSpecToLeaderElectionRecord`.
    fn of(spec: &Value) -> Record {
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
        Record {
            holder_identity: text("holderIdentity"),
            lease_duration_seconds: spec["leaseDurationSeconds"].as_i64().unwrap_or(0),
            acquire_time: text("acquireTime"),
            renew_time: text("renewTime"),
            leader_transitions: spec["leaseTransitions"].as_i64().unwrap_or(0),
        }
    }

    /// The compared form: the record as JSON, in which `metav1.Time` has whole seconds.
    fn raw(&self) -> Record {
        let seconds = |time: &str| time.chars().take("2006-01-02T15:04:05".len()).collect();
        Record {
            acquire_time: seconds(&self.acquire_time),
            renew_time: seconds(&self.renew_time),
            ..self.clone()
        }
    }

    /// `LeaderElectionRecordToLeaseSpec`.
    fn spec(&self) -> Value {
        json!({
            "holderIdentity": self.holder_identity,
            "leaseDurationSeconds": self.lease_duration_seconds,
            "acquireTime": self.acquire_time,
            "renewTime": self.renew_time,
            "leaseTransitions": self.leader_transitions,
        })
    }
}

/// `LeaderElector`, with its `LeaseLock`.
pub struct Elector {
    api: Arc<KubeApi>,
    namespace: String,
    pub config: Config,
    observed_record: Record,
    observed_raw_record: Record,
    observed_time: BootInstant,
    /// `LeaseLock.lease`.
    lease: Value,
}

impl Elector {
    pub fn new(api: Arc<KubeApi>, namespace: &str, config: Config) -> Elector {
        let observed_time = BootInstant::from_nanos(0);
        let (namespace, lease) = (namespace.into(), Value::Null);
        let (observed_record, observed_raw_record) = Default::default();
        Elector { api, namespace, config, observed_record, observed_raw_record, observed_time, lease }
    }

    fn now() -> String {
        let now = jiff::Timestamp::from_microsecond(runtime::wall_ms() * 1000).unwrap();
        format!("{now:.6}")
    }

    pub fn is_leader(&self) -> bool {
        self.observed_record.holder_identity == self.config.identity
    }

    /// The fencing token of a Lease reader.
    pub fn transitions(&self) -> i64 {
        self.observed_record.leader_transitions
    }

    fn is_lease_valid(&self, now: BootInstant) -> bool {
        let seconds = u64::try_from(self.observed_record.lease_duration_seconds).unwrap_or(0);
        self.observed_time + Duration::from_secs(seconds) > now
    }

    fn set_observed_record(&mut self, record: Record) {
        self.observed_record = record;
        self.observed_time = runtime::now();
    }

    /// `LeaseLock.Get`.
    fn get(&mut self) -> Option<Record> {
        self.lease = self.api.lease(&self.namespace, &self.config.name)?;
        Some(Record::of(&self.lease["spec"]))
    }

    /// `LeaseLock.Create`.
    fn create(&mut self, record: &Record) -> bool {
        let object = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": self.config.name, "namespace": self.namespace },
            "spec": record.spec(),
        });
        let (status, lease) = self.api.create(&self.namespace, object);
        if status == 201 {
            self.lease = lease;
        }
        status == 201
    }

    /// `LeaseLock.Update`: a new spec, everything else as it was read.
    fn update(&mut self, record: &Record) -> bool {
        self.lease["spec"] = record.spec();
        let (status, lease) = self.api.update(&self.namespace, &self.config.name, self.lease.clone());
        if status == 200 {
            self.lease = lease;
        }
        status == 200
    }

    /// `tryAcquireOrRenew`.
    pub fn try_acquire_or_renew(&mut self) -> bool {
        let now = Self::now();
        let mut record = Record {
            holder_identity: self.config.identity.clone(),
            lease_duration_seconds: self.config.lease_duration.as_secs().cast_signed(),
            renew_time: now.clone(),
            acquire_time: now,
            leader_transitions: 0,
        };
        // 1. fast path for the leader to update optimistically assuming that the record observed last time is the current version.
        if self.is_leader() && self.is_lease_valid(runtime::now()) {
            let old = self.observed_record.clone();
            record.acquire_time = old.acquire_time;
            record.leader_transitions = old.leader_transitions;
            if self.update(&record) {
                self.set_observed_record(record);
                return true;
            }
        }
        // 2. obtain or create the record
        let Some(old) = self.get() else {
            if !self.create(&record) {
                return false;
            }
            self.set_observed_record(record);
            return true;
        };
        // 3. Record obtained, check the Identity & Time
        if self.observed_raw_record != old.raw() {
            self.set_observed_record(old.clone());
            self.observed_raw_record = old.raw();
        }
        if !old.holder_identity.is_empty() && self.is_lease_valid(runtime::now()) && !self.is_leader() {
            return false;
        }
        // 4. We're going to try to update.
        if self.is_leader() {
            record.acquire_time = old.acquire_time;
            record.leader_transitions = old.leader_transitions;
        } else {
            record.leader_transitions = old.leader_transitions + 1;
        }
        // update the lock itself
        if !self.update(&record) {
            return false;
        }
        self.set_observed_record(record);
        true
    }

    /// `tryRelease`: retries after a conflict.
    pub fn release(&mut self) -> bool {
        loop {
            let Some(old) = self.get() else { return false };
            if !self.is_leader() {
                return true;
            }
            let now = Self::now();
            let record = Record {
                holder_identity: String::new(),
                leader_transitions: old.leader_transitions,
                lease_duration_seconds: 1,
                renew_time: now.clone(),
                acquire_time: now,
            };
            if self.update(&record) {
                self.set_observed_record(record);
                return true;
            }
        }
    }
}
