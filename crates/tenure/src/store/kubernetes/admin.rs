//! Administrative operations on a Kubernetes store.

use async_trait::async_trait;
use tenure_core::port::{
    ElectionAdmin, ElectionView, ErrorKind, Finding, FindingStatus, LeaderRequestKind, Pause, SessionView,
    StoreError, StoreGuarantees, Term,
};
use tenure_core::{ElectionKey, Name, SessionId, Timing};

use super::KubernetesStore;
use super::encode::changed;
use super::object::LeaseObject;
use super::store::{ATTEMPTS_MAX, back_off, conflict_error};
use crate::runtime;

/// A Lease without a holder. Its uid identifies the namespace and cluster, and changes if all Leases are deleted.
const IDENTITY_LEASE: &str = "tenure--identity";
/// Number of session objects above which diagnostics warn.
const SESSIONS_WARN: usize = 1000;

/// Guarantees of the Kubernetes store.
pub const GUARANTEES: StoreGuarantees = StoreGuarantees {
    backend: "Kubernetes",
    at_most_one: "yes, for clock rates within 1.2x; interoperable with client-go",
    netsplit: "a candidate that cannot reach the API server does not lead",
    after_crash: "a lease",
};

#[async_trait]
impl ElectionAdmin for KubernetesStore {
    fn guarantees(&self) -> StoreGuarantees {
        GUARANTEES
    }

    async fn identity(&self) -> Result<String, StoreError> {
        for _ in 0..2 {
            if let Some(mark) = self.api.get(IDENTITY_LEASE).await? {
                return Ok(format!("kubernetes:{}", mark.uid()));
            }
            self.api.put(&LeaseObject::new(&self.api.namespace, IDENTITY_LEASE)).await?;
        }
        Err(conflict_error("read the store identity"))
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.watch_scope.add_all();
        Ok(self.read_all().await?.to_model(runtime::wall_ms()).elections(namespace))
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        Ok(self.read(std::slice::from_ref(key), None).await?.to_model(runtime::wall_ms()).election(key))
    }

    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        Ok(self
            .read(std::slice::from_ref(key), None)
            .await?
            .to_model(runtime::wall_ms())
            .term_history(key, limit))
    }

    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        let mut result = None;
        for attempt in 0..ATTEMPTS_MAX {
            let reading = self.read(std::slice::from_ref(key), None).await?;
            let before = reading.to_model(runtime::wall_ms());
            let mut after = before.clone();
            let Some(changes) = after.set_election_paused(key, pause) else {
                return Err(StoreError::new(
                    ErrorKind::Request,
                    format!("election {key} does not exist; list elections with `tenure elections list`"),
                ));
            };
            let result = *result.get_or_insert(changes);
            // An earlier attempt of this call recorded the pause and sent a request to every leader at that time.
            // Also send one to leaders that took a slot since then.
            if !changes && let Some(pause) = pause.filter(|_| result) {
                for (lease, holder) in before.election(key).iter().flat_map(ElectionView::holders) {
                    let is_already_requested = before.record(key).is_some_and(|election| {
                        election
                            .leader_requests
                            .iter()
                            .any(|request| (request.slot, request.token) == (lease.slot, lease.token))
                    });
                    if !is_already_requested && !super::decode::is_external(&holder.id) {
                        after.request_leader(&tenure_core::port::LeaderRequest {
                            election: key.clone(),
                            slot: lease.slot,
                            token: lease.token,
                            kind: LeaderRequestKind::Pause,
                            requested_by: pause.paused_by.clone(),
                        });
                    }
                }
            }
            let slots = changed(&reading, &before, &after, key);
            if slots.is_empty() {
                return Ok(result);
            }
            // Write the first slot first, because its Lease records the pause. The next iteration checks the other
            // slots again.
            let mut is_written = true;
            for slot in slots {
                is_written &= self.write(&reading, (&before, &after), (key, slot)).await?.is_some();
                if !is_written {
                    break;
                }
            }
            if !is_written {
                back_off(attempt).await;
            }
        }
        Err(conflict_error("pause an election"))
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        Ok(self.read_all().await?.to_model(runtime::wall_ms()).sessions(which))
    }

    fn default_timing(&self) -> Option<Timing> {
        self.timing
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = vec![Finding::new("API server", self.api.server().await?, FindingStatus::Ok, "")];
        for verb in ["get", "list", "watch", "create", "update"] {
            findings.push(self.right(verb, "coordination.k8s.io", "leases").await?);
        }
        if self.leader_label.is_labelled() {
            findings.push(self.right("patch", "", "pods").await?);
        }
        let reading = self.read_all().await?;
        let count = reading.sessions.len() + reading.undecodable.len();
        let (severity, advice) = match count {
            SESSIONS_WARN.. => (
                FindingStatus::Warning,
                "every process start reads all of them; objects of ended sessions are reused and may be deleted with \
                 `kubectl delete lease -l tenure.dev/kind=session` while no process runs",
            ),
            _ => (FindingStatus::Ok, ""),
        };
        findings.push(Finding::new("session Leases", count.to_string(), severity, advice));
        let gone = reading.missing();
        for key in &gone {
            let advice = "the Lease was deleted; a candidate recreates it once the trust of its last holder has expired";
            findings.push(Finding::new(
                "Lease",
                super::names::lease_name(key, 0),
                FindingStatus::Error,
                advice,
            ));
        }
        Ok(findings)
    }
}

impl KubernetesStore {
    async fn right(&self, verb: &str, group: &str, resource: &str) -> Result<Finding, StoreError> {
        let check = format!("may {verb} {resource}");
        Ok(match self.api.may(verb, group, resource).await? {
            true => Finding::new(&check, "yes", FindingStatus::Ok, ""),
            false => {
                let advice = format!(
                    "grant the verb `{verb}` on `{resource}`: deploy/kubernetes/rbac.yaml has the required role"
                );
                Finding::new(&check, "no", FindingStatus::Error, advice)
            }
        })
    }
}
