//! Whether a program can run on a schema, and whether the schema is complete; the same for both dialects.

use std::collections::BTreeSet;

use tenure_core::port::{ErrorKind, Finding, FindingStatus, StoreError};

use super::migrations::{Compatibility, Migration, Schema, SchemaStatus};

/// A version as the migrations table records it, and the oldest program version that may run on it.
pub(crate) type Recorded = Option<(i64, i64)>;

/// Compare what is recorded in a store with what the program needs.
pub(crate) fn status(schema: &Schema, recorded: Recorded) -> SchemaStatus {
    let found = recorded.map(|(version, _)| version);
    let pending = schema
        .migrations
        .iter()
        .filter(|m| m.version > found.unwrap_or(0))
        .map(|m| (m.version, m.name))
        .collect();
    SchemaStatus {
        found,
        oldest_compatible: recorded.map(|(_, oldest)| oldest),
        wanted: schema.version(),
        oldest_schema: schema.oldest_schema,
        pending,
        missing: Vec::new(),
    }
}

/// Set `status.missing` from the objects that exist in the store, named as in [`objects`]. Does not check a schema
/// that is newer than the program: only newer programs know its objects.
pub(crate) fn note_missing(status: &mut SchemaStatus, schema: &Schema, present: &BTreeSet<String>) {
    let found = status.found.unwrap_or(0);
    if found <= status.wanted {
        status.missing = objects(schema.migrations, found).difference(present).cloned().collect();
    }
}

/// Fail if the program cannot run on this schema. The error names the remedy.
pub(crate) fn check(status: &SchemaStatus, store: &str) -> Result<(), StoreError> {
    let (found, wanted) = (status.found.unwrap_or(0), status.wanted);
    match status.compatibility() {
        Compatibility::Current | Compatibility::NewerCompatible | Compatibility::OlderCompatible => Ok(()),
        Compatibility::NoTables => Err(StoreError::new(
            ErrorKind::SchemaMissing,
            format!("{store} has no Tenure tables; create them with `tenure migrate up --store {store}`"),
        )),
        Compatibility::TooOld => Err(StoreError::new(
            ErrorKind::SchemaVersion,
            format!(
                "the Tenure tables in {store} are at version {found} and this program needs {wanted}; \
                 run `tenure migrate up --store {store}`"
            ),
        )),
        Compatibility::TooNew => Err(StoreError::new(
            ErrorKind::SchemaVersion,
            format!(
                "the Tenure tables in {store} are at version {found}, which needs programs built for version {} or \
                 later; this program was built for version {wanted}. Upgrade this program",
                status.oldest_compatible.unwrap_or(found)
            ),
        )),
    }
}

/// Fail if a migration must not start: the schema is too new for the program, or incomplete.
pub(crate) fn check_migratable(status: &SchemaStatus, store: &str) -> Result<(), StoreError> {
    if status.compatibility() == Compatibility::TooNew {
        return check(status, store);
    }
    if status.missing.is_empty() {
        return Ok(());
    }
    const SHOWN: usize = 10;
    let mut shown = status.missing.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if status.missing.len() > SHOWN {
        shown += &format!(" and {} more", status.missing.len() - SHOWN);
    }
    Err(StoreError::new(
        ErrorKind::SchemaMissing,
        format!(
            "the schema in {store} is recorded as version {}, but it is incomplete. Missing: {shown}. A migration does not \
             recreate lost objects. Restore the database from a backup, or recreate them from the output of \
             `tenure migrate sql`",
            status.found.unwrap_or(0)
        ),
    ))
}

/// Findings about the schema for `tenure doctor`.
pub(crate) fn findings(status: &SchemaStatus) -> Vec<Finding> {
    let found =
        format!("version {}, this program was built for {}", status.found.unwrap_or(0), status.wanted);
    let mut findings = vec![match status.compatibility() {
        Compatibility::Current => Finding::new("schema", found, FindingStatus::Ok, ""),
        Compatibility::NewerCompatible => {
            Finding::new("schema", found, FindingStatus::Ok, "this program can run on it")
        }
        Compatibility::OlderCompatible => {
            Finding::new("schema", found, FindingStatus::Warning, "run `tenure migrate up`")
        }
        Compatibility::NoTables | Compatibility::TooOld | Compatibility::TooNew => {
            Finding::new("schema", found, FindingStatus::Error, "this program cannot run on it")
        }
    }];
    if !status.missing.is_empty() {
        let found = format!("missing: {}", status.missing.join(", "));
        let advice = "restore the database from a backup, or recreate them from `tenure migrate sql`";
        findings.push(Finding::new("schema", found, FindingStatus::Error, advice));
    }
    findings
}

