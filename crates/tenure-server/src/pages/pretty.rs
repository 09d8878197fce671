//! JSON, laid out for people, without losing a digit: only white space is put between what is there.

use tenure::port::Json;

/// More than this is not read by anybody.
const SHOWN: usize = 64 * 1024;

/// JSON as it is shown.
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
        let (text, whole) = pretty(json.as_str());
        Laid { text, whole, bytes: json.as_str().len() }
    }
}

/// The text laid out, and whether that is all of it.
fn pretty(json: &str) -> (String, bool) {
    let mut text = String::with_capacity(json.len().min(SHOWN) * 2);
    let mut depth = 0usize;
    let mut chars = json.chars().peekable();
    while let Some(c) = chars.next() {
        if text.len() > SHOWN {
            return (text, false);
        }
        match c {
            '"' => {
                text.push(c);
                string(&mut text, &mut chars);
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
fn string(text: &mut String, chars: &mut impl Iterator<Item = char>) {
    while let Some(c) = chars.next() {
        text.push(c);
        match c {
            '\\' => text.extend(chars.next()),
            '"' => return,
            _ if text.len() > SHOWN => return,
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
        assert_eq!(pretty(json), (laid.to_owned(), true));
        assert_eq!(pretty(laid), (laid.to_owned(), true));
        assert_eq!(pretty("null"), ("null".into(), true));
    }

    #[test]
    fn what_is_too_long_is_cut_and_what_is_too_deep_does_not_grow() {
        let (cut, whole) = pretty(&format!("[{}1]", "1,".repeat(1 << 20)));
        assert!(!whole && cut.len() < SHOWN + 200);
        let (cut, whole) = pretty(&format!("\"{}\"", "ä".repeat(1 << 20)));
        assert!(!whole || cut.len() < SHOWN + 200);
        let (deep, _) = pretty(&format!("{}{}", "[".repeat(500_000), "]".repeat(500_000)));
        assert!(deep.len() < 2 * SHOWN);
    }
}
