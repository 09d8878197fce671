//! Validation of claim requests, settlements, workers, queue and pool settings, and pool requests.

use std::time::Duration;

use super::formula::{Formula, FormulaError};
use super::text::{TextError, check_text, check_word, shown};
use super::validate_submission::LONGEST_MS;
use crate::port::{
    CLAIM_MAX, ClaimOutcome, ClaimRequest, DEPTH_MAX, ErrorKind, LIST_MAX, NewResource, NewWorker,
    PAYLOAD_MAX, PRIORITY_MAX, PoolRequest, PoolSettings, QueueSettings, Settlement, StoreError, TaskId,
};

/// Why a request about queues, workers or pools is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkRequestError {
    /// A text is invalid.
    #[error("{what} {shown} {problem}", shown = shown(value))]
    Text {
        /// Name of the value.
        what: &'static str,
        /// The text.
        value: String,
        /// Problem with the text.
        problem: TextError,
    },
    /// A list is too long.
    #[error("{count} {what} exceed the maximum of {most}")]
    TooMany {
        /// Name of the counted items.
        what: &'static str,
        /// Number found.
        count: usize,
        /// Maximum.
        most: usize,
    },
    /// A number is out of range.
    #[error("{what} is {value}; it must be between {least} and {most}")]
    Range {
        /// Name of the value.
        what: &'static str,
        /// The number.
        value: i128,
        /// Minimum.
        least: i128,
        /// Maximum.
        most: i128,
    },
    /// A claim without a session and without a claim timeout would never end.
    #[error(
        "{0} has neither a session nor `claim_timeout_ms`, so the claim would never end; give one of them"
    )]
    Endless(&'static str),
    /// A result is too large.
    #[error(
        "the result of task {task} has {bytes} bytes, more than the maximum of {PAYLOAD_MAX}; store the data \
         elsewhere and return a reference"
    )]
    TooLarge {
        /// Task id.
        task: TaskId,
        /// Size of the result.
        bytes: usize,
    },
    /// A result is nested too deeply.
    #[error("the result of task {task} is nested {depth} levels deep; the maximum is {DEPTH_MAX}")]
    TooDeep {
        /// Task id.
        task: TaskId,
        /// Nesting depth.
        depth: usize,
    },
    /// The priority formula of a pool is invalid.
    #[error("invalid priority_formula: {0}")]
    Formula(#[from] FormulaError),
}

impl From<WorkRequestError> for StoreError {
    fn from(error: WorkRequestError) -> StoreError {
        StoreError::new(ErrorKind::Request, error.to_string())
    }
}

/// Validates claim requests.
pub fn validate_claim_requests(requests: &[ClaimRequest]) -> Result<(), WorkRequestError> {
    let total = requests.iter().map(|request| u64::from(request.limit)).sum::<u64>();
    range("the total limit of the claim requests", total.into(), 0, CLAIM_MAX.into())?;
    many("claim requests", requests.len(), CLAIM_MAX as usize)?;
    for request in requests {
        word("the worker name", &request.worker.name)?;
        words("task kinds of a worker", "the task kind", &request.worker.task_kinds)?;
        words("tags of a worker", "the worker tag", &request.worker.tags)?;
        check_expiry("the claim request", request.session.is_some(), request.claim_timeout_ms)?;
    }
    Ok(())
}

/// Validates results. Errors and progress texts are not rejected but shortened ([`clip`](super::clip)).
pub fn validate_settlements(settlements: &[Settlement]) -> Result<(), WorkRequestError> {
    for settlement in settlements {
        let ClaimOutcome::Complete(Some(output)) = &settlement.outcome else { continue };
        let (task, bytes) = (settlement.task, output.as_str().len());
        if bytes > PAYLOAD_MAX {
            return Err(WorkRequestError::TooLarge { task, bytes });
        }
        let depth = output.depth();
        if depth > DEPTH_MAX {
            return Err(WorkRequestError::TooDeep { task, depth });
        }
    }
    Ok(())
}

/// A duration in milliseconds, limited to 100 years so that no sum overflows.
pub fn bounded_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).min(LONGEST_MS)
}

