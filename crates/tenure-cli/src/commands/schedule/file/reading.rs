//! Fields of a file, each read as what it should be, or told with its place as what is wrong.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde_json::Value;
use tenure::port::Json;
use tenure::schedule::Zone;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Wrong;
use crate::args::point::{Point, point};

/// A line and a column, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Place {
    pub(super) line: usize,
    column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

pub(super) fn place(text: &str, at: usize) -> Place {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rfind('\n').map_or(0, |end| end + 1);
    Place { line: before.matches('\n').count() + 1, column: before[line..].chars().count() + 1 }
}

/// A table of the file.
#[derive(Clone, Copy)]
pub(super) struct Fields<'t> {
    pub(super) table: &'t DeTable<'t>,
    /// The field that it is, with a dot, if it is one.
    pub(super) under: &'static str,
    /// Where it begins.
    pub(super) at: usize,
    /// What holds where it says nothing.
    pub(super) others: Option<&'t DeTable<'t>>,
}

impl<'t> Fields<'t> {
    pub(super) fn get(&self, field: &str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.table.get(field).or_else(|| self.others.and_then(|others| others.get(field)))
    }
}

pub(super) struct Reading<'t> {
    pub(super) text: &'t str,
    /// Where other files are named from.
    pub(super) folder: PathBuf,
    /// The schedule that is being read, as it calls itself.
    pub(super) schedule: String,
    pub(super) wrongs: Vec<Wrong>,
}

impl Reading<'_> {
    pub(super) fn wrong(&mut self, at: usize, field: String, problem: impl Into<String>) {
        let place = place(self.text, at);
        self.wrongs.push(Wrong { place, schedule: self.schedule.clone(), field, problem: problem.into() });
    }

    pub(super) fn unknown(&mut self, fields: &Fields<'_>, known: &[&str]) {
        for (key, _) in fields.table.iter().filter(|(key, _)| !known.contains(&key.get_ref().as_ref())) {
            let problem = format!("there is no such field; there are {}", known.join(", "));
            self.wrong(key.span().start, format!("{}{}", fields.under, key.get_ref()), problem);
        }
    }

    /// A date and time of TOML, or a text; without an offset on the wall clock of the zone.
    pub(super) fn moment(&mut self, fields: &Fields<'_>, field: &'static str, zone: &Zone) -> Option<i64> {
        let value = fields.get(field)?;
        let text = match value.get_ref() {
            DeValue::Datetime(datetime) => datetime.to_string(),
            DeValue::String(text) => text.to_string(),
            _ => {
                return self.other(
                    fields,
                    field,
                    value,
                    "a moment, such as 2030-01-31 or 2030-01-31T09:30:00Z",
                );
            }
        };
        match point(&text) {
            Ok(at @ (Point::At(_) | Point::Local(_))) => Some(at.in_zone(zone, 0)),
            // Applied again, it would be another.
            Ok(Point::Ago(_)) => {
                self.other(fields, field, value, "a moment that stays the same, such as 2030-01-31T09:30:00Z")
            }
            Err(problem) => {
                self.wrong(value.span().start, format!("{}{field}", fields.under), problem);
                None
            }
        }
    }

    pub(super) fn payload(&mut self, fields: &Fields<'_>) -> Option<Json> {
        let value = fields.get("payload")?;
        match json(value) {
            Ok(json) => Json::of(&json).ok(),
            Err((at, problem)) => {
                self.wrong(at, "payload".to_owned(), problem);
                None
            }
        }
    }

    pub(super) fn table<'t>(&mut self, fields: &Fields<'t>, field: &'static str) -> Option<Fields<'t>> {
        let value = fields.get(field)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Fields { table, under: "", at: value.span().start, others: None }),
            _ => self.other(fields, field, value, "a table, such as { queue = \"reports\" }"),
        }
    }

    pub(super) fn text(&mut self, fields: &Fields<'_>, field: &str) -> Option<String> {
        let value = fields.get(field)?;
        match value.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            _ => self.other(fields, field, value, "a text, in quotes"),
        }
    }

    pub(super) fn read<T>(
        &mut self,
        fields: &Fields<'_>,
        field: &str,
        read: fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.text(fields, field)?;
        match read(&text) {
            Ok(value) => Some(value),
            Err(problem) => {
                let at = fields.get(field).map_or(fields.at, |value| value.span().start);
                self.wrong(at, format!("{}{field}", fields.under), problem);
                None
            }
        }
    }

    pub(super) fn parsed<T: FromStr<Err: fmt::Display>>(
        &mut self,
        fields: &Fields<'_>,
        field: &str,
    ) -> Option<T> {
        self.read(fields, field, |text| text.parse().map_err(|error: T::Err| error.to_string()))
    }

    /// Without it there is no schedule.
    pub(super) fn needed<T: FromStr<Err: fmt::Display>>(
        &mut self,
        fields: &Fields<'_>,
        field: &str,
    ) -> Option<T> {
        if !fields.table.contains_key(field) {
            self.wrong(fields.at, format!("{}{field}", fields.under), "it is missing");
            return None;
        }
        self.parsed(fields, field)
    }

    pub(super) fn number<T: FromStr>(&mut self, fields: &Fields<'_>, field: &str) -> Option<T> {
        let value = fields.get(field)?;
        let number = integer(value.get_ref()).and_then(|number| number.to_string().parse().ok());
        number.or_else(|| self.other(fields, field, value, "a whole number in range"))
    }

    pub(super) fn list(&mut self, fields: &Fields<'_>, field: &str) -> Vec<String> {
        let Some(value) = fields.get(field) else { return Vec::new() };
        let texts = match value.get_ref() {
            DeValue::Array(list) => list.iter().map(|it| it.get_ref().as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        let texts: Option<Vec<String>> = texts;
        texts
            .or_else(|| self.other(fields, field, value, "a list of texts, such as [\"gpu\"]"))
            .unwrap_or_default()
    }

    /// It is of another sort than it should be.
    pub(super) fn other<T>(
        &mut self,
        fields: &Fields<'_>,
        field: &str,
        value: &Spanned<DeValue<'_>>,
        wanted: &str,
    ) -> Option<T> {
        let problem = format!("{wanted} is expected here");
        self.wrong(value.span().start, format!("{}{field}", fields.under), problem);
        None
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    match value {
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
        _ => None,
    }
}

/// A value as JSON has it; or where, and why it has none.
fn json(value: &Spanned<DeValue<'_>>) -> Result<Value, (usize, &'static str)> {
    let wrong = |problem| (value.span().start, problem);
    Ok(match value.get_ref() {
        DeValue::String(text) => Value::String(text.to_string()),
        number @ DeValue::Integer(_) => {
            integer(number).ok_or_else(|| wrong("this number is too large"))?.into()
        }
        DeValue::Float(number) => {
            let number: Option<f64> = number.as_str().parse().ok();
            let number = number.and_then(serde_json::Number::from_f64);
            Value::Number(number.ok_or_else(|| wrong("JSON, which a payload becomes, has no such number"))?)
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
