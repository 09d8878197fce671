//! Task operations through a server, in batches as the library collects them.

use async_trait::async_trait;
use http::Method;
use serde::{Deserialize, Serialize};
use tenure_core::port::{
    BrokerEndpoint, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome, ClaimRefusal, ClaimRequest,
    ClaimedTask, ErrorKind, MaintenanceRequest, MaintenanceResponse, NewTask, QueueKey, RawJson,
    SettleResult, Settlement, StoreError, Submission, SubmitReceipt, TaskId, TaskStore,
};
use tenure_core::{Name, SessionId, Token};

use super::HttpStore;
use super::client::{get, part, send};

/// Maximum number of settlements in one request.
const SETTLE_MAX: usize = 1000;
/// Maximum bytes of results in one request, unless the first one alone is larger.
const SETTLE_BYTES: usize = 8 * 1024 * 1024;

#[derive(Serialize)]
struct NewTasks<'a> {
    tasks: &'a [NewTask],
}

#[derive(Deserialize)]
struct SubmittedTaskList {
    tasks: Vec<SubmitReceipt>,
}

#[derive(Serialize)]
struct ClaimBatchRequestJson<'a> {
    queue: &'a Name,
    requests: &'a [ClaimRequest],
}

#[derive(Deserialize)]
struct ClaimBatchResponseJson {
    tasks: Vec<Vec<ClaimedTask>>,
    next_in_ms: Option<u64>,
    refusal: Option<ClaimRefusal>,
}

#[derive(Serialize)]
struct SettleBatchRequest<'a> {
    settlements: Vec<SettlementJson<'a>>,
}

/// Settlement. Flat, because deserializing a tagged enum would lose the raw result text.
#[derive(Serialize)]
struct SettlementJson<'a> {
    task: TaskId,
    token: Token,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
struct SettleBatchResponse {
    settled: Vec<SettleResult>,
}

#[derive(Deserialize)]
struct SessionClaimList {
    claims: Vec<SessionClaim>,
}

#[derive(Deserialize)]
struct SessionClaim {
    task_id: TaskId,
    token: Token,
}

#[derive(Serialize)]
struct RegisterQueueWaiterRequest<'a> {
    queues: &'a [QueueKey],
}

#[async_trait]
impl TaskStore for HttpStore {
    fn routes_to_broker(&self) -> bool {
        true
    }

    async fn submit(&self, submission: &Submission) -> Result<Vec<SubmitReceipt>, StoreError> {
        let tasks = submission.tasks.as_slice();
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = send(Method::POST, of(&submission.queue, "/tasks"), &NewTasks { tasks });
        call.again = tasks.iter().all(|task| task.idempotency_key.is_some());
        self.client.call(&call).await?.read().map(|submitted: SubmittedTaskList| submitted.tasks)
    }

    async fn claim(&self, request: &ClaimBatchRequest) -> Result<ClaimBatchResponse, StoreError> {
        if request.requests.is_empty() {
            return Ok(ClaimBatchResponse::Served { tasks: Vec::new(), next_in: None });
        }
        let body = ClaimBatchRequestJson { queue: &request.queue.name, requests: &request.requests };
        let mut call =
            send(Method::POST, within("/internal/v1/claim-tasks", &request.queue.namespace), &body);
        call.again = false;
        let response = self.client.call(&call).await?;
        // The session belongs to another principal or has ended: to a worker both mean the same.
        let lost = response.is_session_ended() || response.says("session-owned-by-other");
        if let (true, Some(session)) =
            (lost, request.requests.iter().find_map(|request| request.session.clone()))
        {
            return Ok(ClaimBatchResponse::Refused(ClaimRefusal::SessionEnded(session)));
        }
        let response: ClaimBatchResponseJson = response.read()?;
        Ok(match response.refusal {
            Some(refusal) => ClaimBatchResponse::Refused(refusal),
            None => {
                let next_in = response.next_in_ms.map(std::time::Duration::from_millis);
                ClaimBatchResponse::Served { tasks: response.tasks, next_in }
            }
        })
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<SettleResult>, StoreError> {
        let mut all = Vec::with_capacity(settlements.len());
        let mut rest = settlements;
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(batch(rest));
            let settlement_json =
                SettleBatchRequest { settlements: batch.iter().map(SettlementJson::of).collect() };
            let path = within("/internal/v1/settle-tasks", &batch[0].namespace);
            let response: SettleBatchResponse =
                self.client.call(&send(Method::POST, path, &settlement_json)).await?.read()?;
            if response.settled.len() != batch.len() {
                let message = format!(
                    "the server returned {} results for {} settlements; it may have another version",
                    response.settled.len(),
                    batch.len()
                );
                return Err(StoreError::new(ErrorKind::Misconfigured, message));
            }
            all.extend(response.settled);
            rest = later;
        }
        Ok(all)
    }

