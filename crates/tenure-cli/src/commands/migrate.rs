//! `tenure migrate`: the tables.

use std::time::Duration;

use serde_json::json;
use tenure::backend::migrations::{Blocked, Compatibility, Migrate, MigrateOptions, SchemaStatus};
use tenure::backend::{self, StoreOptions};

use crate::args::{Format, Global, MigrateArgs, MigrateCommand};
use crate::exit::{self, Failure};
use crate::output::{self, Ink, Table, paint};
use crate::store;

pub(crate) async fn run(global: &Global, args: MigrateArgs) -> Result<u8, Failure> {
    let options = store::options(global)?;
    if let MigrateCommand::Sql { roles } = args.command {
        let script =
            if roles { backend::roles_sql(&options.url) } else { backend::migration_sql(&options.url) };
        output::print_text(&script?);
        return Ok(0);
    }
    match args.command {
        MigrateCommand::Sql { .. } => Ok(0),
        MigrateCommand::Up { timeout } => {
            up(global, backend::migrator(&options).await?.as_ref(), timeout).await
        }
        MigrateCommand::Status => {
            let options = StoreOptions { existing_only: true, ..options };
            let found = backend::migrator(&options).await?.schema_status().await?;
            status(global, &found);
            Ok(if is_usable_or_migratable(&found) { 0 } else { exit::STORE })
        }
    }
}

async fn up(global: &Global, store: &dyn Migrate, timeout: Duration) -> Result<u8, Failure> {
    let progress = |blocked: &Blocked| {
        let waited = blocked.waited.as_secs_f64();
        let message = format!("waiting ({waited:.1} s, attempt {}): {blocked}", blocked.attempts);
        output::note(global, Ink::Yellow, &message);
    };
    let applied = store.migrate_with(MigrateOptions { timeout, progress: &progress }).await?;
    if global.output == Format::Json {
        let list: Vec<_> =
            applied.iter().map(|(version, name)| json!({"version": version, "name": name})).collect();
        output::print_json(&json!({"applied": list}));
        return Ok(0);
    }
    for (version, name) in &applied {
        output::note(global, Ink::Green, &format!("applied {version:04} {name}"));
    }
    let status = store.schema_status().await?;
    if status.compatibility() == Compatibility::NewerCompatible {
        let message = format!(
            "nothing to do: the tables are at version {}, newer than this program's {}, which can run on them",
            status.found.unwrap_or(0),
            status.wanted
        );
        output::note(global, Ink::Yellow, &message);
    } else if applied.is_empty() {
        output::note(global, Ink::Green, "the tables are up to date");
    }
    Ok(0)
}

/// Whether this program can run on the schema, if need be after `tenure migrate up`.
fn is_usable_or_migratable(status: &SchemaStatus) -> bool {
    status.compatibility() != Compatibility::TooNew && status.missing.is_empty()
}

fn status(global: &Global, status: &SchemaStatus) {
    if global.output == Format::Json {
        let pending: Vec<_> =
            status.pending.iter().map(|(version, name)| json!({"version": version, "name": name})).collect();
        output::print_json(&json!({
            "found": status.found,
            "oldest_compatible": status.oldest_compatible,
            "wanted": status.wanted,
            "oldest_schema": status.oldest_schema,
            "pending": pending,
            "missing": status.missing,
        }));
        return;
    }
    let found = status.found.map_or_else(|| "no tables".to_owned(), |version| format!("version {version}"));
    let verdict = match status.compatibility() {
        Compatibility::TooNew => paint("too new for this program: upgrade it", Ink::Red),
        Compatibility::NewerCompatible => paint("newer, and this program can run on it", Ink::Green),
        _ if !status.missing.is_empty() => paint("incomplete", Ink::Red),
        Compatibility::OlderCompatible => {
            paint("older, and this program can run on it; run `tenure migrate up`", Ink::Yellow)
        }
        _ if status.pending.is_empty() => paint("up to date", Ink::Green),
        _ => paint("run `tenure migrate up`", Ink::Yellow),
    };
    output::print_line(&format!("{found}, this program was built for version {}: {verdict}", status.wanted));
    let mut table = Table::new(&["pending", "name"]);
    for (version, name) in &status.pending {
        table.row(vec![(format!("{version:04}"), Ink::Plain), ((*name).to_owned(), Ink::Plain)]);
    }
    if !status.pending.is_empty() {
        output::print_text(&table.render());
    }
    for object in &status.missing {
        output::print_line(&format!("missing: {object}"));
    }
}
