//! What things carry, laid out for people. JSON without losing a digit: only white space is put between what is there. Bytes
//! as text if they are text, and otherwise as a dump.

use std::fmt::Write as _;

use tenure::port::{Json, Payload};

/// More than this is not read by anybody.
const SHOWN: usize = 64 * 1024;

/// What can be read of bytes that are no text, in a dump.
const DUMPED: usize = 4096;
/// How much of something is told in a line.
const LINE: usize = 120;

/// JSON, or bytes, as they are shown.
#[derive(Clone, Debug)]
pub(crate) struct Laid {
    pub(crate) text: String,
    /// Whether that is all of it.
    pub(crate) whole: bool,
    /// How long it is in truth.
    pub(crate) bytes: usize,
}

impl Laid {
    pub(crate) fn of(json: &Json) -> Laid {
        let (text, whole) = pretty(json.as_str(), SHOWN);
        Laid { text, whole, bytes: json.as_str().len() }
    }

    /// What an event carries, as far as somebody reads who has asked for it.
    pub(crate) fn carried(payload: &Payload) -> Laid {
        Laid::cut(payload, SHOWN)
    }

    /// What an event carries, as far as a list has room for it.
    pub(crate) fn listed(payload: &Payload) -> Laid {
        Laid::cut(payload, SHOWN / 16)
    }

    fn cut(payload: &Payload, most: usize) -> Laid {
        let (text, whole) = match payload {
            Payload::Json(json) => pretty(json.as_str(), most),
            Payload::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) if !text.contains(unreadable) => {
                    (clipped(text, most).to_owned(), text.len() <= most)
                }
                _ => (dump(bytes), bytes.len() <= DUMPED),
            },
        };
        Laid { text, whole, bytes: payload.len() }
    }
}

/// What an event carries, in one line.
pub(crate) fn glance(payload: &Payload) -> String {
    let text = match payload {
        Payload::Json(json) => Some(json.as_str()),
        Payload::Bytes(bytes) => std::str::from_utf8(bytes).ok().filter(|text| !text.contains(unreadable)),
    };
    let Some(text) = text else { return "bytes".into() };
    let line = clipped(text, LINE);
    let words: Vec<_> = line.split_whitespace().collect();
    words.join(" ") + if line.len() < text.len() { "…" } else { "" }
}

/// What nobody reads in a text.
fn unreadable(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\r' | '\t')
}

/// The first so many bytes of a text, or a little less.
fn clipped(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Bytes as programmers look at them: where, which, and what they would be as letters.
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

/// The text laid out, and whether that is all of it.
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
                // What is empty stays in one piece.
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

/// The rest of a string, as it is.
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
    // Deeper than this nobody follows.
    text.extend(std::iter::repeat_n("  ", depth.min(40)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_white_space_is_added() {
        let json = r#"{"a":[1,{"b":{}},[ ]],"c":"x, {y}: \" \\","n":12345678901234567890.10e+3}"#;
        let laid = "{\n  \"a\": [\n    1,\n    {\n      \"b\": {}\n    },\n    []\n  ],\n  \
            \"c\": \"x, {y}: \\\" \\\\\",\n  \"n\": 12345678901234567890.10e+3\n}";
        assert_eq!(pretty(json, SHOWN), (laid.to_owned(), true));
        assert_eq!(pretty(laid, SHOWN), (laid.to_owned(), true));
        assert_eq!(pretty("null", SHOWN), ("null".into(), true));
    }

    #[test]
    fn what_is_too_long_is_cut_and_what_is_too_deep_does_not_grow() {
        let (cut, whole) = pretty(&format!("[{}1]", "1,".repeat(1 << 20)), SHOWN);
        assert!(!whole && cut.len() < SHOWN + 200);
        let (cut, whole) = pretty(&format!("\"{}\"", "ä".repeat(1 << 20)), SHOWN);
        assert!(!whole || cut.len() < SHOWN + 200);
        let (deep, _) = pretty(&format!("{}{}", "[".repeat(500_000), "]".repeat(500_000)), SHOWN);
        assert!(deep.len() < 2 * SHOWN);
    }

    #[test]
    fn bytes_are_shown_as_text_if_they_are_text() {
        let text = Payload::Bytes("grüße\n2".as_bytes().to_vec());
        assert_eq!((Laid::carried(&text).text.as_str(), glance(&text).as_str()), ("grüße\n2", "grüße 2"));
        let bytes = Payload::Bytes(vec![0, 255, b'a']);
        let dumped = Laid::carried(&bytes);
        assert!(dumped.whole && dumped.bytes == 3, "{dumped:?}");
        assert!(
            dumped.text.starts_with("000000  00 ff 61  ") && dumped.text.ends_with("··a\n"),
            "{dumped:?}"
        );
        assert_eq!(glance(&bytes), "bytes");
        let long = Payload::Bytes("ä".repeat(100_000).into_bytes());
        assert!(!Laid::listed(&long).whole && Laid::listed(&long).text.len() <= SHOWN / 16);
        let line = glance(&Payload::Json(format!("[{}1]", "1, ".repeat(1000)).parse().expect("JSON")));
        assert!(line.ends_with('…') && line.len() < 2 * LINE, "{line}");
    }
}
