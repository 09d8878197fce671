//! Rows that the server returned.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use sqlx::{Column as _, Row as _, ValueRef as _};

/// The names of the columns of a result.
pub(super) type Columns = Arc<[Box<str>]>;

/// One row of a result.
pub(in super::super) struct PgRow(Source);

enum Source {
    /// From a connection of the library, in text format.
    Own { columns: Columns, body: Bytes, values: Vec<Option<Range<usize>>> },
    /// From the user's connection.
    User(sqlx::postgres::PgRow),
}

/// The reason why a column cannot be decoded.
#[derive(Debug)]
pub(in super::super) struct ColumnError(String);

impl fmt::Display for ColumnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A type that a column can be decoded into.
pub(in super::super) trait Column<'r>: Sized {
    /// Read the text form; `None` is SQL's NULL.
    fn from_text(text: Option<&'r str>) -> Result<Self, String>;
    /// Read a column of a row of the user's connection.
    fn from_user(row: &'r sqlx::postgres::PgRow, index: usize) -> Result<Self, String>;
}

/// The position or name of a column.
pub(in super::super) trait ColumnIndex {
    /// The position of the column, if the row has it.
    fn find(&self, row: &PgRow) -> Option<usize>;
}

impl ColumnIndex for usize {
    fn find(&self, _: &PgRow) -> Option<usize> {
        Some(*self)
    }
}

impl ColumnIndex for &str {
    fn find(&self, row: &PgRow) -> Option<usize> {
        match &row.0 {
            Source::Own { columns, .. } => columns.iter().position(|name| **name == **self),
            Source::User(row) => row.columns().iter().position(|column| column.name() == *self),
        }
    }
}

impl PgRow {
    pub(super) fn new(columns: Columns, body: Bytes, values: Vec<Option<Range<usize>>>) -> PgRow {
        PgRow(Source::Own { columns, body, values })
    }

    /// Whether the row has a column of this name.
    pub(in super::super) fn has_column(&self, name: &str) -> bool {
        ColumnIndex::find(&name, self).is_some()
    }

    /// Read a column by position or name.
    pub(in super::super) fn try_get<'r, T: Column<'r>>(
        &'r self,
        index: impl ColumnIndex,
    ) -> Result<T, ColumnError> {
        let index = index.find(self).ok_or_else(|| ColumnError("no such column".into()))?;
        let value = match &self.0 {
            Source::Own { body, values, .. } => {
                let range = values.get(index).ok_or_else(|| ColumnError(format!("no column {index}")))?;
                let text = range.clone().map(|range| std::str::from_utf8(&body[range])).transpose();
                text.map_err(|error| error.to_string()).and_then(T::from_text)
            }
            Source::User(row) => T::from_user(row, index),
        };
        value.map_err(ColumnError)
    }
}

impl From<sqlx::postgres::PgRow> for PgRow {
    fn from(row: sqlx::postgres::PgRow) -> Self {
        PgRow(Source::User(row))
    }
}

const NULL: &str = "the value is NULL";

macro_rules! columns {
    ($($type:ty: $read:expr),* $(,)?) => {$(
        impl<'r> Column<'r> for $type {
            fn from_text(text: Option<&'r str>) -> Result<Self, String> {
                let read: fn(&'r str) -> Result<Self, String> = $read;
                read(text.ok_or(NULL)?)
            }

            fn from_user(row: &'r sqlx::postgres::PgRow, index: usize) -> Result<Self, String> {
                row.try_get(index).map_err(|error| error.to_string())
            }
        }
    )*};
}

columns! {
    i32: |text| text.parse().map_err(|error| format!("{error}")),
    i64: |text| text.parse().map_err(|error| format!("{error}")),
    f64: |text| text.parse().map_err(|error| format!("{error}")),
    bool: |text| match text {
        "t" => Ok(true),
        "f" => Ok(false),
        _ => Err("not a boolean".into()),
    },
    String: |text| Ok(text.to_owned()),
}

impl<'r> Column<'r> for &'r str {
    fn from_text(text: Option<&'r str>) -> Result<Self, String> {
        Ok(text.ok_or(NULL)?)
    }

    fn from_user(row: &'r sqlx::postgres::PgRow, index: usize) -> Result<Self, String> {
        row.try_get(index).map_err(|error| error.to_string())
    }
}

impl<'r, T: Column<'r>> Column<'r> for Option<T> {
    fn from_text(text: Option<&'r str>) -> Result<Self, String> {
        text.map(|text| T::from_text(Some(text))).transpose()
    }

    fn from_user(row: &'r sqlx::postgres::PgRow, index: usize) -> Result<Self, String> {
        let null = row.try_get_raw(index).map_err(|error| error.to_string())?.is_null();
        if null { Ok(None) } else { T::from_user(row, index).map(Some) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read_by_name_and_number() {
        let columns: Columns = ["n".into(), "word".into(), "none".into(), "yes".into()].into();
        let row = PgRow::new(
            columns,
            Bytes::from_static(b"-12wordt"),
            vec![Some(0..3), Some(3..7), None, Some(7..8)],
        );
        assert_eq!(row.try_get::<i64>("n").unwrap(), -12);
        assert_eq!(row.try_get::<&str>(1).unwrap(), "word");
        assert_eq!(row.try_get::<Option<i32>>("none").unwrap(), None);
        assert!(row.try_get::<bool>("yes").unwrap());
        assert!(row.has_column("word") && !row.has_column("words"));
        for wrong in ["word", "none", "other"] {
            assert!(row.try_get::<i64>(wrong).is_err());
        }
    }
}
