//! Validation of topics, groups, reads, commits and webhooks.

use std::collections::HashSet;

use super::secret::{SecretError, signing_key};
use crate::port::{
    COMMIT_BATCH_MAX, EVENT_BYTES_MAX, ErrorKind, GroupSettings, JoinGroupRequest, PARTITIONS_MAX,
    PUBLISH_MAX, ParkedEventState, PartitionCommit, ReadEventsRequest, StartOffset, StoreError,
    TakePartitionsRequest, TopicSettings, WebhookSettings,
};
use crate::rules::work::{LAST_MS, LONGEST_MS, TEXT_MAX, shown};

/// Maximum number of events in one commit; more than one read returns.
pub const COMMIT_MAX: usize = 2 * (PUBLISH_MAX + COMMIT_BATCH_MAX);

/// Maximum length of a webhook URL, in bytes.
const URL_MAX: usize = 2_048;

/// Maximum length of a secret, in bytes.
const SECRET_MAX: usize = 512;

/// Maximum timeout of a webhook, in milliseconds.
const WEBHOOK_TIMEOUT_MAX_MS: u64 = 300_000;

/// Why a request about topics or groups is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventRequestError {
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
    /// A list is too long.
    #[error("{count} {what} exceed the maximum of {most}; split them")]
    TooMany {
        /// Name of the counted items.
        what: &'static str,
        /// Number found.
        count: usize,
        /// Maximum.
        most: usize,
    },
    /// A list has a duplicate.
    #[error("{what} {number} occurs twice; name it once")]
    Twice {
        /// Name of the value.
        what: &'static str,
        /// The duplicate.
        number: u64,
    },
    /// The retention of unread events is shorter than the retention of read events.
    #[error(
        "unread_retention_ms is {unread_retention_ms}, less than retention_ms, {retention_ms}; raise it, or omit it to \
         keep unread events until they are read"
    )]
    Keep {
        /// Retention of read events.
        retention_ms: u64,
        /// Retention of unread events.
        unread_retention_ms: u64,
    },
    /// The initial backoff exceeds the maximum backoff.
    #[error(
        "the initial backoff of {initial_ms} ms exceeds the maximum backoff of {max_ms} ms; raise \
         `backoff.max_ms`"
    )]
    Backoff {
        /// Delay after the first attempt.
        initial_ms: u64,
        /// Maximum delay.
        max_ms: u64,
    },
    /// The name of a member is invalid.
    #[error(
        "invalid member name {}; use 1 to {TEXT_MAX} bytes without control characters",
        shown(.0)
    )]
    Member(String),
    /// The state of a parked event is not allowed here.
    #[error("event {event} is {what}; {remedy}")]
    ParkedState {
        /// Event id.
        event: u64,
        /// Given state.
        what: &'static str,
        /// Remedy.
        remedy: &'static str,
    },
    /// The URL of a webhook is invalid.
    #[error(
        "invalid webhook URL {}; it must start with http:// or https://, name a host without user or \
         password, and have at most {URL_MAX} bytes without spaces",
        shown(.0.split('@').next_back().unwrap_or(.0))
    )]
    Url(String),
    /// The secret is too long or has control characters. The message does not repeat it.
    #[error("the secret has {0} bytes; use at most {SECRET_MAX} bytes without control characters")]
    Secret(usize),
    /// The secret is not a valid signing key.
    #[error(transparent)]
    Key(#[from] SecretError),
}

impl From<EventRequestError> for StoreError {
    fn from(error: EventRequestError) -> StoreError {
        StoreError::new(ErrorKind::Request, error.to_string())
    }
}

/// Validates the settings of a topic.
pub fn validate_topic(settings: &TopicSettings) -> Result<(), EventRequestError> {
    range("partitions", settings.partitions.into(), 1, PARTITIONS_MAX.into())?;
    time("retention_ms", settings.retention_ms)?;
    range("max_payload_bytes", settings.max_payload_bytes.into(), 1, EVENT_BYTES_MAX as i128)?;
    let Some(unread_retention_ms) = settings.unread_retention_ms else { return Ok(()) };
    time("unread_retention_ms", unread_retention_ms)?;
    if unread_retention_ms < settings.retention_ms {
        return Err(EventRequestError::Keep { retention_ms: settings.retention_ms, unread_retention_ms });
    }
    Ok(())
}

/// Validates the settings of a group.
pub fn validate_group(settings: &GroupSettings) -> Result<(), EventRequestError> {
    range("max_attempts", settings.max_attempts.into(), 1, i32::MAX.into())?;
    let (initial_ms, max_ms) = (settings.backoff.initial_ms, settings.backoff.max_ms);
    time("backoff.max_ms", max_ms)?;
    if initial_ms > max_ms { Err(EventRequestError::Backoff { initial_ms, max_ms }) } else { Ok(()) }
}

/// Validates a start offset.
pub fn validate_start_offset(begin: &StartOffset) -> Result<(), EventRequestError> {
    match *begin {
        StartOffset::Earliest | StartOffset::Latest => Ok(()),
        StartOffset::Offset(offset) => stored("the offset", offset),
        StartOffset::PublishedAtMs(at_ms) => range("published_at_ms", at_ms.into(), 0, LAST_MS.into()),
    }
}

/// Validates a request to join a group.
pub fn validate_join(join: &JoinGroupRequest) -> Result<(), EventRequestError> {
    let name = &join.member;
    if name.is_empty() || name.len() > TEXT_MAX || name.contains(char::is_control) {
        return Err(EventRequestError::Member(name.clone()));
    }
    validate_start_offset(&join.from)
}