    async fn held_claims(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        let path = format!("/internal/v1/sessions/{}/claims", part(session.as_str()));
        let response = self.client.call(&get(path)).await?;
        if response.is_session_ended() {
            return Ok(Vec::new());
        }
        let held: SessionClaimList = response.read()?;
        Ok(held.claims.into_iter().map(|claim| (claim.task_id, claim.token)).collect())
    }

    async fn register_queue_waiter(
        &self,
        session: &SessionId,
        queues: &[QueueKey],
    ) -> Result<(), StoreError> {
        if queues.is_empty() {
            return Ok(());
        }
        let path = format!("/internal/v1/sessions/{}/queue-waiter", part(session.as_str()));
        let response =
            self.client.call(&send(Method::PUT, path, &RegisterQueueWaiterRequest { queues })).await?;
        if response.is_session_ended() { Ok(()) } else { response.done() }
    }

    /// No-op: the servers run maintenance themselves.
    async fn maintain(&self, _: &MaintenanceRequest) -> Result<MaintenanceResponse, StoreError> {
        Ok(MaintenanceResponse::default())
    }

    /// No-op: through a server, only the servers themselves act as broker.
    async fn publish_broker_endpoint(&self, _: &BrokerEndpoint) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// None: the server finds the broker itself.
    async fn broker_endpoint(&self) -> Result<Option<BrokerEndpoint>, StoreError> {
        Ok(None)
    }
}

impl SettlementJson<'_> {
    fn of(settlement: &Settlement) -> SettlementJson<'_> {
        let settlement_json = SettlementJson {
            task: settlement.task,
            token: settlement.token,
            outcome: "release",
            result: None,
            error: None,
            retry: None,
            retry_in_ms: None,
            progress: None,
            claim_timeout_ms: None,
        };
        let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match &settlement.outcome {
            ClaimOutcome::Complete(output) => {
                SettlementJson { outcome: "complete", result: output.as_ref(), ..settlement_json }
            }
            ClaimOutcome::Fail { error, retry, retry_in: after } => SettlementJson {
                outcome: "fail",
                error: Some(error),
                retry: Some(*retry),
                retry_in_ms: Some(ms(*after)),
                ..settlement_json
            },
            ClaimOutcome::Release => settlement_json,
            ClaimOutcome::Heartbeat { progress: note, claim_timeout } => SettlementJson {
                outcome: "heartbeat",
                progress: note.as_deref(),
                claim_timeout_ms: claim_timeout.map(ms),
                ..settlement_json
            },
        }
    }
}

/// Number of settlements that fit into one request: of one namespace, and limited in size.
fn batch(settlements: &[Settlement]) -> usize {
    let mut bytes = 0;
    let fits = |settlement: &&Settlement| {
        bytes += match &settlement.outcome {
            ClaimOutcome::Complete(Some(output)) => output.as_str().len(),
            ClaimOutcome::Fail { error, .. } => error.len(),
            _ => 0,
        };
        bytes <= SETTLE_BYTES && settlement.namespace == settlements[0].namespace
    };
    settlements.iter().take(SETTLE_MAX).take_while(fits).count().max(1)
}

/// Public path of a queue.
pub(super) fn of(key: &QueueKey, rest: &str) -> String {
    within(&format!("/v1/queues/{}{rest}", part(key.name.as_str())), &key.namespace)
}

/// Internal path of a queue.
pub(super) fn internal(key: &QueueKey, rest: &str) -> String {
    within(&format!("/internal/v1/queues/{}{rest}", part(key.name.as_str())), &key.namespace)
}

/// Path with the namespace as query parameter.
pub(super) fn within(path: &str, namespace: &Name) -> String {
    format!("{path}?namespace={}", part(namespace.as_str()))
}
