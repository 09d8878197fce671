//! `tenure migrate`: the tables.

use serde_json::json;
use tenure::backend;

use crate::args::{Format, Global, MigrateArgs, MigrateCommand};
use crate::exit::Failure;
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
    let store = backend::migrator(&options).await?;
    match args.command {
        MigrateCommand::Sql { .. } => {}
        MigrateCommand::Up => {
            let applied = store.migrate().await?;
            if global.output == Format::Json {
                let list: Vec<_> =
                    applied.iter().map(|(version, name)| json!({"version": version, "name": name})).collect();
                output::print_json(&json!({"applied": list}));
            } else if applied.is_empty() {
                output::note(global, Ink::Green, "the tables are up to date");
            } else {
                for (version, name) in applied {
                    output::note(global, Ink::Green, &format!("applied {version:04} {name}"));
                }
            }
        }
        MigrateCommand::Status => {
            let status = store.schema_status().await?;
            if global.output == Format::Json {
                let pending: Vec<_> = status
                    .pending
                    .iter()
                    .map(|(version, name)| json!({"version": version, "name": name}))
                    .collect();
                output::print_json(
                    &json!({"found": status.found, "wanted": status.wanted, "pending": pending}),
                );
            } else {
                let found = status
                    .found
                    .map_or_else(|| "no tables".to_owned(), |version| format!("version {version}"));
                let verdict = match status.found {
                    Some(found) if found > status.wanted => {
                        paint("newer than this program: upgrade it", Ink::Red)
                    }
                    _ if status.pending.is_empty() => paint("up to date", Ink::Green),
                    _ => paint("run `tenure migrate up`", Ink::Yellow),
                };
                output::print_line(&format!("{found}, this program needs {}: {verdict}", status.wanted));
                let mut table = Table::new(&["pending", "name"]);
                for (version, name) in &status.pending {
                    table.row(vec![(format!("{version:04}"), Ink::Plain), ((*name).to_owned(), Ink::Plain)]);
                }
                if !status.pending.is_empty() {
                    output::print_text(&table.render());
                }
            }
        }
    }
    Ok(0)
}
