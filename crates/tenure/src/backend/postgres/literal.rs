//! Arguments of statements, and the one place where they become literals: scripts.
//!
//! A call sends its arguments apart from its statements (`message.rs`). A script that people are given to read and to run
//! (`tenure migrate sql`) has them written in, as libpq's `PQescapeLiteral` does.
//!
//! What makes that safe: the statements are this crate's own files, never a user's text; a value is written only by
//! [`render`]; strings are `E'…'` with quotes and backslashes doubled, which reads the same whatever
//! `standard_conforming_strings` says; negative numbers are in parentheses, since `x -$1` with `-5` would begin a comment
//! (pgjdbc's CVE-2024-1597, pgx's CVE-2024-27289); and what was written is never scanned again, so a `$1` inside a
//! value stays one.

use tenure_core::port::{StoreError, Trouble};

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

/// Writes the arguments into a statement: `$1` becomes the first. A `$1` within a quoted string, a quoted name or a
/// dollar-quoted body of the statement is left alone, and line comments are left out.
///
/// Panics if the statement names an argument that is not there: that is a mistake in this crate.
pub(super) fn render(sql: &str, values: &[Value<'_>]) -> Result<String, StoreError> {
    let mut out = String::with_capacity(sql.len() + 32 * values.len());
    let mut rest = sql;
    while let Some(at) = rest.find(['$', '\'', '"', '-', '/']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let digits = rest[1..].bytes().take_while(u8::is_ascii_digit).count();
        if rest.starts_with('$') && digits > 0 {
            let number: usize = rest[1..=digits].parse().unwrap_or(0);
            write(&mut out, &values[number - 1])?;
            rest = &rest[1 + digits..];
        } else if rest.starts_with("--") {
            // Comments are for readers of the files; the server need not be sent them with every beat.
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else {
            let (skipped, after) = rest.split_at(opaque(rest));
            out.push_str(skipped);
            rest = after;
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// A statement as the server need see it.
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

/// The length of the quoted text or comment at the beginning of `sql`; of one character if there is none.
fn opaque(sql: &str) -> usize {
    let until = |from: usize, end: &str| sql[from..].find(end).map_or(sql.len(), |at| from + at + end.len());
    if sql.starts_with('\'') {
        // A doubled quote ends one text and begins the next, which comes to the same. Our files have no E'' strings.
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

fn write(out: &mut String, value: &Value<'_>) -> Result<(), StoreError> {
    match value {
        Value::Text(text) => write_text(out, text)?,
        Value::Json(json) => {
            write_text(out, json)?;
            out.push_str("::jsonb");
        }
        Value::Int(n) if *n < 0 => out.push_str(&format!("({n})")),
        Value::Int(n) => out.push_str(&n.to_string()),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Null => out.push_str("NULL"),
    }
    Ok(())
}

fn write_text(out: &mut String, text: &str) -> Result<(), StoreError> {
    if text.contains('\0') {
        return Err(StoreError::new(
            Trouble::Request,
            "PostgreSQL can not store the character NUL, which a name, an id or the metadata has; leave it out",
        ));
    }
    out.push_str("E'");
    for c in text.chars() {
        if matches!(c, '\'' | '\\') {
            out.push(c);
        }
        out.push(c);
    }
    out.push('\'');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rendered(sql: &str, values: &[Value<'_>]) -> String {
        render(sql, values).unwrap()
    }

    #[test]
    fn arguments_become_literals() {
        let values = [Value::from("it's \\ here"), Value::Int(7), Value::Bool(true), Value::Null];
        assert_eq!(rendered("f($1, $2, $3, $4)", &values), r"f(E'it''s \\ here', 7, true, NULL)");
        assert_eq!(rendered("$1", &[Value::Json("[]".into())]), "E'[]'::jsonb");
    }

    #[test]
    fn a_negative_number_does_not_begin_a_comment() {
        assert_eq!(rendered("1 -$1", &[Value::Int(-5)]), "1 -(-5)");
        assert_eq!(rendered("1 - $1", &[Value::Int(i64::MIN)]), "1 - (-9223372036854775808)");
    }

    #[test]
    fn a_placeholder_in_a_value_or_a_quote_is_left_alone() {
        let two = [Value::from("$2"), Value::from("'; DROP TABLE t; --")];
        assert_eq!(rendered("$1, $2", &two), "E'$2', E'''; DROP TABLE t; --'");
        for quoted in ["'$1'", "'it''s $1'", "\"$1\"", "/* $1 */", "$$ $1 $$", "a - b / c"] {
            assert_eq!(rendered(quoted, &two), quoted);
        }
        assert_eq!(rendered("$10", &vec![Value::Int(3); 10]), "3");
        assert_eq!(rendered("a -- it's $1\n$1", &two[..1]), "a \nE'$2'");
    }

    #[test]
    fn nul_is_refused() {
        assert_eq!(render("$1", &[Value::from("a\0b")]).unwrap_err().kind, Trouble::Request);
    }

    /// Reads an `E''` string as the server does.
    fn unquoted(literal: &str) -> Option<String> {
        let inner = literal.strip_prefix("E'")?.strip_suffix('\'')?;
        let mut text = String::new();
        let mut chars = inner.chars();
        while let Some(c) = chars.next() {
            if matches!(c, '\'' | '\\') && chars.next() != Some(c) {
                return None;
            }
            text.push(c);
        }
        Some(text)
    }

    proptest! {
        #[test]
        fn any_text_is_one_literal_that_reads_as_itself(text in "[^\0]{0,40}") {
            let literal = rendered("$1", &[Value::from(text.as_str())]);
            prop_assert_eq!(unquoted(&literal), Some(text));
        }

        #[test]
        fn values_never_see_each_other(a in r"[$0-9'\\a-]{0,12}", b in r"[$0-9'\\a-]{0,12}") {
            let both = rendered("$1|$2|$1", &[Value::from(a.as_str()), Value::from(b.as_str())]);
            let (a, b) = (rendered("$1", &[a.as_str().into()]), rendered("$1", &[b.as_str().into()]));
            prop_assert_eq!(both, format!("{a}|{b}|{a}"));
        }
    }
}
