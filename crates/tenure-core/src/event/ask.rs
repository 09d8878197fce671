//! What makes no sense in whatever else is asked about topics and groups.

use std::collections::HashSet;

use super::secret::{SecretError, signing_key};
use crate::claim::{LAST_MS, LONGEST_MS, TEXT_MAX, shown};
use crate::port::{
    Aside, Begin, EVENT_BYTES_MAX, GroupSettings, Join, PUBLISH_MAX, Push, ReadAsk, SLOTS_MAX, ShareCommit,
    StoreError, TakeShares, TopicSettings, Trouble, UNIT_MAX,
};

/// The most events that one commit says something about: more than one read brings.
pub const COMMIT_MAX: usize = 2 * (PUBLISH_MAX + UNIT_MAX);

/// The longest address that events are pushed to, in bytes.
const URL_MAX: usize = 2_048;

/// The longest secret, in bytes.
const SECRET_MAX: usize = 512;

/// The longest time that an answer to a push may take, in milliseconds.
const PUSH_TIMEOUT_MAX_MS: u64 = 300_000;

/// Why something was refused. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
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
    /// A list is too long.
    #[error("there are {count} {what}; at most {most} are allowed: split them")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many may be.
        most: usize,
    },
    /// A list has something twice.
    #[error("{what} {number} is there twice; name it once")]
    Twice {
        /// What it is.
        what: &'static str,
        /// Which.
        number: u64,
    },
    /// Unread events would be kept for a shorter time than read ones.
    #[error(
        "keep_unread_ms is {keep_unread_ms}, which is less than keep_ms, {keep_ms}; raise it, or leave it out to keep what is \
         unread until it is read"
    )]
    Keep {
        /// For read ones.
        keep_ms: u64,
        /// For unread ones.
        keep_unread_ms: u64,
    },
    /// The backoff begins with more than its most.
    #[error(
        "the backoff begins with {first_ms} ms, which is more than its most of {most_ms} ms; raise `most_ms`"
    )]
    Backoff {
        /// After the first attempt.
        first_ms: u64,
        /// At most.
        most_ms: u64,
    },
    /// A member's name can not be used.
    #[error(
        "the member's name {} can not be used; it must have 1 to {TEXT_MAX} bytes and no control characters",
        shown(.0)
    )]
    Member(String),
    /// Something is set aside as what it can not be.
    #[error("event {event} is {what}; {remedy}")]
    Aside {
        /// Which.
        event: u64,
        /// What was said.
        what: &'static str,
        /// What to say.
        remedy: &'static str,
    },
    /// An address that nothing can be pushed to.
    #[error(
        "the address {} can not be pushed to; it must begin with http:// or https://, name a host without a user or password, \
         and have at most {URL_MAX} bytes without spaces",
        shown(.0.split('@').next_back().unwrap_or(.0))
    )]
    Url(String),
    /// A secret that makes no signature, or one that is guessed. The secret is not repeated.
    #[error("the secret has {0} bytes; it must have at most {SECRET_MAX}, and no control characters")]
    Secret(usize),
    /// The same: it makes no key.
    #[error(transparent)]
    Key(#[from] SecretError),
}

impl From<GroupError> for StoreError {
    fn from(error: GroupError) -> StoreError {
        StoreError::new(Trouble::Request, error.to_string())
    }
}

/// Refuses settings of a topic that make no sense.
pub fn check_topic(settings: &TopicSettings) -> Result<(), GroupError> {
    range("slots", settings.slots.into(), 1, SLOTS_MAX.into())?;
    time("keep_ms", settings.keep_ms)?;
    range("max_bytes", settings.max_bytes.into(), 1, EVENT_BYTES_MAX as i128)?;
    let Some(keep_unread_ms) = settings.keep_unread_ms else { return Ok(()) };
    time("keep_unread_ms", keep_unread_ms)?;
    if keep_unread_ms < settings.keep_ms {
        return Err(GroupError::Keep { keep_ms: settings.keep_ms, keep_unread_ms });
    }
    Ok(())
}

/// Refuses settings of a group that make no sense.
pub fn check_group(settings: &GroupSettings) -> Result<(), GroupError> {
    range("max_attempts", settings.max_attempts.into(), 1, i32::MAX.into())?;
    let (first_ms, most_ms) = (settings.backoff.first_ms, settings.backoff.most_ms);
    time("the backoff's most_ms", most_ms)?;
    if first_ms > most_ms { Err(GroupError::Backoff { first_ms, most_ms }) } else { Ok(()) }
}

/// Refuses a place that is none.
pub fn check_begin(begin: &Begin) -> Result<(), GroupError> {
    match *begin {
        Begin::Earliest | Begin::Latest => Ok(()),
        Begin::Position(position) => stored("the position", position),
        Begin::Time(at_ms) => range("the time", at_ms.into(), 0, LAST_MS.into()),
    }
}

/// Refuses a member that makes no sense.
pub fn check_join(join: &Join) -> Result<(), GroupError> {
    let name = &join.member;
    if name.is_empty() || name.len() > TEXT_MAX || name.contains(char::is_control) {
        return Err(GroupError::Member(name.clone()));
    }
    check_begin(&join.from)
}