/// Validates a request to take partitions.
pub fn validate_take(take: &TakePartitionsRequest) -> Result<(), EventRequestError> {
    validate_partitions(take.partitions.iter().map(|(partition, _)| *partition), take.partitions.len())
}

/// Validates a request to read events.
pub fn validate_read(read: &ReadEventsRequest) -> Result<(), EventRequestError> {
    range("limit", read.limit.into(), 1, PUBLISH_MAX as i128)?;
    validate_partitions(read.after.iter().map(|(partition, _)| *partition), read.after.len())?;
    read.after.iter().try_for_each(|(_, offset)| stored("the offset", *offset))
}

/// Validates a partition commit. Error texts are not rejected but shortened ([`clip`](crate::rules::work::clip)), and
/// so are long delays ([`bounded_ms`](crate::rules::work::bounded_ms)).
pub fn validate_commit(commit: &PartitionCommit) -> Result<(), EventRequestError> {
    let count = commit.processed.len() + commit.parked.len() + commit.parked_results.len();
    many("events in a commit", count, COMMIT_MAX)?;
    stored("the token", commit.token.as_u64())?;
    commit.offset.map_or(Ok(()), |offset| stored("the offset", offset))?;
    let mut named = HashSet::with_capacity(count);
    let parked_events =
        commit.parked.iter().map(|parked| parked.event_id).chain(commit.parked_results.iter().map(|it| it.0));
    let done = commit.processed.iter().map(|it| it.0);
    for event in done.chain(parked_events) {
        stored("the event id", event.0)?;
        if !named.insert(event) {
            return Err(EventRequestError::Twice { what: "event", number: event.0 });
        }
    }
    commit.processed.iter().try_for_each(|(_, offset)| stored("the offset", *offset))?;
    for parked in &commit.parked {
        stored("the offset", parked.offset)?;
        let event = parked.event_id.0;
        match &parked.state {
            ParkedEventState::Processed => {
                let remedy = "list a processed event that was not parked in `processed`, or advance `offset` \
                     past it";
                return Err(EventRequestError::ParkedState { event, what: "parked as processed", remedy });
            }
            how => validate_state(event, how)?,
        }
    }
    for (event, how) in &commit.parked_results {
        let event = event.0;
        match how {
            ParkedEventState::Waiting => {
                let remedy = "a parked event waits behind earlier ones by itself; omit it";
                return Err(EventRequestError::ParkedState {
                    event,
                    what: "settled as waiting behind another event",
                    remedy,
                });
            }
            how => validate_state(event, how)?,
        }
    }
    Ok(())
}

fn validate_state(event: u64, how: &ParkedEventState) -> Result<(), EventRequestError> {
    match how {
        ParkedEventState::Retry { attempts, .. } | ParkedEventState::Dead { attempts, .. }
            if *attempts == 0 =>
        {
            let remedy = "count the failed attempt";
            Err(EventRequestError::ParkedState {
                event,
                what: "reported as failed without an attempt",
                remedy,
            })
        }
        ParkedEventState::Retry { attempts, .. } | ParkedEventState::Dead { attempts, .. } => {
            range("the number of attempts", (*attempts).into(), 1, i32::MAX.into())
        }
        ParkedEventState::Processed | ParkedEventState::Waiting => Ok(()),
    }
}

/// Validates a webhook.
pub fn validate_webhook(webhook: &WebhookSettings) -> Result<(), EventRequestError> {
    let rest = ["http://", "https://"].iter().find_map(|scheme| webhook.url.strip_prefix(scheme));
    let host = rest.map_or("", |rest| rest.split(['/', '?', '#']).next().unwrap_or(""));
    let bad = |c: char| c.is_control() || c.is_whitespace();
    if host.is_empty() || host.contains('@') || webhook.url.len() > URL_MAX || webhook.url.contains(bad) {
        return Err(EventRequestError::Url(webhook.url.clone()));
    }
    if webhook.secret.len() > SECRET_MAX || webhook.secret.contains(char::is_control) {
        return Err(EventRequestError::Secret(webhook.secret.len()));
    }
    signing_key(&webhook.secret)?;
    range("timeout_ms", webhook.timeout_ms.into(), 1, WEBHOOK_TIMEOUT_MAX_MS.into())
}

fn validate_partitions(partitions: impl Iterator<Item = u32>, count: usize) -> Result<(), EventRequestError> {
    many("partitions", count, PARTITIONS_MAX as usize)?;
    let mut named = HashSet::with_capacity(count);
    for partition in partitions {
        range("the partition", partition.into(), 0, i128::from(PARTITIONS_MAX) - 1)?;
        if !named.insert(partition) {
            return Err(EventRequestError::Twice { what: "partition", number: partition.into() });
        }
    }
    Ok(())
}

/// Rejects numbers above 63 bits, which stores cannot keep.
fn stored(what: &'static str, number: u64) -> Result<(), EventRequestError> {
    range(what, number.into(), 0, i64::MAX.into())
}

fn many(what: &'static str, count: usize, most: usize) -> Result<(), EventRequestError> {
    if count > most { Err(EventRequestError::TooMany { what, count, most }) } else { Ok(()) }
}

fn time(what: &'static str, ms: u64) -> Result<(), EventRequestError> {
    range(what, ms.into(), 0, LONGEST_MS.into())
}

fn range(what: &'static str, value: i128, least: i128, most: i128) -> Result<(), EventRequestError> {
    let fits = (least..=most).contains(&value);
    if fits { Ok(()) } else { Err(EventRequestError::Range { what, value, least, most }) }
}

#[cfg(test)]
#[path = "validate_request_tests.rs"]
mod tests;
