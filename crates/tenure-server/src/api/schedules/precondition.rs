//! Preconditions of changes: versions as `ETag`s.

use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tenure::port::{Precondition, ScheduleKey};

use super::changed_meanwhile;
use crate::App;
use crate::problem::Problem;

/// Format a version as `ETag`.
pub(super) fn tag(version: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{version}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"0\""))
}

/// Precondition of a request.
pub(super) async fn expected(
    app: &App,
    key: &ScheduleKey,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Precondition, Problem> {
    let (matching, none) = (one(headers, &IF_MATCH)?, one(headers, &IF_NONE_MATCH)?);
    match (matching, none, query) {
        (None, None, None) => Ok(Precondition::Any),
        (Some("*"), None, None) => match app.store.schedule(key).await? {
            Some(view) => Ok(Precondition::Version(view.version)),
            None => Err(changed_meanwhile(key, None)),
        },
        (Some(tag), None, None) => {
            let version = read(tag).ok_or_else(|| malformed("if-match", tag))?;
            Ok(Precondition::Version(version))
        }
        (None, Some("*"), None) => Ok(Precondition::New),
        (None, Some(tag), None) => Err(malformed("if-none-match", tag)),
        (None, None, Some("any")) => Ok(Precondition::Any),
        (None, None, Some("new")) => Ok(Precondition::New),
        (None, None, Some(text)) => match text.parse() {
            Ok(version) => Ok(Precondition::Version(version)),
            Err(_) => Err(malformed("if_version", text)),
        },
        _ => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "malformed-header",
            "more than one of `If-Match`, `If-None-Match` and `if_version` is given",
        )
        .field("if_version")
        .remedy("send one of them")),
    }
}

/// Version that a schedule must have to be deleted.
pub(super) fn version(expect: Precondition) -> Result<Option<u64>, Problem> {
    match expect {
        Precondition::Any => Ok(None),
        Precondition::Version(version) => Ok(Some(version)),
        Precondition::New => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "malformed-query",
            "a schedule that must not exist cannot be deleted",
        )
        .field("if_version")
        .remedy("send the version that you have read, or omit it")),
    }
}

/// Value of a header that may occur once.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().unwrap_or("not text").trim();
    match values.next() {
        None => Ok(Some(text)),
        Some(_) => Err(malformed(name.as_str(), "sent more than once")),
    }
}

/// Parse the version of an `ETag`. Weak tags are accepted, because proxies that compress weaken them.
fn read(tag: &str) -> Option<u64> {
    let tag = tag.strip_prefix("W/").unwrap_or(tag);
    let tag = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag);
    tag.parse().ok()
}

fn malformed(field: &str, text: &str) -> Problem {
    let text: String = text.chars().take(40).collect();
    let code = if field == "if_version" { "malformed-query" } else { "malformed-header" };
    Problem::new(StatusCode::BAD_REQUEST, code, format!("{text:?} is not a schedule version"))
        .field(field)
        .remedy(
            "send the `ETag` of the schedule, such as \"3\"; to create a schedule, send `If-None-Match: *`",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_round_trip_as_etags() {
        assert_eq!(tag(17), "\"17\"");
        for text in ["\"17\"", "W/\"17\"", "17"] {
            assert_eq!(read(text), Some(17), "{text}");
        }
        for text in ["", "\"\"", "\"a\"", "\"1\", \"2\"", "-1"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
