//! `tenure migrate`: the database schema.

use std::time::Duration;

use serde_json::json;
use tenure::store::StoreOptions;
use tenure::store::migrations::{Blocked, Compatibility, MigrateOptions, SchemaMigrator, SchemaStatus};

use crate::args::{GlobalArgs, MigrateArgs, MigrateCommand, OutputFormat};
use crate::error::{self, CliError};
use crate::output::{self, Table, TextStyle, paint};
use crate::store;

pub(crate) async fn run(global: &GlobalArgs, args: MigrateArgs) -> Result<u8, CliError> {
    let options = store::options(global)?;
    if let MigrateCommand::Sql { roles } = args.command {
        let script = if roles {
            tenure::store::roles_sql(&options.url)
        } else {
            tenure::store::migration_sql(&options.url)
        };
        output::print_text(&script?);
        return Ok(0);
    }
    match args.command {
        MigrateCommand::Sql { .. } => Ok(0),
        MigrateCommand::Up { timeout } => {
            up(global, tenure::store::migrator(&options).await?.as_ref(), timeout).await
        }
        MigrateCommand::Status => {
            let options = StoreOptions { existing_only: true, ..options };
            let found = tenure::store::migrator(&options).await?.schema_status().await?;
            status(global, &found);
            Ok(if is_usable_or_migratable(&found) { 0 } else { error::STORE })
        }
    }
}

async fn up(global: &GlobalArgs, store: &dyn SchemaMigrator, timeout: Duration) -> Result<u8, CliError> {
    let progress = |blocked: &Blocked| {
        let waited = blocked.waited.as_secs_f64();
        let message = format!("waiting ({waited:.1} s, attempt {}): {blocked}", blocked.attempts);
        output::note(global, TextStyle::Yellow, &message);
    };
    let applied = store.migrate_with(MigrateOptions { timeout, progress: &progress }).await?;
    if global.output == OutputFormat::Json {
        let list: Vec<_> =
            applied.iter().map(|(version, name)| json!({"version": version, "name": name})).collect();
        output::print_json(&json!({"applied": list}));
        return Ok(0);
    }
    for (version, name) in &applied {
        output::note(global, TextStyle::Green, &format!("applied {version:04} {name}"));
    }
    let status = store.schema_status().await?;
    if status.compatibility() == Compatibility::NewerCompatible {
        let message = format!(
            "nothing to do: the schema has version {}, newer than version {} of this program, and is compatible with it",
            status.found.unwrap_or(0),
            status.wanted
        );
        output::note(global, TextStyle::Yellow, &message);
    } else if applied.is_empty() {
        output::note(global, TextStyle::Green, "the schema is up to date");
    }
    Ok(0)
}

/// Whether this program can use the schema, possibly after `tenure migrate up`.
fn is_usable_or_migratable(status: &SchemaStatus) -> bool {
    status.compatibility() != Compatibility::TooNew && status.missing.is_empty()
}

fn status(global: &GlobalArgs, status: &SchemaStatus) {
    if global.output == OutputFormat::Json {
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
        Compatibility::TooNew => paint("too new for this program; upgrade the program", TextStyle::Red),
        Compatibility::NewerCompatible => paint("newer, and compatible with this program", TextStyle::Green),
        _ if !status.missing.is_empty() => paint("incomplete", TextStyle::Red),
        Compatibility::OlderCompatible => {
            paint("older, and compatible with this program; run `tenure migrate up`", TextStyle::Yellow)
        }
        _ if status.pending.is_empty() => paint("up to date", TextStyle::Green),
        _ => paint("run `tenure migrate up`", TextStyle::Yellow),
    };
    output::print_line(&format!("{found}, this program expects version {}: {verdict}", status.wanted));
    let mut table = Table::new(&["pending", "name"]);
    for (version, name) in &status.pending {
        table.row(vec![(format!("{version:04}"), TextStyle::Plain), ((*name).to_owned(), TextStyle::Plain)]);
    }
    if !status.pending.is_empty() {
        output::print_text(&table.render());
    }
    for object in &status.missing {
        output::print_line(&format!("missing: {object}"));
    }
}
