//! Typed access to the fields of a schedule file; records errors with their position.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde_json::Value;
use tenure::port::RawJson;
use tenure::rules::schedule::Zone;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::FileError;
use crate::args::time::{TimeArg, time_arg};

/// Line and column, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct FilePosition {
    pub(super) line: usize,
    column: usize,
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

pub(super) fn file_position(text: &str, at: usize) -> FilePosition {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rfind('\n').map_or(0, |end| end + 1);
    FilePosition { line: before.matches('\n').count() + 1, column: before[line..].chars().count() + 1 }
}

/// A table of the file.
#[derive(Clone, Copy)]
pub(super) struct TableReader<'t> {
    pub(super) table: &'t DeTable<'t>,
    /// Prefix of field names in errors, such as `task.`.
    pub(super) under: &'static str,
    /// Byte offset of its start.
    pub(super) at: usize,
    /// Defaults for missing fields.
    pub(super) defaults: Option<&'t DeTable<'t>>,
}

impl<'t> TableReader<'t> {
    pub(super) fn get(&self, field: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.table.get(field).or_else(|| self.defaults.and_then(|defaults| defaults.get(field)))
    }
}

pub(super) struct FileReader<'t> {
    pub(super) text: &'t str,
    /// Directory for relative paths in the file.
    pub(super) folder: PathBuf,
    /// Name of the current schedule.
    pub(super) schedule: String,
    pub(super) errors: Vec<FileError>,
}

impl FileReader<'_> {
    pub(super) fn error(&mut self, at: usize, field: String, problem: impl Into<String>) {
        let place = file_position(self.text, at);
        self.errors.push(FileError {
            place,
            schedule: self.schedule.clone(),
            field,
            problem: problem.into(),
        });
    }

    pub(super) fn unknown(&mut self, fields: &TableReader<'_>, known: &[&str]) {
        for (key, _) in fields.table.iter().filter(|(key, _)| !known.contains(&key.get_ref().as_ref())) {
            let problem = format!("unknown field; use one of {}", known.join(", "));
            self.error(key.span().start, format!("{}{}", fields.under, key.get_ref()), problem);
        }
    }

    /// Parses a TOML datetime or a string. Without a UTC offset it is a local time in the time zone.
    pub(super) fn instant(
        &mut self,
        fields: &TableReader<'_>,
        field: &'static str,
        zone: &Zone,
    ) -> Option<i64> {
        let value = fields.get(field)?;
        let text = match value.get_ref() {
            DeValue::Datetime(datetime) => datetime.to_string(),
            DeValue::String(text) => text.to_string(),
            _ => {
                return self.wrong_type(
                    fields,
                    field,
                    value,
                    "an instant, such as 2030-01-31 or 2030-01-31T09:30:00Z",
                );
            }
        };
        match time_arg(&text) {
            Ok(at @ (TimeArg::At(_) | TimeArg::Local(_))) => Some(at.in_zone(zone, 0)),
            // An age would change with every application.
            Ok(TimeArg::Ago(_)) => {
                self.wrong_type(fields, field, value, "a fixed instant, such as 2030-01-31T09:30:00Z")
            }
            Err(problem) => {
                self.error(value.span().start, format!("{}{field}", fields.under), problem);
                None
            }
        }
    }

    pub(super) fn payload(&mut self, fields: &TableReader<'_>) -> Option<RawJson> {
        let value = fields.get("payload")?;
        match json(value) {
            Ok(json) => RawJson::of(&json).ok(),
            Err((at, problem)) => {
                self.error(at, "payload".to_owned(), problem);
                None
            }
        }
    }

    pub(super) fn table<'t>(
        &mut self,
        fields: &TableReader<'t>,
        field: &'static str,
    ) -> Option<TableReader<'t>> {
        let value = fields.get(field)?;
        match value.get_ref() {
            DeValue::Table(table) => {
                Some(TableReader { table, under: "", at: value.span().start, defaults: None })
            }
            _ => self.wrong_type(fields, field, value, "a table, such as { queue = \"reports\" }"),
        }
    }

    pub(super) fn text(&mut self, fields: &TableReader<'_>, field: &str) -> Option<String> {
        let value = fields.get(field)?;
        match value.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            _ => self.wrong_type(fields, field, value, "a string in quotes"),
        }
    }

    pub(super) fn read<T>(
        &mut self,
        fields: &TableReader<'_>,
        field: &str,
        read: fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.text(fields, field)?;
        match read(&text) {
            Ok(value) => Some(value),
            Err(problem) => {
                let at = fields.get(field).map_or(fields.at, |value| value.span().start);
                self.error(at, format!("{}{field}", fields.under), problem);
                None
            }
        }
    }

    pub(super) fn parsed<T: FromStr<Err: fmt::Display>>(
        &mut self,
        fields: &TableReader<'_>,
        field: &str,
    ) -> Option<T> {
        self.read(fields, field, |text| text.parse().map_err(|error: T::Err| error.to_string()))
    }

    /// Parses a required field.
    pub(super) fn required<T: FromStr<Err: fmt::Display>>(
        &mut self,
        fields: &TableReader<'_>,
        field: &str,
    ) -> Option<T> {
        if !fields.table.contains_key(field) {
            self.error(fields.at, format!("{}{field}", fields.under), "the field is missing");
            return None;
        }
        self.parsed(fields, field)
    }

    pub(super) fn number<T: FromStr>(&mut self, fields: &TableReader<'_>, field: &str) -> Option<T> {
        let value = fields.get(field)?;
        let number = integer(value.get_ref()).and_then(|number| number.to_string().parse().ok());
        number.or_else(|| self.wrong_type(fields, field, value, "a whole number in range"))
    }

    pub(super) fn list(&mut self, fields: &TableReader<'_>, field: &str) -> Vec<String> {
        let Some(value) = fields.get(field) else { return Vec::new() };
        let texts = match value.get_ref() {
            DeValue::Array(list) => list.iter().map(|it| it.get_ref().as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        let texts: Option<Vec<String>> = texts;
        texts
            .or_else(|| self.wrong_type(fields, field, value, "a list of strings, such as [\"gpu\"]"))
            .unwrap_or_default()
    }

    /// Records an error for a value of the wrong type.
    pub(super) fn wrong_type<T>(
        &mut self,
        fields: &TableReader<'_>,
        field: &str,
        value: &Spanned<DeValue<'_>>,
        wanted: &str,
    ) -> Option<T> {
        let problem = format!("expected {wanted}");
        self.error(value.span().start, format!("{}{field}", fields.under), problem);
        None
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    }
}

/// Converts a value to JSON. An error has the byte offset and the reason.
fn json(value: &Spanned<DeValue<'_>>) -> Result<Value, (usize, &'static str)> {
    let error = |problem| (value.span().start, problem);
    Ok(match value.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        number @ DeValue::Integer(_) => {
            integer(number).ok_or_else(|| error("the number is too large"))?.into()
        }
        DeValue::Float(number) => {
            let number: Option<f64> = number.as_str().parse().ok();
            let number = number.and_then(serde_json::Number::from_f64);
            Value::Number(number.ok_or_else(|| error("JSON has no such number"))?)
        }
        DeValue::Boolean(yes) => Value::Bool(*yes),
        DeValue::Datetime(moment) => Value::String(moment.to_string()),
        DeValue::Array(list) => Value::Array(list.iter().map(json).collect::<Result<_, _>>()?),
        DeValue::Table(table) => {
            let entries = table.iter().map(|(key, value)| Ok((key.get_ref().to_string(), json(value)?)));
            Value::Object(entries.collect::<Result<_, _>>()?)
        }
    })
}
