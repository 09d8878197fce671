//! Arguments of statements. They are sent as bind parameters, never in the text of a statement (`message.rs`), so
//! that they do not appear in the server log.

/// An argument of a statement.
#[derive(Clone, Debug)]
pub(super) enum Value<'a> {
    Text(&'a str),
    Int(i64),
    Bool(bool),
    /// JSON, as text that becomes a `jsonb`.
    Json(String),
    Null,
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::Text(text)
    }
}

impl From<u32> for Value<'_> {
    fn from(n: u32) -> Self {
        Value::Int(n.into())
    }
}

impl From<bool> for Value<'_> {
    fn from(b: bool) -> Self {
        Value::Bool(b)
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Null, Into::into)
    }
}

/// Remove the comments from a statement.
pub(super) fn without_comments(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len());
    let mut rest = sql;
    while let Some(at) = rest.find(['$', '\'', '"', '-', '/']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("--") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else {
            let (kept, after) = rest.split_at(opaque(rest));
            out.push_str(kept);
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// The length of the quoted text or block comment at the beginning of `sql`; 1 if there is none.
fn opaque(sql: &str) -> usize {
    let until = |from: usize, end: &str| sql[from..].find(end).map_or(sql.len(), |at| from + at + end.len());
    if sql.starts_with('\'') {
        // A doubled quote ends one string and starts the next, with the same result. The files have no E'' strings.
        until(1, "'")
    } else if sql.starts_with('"') {
        until(1, "\"")
    } else if sql.starts_with("/*") {
        until(2, "*/")
    } else if sql.starts_with("$$") {
        until(2, "$$")
    } else {
        1
    }
}
