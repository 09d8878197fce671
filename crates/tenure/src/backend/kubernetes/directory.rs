//! The path of people.

use async_trait::async_trait;
use tenure_core::port::{
    AskKind, Directory, ElectionView, Finding, Pause, Promises, SessionView, StoreError, Term, Trouble,
    Verdict,
};
use tenure_core::{ElectionKey, Name, SessionId, Timing};

use super::Kubernetes;
use super::object::Object;
use super::store::{TRIES, changing, hold_on};
use super::writing::changed;
use crate::runtime;

/// A Lease that nobody holds: its uid says which namespace of which cluster this is, and that not everything was deleted since.
const MARK: &str = "tenure--identity";
/// How many objects of sessions are no trouble.
const SESSIONS_MANY: usize = 1000;

/// What elections on Kubernetes promise.
pub const PROMISES: Promises = Promises {
    backend: "Kubernetes",
    at_most_one: "yes, for clock rates within 1.2x; interoperable with client-go",
    netsplit: "a candidate that cannot reach the API server does not lead",
    after_crash: "a lease",
};

#[async_trait]
impl Directory for Kubernetes {
    fn promises(&self) -> Promises {
        PROMISES
    }

    async fn identity(&self) -> Result<String, StoreError> {
        for _ in 0..2 {
            if let Some(mark) = self.api.get(MARK).await? {
                return Ok(format!("kubernetes:{}", mark.uid()));
            }
            self.api.put(&Object::new(&self.api.namespace, MARK)).await?;
        }
        Err(changing("find out which cluster it is"))
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.interest.add_all();
        Ok(self.read_all().await?.book(runtime::wall_ms()).elections(namespace))
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        Ok(self.read(std::slice::from_ref(key), None).await?.book(runtime::wall_ms()).election(key))
    }

    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        Ok(self.read(std::slice::from_ref(key), None).await?.book(runtime::wall_ms()).history(key, limit))
    }

    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        let mut result = None;
        for tried in 0..TRIES {
            let reading = self.read(std::slice::from_ref(key), None).await?;
            let before = reading.book(runtime::wall_ms());
            let mut after = before.clone();
            let Some(changes) = after.set_paused(key, pause) else {
                return Err(StoreError::new(Trouble::Request, format!("there is no election {key}")));
            };
            let result = *result.get_or_insert(changes);
            // Said, and asked of all who held something then. Whoever has got a slot since has not been asked.
            if !changes && let Some(pause) = pause.filter(|_| result) {
                for (lease, holder) in before.election(key).iter().flat_map(ElectionView::holders) {
                    let is_asked = before.kept(key).is_some_and(|election| {
                        election.asks.iter().any(|ask| (ask.slot, ask.token) == (lease.slot, lease.token))
                    });
                    if !is_asked && !super::reading::is_stranger(&holder.id) {
                        after.ask(&tenure_core::port::Ask {
                            election: key.clone(),
                            slot: lease.slot,
                            token: lease.token,
                            kind: AskKind::Pause,
                            by: pause.by.clone(),
                        });
                    }
                }
            }
            let slots = changed(&reading, &before, &after, key);
            if slots.is_empty() {
                return Ok(result);
            }
            // The first slot's Lease says whether it is paused: it goes first, and what follows is looked at anew.
            let mut is_written = true;
            for slot in slots {
                is_written &= self.write(&reading, (&before, &after), (key, slot)).await?.is_some();
                if !is_written {
                    break;
                }
            }
            if !is_written {
                hold_on(tried).await;
            }
        }
        Err(changing("pause"))
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        Ok(self.read_all().await?.book(runtime::wall_ms()).sessions(which))
    }

    fn pace(&self) -> Option<Timing> {
        self.pace
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        let mut findings = vec![Finding::new("API server", self.api.server().await?, Verdict::Good, "")];
        for verb in ["get", "list", "watch", "create", "update"] {
            findings.push(self.right(verb, "coordination.k8s.io", "leases").await?);
        }
        if self.pod.is_labelled() {
            findings.push(self.right("patch", "", "pods").await?);
        }
        let reading = self.read_all().await?;
        let count = reading.sessions.len() + reading.waste.len();
        let (verdict, advice) = match count {
            SESSIONS_MANY.. => (
                Verdict::Fair,
                "a start of a process reads all of them; objects of sessions that are over are used again, and may be deleted: \
                 kubectl delete lease -l tenure.dev/kind=session, while nothing runs",
            ),
            _ => (Verdict::Good, ""),
        };
        findings.push(Finding::new("Leases of sessions", count.to_string(), verdict, advice));
        let gone = reading.missing();
        for key in &gone {
            let advice =
                "it was deleted; whoever stands for it makes it anew when its last holder must have stopped";
            findings.push(Finding::new("Lease", super::names::lease_name(key, 0), Verdict::Bad, advice));
        }
        Ok(findings)
    }
}

impl Kubernetes {
    async fn right(&self, verb: &str, group: &str, resource: &str) -> Result<Finding, StoreError> {
        let check = format!("may {verb} {resource}");
        Ok(match self.api.may(verb, group, resource).await? {
            true => Finding::new(&check, "yes", Verdict::Good, ""),
            false => {
                let advice = format!(
                    "grant the verb `{verb}` on `{resource}`: deploy/kubernetes/rbac.yaml has what is needed"
                );
                Finding::new(&check, "no", Verdict::Bad, advice)
            }
        })
    }
}
