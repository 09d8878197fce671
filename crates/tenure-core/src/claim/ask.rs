//! What makes no sense in whatever else is asked of a store: seats, workers, settings, requests.

use std::time::Duration;

use super::check::LONGEST_MS;
use super::formula::{Formula, FormulaError};
use super::text::{TextError, check_text, check_word, shown};
use crate::port::{
    CLAIM_MAX, DEPTH_MAX, LIST_MAX, NewRequest, NewResource, NewWorker, Outcome, PAYLOAD_MAX, PRIORITY_MAX,
    PoolSettings, QueueSettings, Seat, Settlement, StoreError, TaskId, Trouble,
};

/// Why something was refused. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// A text can not be used.
    #[error("{what} {shown} {problem}", shown = shown(value))]
    Text {
        /// What it is.
        what: &'static str,
        /// The text.
        value: String,
        /// What is wrong with it.
        problem: TextError,
    },
    /// A list is too long.
    #[error("there are {count} {what}; at most {most} are allowed")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many may be.
        most: usize,
    },
    /// A number is out of range.
    #[error("{what} is {value}; it must be between {least} and {most}")]
    Range {
        /// What it is.
        what: &'static str,
        /// The number.
        value: i128,
        /// At least.
        least: i128,
        /// At most.
        most: i128,
    },
    /// A claim would never end by itself.
    #[error("{0} has neither a session nor `hold_ms`, so its claim would never end; give one of them")]
    Endless(&'static str),
    /// An output is too long.
    #[error(
        "the output of task {task} has {bytes} bytes; at most {PAYLOAD_MAX} are kept: keep the data elsewhere and give its \
         address"
    )]
    TooLarge {
        /// Whose.
        task: TaskId,
        /// How long it is.
        bytes: usize,
    },
    /// An output is too deep.
    #[error(
        "lists and objects in the output of task {task} lie {depth} deep in each other; at most {DEPTH_MAX} are kept"
    )]
    TooDeep {
        /// Whose.
        task: TaskId,
        /// How deep it is.
        depth: usize,
    },
    /// The formula of a pool can not be understood.
    #[error("the pool's priority: {0}")]
    Formula(#[from] FormulaError),
}

impl From<AskError> for StoreError {
    fn from(error: AskError) -> StoreError {
        StoreError::new(Trouble::Request, error.to_string())
    }
}

/// Refuses seats that make no sense.
pub fn check_seats(seats: &[Seat]) -> Result<(), AskError> {
    let wanted = seats.iter().map(|seat| u64::from(seat.limit)).sum::<u64>();
    range("the number of tasks asked for", wanted.into(), 0, CLAIM_MAX.into())?;
    many("seats", seats.len(), CLAIM_MAX as usize)?;
    for seat in seats {
        word("the worker's name", &seat.worker.name)?;
        words("kinds of a worker", "the worker's kind", &seat.worker.kinds)?;
        words("tags of a worker", "the worker's tag", &seat.worker.tags)?;
        hold("the seat", seat.session.is_some(), seat.hold_ms)?;
    }
    Ok(())
}

/// Refuses outputs that are too long or too deep. What is told of failures and progress is clipped instead ([`clip`](super::clip)).
pub fn check_settlements(settlements: &[Settlement]) -> Result<(), AskError> {
    for settlement in settlements {
        let Outcome::Complete(Some(output)) = &settlement.outcome else { continue };
        let (task, bytes) = (settlement.task, output.as_str().len());
        if bytes > PAYLOAD_MAX {
            return Err(AskError::TooLarge { task, bytes });
        }
        let depth = output.depth();
        if depth > DEPTH_MAX {
            return Err(AskError::TooDeep { task, depth });
        }
    }
    Ok(())
}

/// A time that somebody asks for in a settlement, in milliseconds: at most a hundred years, so that no sum overflows.
pub fn span_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).min(LONGEST_MS)
}

