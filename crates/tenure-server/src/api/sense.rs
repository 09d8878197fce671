//! What makes no sense in tasks, seats, settings, events and requests, told with the field to blame. The rules are the core's.

use http::StatusCode;
use tenure_core::claim::{AskError, SubmissionError};
use tenure_core::event::{EventError, GroupError};

use crate::problem::Problem;

/// A submission that makes no sense. Of many tasks, the field says which one.
pub(super) fn of_submission(error: &SubmissionError, many: bool) -> Problem {
    let (place, field) = match *error {
        SubmissionError::TooLarge { place, .. } => (Some(place), "payload"),
        SubmissionError::TooLong { place, what, .. }
        | SubmissionError::Text { place, what, .. }
        | SubmissionError::Range { place, what, .. } => (Some(place), field_of_task(what)),
        SubmissionError::Backoff { place, .. } => (Some(place), "backoff"),
        SubmissionError::OfTick { place, .. } => (Some(place), "key"),
        SubmissionError::Index { place, .. } => (Some(place), "parents"),
        SubmissionError::Cycle(_) => (None, "parents"),
        _ => (None, "tasks"),
    };
    match place {
        Some(place) if many => unfit(format!("tasks[{place}].{field}"), error),
        None if many => unfit("tasks", error),
        _ => unfit(field, error),
    }
}

fn field_of_task(what: &str) -> &str {
    match what {
        "required tag" | "required tags" => "requires",
        "preferred tag" | "preferred tags" => "prefers",
        "named worker" | "named workers" => "workers",
        "concurrency key" => "concurrency_key",
        "concurrency limit" => "concurrency_limit",
        "number of attempts" => "max_attempts",
        "run_at" => "run_at_ms",
        "longest wait" => "max_wait_ms",
        "longest run" => "max_run_ms",
        "leader's token" => "leader_token",
        "backoff's most" => "backoff.most_ms",
        field => field,
    }
}

/// Anything else that makes no sense.
pub(super) fn of_ask(error: AskError) -> Problem {
    let field = match &error {
        AskError::Text { what, .. } | AskError::TooMany { what, .. } | AskError::Range { what, .. } => {
            field_of_ask(what)
        }
        AskError::Endless(_) => "hold_ms",
        AskError::Formula(_) => "priority",
        _ => return Problem::from(tenure::port::StoreError::from(error)),
    };
    unfit(field, &error)
}

/// What the core says is wrong, and what it says to do about it.
fn unfit(field: impl Into<Box<str>>, error: &impl std::fmt::Display) -> Problem {
    Problem::told(StatusCode::UNPROCESSABLE_ENTITY, "unfit", &error.to_string()).field(field)
}

fn field_of_ask(what: &str) -> &str {
    match what {
        "the worker's name" => "worker",
        "kinds of a worker" | "the worker's kind" => "kinds",
        "tags of a worker" | "the worker's tag" | "tags of a resource" | "the resource's tag" => "tags",
        "queues of a worker" => "queues",
        "the worker's capacity" => "capacity",
        "the worker's location" => "location",
        "the number of tasks asked for" => "limit",
        "the rate's count" => "rate.count",
        "the rate's per_ms" => "rate.per_ms",
        "resources at once" => "resources",
        "the request's key" => "key",
        "the request's owner" => "owner",
        "required tags" | "the required tag" => "requires",
        "preferred tags" | "the preferred tag" => "prefers",
        "the request's base" => "base",
        field => field,
    }
}

/// Events that make no sense. Of many, the field says which one.
pub(super) fn of_events(error: &EventError, many: bool) -> Problem {
    let (place, field) = match *error {
        EventError::TooLarge { place, .. } | EventError::TooDeep { place, .. } => (Some(place), "payload"),
        EventError::Word { place, what, .. } => (Some(place), field_of_event(what)),
        EventError::Headers { place, .. } | EventError::HeaderBytes { place, .. } => (Some(place), "headers"),
        EventError::Token { place, .. } => (Some(place), "leader_token"),
        _ => (None, "events"),
    };
    match place {
        Some(place) if many => unfit(format!("events[{place}].{field}"), error),
        _ => unfit(field, error),
    }
}

fn field_of_event(what: &str) -> &str {
    match what {
        "idempotency key" => "idempotency_key",
        "header name" | "header value" => "headers",
        field => field,
    }
}

/// Whatever else makes no sense about topics and groups; `field` is to blame unless the error says so.
pub(super) fn of_group(error: &GroupError, field: &str) -> Problem {
    let field = match error {
        GroupError::Range { what, .. } => match *what {
            "the backoff's most_ms" => "backoff.most_ms",
            "the position"
            | "the time"
            | "the slot"
            | "the token"
            | "an event's number"
            | "the number of attempts" => field,
            what => what,
        },
        GroupError::Keep { .. } => "keep_unread_ms",
        GroupError::Backoff { .. } => "backoff",
        GroupError::Member(_) => "member",
        GroupError::Url(_) => "url",
        GroupError::Secret(_) | GroupError::Key(_) => "secret",
        _ => field,
    };
    unfit(field, error)
}
