//! Formats payloads for display. JSON is indented without parsing numbers, so no digit is lost. Bytes are
//! shown as text if they are printable UTF-8, else as a hex dump.

use std::fmt::Write as _;

use tenure::port::{Payload, RawJson};

/// Maximum length of a formatted payload, in bytes.
const SHOWN: usize = 64 * 1024;

/// Maximum number of bytes in a hex dump.
const DUMPED: usize = 4096;
/// Maximum length of a one-line excerpt, in bytes.
const LINE: usize = 120;

/// JSON or bytes, formatted for display.
#[derive(Clone, Debug)]
pub(crate) struct FormattedPayload {
    pub(crate) text: String,
    /// Whether the text is complete.
    pub(crate) whole: bool,
    /// Length of the payload, in bytes.
    pub(crate) bytes: usize,
}

impl FormattedPayload {
    pub(crate) fn of(json: &RawJson) -> FormattedPayload {
        let (text, whole) = pretty(json.as_str(), SHOWN);
        FormattedPayload { text, whole, bytes: json.as_str().len() }
    }

    /// Format a payload for the page of an event.
    pub(crate) fn full(payload: &Payload) -> FormattedPayload {
        FormattedPayload::cut(payload, SHOWN)
    }

    /// Format a payload for a list.
    pub(crate) fn short(payload: &Payload) -> FormattedPayload {
        FormattedPayload::cut(payload, SHOWN / 16)
    }

    fn cut(payload: &Payload, most: usize) -> FormattedPayload {
        let (text, whole) = match payload {
            Payload::Json(json) => pretty(json.as_str(), most),
            Payload::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) if !text.contains(unreadable) => {
                    (clipped(text, most).to_owned(), text.len() <= most)
                }
                _ => (dump(bytes), bytes.len() <= DUMPED),
            },
        };
        FormattedPayload { text, whole, bytes: payload.len() }
    }
}

/// A one-line excerpt of a payload.
pub(crate) fn excerpt(payload: &Payload) -> String {
    let text = match payload {
        Payload::Json(json) => Some(json.as_str()),
        Payload::Bytes(bytes) => std::str::from_utf8(bytes).ok().filter(|text| !text.contains(unreadable)),
    };
    let Some(text) = text else { return "bytes".into() };
    let line = clipped(text, LINE);
    let words: Vec<_> = line.split_whitespace().collect();
    words.join(" ") + if line.len() < text.len() { "…" } else { "" }
}

/// Whether a character is a control character other than white space.
fn unreadable(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\r' | '\t')
}

/// The first `most` bytes of a text, cut at a character boundary.
fn clipped(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// A hex dump: offset, hex bytes and ASCII.
fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, row) in bytes[..bytes.len().min(DUMPED)].chunks(16).enumerate() {
        let hex: Vec<_> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        let letter =
            |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '·' };
        let letters: String = row.iter().map(letter).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{:06x}  {:<47}  {letters}", at * 16, hex.join(" "));
    }
    text
}

/// Indent JSON; the flag tells whether the result is complete.
fn pretty(json: &str, most: usize) -> (String, bool) {
    let mut text = String::with_capacity(json.len().min(most) * 2);
    let mut depth = 0usize;
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        if text.len() > most {
            return (text, false);
        }
        match c {
            '"' => {
                text.push(c);
                string(&mut text, &mut chars, most);
            }
            '{' | '[' => {
                text.push(c);
                while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                // Keep an empty object or array on one line.
                match chars.next_if(|c| matches!(c, '}' | ']')) {
                    Some(end) => text.push(end),
                    None => {
                        depth += 1;
                        line(&mut text, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                text.push(c);
                line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => text.push(c),
        }
    }
    (text, true)
}

/// Copy the rest of a string literal unchanged.
fn string(text: &mut String, chars: &mut impl Iterator<Item = char>, most: usize) {
    while let Some(c) = chars.next() {
        text.push(c);
        match c {
            '\\' => text.extend(chars.next()),
            '"' => return,
            _ if text.len() > most => return,
            _ => {}
        }
    }
}

fn line(text: &mut String, depth: usize) {
    text.push('\n');
    // Limit the indentation, so that deep nesting does not grow the output.
    text.extend(std::iter::repeat_n("  ", depth.min(40)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indentation_adds_only_white_space() {
        let json = r#"{"a":[1,{"b":{}},[ ]],"c":"x, {y}: \" \\","n":12345678901234567890.10e+3}"#;
        let indented = "{\n  \"a\": [\n    1,\n    {\n      \"b\": {}\n    },\n    []\n  ],\n  \
            \"c\": \"x, {y}: \\\" \\\\\",\n  \"n\": 12345678901234567890.10e+3\n}";
        assert_eq!(pretty(json, SHOWN), (indented.to_owned(), true));
        assert_eq!(pretty(indented, SHOWN), (indented.to_owned(), true));
        assert_eq!(pretty("null", SHOWN), ("null".into(), true));
    }

    #[test]
    fn long_json_is_truncated_and_deep_json_does_not_grow() {
        let (cut, whole) = pretty(&format!("[{}1]", "1,".repeat(1 << 20)), SHOWN);
        assert!(!whole && cut.len() < SHOWN + 200);
        let (cut, whole) = pretty(&format!("\"{}\"", "ä".repeat(1 << 20)), SHOWN);
        assert!(!whole || cut.len() < SHOWN + 200);
        let (deep, _) = pretty(&format!("{}{}", "[".repeat(500_000), "]".repeat(500_000)), SHOWN);
        assert!(deep.len() < 2 * SHOWN);
    }

    #[test]
    fn bytes_are_shown_as_text_if_they_are_printable() {
        let text = Payload::Bytes("grüße\n2".as_bytes().to_vec());
        assert_eq!(
            (FormattedPayload::full(&text).text.as_str(), excerpt(&text).as_str()),
            ("grüße\n2", "grüße 2")
        );
        let bytes = Payload::Bytes(vec![0, 255, b'a']);
        let dumped = FormattedPayload::full(&bytes);
        assert!(dumped.whole && dumped.bytes == 3, "{dumped:?}");
        assert!(
            dumped.text.starts_with("000000  00 ff 61  ") && dumped.text.ends_with("··a\n"),
            "{dumped:?}"
        );
        assert_eq!(excerpt(&bytes), "bytes");
        let long = Payload::Bytes("ä".repeat(100_000).into_bytes());
        assert!(
            !FormattedPayload::short(&long).whole && FormattedPayload::short(&long).text.len() <= SHOWN / 16
        );
        let line = excerpt(&Payload::Json(format!("[{}1]", "1, ".repeat(1000)).parse().expect("JSON")));
        assert!(line.ends_with('…') && line.len() < 2 * LINE, "{line}");
    }
}
