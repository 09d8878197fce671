//! What a tick does: an event, a task, or an HTTP call.

use serde::{Deserialize, Serialize};

use super::definition::DefinitionError;
use crate::Name;
use crate::claim::{TEXT_MAX, TextError, check};
use crate::port::{Json, NewTask, QueueKey, Submission};

/// The longest address, in bytes.
const URL_MAX: usize = 2_048;

/// What a tick does. The payload is the schedule's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum Target {
    /// An event is published.
    Event {
        /// To which topic.
        topic: Name,
        /// Under which key: events with one key stay in order. `None`: the schedule's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
    /// A task is submitted.
    Task {
        /// To which queue.
        queue: Name,
        /// The task, but for its payload, its time, its key and its parents.
        #[serde(default)]
        task: Box<NewTask>,
    },
    /// An address is called, with POST.
    Call {
        /// Which.
        url: String,
    },
}

impl Target {
    /// Refuses what makes no sense.
    pub(super) fn check(&self) -> Result<(), DefinitionError> {
        match self {
            Target::Event { key, .. } => key.as_deref().map_or(Ok(()), |key| {
                let wrong = |problem| DefinitionError::Key { key: key.into(), problem };
                check_key(key).map_err(wrong)
            }),
            Target::Task { queue, task } => check_task(queue, task),
            Target::Call { url } => check_url(url),
        }
    }
}

fn check_key(key: &str) -> Result<(), TextError> {
    let control = key.chars().enumerate().find(|(_, c)| c.is_control());
    match control {
        _ if key.is_empty() => Err(TextError::Empty),
        _ if key.len() > TEXT_MAX => Err(TextError::TooLong(key.len())),
        Some((i, found)) => Err(TextError::Control { found, position: i + 1 }),
        None => Ok(()),
    }
}

fn check_task(queue: &Name, task: &NewTask) -> Result<(), DefinitionError> {
    let fixed = |field, remedy| Err(DefinitionError::Fixed { field, remedy });
    if task.payload != Json::default() {
        return fixed("target.task.task.payload", "give the schedule's own `payload`");
    }
    if task.run_at_ms.is_some() {
        return fixed("target.task.task.run_at_ms", "the tick is its time; for a delay change `when`");
    }
    if task.key.is_some() {
        return fixed("target.task.task.key", "the tick is its key, so that it is submitted once");
    }
    if !task.parents.is_empty() {
        return fixed("target.task.task.parents", "submit what depends on it from its worker");
    }
    if task.leader_token.is_some() {
        return fixed("target.task.task.leader_token", "it is the token of the leader that fires");
    }
    let queue = QueueKey::new(Name::default_namespace(), queue.clone());
    check(&Submission { queue, tasks: vec![task.clone()] }).map_err(DefinitionError::Task)
}

fn check_url(url: &str) -> Result<(), DefinitionError> {
    let wrong = |problem| Err(DefinitionError::Url { url: url.chars().take(100).collect(), problem });
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else {
        return wrong("does not begin with http:// or https://; give the whole address");
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    match () {
        () if url.len() > URL_MAX => wrong("has more than 2048 bytes; give a shorter one"),
        () if url.chars().any(|c| c.is_whitespace() || c.is_control()) => {
            wrong("has a space or control character; write it as %20, or take it out")
        }
        () if host.contains('@') => wrong("holds credentials, which everybody could read; leave them out"),
        () if host.is_empty() || host.starts_with(':') => wrong("names no host; give one after the //"),
        () => Ok(()),
    }
}
