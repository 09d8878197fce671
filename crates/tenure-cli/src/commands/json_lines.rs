//! Reader of NDJSON files, in batches that are submitted atomically.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::marker::PhantomData;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::error::CliError;

/// Size at which a batch ends. A server accepts request bodies of twice that size.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// Default values by field name, from options, for objects that do not set the field.
pub(crate) type DefaultFields = BTreeMap<String, Box<RawValue>>;

/// Type of the objects in the file, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonLinesKind {
    /// One object with article, such as `a task`.
    pub(crate) one: &'static str,
    /// The command whose `--help` lists the fields.
    pub(crate) command: &'static str,
    /// Maximum number of objects in a batch.
    pub(crate) most: usize,
}

/// One object of the file.
pub(crate) struct JsonObject<T> {
    /// Line number in the file, from 1.
    pub(crate) number: usize,
    pub(crate) value: T,
}

/// Objects that are submitted in one call.
pub(crate) struct InputBatch<T> {
    pub(crate) lines: Vec<JsonObject<T>>,
    /// Whether this batch is the last one of the file.
    pub(crate) last: bool,
}

/// Reader of an NDJSON file.
pub(crate) struct JsonLinesReader<T> {
    pub(crate) name: String,
    kind: JsonLinesKind,
    source: Box<dyn BufRead>,
    fields: DefaultFields,
    number: usize,
    of: PhantomData<T>,
}

impl<T: DeserializeOwned> JsonLinesReader<T> {
    /// Opens a file, or standard input (`-`).
    pub(crate) fn open(
        path: &Path,
        kind: JsonLinesKind,
        fields: DefaultFields,
    ) -> Result<JsonLinesReader<T>, CliError> {
        let name = path.display().to_string();
        if name == "-" {
            let source = Box::new(BufReader::new(std::io::stdin()));
            return Ok(JsonLinesReader::new("standard input".to_owned(), source, kind, fields));
        }
        let file = File::open(path)
            .map_err(|error| CliError::usage(format!("-f {name}: cannot read the file: {error}")))?;
        Ok(JsonLinesReader::new(name, Box::new(BufReader::new(file)), kind, fields))
    }

    fn new(
        name: String,
        source: Box<dyn BufRead>,
        kind: JsonLinesKind,
        fields: DefaultFields,
    ) -> JsonLinesReader<T> {
        JsonLinesReader { name, kind, source, fields, number: 0, of: PhantomData }
    }

    /// Reads the next batch; it is empty at the end of the file.
    pub(crate) fn batch(&mut self) -> Result<InputBatch<T>, CliError> {
        let mut batch = InputBatch { lines: Vec::new(), last: false };
        let mut text = String::new();
        // The defaults are added to each object.
        let default_bytes: usize =
            self.fields.iter().map(|(name, value)| name.len() + value.get().len() + 4).sum();
        let mut bytes = 0;
        while batch.lines.len() < self.kind.most && bytes < BATCH_BYTES {
            text.clear();
            self.number += 1;
            let read = self.source.read_line(&mut text);
            let (number, name) = (self.number, &self.name);
            let read = read
                .map_err(|error| CliError::usage(format!("cannot read line {number} of {name}: {error}")))?;
            if read == 0 {
                batch.last = true;
                break;
            }
            bytes += read + default_bytes;
            if text.trim().is_empty() {
                continue;
            }
            let JsonLinesKind { one, command, .. } = self.kind;
            let value = self.value(&text).map_err(|error| {
                CliError::usage(format!(
                    "line {number} of {name} is not {one}: {error}; `{command} --help` lists the fields"
                ))
            })?;
            batch.lines.push(JsonObject { number, value });
        }
        Ok(batch)
    }

    fn value(&self, text: &str) -> Result<T, serde_json::Error> {
        if self.fields.is_empty() {
            return serde_json::from_str(text);
        }
        let mut fields: DefaultFields = serde_json::from_str(text)?;
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

    fn lines(text: &str, fields: DefaultFields) -> JsonLinesReader<NewTask> {
        let source = Box::new(std::io::Cursor::new(text.as_bytes().to_vec()));
        let kind = JsonLinesKind { one: "a task", command: "tenure tasks submit", most: SUBMIT_MAX };
        JsonLinesReader::new("a file".into(), source, kind, fields)
    }

    fn batches(mut lines: JsonLinesReader<NewTask>) -> Vec<(usize, bool)> {
        let next = || lines.batch().ok().map(|batch| (batch.lines.len(), batch.last));
        std::iter::from_fn(next).take_while(|(count, _)| *count > 0).collect()
    }

    #[test]
    fn a_batch_ends_before_a_server_would_reject_it() {
        let line = format!("{{\"payload\":\"{}\"}}\n", "x".repeat(1_000_000));
        assert_eq!(batches(lines(&line.repeat(12), DefaultFields::new())), [(9, false), (3, true)]);
        let fields =
            DefaultFields::from([("payload".to_owned(), to_raw_value(&"x".repeat(1_000_000)).unwrap())]);
        assert_eq!(batches(lines(&"{}\n".repeat(12), fields)), [(9, false), (3, true)]);
        assert_eq!(batches(lines("{}\n\n{}", DefaultFields::new())), [(2, true)]);
    }
}