/// Refuses a worker that makes no sense.
pub fn check_worker(worker: &NewWorker) -> Result<(), AskError> {
    word("the worker's name", &worker.name)?;
    words("kinds of a worker", "the worker's kind", &worker.kinds)?;
    words("tags of a worker", "the worker's tag", &worker.tags)?;
    many("queues of a worker", worker.queues.len(), LIST_MAX)?;
    range("the worker's capacity", worker.capacity.into(), 0, i32::MAX.into())?;
    text("the worker's kind", &worker.kind)?;
    text("the worker's location", &worker.location)
}

/// Refuses settings of a queue that make no sense.
pub fn check_queue(settings: &QueueSettings) -> Result<(), AskError> {
    time("prefer_ms", settings.prefer_ms)?;
    time("keep_ms", settings.keep_ms)?;
    time("keep_dead_ms", settings.keep_dead_ms)?;
    if let Some(rate) = settings.rate {
        range("the rate's count", rate.count.into(), 1, i32::MAX.into())?;
        range("the rate's per_ms", rate.per_ms.into(), 1, LONGEST_MS.into())?;
    }
    let most = settings.max_claimed.unwrap_or(1);
    range("max_claimed", most.into(), 1, i32::MAX.into())
}

/// Refuses settings of a pool that make no sense.
pub fn check_pool(settings: &PoolSettings) -> Result<(), AskError> {
    time("cool_down_ms", settings.cool_down_ms)?;
    time("keep_ms", settings.keep_ms)?;
    settings.priority.parse::<Formula>()?;
    Ok(())
}

/// Refuses resources that make no sense.
pub fn check_resources(resources: &[NewResource]) -> Result<(), AskError> {
    many("resources at once", resources.len(), 10_000)?;
    resources.iter().try_for_each(|it| words("tags of a resource", "the resource's tag", &it.tags))
}

/// Refuses a request that makes no sense.
pub fn check_request(request: &NewRequest) -> Result<(), AskError> {
    word("the request's key", &request.key)?;
    word("the request's owner", &request.owner)?;
    words("required tags", "the required tag", &request.requires)?;
    words("preferred tags", "the preferred tag", &request.prefers)?;
    let most = i128::from(PRIORITY_MAX);
    range("the request's base", request.base.into(), -most, most)?;
    hold("the request", request.session.is_some(), request.hold_ms)?;
    request.max_wait_ms.map_or(Ok(()), |ms| time("max_wait_ms", ms))
}

fn hold(what: &'static str, session: bool, hold_ms: Option<u64>) -> Result<(), AskError> {
    match hold_ms {
        None if !session => Err(AskError::Endless(what)),
        None => Ok(()),
        Some(ms) => range("hold_ms", ms.into(), 1, LONGEST_MS.into()),
    }
}

fn text(what: &'static str, value: &str) -> Result<(), AskError> {
    check_text(value).map_err(|problem| AskError::Text { what, value: value.into(), problem })
}

fn word(what: &'static str, value: &str) -> Result<(), AskError> {
    check_word(value).map_err(|problem| AskError::Text { what, value: value.into(), problem })
}

fn words(what: &'static str, one: &'static str, values: &[String]) -> Result<(), AskError> {
    many(what, values.len(), LIST_MAX)?;
    values.iter().try_for_each(|value| word(one, value))
}

fn many(what: &'static str, count: usize, most: usize) -> Result<(), AskError> {
    if count > most { Err(AskError::TooMany { what, count, most }) } else { Ok(()) }
}

fn time(what: &'static str, ms: u64) -> Result<(), AskError> {
    range(what, ms.into(), 0, LONGEST_MS.into())
}

