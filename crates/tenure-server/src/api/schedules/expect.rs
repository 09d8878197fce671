//! What must be there for a change to happen: versions as `ETag`s.

use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tenure::port::{Expect, ScheduleKey};

use super::changed_meanwhile;
use crate::App;
use crate::problem::Problem;

/// A version as an `ETag`.
pub(super) fn tag(version: u64) -> HeaderValue {
    HeaderValue::try_from(format!("\"{version}\"")).unwrap_or_else(|_| HeaderValue::from_static("\"0\""))
}

/// What a request expects to be there.
pub(super) async fn expected(
    app: &App,
    key: &ScheduleKey,
    headers: &HeaderMap,
    query: Option<&str>,
) -> Result<Expect, Problem> {
    let (matching, none) = (one(headers, &IF_MATCH)?, one(headers, &IF_NONE_MATCH)?);
    match (matching, none, query) {
        (None, None, None) => Ok(Expect::Any),
        (Some("*"), None, None) => match app.store.schedule(key).await? {
            Some(view) => Ok(Expect::Version(view.version)),
            None => Err(changed_meanwhile(key, None)),
        },
        (Some(tag), None, None) => {
            let version = read(tag).ok_or_else(|| malformed("if-match", tag))?;
            Ok(Expect::Version(version))
        }
        (None, Some("*"), None) => Ok(Expect::New),
        (None, Some(tag), None) => Err(malformed("if-none-match", tag)),
        (None, None, Some("any")) => Ok(Expect::Any),
        (None, None, Some("new")) => Ok(Expect::New),
        (None, None, Some(text)) => match text.parse() {
            Ok(version) => Ok(Expect::Version(version)),
            Err(_) => Err(malformed("expect", text)),
        },
        _ => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "malformed-header",
            "`If-Match`, `If-None-Match` and `expect` say the same thing, and more than one is given",
        )
        .field("expect")
        .remedy("give one of them")),
    }
}

/// The version that must be there to be deleted.
pub(super) fn version(expect: Expect) -> Result<Option<u64>, Problem> {
    match expect {
        Expect::Any => Ok(None),
        Expect::Version(version) => Ok(Some(version)),
        Expect::New => Err(Problem::new(
            StatusCode::BAD_REQUEST,
            "malformed-query",
            "what is not there can not be deleted",
        )
        .field("expect")
        .remedy("give the version that you have seen, or nothing")),
    }
}

/// The value of a header that may be given once.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().unwrap_or("what is no text").trim();
    match values.next() {
        None => Ok(Some(text)),
        Some(_) => Err(malformed(name.as_str(), "more than one")),
    }
}

/// The version of an `ETag`; a weak one counts, too: those who compress on the way make it weak.
fn read(tag: &str) -> Option<u64> {
    let tag = tag.strip_prefix("W/").unwrap_or(tag);
    let tag = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag);
    tag.parse().ok()
}

fn malformed(field: &str, text: &str) -> Problem {
    let text: String = text.chars().take(40).collect();
    let code = if field == "expect" { "malformed-query" } else { "malformed-header" };
    Problem::new(StatusCode::BAD_REQUEST, code, format!("{text:?} is no version of a schedule"))
        .field(field)
        .remedy("give the `ETag` that the schedule was shown with, such as \"3\"; to make a new one, `If-None-Match: *`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_they_are_written() {
        assert_eq!(tag(17), "\"17\"");
        for text in ["\"17\"", "W/\"17\"", "17"] {
            assert_eq!(read(text), Some(17), "{text}");
        }
        for text in ["", "\"\"", "\"a\"", "\"1\", \"2\"", "-1"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
