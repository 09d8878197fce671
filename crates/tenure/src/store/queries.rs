//! Named SQL statements in files: `-- name: session_heartbeat` starts a statement, which ends at the next name or at the end of the
//! file.

use std::collections::BTreeMap;

/// The named statements of one dialect.
#[derive(Clone, Debug)]
pub(crate) struct Queries(BTreeMap<&'static str, String>);

impl Queries {
    /// Parse the statements of the given files.
    pub(crate) fn parse(files: &[&'static str]) -> Queries {
        let mut queries = BTreeMap::new();
        for part in files.iter().flat_map(|file| file.split("-- name:").skip(1)) {
            let (name, sql) = part.split_once('\n').unwrap_or((part, ""));
            let sql = sql.trim().trim_end_matches(';').to_owned();
            assert!(queries.insert(name.trim(), sql).is_none(), "duplicate statement {name}");
        }
        Queries(queries)
    }

    /// Return the statement of this name. Panics if it does not exist; the conformance suite uses every name.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("unknown statement {name}"))
    }

    /// All statement names, for tests.
    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.keys().copied()
    }

    /// Inject a known bug into a statement, for negative controls. Panics if `from` does not occur in the statement.
    #[doc(hidden)]
    pub(crate) fn inject_bug(&mut self, name: &str, from: &str, to: &str) {
        let sql = self.0.get_mut(name).unwrap_or_else(|| panic!("unknown statement {name}"));
        assert!(sql.contains(from), "{name} does not contain {from:?}; update the negative control");
        *sql = sql.replace(from, to);
    }
}