fn range(what: &'static str, value: i128, least: i128, most: i128) -> Result<(), AskError> {
    let fits = (least..=most).contains(&value);
    if fits { Ok(()) } else { Err(AskError::Range { what, value, least, most }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::{Profile, RateLimit};

    fn seat() -> Seat {
        let worker = Profile { name: "w".into(), ..Profile::default() };
        Seat { worker, limit: 1, session: None, hold_ms: Some(1_000) }
    }

    fn request() -> NewRequest {
        let (requires, prefers) = (vec!["ssd".into()], vec![]);
        let (key, owner) = ("k".into(), "ada".into());
        NewRequest {
            key,
            owner,
            requires,
            prefers,
            base: 100,
            session: None,
            hold_ms: Some(1),
            max_wait_ms: None,
        }
    }

    #[test]
    fn a_claim_must_end_by_itself() {
        assert_eq!(check_seats(&[seat()]), Ok(()));
        assert_eq!(check_seats(&[Seat { hold_ms: None, ..seat() }]), Err(AskError::Endless("the seat")));
        assert_eq!(check_request(&request()), Ok(()));
        let endless = NewRequest { hold_ms: None, ..request() };
        assert!(check_request(&endless).unwrap_err().to_string().contains("neither a session nor `hold_ms`"));
    }

    #[test]
    fn no_more_is_asked_for_at_once_than_is_handed_out() {
        assert_eq!(check_seats(&vec![seat(); 1_000]), Ok(()));
        let error = check_seats(&vec![seat(); 1_001]).unwrap_err();
        assert!(error.to_string().contains("is 1001; it must be between 0 and 1000"), "{error}");
        assert!(check_seats(&[Seat { limit: u32::MAX, ..seat() }]).is_err());
    }

    #[test]
    fn outputs_are_bounded() {
        let output = |bytes: usize| Settlement {
            namespace: crate::Name::default_namespace(),
            task: TaskId(7),
            token: crate::Token::ZERO,
            outcome: Outcome::Complete(crate::port::Json::of(&"x".repeat(bytes - 2)).ok()),
        };
        assert_eq!(check_settlements(&[output(PAYLOAD_MAX)]), Ok(()));
        let error = AskError::TooLarge { task: TaskId(7), bytes: PAYLOAD_MAX + 1 };
        assert_eq!(check_settlements(&[output(9), output(PAYLOAD_MAX + 1)]), Err(error));
        let nested = |depth: usize| Settlement {
            outcome: Outcome::Complete(Some(
                ["[".repeat(depth), "]".repeat(depth)].concat().parse().unwrap(),
            )),
            ..output(9)
        };
        assert_eq!(check_settlements(&[nested(DEPTH_MAX)]), Ok(()));
        let error = AskError::TooDeep { task: TaskId(7), depth: DEPTH_MAX + 1 };
        assert_eq!(check_settlements(&[nested(DEPTH_MAX + 1)]), Err(error));
    }

    #[test]
    fn settings_are_bounded() {
        assert_eq!(check_queue(&QueueSettings::default()), Ok(()));
        let rate = Some(RateLimit { count: 0, per_ms: 1 });
        assert!(check_queue(&QueueSettings { rate, ..QueueSettings::default() }).is_err());
        assert!(check_queue(&QueueSettings { max_claimed: Some(0), ..QueueSettings::default() }).is_err());
        assert_eq!(check_pool(&PoolSettings::default()), Ok(()));
        let error = check_pool(&PoolSettings { priority: "base +".into(), ..PoolSettings::default() });
        assert!(error.unwrap_err().to_string().starts_with("the pool's priority: "));
    }

    #[test]
    fn words_of_workers_and_resources_are_checked() {
        let mut worker: NewWorker = serde_json::from_str(r#"{"name":"w"}"#).unwrap();
        assert_eq!(check_worker(&worker), Ok(()));
        worker.tags = vec!["a\n".into()];
        assert!(check_worker(&worker).is_err());
        let tags = vec!["t".into(); 65];
        let resource = NewResource { name: "r".parse().unwrap(), tags, enabled: true };
        let error = check_resources(&[resource]).unwrap_err();
        assert_eq!(error, AskError::TooMany { what: "tags of a resource", count: 65, most: 64 });
    }
}
