//! Validation errors of the core as problems that name the invalid field.

use http::StatusCode;
use tenure_core::rules::event::{EventRequestError, PublishError};
use tenure_core::rules::work::{SubmissionError, WorkRequestError};

use crate::problem::Problem;

/// Problem for an invalid submission. With several tasks the field contains the index.
pub(super) fn submission_problem(error: &SubmissionError, many: bool) -> Problem {
    let (place, field) = match *error {
        SubmissionError::TooLarge { place, .. } => (Some(place), "payload"),
        SubmissionError::TooLong { place, what, .. }
        | SubmissionError::Text { place, what, .. }
        | SubmissionError::Range { place, what, .. } => (Some(place), field_of_task(what)),
        SubmissionError::Backoff { place, .. } => (Some(place), "backoff"),
        SubmissionError::OfTick { place, .. } => (Some(place), "idempotency_key"),
        SubmissionError::Index { place, .. } => (Some(place), "parents"),
        SubmissionError::Cycle(_) => (None, "parents"),
        _ => (None, "tasks"),
    };
    match place {
        Some(place) if many => invalid_value(format!("tasks[{place}].{field}"), error),
        None if many => invalid_value("tasks", error),
        _ => invalid_value(field, error),
    }
}

fn field_of_task(what: &str) -> &str {
    match what {
        "required tag" | "required tags" => "required_tags",
        "preferred tag" | "preferred tags" => "preferred_tags",
        "allowed worker" | "allowed workers" => "allowed_workers",
        "idempotency key" => "idempotency_key",
        "concurrency key" => "concurrency_key",
        field => field,
    }
}

/// Problem for any other invalid claim, queue, pool or worker request.
pub(super) fn request_problem(error: WorkRequestError) -> Problem {
    let field = match &error {
        WorkRequestError::Text { what, .. }
        | WorkRequestError::TooMany { what, .. }
        | WorkRequestError::Range { what, .. } => field_of_request(what),
        WorkRequestError::Endless(_) => "claim_timeout_ms",
        WorkRequestError::Formula(_) => "priority_formula",
        _ => return Problem::from(tenure::port::StoreError::from(error)),
    };
    invalid_value(field, &error)
}

/// Problem with the message and the remedy of the core.
fn invalid_value(field: impl Into<Box<str>>, error: &impl std::fmt::Display) -> Problem {
    Problem::from_message(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", &error.to_string()).field(field)
}

fn field_of_request(what: &str) -> &str {
    match what {
        "the worker name" => "worker",
        "task kinds of a worker" | "the task kind" => "task_kinds",
        "tags of a worker" | "the worker tag" | "tags of a resource" | "the resource tag" => "tags",
        "queues of a worker" => "queues",
        "the capacity of the worker" => "capacity",
        "the description of the worker" => "description",
        "the location of the worker" => "location",
        "resources in one call" => "resources",
        "the total limit of the claim requests" => "limit",
        "claim requests" => "requests",
        "the idempotency key" => "idempotency_key",
        "the owner" => "owner",
        "required tags" | "the required tag" => "required_tags",
        "preferred tags" | "the preferred tag" => "preferred_tags",
        field => field,
    }
}

/// Problem for invalid events. With several events the field contains the index.
pub(super) fn publish_problem(error: &PublishError, many: bool) -> Problem {
    let (place, field) = match *error {
        PublishError::TooLarge { place, .. } | PublishError::TooDeep { place, .. } => {
            (Some(place), "payload")
        }
        PublishError::Word { place, what, .. } => (Some(place), field_of_event(what)),
        PublishError::Headers { place, .. } | PublishError::HeaderBytes { place, .. } => {
            (Some(place), "headers")
        }
        PublishError::Token { place, .. } => (Some(place), "leader_token"),
        _ => (None, "events"),
    };
    match place {
        Some(place) if many => invalid_value(format!("events[{place}].{field}"), error),
        _ => invalid_value(field, error),
    }
}

fn field_of_event(what: &str) -> &str {
    match what {
        "idempotency key" => "idempotency_key",
        "header name" | "header value" => "headers",
        field => field,
    }
}

/// Problem for any other invalid request about topics and groups; `field` applies unless the error names one.
pub(super) fn event_request_problem(error: &EventRequestError, field: &str) -> Problem {
    let field = match error {
        EventRequestError::Range { what, .. } => match *what {
            "the offset"
            | "published_at_ms"
            | "the partition"
            | "the token"
            | "the event id"
            | "the number of attempts" => field,
            what => what,
        },
        EventRequestError::Keep { .. } => "unread_retention_ms",
        EventRequestError::Backoff { .. } => "backoff",
        EventRequestError::Member(_) => "member",
        EventRequestError::Url(_) => "url",
        EventRequestError::Secret(_) | EventRequestError::Key(_) => "secret",
        _ => field,
    };
    invalid_value(field, error)
}
