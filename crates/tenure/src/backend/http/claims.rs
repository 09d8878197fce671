//! The path of workers: by the batch, as the library gathers them.

use async_trait::async_trait;
use http::Method;
use serde::{Deserialize, Serialize};
use tenure_core::port::{
    ClaimAnswer, ClaimAsk, ClaimRefusal, ClaimedTask, Json, NewTask, Outcome, Post, QueueKey, Seat, Settled,
    Settlement, StoreError, Submission, Submitted, TaskId, Tasks, Tend, Tended, Trouble,
};
use tenure_core::{Name, SessionId, Token};

use super::Http;
use super::caller::{get, part, send};

/// The most settlements in one request.
const SETTLE_MAX: usize = 1000;
/// How many bytes of outputs one request carries at most, unless its first alone has more.
const SETTLE_BYTES: usize = 8 * 1024 * 1024;

#[derive(Serialize)]
struct NewTasks<'a> {
    tasks: &'a [NewTask],
}

#[derive(Deserialize)]
struct SubmittedTasks {
    tasks: Vec<Submitted>,
}

#[derive(Serialize)]
struct Seats<'a> {
    queue: &'a Name,
    seats: &'a [Seat],
}

#[derive(Deserialize)]
struct Handed {
    tasks: Vec<Vec<ClaimedTask>>,
    next_in_ms: Option<u64>,
    refused: Option<ClaimRefusal>,
}

#[derive(Serialize)]
struct Settlements<'a> {
    settlements: Vec<Said<'a>>,
}

/// A settlement on its way. Flat: what is read into a tagged enum can not keep its payload as text.
#[derive(Serialize)]
struct Said<'a> {
    task: TaskId,
    token: Token,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold_ms: Option<u64>,
}

#[derive(Deserialize)]
struct Heard {
    settled: Vec<Settled>,
}

#[derive(Deserialize)]
struct Held {
    held: Vec<(TaskId, Token)>,
}

#[derive(Serialize)]
struct Sleeper<'a> {
    queues: &'a [QueueKey],
}

#[async_trait]
impl Tasks for Http {
    fn routes_claims(&self) -> bool {
        true
    }

    async fn submit(&self, submission: &Submission) -> Result<Vec<Submitted>, StoreError> {
        let tasks = submission.tasks.as_slice();
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = send(Method::POST, of(&submission.queue, "/tasks"), &NewTasks { tasks });
        call.again = tasks.iter().all(|task| task.key.is_some());
        self.caller.call(&call).await?.read().map(|submitted: SubmittedTasks| submitted.tasks)
    }

    async fn claim(&self, ask: &ClaimAsk) -> Result<ClaimAnswer, StoreError> {
        if ask.seats.is_empty() {
            return Ok(ClaimAnswer::Served { tasks: Vec::new(), next_in: None });
        }
        let seats = Seats { queue: &ask.queue.name, seats: &ask.seats };
        let mut call = send(Method::POST, within("/v1/claims/claim", &ask.queue.namespace), &seats);
        call.again = false;
        let answer = self.caller.call(&call).await?;
        // Its owner is somebody else, or it is over: to a worker that is the same.
        let lost = answer.is_gone() || answer.says("not-your-session");
        if let (true, Some(session)) = (lost, ask.seats.iter().find_map(|seat| seat.session.clone())) {
            return Ok(ClaimAnswer::Refused(ClaimRefusal::Gone(session)));
        }
        let handed: Handed = answer.read()?;
        Ok(match handed.refused {
            Some(refusal) => ClaimAnswer::Refused(refusal),
            None => {
                let next_in = handed.next_in_ms.map(std::time::Duration::from_millis);
                ClaimAnswer::Served { tasks: handed.tasks, next_in }
            }
        })
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        let mut all = Vec::with_capacity(settlements.len());
        let mut rest = settlements;
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(batch(rest));
            let said = Settlements { settlements: batch.iter().map(Said::of).collect() };
            let path = within("/v1/claims/settle", &batch[0].namespace);
            let heard: Heard = self.caller.call(&send(Method::POST, path, &said)).await?.read()?;
            if heard.settled.len() != batch.len() {
                let message = format!(
                    "the server answered {} of {} settlements; is it of another version?",
                    heard.settled.len(),
                    batch.len()
                );
                return Err(StoreError::new(Trouble::Unfit, message));
            }
            all.extend(heard.settled);
            rest = later;
        }
        Ok(all)
    }

    async fn held(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        let path = format!("/v1/sessions/{}/claims", part(session.as_str()));
        let answer = self.caller.call(&get(path)).await?;
        if answer.is_gone() {
            return Ok(Vec::new());
        }
        answer.read().map(|held: Held| held.held)
    }

    async fn doze(&self, session: &SessionId, queues: &[QueueKey]) -> Result<(), StoreError> {
        if queues.is_empty() {
            return Ok(());
        }
        let path = format!("/v1/sessions/{}/doze", part(session.as_str()));
        let answer = self.caller.call(&send(Method::PUT, path, &Sleeper { queues })).await?;
        if answer.is_gone() { Ok(()) } else { answer.done() }
    }

    /// The servers keep their own house.
    async fn tend(&self, _: &Tend) -> Result<Tended, StoreError> {
        Ok(Tended::default())
    }

    /// Nobody hands out through a server but the servers themselves.
    async fn put_post(&self, _: &Post) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// A server knows where it is.
    async fn post(&self) -> Result<Option<Post>, StoreError> {
        Ok(None)
    }
}

impl Said<'_> {
    fn of(settlement: &Settlement) -> Said<'_> {
        let said = Said {
            task: settlement.task,
            token: settlement.token,
            outcome: "release",
            output: None,
            error: None,
            retry: None,
            after_ms: None,
            note: None,
            hold_ms: None,
        };
        let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match &settlement.outcome {
            Outcome::Complete(output) => Said { outcome: "complete", output: output.as_ref(), ..said },
            Outcome::Fail { error, retry, after } => Said {
                outcome: "fail",
                error: Some(error),
                retry: Some(*retry),
                after_ms: Some(ms(*after)),
                ..said
            },
            Outcome::Release => said,
            Outcome::Progress { note, hold } => {
                Said { outcome: "progress", note: note.as_deref(), hold_ms: hold.map(ms), ..said }
            }
        }
    }
}

/// How many of the settlements go together: of one namespace, and not too large.
fn batch(settlements: &[Settlement]) -> usize {
    let mut bytes = 0;
    let fits = |settlement: &&Settlement| {
        bytes += match &settlement.outcome {
            Outcome::Complete(Some(output)) => output.as_str().len(),
            Outcome::Fail { error, .. } => error.len(),
            _ => 0,
        };
        bytes <= SETTLE_BYTES && settlement.namespace == settlements[0].namespace
    };
    settlements.iter().take(SETTLE_MAX).take_while(fits).count().max(1)
}

/// The path of a queue.
pub(super) fn of(key: &QueueKey, rest: &str) -> String {
    within(&format!("/v1/queues/{}{rest}", part(key.name.as_str())), &key.namespace)
}

/// A path, in a namespace.
pub(super) fn within(path: &str, namespace: &Name) -> String {
    format!("{path}?namespace={}", part(namespace.as_str()))
}
