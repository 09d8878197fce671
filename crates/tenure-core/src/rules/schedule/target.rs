//! Targets of a schedule: an event, a task or a webhook.

use serde::{Deserialize, Serialize};

use super::definition::ScheduleDefinitionError;
use crate::Name;
use crate::port::{NewTask, QueueKey, RawJson, Submission};
use crate::rules::work::{TEXT_MAX, TextError, validate_submission};

/// Maximum length of a URL, in bytes.
const URL_MAX: usize = 2_048;

/// The effect of a tick. The payload is the schedule's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ScheduleTarget {
    /// Publish an event.
    Event {
        /// Topic of the event.
        topic: Name,
        /// Key of the event; by default the name of the schedule. Events with one key stay in order.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
    /// Submit a task.
    Task {
        /// Queue of the task.
        queue: Name,
        /// The task without payload, start time, idempotency key and parents.
        #[serde(default)]
        task: Box<NewTask>,
    },
    /// Call a webhook with POST.
    Webhook {
        /// URL of the webhook.
        url: String,
    },
}

impl ScheduleTarget {
    /// Validates the target.
    pub(super) fn check(&self) -> Result<(), ScheduleDefinitionError> {
        match self {
            ScheduleTarget::Event { key, .. } => key.as_deref().map_or(Ok(()), |key| {
                let wrong = |problem| ScheduleDefinitionError::Key { key: key.into(), problem };
                check_key(key).map_err(wrong)
            }),
            ScheduleTarget::Task { queue, task } => check_task(queue, task),
            ScheduleTarget::Webhook { url } => check_url(url),
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

fn check_task(queue: &Name, task: &NewTask) -> Result<(), ScheduleDefinitionError> {
    let fixed = |field, remedy| Err(ScheduleDefinitionError::Fixed { field, remedy });
    if task.payload != RawJson::default() {
        return fixed("target.task.task.payload", "use the schedule's own `payload`");
    }
    if task.run_at_ms.is_some() {
        return fixed(
            "target.task.task.run_at_ms",
            "the tick is its start time; for a delay change `expression`",
        );
    }
    if task.idempotency_key.is_some() {
        return fixed(
            "target.task.task.idempotency_key",
            "the tick is its key, so that it is submitted once",
        );
    }
    if !task.parents.is_empty() {
        return fixed("target.task.task.parents", "submit dependent tasks from its worker");
    }
    if task.leader_token.is_some() {
        return fixed("target.task.task.leader_token", "it is the token of the leader that fires");
    }
    let queue = QueueKey::new(Name::default_namespace(), queue.clone());
    validate_submission(&Submission { queue, tasks: vec![task.clone()] })
        .map_err(ScheduleDefinitionError::Task)
}

fn check_url(url: &str) -> Result<(), ScheduleDefinitionError> {
    let wrong = |problem| Err(ScheduleDefinitionError::Url { url: url.chars().take(100).collect(), problem });
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else {
        return wrong("does not start with http:// or https://; give the complete URL");
    };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    match () {
        () if url.len() > URL_MAX => wrong("has more than 2048 bytes; use a shorter one"),
        () if url.chars().any(|c| c.is_whitespace() || c.is_control()) => {
            wrong("has a space or control character; use %20, or remove it")
        }
        () if host.contains('@') => wrong("contains credentials, which every reader could see; remove them"),
        () if host.is_empty() || host.starts_with(':') => wrong("has no host; give one after the //"),
        () => Ok(()),
    }
}
