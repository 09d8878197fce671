//! SQL in files: `-- name: beat` begins a statement, the next name or the end of the file ends it.

use std::collections::BTreeMap;

/// The named statements of one dialect.
#[derive(Clone, Debug)]
pub(crate) struct Queries(BTreeMap<&'static str, String>);

impl Queries {
    /// Reads the statements of some files.
    pub(crate) fn parse(files: &[&'static str]) -> Queries {
        let mut queries = BTreeMap::new();
        for part in files.iter().flat_map(|file| file.split("-- name:").skip(1)) {
            let (name, sql) = part.split_once('\n').unwrap_or((part, ""));
            let sql = sql.trim().trim_end_matches(';').to_owned();
            assert!(queries.insert(name.trim(), sql).is_none(), "two statements are named {name}");
        }
        Queries(queries)
    }

    /// The statement of this name. Every name used is in the files: the conformance suite runs them all.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("no statement is named {name}"))
    }

    /// All names: both dialects have the same ones, and a test holds them to it.
    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.keys().copied()
    }

    /// Puts a known mistake back into a statement, for the negative controls: `from` must occur in it.
    #[doc(hidden)]
    pub(crate) fn sabotage(&mut self, name: &str, from: &str, to: &str) {
        let sql = self.0.get_mut(name).unwrap_or_else(|| panic!("no statement is named {name}"));
        assert!(
            sql.contains(from),
            "{name} does not contain {from:?}: the control no longer controls anything"
        );
        *sql = sql.replace(from, to);
    }
}