/// Validates the registration of a worker.
pub fn validate_worker(worker: &NewWorker) -> Result<(), WorkRequestError> {
    word("the worker name", &worker.name)?;
    words("task kinds of a worker", "the task kind", &worker.task_kinds)?;
    words("tags of a worker", "the worker tag", &worker.tags)?;
    many("queues of a worker", worker.queues.len(), LIST_MAX)?;
    range("the capacity of the worker", worker.capacity.into(), 0, i32::MAX.into())?;
    text("the description of the worker", &worker.description)?;
    text("the location of the worker", &worker.location)
}

/// Validates the settings of a queue.
pub fn validate_queue(settings: &QueueSettings) -> Result<(), WorkRequestError> {
    time("preference_window_ms", settings.preference_window_ms)?;
    time("retention_ms", settings.retention_ms)?;
    time("dead_retention_ms", settings.dead_retention_ms)?;
    if let Some(rate) = settings.rate {
        range("rate.count", rate.count.into(), 1, i32::MAX.into())?;
        range("rate.per_ms", rate.per_ms.into(), 1, LONGEST_MS.into())?;
    }
    let most = settings.max_claimed.unwrap_or(1);
    range("max_claimed", most.into(), 1, i32::MAX.into())
}

/// Validates the settings of a pool.
pub fn validate_pool(settings: &PoolSettings) -> Result<(), WorkRequestError> {
    time("cooldown_ms", settings.cooldown_ms)?;
    time("request_retention_ms", settings.request_retention_ms)?;
    settings.priority_formula.parse::<Formula>()?;
    Ok(())
}

/// Validates resources.
pub fn validate_resources(resources: &[NewResource]) -> Result<(), WorkRequestError> {
    many("resources in one call", resources.len(), 10_000)?;
    resources.iter().try_for_each(|it| words("tags of a resource", "the resource tag", &it.tags))
}

/// Validates a pool request.
pub fn validate_pool_request(request: &PoolRequest) -> Result<(), WorkRequestError> {
    word("the idempotency key", &request.idempotency_key)?;
    word("the owner", &request.owner)?;
    words("required tags", "the required tag", &request.required_tags)?;
    words("preferred tags", "the preferred tag", &request.preferred_tags)?;
    let most = i128::from(PRIORITY_MAX);
    range("base_priority", request.base_priority.into(), -most, most)?;
    check_expiry("the pool request", request.session.is_some(), request.claim_timeout_ms)?;
    request.max_wait_ms.map_or(Ok(()), |ms| time("max_wait_ms", ms))
}

fn check_expiry(what: &'static str, session: bool, hold_ms: Option<u64>) -> Result<(), WorkRequestError> {
    match hold_ms {
        None if !session => Err(WorkRequestError::Endless(what)),
        None => Ok(()),
        Some(ms) => range("claim_timeout_ms", ms.into(), 1, LONGEST_MS.into()),
    }
}

fn text(what: &'static str, value: &str) -> Result<(), WorkRequestError> {
    check_text(value).map_err(|problem| WorkRequestError::Text { what, value: value.into(), problem })
}

fn word(what: &'static str, value: &str) -> Result<(), WorkRequestError> {
    check_word(value).map_err(|problem| WorkRequestError::Text { what, value: value.into(), problem })
}

fn words(what: &'static str, one: &'static str, values: &[String]) -> Result<(), WorkRequestError> {
    many(what, values.len(), LIST_MAX)?;
    values.iter().try_for_each(|value| word(one, value))
}

fn many(what: &'static str, count: usize, most: usize) -> Result<(), WorkRequestError> {
    if count > most { Err(WorkRequestError::TooMany { what, count, most }) } else { Ok(()) }
}

fn time(what: &'static str, ms: u64) -> Result<(), WorkRequestError> {
    range(what, ms.into(), 0, LONGEST_MS.into())
}

