//! Files of JSON objects, one per line, in portions that are taken all or none.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::marker::PhantomData;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::exit::Failure;

/// A portion ends where it has so many bytes: a server reads no more than twice that at once.
const PORTION_BYTES: usize = 8 * 1024 * 1024;

/// What the options say of every line that does not, by the names of its fields.
pub(crate) type Fields = BTreeMap<String, Box<RawValue>>;

/// What the lines are, for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// One of them, such as `a task`.
    pub(crate) one: &'static str,
    /// The command whose `--help` names the fields.
    pub(crate) command: &'static str,
    /// How many are taken at once.
    pub(crate) most: usize,
}

/// One line.
pub(crate) struct Line<T> {
    /// In the file, from 1.
    pub(crate) number: usize,
    pub(crate) value: T,
}

/// What is taken at once, all or none.
pub(crate) struct Portion<T> {
    pub(crate) lines: Vec<Line<T>>,
    /// Whether the file ends with it.
    pub(crate) last: bool,
}

/// A file, line by line.
pub(crate) struct Lines<T> {
    pub(crate) name: String,
    kind: Kind,
    source: Box<dyn BufRead>,
    fields: Fields,
    number: usize,
    of: PhantomData<T>,
}

impl<T: DeserializeOwned> Lines<T> {
    /// Opens a file, or the standard input (`-`).
    pub(crate) fn open(path: &Path, kind: Kind, fields: Fields) -> Result<Lines<T>, Failure> {
        let name = path.display().to_string();
        if name == "-" {
            let source = Box::new(BufReader::new(std::io::stdin()));
            return Ok(Lines::new("the standard input".to_owned(), source, kind, fields));
        }
        let file = File::open(path)
            .map_err(|error| Failure::usage(format!("-f {name}: the file cannot be read: {error}")))?;
        Ok(Lines::new(name, Box::new(BufReader::new(file)), kind, fields))
    }

    fn new(name: String, source: Box<dyn BufRead>, kind: Kind, fields: Fields) -> Lines<T> {
        Lines { name, kind, source, fields, number: 0, of: PhantomData }
    }

    /// The next lines; none at the end.
    pub(crate) fn portion(&mut self) -> Result<Portion<T>, Failure> {
        let mut portion = Portion { lines: Vec::new(), last: false };
        let mut text = String::new();
        // What the options say is said of each line.
        let said: usize = self.fields.iter().map(|(name, value)| name.len() + value.get().len() + 4).sum();
        let mut bytes = 0;
        while portion.lines.len() < self.kind.most && bytes < PORTION_BYTES {
            text.clear();
            self.number += 1;
            let read = self.source.read_line(&mut text);
            let (number, name) = (self.number, &self.name);
            let read = read.map_err(|error| {
                Failure::usage(format!("line {number} of {name} cannot be read: {error}"))
            })?;
            if read == 0 {
                portion.last = true;
                break;
            }
            bytes += read + said;
            if text.trim().is_empty() {
                continue;
            }
            let Kind { one, command, .. } = self.kind;
            let value = self.value(&text).map_err(|error| {
                Failure::usage(format!(
                    "line {number} of {name} is not {one}: {error}; `{command} --help` names the fields"
                ))
            })?;
            portion.lines.push(Line { number, value });
        }
        Ok(portion)
    }

    fn value(&self, text: &str) -> Result<T, serde_json::Error> {
        if self.fields.is_empty() {
            return serde_json::from_str(text);
        }
        let mut fields: Fields = serde_json::from_str(text)?;
        for (name, value) in &self.fields {
            fields.entry(name.clone()).or_insert_with(|| value.clone());
        }
        serde_json::from_str(&serde_json::to_string(&fields)?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::to_raw_value;
    use tenure::port::{NewTask, SUBMIT_MAX};

    use super::*;

    fn lines(text: &str, fields: Fields) -> Lines<NewTask> {
        let source = Box::new(std::io::Cursor::new(text.as_bytes().to_vec()));
        let kind = Kind { one: "a task", command: "tenure tasks submit", most: SUBMIT_MAX };
        Lines::new("a file".into(), source, kind, fields)
    }

    fn portions(mut lines: Lines<NewTask>) -> Vec<(usize, bool)> {
        let next = || lines.portion().ok().map(|portion| (portion.lines.len(), portion.last));
        std::iter::from_fn(next).take_while(|(count, _)| *count > 0).collect()
    }

    #[test]
    fn a_portion_ends_where_a_server_would_refuse_it() {
        let line = format!("{{\"payload\":\"{}\"}}\n", "x".repeat(1_000_000));
        assert_eq!(portions(lines(&line.repeat(12), Fields::new())), [(9, false), (3, true)]);
        let fields = Fields::from([("payload".to_owned(), to_raw_value(&"x".repeat(1_000_000)).unwrap())]);
        assert_eq!(portions(lines(&"{}\n".repeat(12), fields)), [(9, false), (3, true)]);
        assert_eq!(portions(lines("{}\n\n{}", Fields::new())), [(2, true)]);
    }
}