/// Refuses a wish for shares that makes no sense.
pub fn check_take(take: &TakeShares) -> Result<(), GroupError> {
    check_slots(take.slots.iter().map(|(slot, _)| *slot), take.slots.len())
}

/// Refuses a wish to read that makes no sense.
pub fn check_read(read: &ReadAsk) -> Result<(), GroupError> {
    range("limit", read.limit.into(), 1, PUBLISH_MAX as i128)?;
    check_slots(read.after.iter().map(|(slot, _)| *slot), read.after.len())?;
    read.after.iter().try_for_each(|(_, position)| stored("the position", *position))
}

/// Refuses what makes no sense about a share. What is told of failures is clipped instead ([`clip`](crate::claim::clip)), and so are
/// long waits ([`span_ms`](crate::claim::span_ms)).
pub fn check_commit(commit: &ShareCommit) -> Result<(), GroupError> {
    let count = commit.done.len() + commit.set_aside.len() + commit.settled.len();
    many("events in a commit", count, COMMIT_MAX)?;
    stored("the token", commit.token.as_u64())?;
    commit.position.map_or(Ok(()), |position| stored("the position", position))?;
    let mut named = HashSet::with_capacity(count);
    let asides = commit.set_aside.iter().map(|aside| aside.event).chain(commit.settled.iter().map(|it| it.0));
    let done = commit.done.iter().map(|it| it.0);
    for event in done.chain(asides) {
        stored("an event's number", event.0)?;
        if !named.insert(event) {
            return Err(GroupError::Twice { what: "event", number: event.0 });
        }
    }
    commit.done.iter().try_for_each(|(_, position)| stored("the position", *position))?;
    for aside in &commit.set_aside {
        stored("the position", aside.position)?;
        let event = aside.event.0;
        match &aside.how {
            Aside::Done => {
                let remedy = "what is done and was not aside goes into `done`, or is passed by `position`";
                return Err(GroupError::Aside { event, what: "set aside as done", remedy });
            }
            how => check_how(event, how)?,
        }
    }
    for (event, how) in &commit.settled {
        let event = event.0;
        match how {
            Aside::Behind => {
                let remedy = "what is aside waits behind others without being told; leave it out";
                return Err(GroupError::Aside { event, what: "settled as behind another", remedy });
            }
            how => check_how(event, how)?,
        }
    }
    Ok(())
}

fn check_how(event: u64, how: &Aside) -> Result<(), GroupError> {
    match how {
        Aside::Retry { attempts, .. } | Aside::Dead { attempts, .. } if *attempts == 0 => {
            let remedy = "count the attempt that failed";
            Err(GroupError::Aside { event, what: "said to have failed without an attempt", remedy })
        }
        Aside::Retry { attempts, .. } | Aside::Dead { attempts, .. } => {
            range("the number of attempts", (*attempts).into(), 1, i32::MAX.into())
        }
        Aside::Done | Aside::Behind => Ok(()),
    }
}

/// Refuses an address or a secret that makes no sense.
pub fn check_push(push: &Push) -> Result<(), GroupError> {
    let rest = ["http://", "https://"].iter().find_map(|scheme| push.url.strip_prefix(scheme));
    let host = rest.map_or("", |rest| rest.split(['/', '?', '#']).next().unwrap_or(""));
    let bad = |c: char| c.is_control() || c.is_whitespace();
    if host.is_empty() || host.contains('@') || push.url.len() > URL_MAX || push.url.contains(bad) {
        return Err(GroupError::Url(push.url.clone()));
    }
    if push.secret.len() > SECRET_MAX || push.secret.contains(char::is_control) {
        return Err(GroupError::Secret(push.secret.len()));
    }
    signing_key(&push.secret)?;
    range("timeout_ms", push.timeout_ms.into(), 1, PUSH_TIMEOUT_MAX_MS.into())
}

fn check_slots(slots: impl Iterator<Item = u32>, count: usize) -> Result<(), GroupError> {
    many("slots", count, SLOTS_MAX as usize)?;
    let mut named = HashSet::with_capacity(count);
    for slot in slots {
        range("the slot", slot.into(), 0, i128::from(SLOTS_MAX) - 1)?;
        if !named.insert(slot) {
            return Err(GroupError::Twice { what: "slot", number: slot.into() });
        }
    }
    Ok(())
}

/// Stores keep 63 bits.
fn stored(what: &'static str, number: u64) -> Result<(), GroupError> {
    range(what, number.into(), 0, i64::MAX.into())
}

fn many(what: &'static str, count: usize, most: usize) -> Result<(), GroupError> {
    if count > most { Err(GroupError::TooMany { what, count, most }) } else { Ok(()) }
}

fn time(what: &'static str, ms: u64) -> Result<(), GroupError> {
    range(what, ms.into(), 0, LONGEST_MS.into())
}

fn range(what: &'static str, value: i128, least: i128, most: i128) -> Result<(), GroupError> {
    let fits = (least..=most).contains(&value);
    if fits { Ok(()) } else { Err(GroupError::Range { what, value, least, most }) }
}

#[cfg(test)]
#[path = "ask_tests.rs"]
mod tests;