fn range(what: &'static str, value: i128, least: i128, most: i128) -> Result<(), WorkRequestError> {
    let fits = (least..=most).contains(&value);
    if fits { Ok(()) } else { Err(WorkRequestError::Range { what, value, least, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{RateLimit, WorkerProfile};

    fn claim_request() -> ClaimRequest {
        let worker = WorkerProfile { name: "w".into(), ..WorkerProfile::default() };
        ClaimRequest { worker, limit: 1, session: None, claim_timeout_ms: Some(1_000) }
    }

    fn request() -> PoolRequest {
        let (requires, prefers) = (vec!["ssd".into()], vec![]);
        let (key, owner) = ("k".into(), "ada".into());
        PoolRequest {
            idempotency_key: key,
            owner,
            required_tags: requires,
            preferred_tags: prefers,
            base_priority: 100,
            session: None,
            claim_timeout_ms: Some(1),
            max_wait_ms: None,
        }
    }

    #[test]
    fn a_claim_must_end_by_itself() {
        assert_eq!(validate_claim_requests(&[claim_request()]), Ok(()));
        assert_eq!(
            validate_claim_requests(&[ClaimRequest { claim_timeout_ms: None, ..claim_request() }]),
            Err(WorkRequestError::Endless("the claim request"))
        );
        assert_eq!(validate_pool_request(&request()), Ok(()));
        let endless = PoolRequest { claim_timeout_ms: None, ..request() };
        assert!(
            validate_pool_request(&endless)
                .unwrap_err()
                .to_string()
                .contains("neither a session nor `claim_timeout_ms`")
        );
    }

    #[test]
    fn the_total_limit_of_claim_requests_is_bounded() {
        assert_eq!(validate_claim_requests(&vec![claim_request(); 1_000]), Ok(()));
        let error = validate_claim_requests(&vec![claim_request(); 1_001]).unwrap_err();
        assert!(error.to_string().contains("is 1001; it must be between 0 and 1000"), "{error}");
        assert!(validate_claim_requests(&[ClaimRequest { limit: u32::MAX, ..claim_request() }]).is_err());
    }

    #[test]
    fn results_are_bounded() {
        let output = |bytes: usize| Settlement {
            namespace: crate::Name::default_namespace(),
            task: TaskId(7),
            token: crate::Token::ZERO,
            outcome: ClaimOutcome::Complete(crate::port::RawJson::of(&"x".repeat(bytes - 2)).ok()),
        };
        assert_eq!(validate_settlements(&[output(PAYLOAD_MAX)]), Ok(()));
        let error = WorkRequestError::TooLarge { task: TaskId(7), bytes: PAYLOAD_MAX + 1 };
        assert_eq!(validate_settlements(&[output(9), output(PAYLOAD_MAX + 1)]), Err(error));
        let nested = |depth: usize| Settlement {
            outcome: ClaimOutcome::Complete(Some(
                ["[".repeat(depth), "]".repeat(depth)].concat().parse().unwrap(),
            )),
            ..output(9)
        };
        assert_eq!(validate_settlements(&[nested(DEPTH_MAX)]), Ok(()));
        let error = WorkRequestError::TooDeep { task: TaskId(7), depth: DEPTH_MAX + 1 };
        assert_eq!(validate_settlements(&[nested(DEPTH_MAX + 1)]), Err(error));
    }

    #[test]
    fn settings_are_bounded() {
        assert_eq!(validate_queue(&QueueSettings::default()), Ok(()));
        let rate = Some(RateLimit { count: 0, per_ms: 1 });
        assert!(validate_queue(&QueueSettings { rate, ..QueueSettings::default() }).is_err());
        assert!(validate_queue(&QueueSettings { max_claimed: Some(0), ..QueueSettings::default() }).is_err());
        assert_eq!(validate_pool(&PoolSettings::default()), Ok(()));
        let error =
            validate_pool(&PoolSettings { priority_formula: "simple +".into(), ..PoolSettings::default() });
        assert!(error.unwrap_err().to_string().starts_with("invalid priority_formula:"));
    }

    #[test]
    fn texts_of_workers_and_resources_are_validated() {
        let mut worker: NewWorker = serde_json::from_str(r#"{"name":"w"}"#).unwrap();
        assert_eq!(validate_worker(&worker), Ok(()));
        worker.tags = vec!["a\n".into()];
        assert!(validate_worker(&worker).is_err());
        let tags = vec!["t".into(); 65];
        let resource = NewResource { name: "r".parse().unwrap(), tags, enabled: true };
        let error = validate_resources(&[resource]).unwrap_err();
        assert_eq!(error, WorkRequestError::TooMany { what: "tags of a resource", count: 65, most: 64 });
    }
}