/// Whether a store may apply the pending migrations automatically: it has no tables yet, or every program built for
/// the version found can still run afterwards.
#[cfg(feature = "sqlite")]
pub(crate) fn migrates_automatically(schema: &Schema, status: &SchemaStatus) -> bool {
    let Some(found) = status.found else { return true };
    let mut pending = schema.migrations.iter().filter(|m| m.version > found);
    !status.pending.is_empty() && pending.all(|m| m.oldest_compatible <= found)
}

/// The objects that the migrations up to `version` create, such as `table sessions` or `function guard`. Parses the
/// SQL: each `CREATE` and `DROP` must begin a line.
pub(crate) fn objects(migrations: &[Migration], version: i64) -> BTreeSet<String> {
    let mut objects = BTreeSet::new();
    for line in migrations.iter().filter(|m| m.version <= version).flat_map(|m| m.sql.lines()) {
        let words = line.split_whitespace().filter(|word| {
            !matches!(
                *word,
                "OR" | "REPLACE"
                    | "UNIQUE"
                    | "UNLOGGED"
                    | "CONSTRAINT"
                    | "CONCURRENTLY"
                    | "IF"
                    | "NOT"
                    | "EXISTS"
            )
        });
        let mut words = words;
        let (Some(verb @ ("CREATE" | "DROP")), Some(kind), Some(name)) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if line.starts_with(verb)
            && let kind @ ("TABLE" | "VIEW" | "INDEX" | "SEQUENCE" | "FUNCTION" | "TRIGGER") = kind
        {
            let name = name.split(['(', ';']).next().unwrap_or(name);
            let name = name.strip_prefix("tenure.").unwrap_or(name);
            let object = format!("{} {name}", kind.to_lowercase());
            match verb {
                "CREATE" => objects.insert(object),
                _ => objects.remove(&object),
            };
        }
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIGRATIONS: &[Migration] = &[
        Migration {
            version: 1,
            name: "one",
            sql: "CREATE TABLE tenure.a (\n    n integer\n);\nCREATE UNIQUE INDEX a_n ON tenure.a (n);\n\
                  CREATE FUNCTION tenure.f(n integer) RETURNS void AS $$\n    CREATE TABLE not_this ();\n$$;\n\
                  CREATE CONSTRAINT TRIGGER t AFTER INSERT ON tenure.a;",
            oldest_compatible: 1,
        },
        Migration {
            version: 2,
            name: "two",
            sql: "DROP INDEX tenure.a_n;\nCREATE VIEW tenure.v AS SELECT 1;",
            oldest_compatible: 1,
        },
    ];

    fn at(recorded: Recorded, program: i64, oldest_schema: i64) -> SchemaStatus {
        let migrations: &[Migration] = if program == 1 { &MIGRATIONS[..1] } else { MIGRATIONS };
        status(&Schema { migrations, oldest_schema }, recorded)
    }

    #[test]
    fn adjacent_versions_run_if_the_newer_side_says_so() {
        let cases = [
            (None, 2, 2, Compatibility::NoTables),
            (Some((2, 1)), 2, 2, Compatibility::Current),
            (Some((2, 1)), 1, 1, Compatibility::NewerCompatible),
            (Some((2, 2)), 1, 1, Compatibility::TooNew),
            (Some((1, 1)), 2, 1, Compatibility::OlderCompatible),
            (Some((1, 1)), 2, 2, Compatibility::TooOld),
        ];
        for (recorded, program, oldest_schema, expected) in cases {
            let status = at(recorded, program, oldest_schema);
            assert_eq!(status.compatibility(), expected, "{status:?}");
            let runs = matches!(
                expected,
                Compatibility::Current | Compatibility::NewerCompatible | Compatibility::OlderCompatible
            );
            assert_eq!(check(&status, "the store").is_ok(), runs, "{status:?}");
        }
    }

    #[test]
    fn objects_are_read_from_the_statements() {
        let of = |version| objects(MIGRATIONS, version).into_iter().collect::<Vec<_>>();
        assert_eq!(of(1), ["function f", "index a_n", "table a", "trigger t"]);
        assert_eq!(of(2), ["function f", "table a", "trigger t", "view v"]);
    }

    #[test]
    fn missing_objects_are_named() {
        let schema = Schema { migrations: MIGRATIONS, oldest_schema: 2 };
        let mut status = status(&schema, Some((2, 1)));
        let present = ["table a", "trigger t", "view v", "table of_mine"].map(String::from).into();
        note_missing(&mut status, &schema, &present);
        assert_eq!(status.missing, ["function f"]);
        let error = check_migratable(&status, "the store").unwrap_err();
        assert!(error.message.contains("function f"), "{error}");
    }
}
