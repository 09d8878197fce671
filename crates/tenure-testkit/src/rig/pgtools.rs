//! PostgreSQL's client programs and quoting.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::process::{forget_postgres_variables, run};
use super::{Result, RigError};

/// Environment variable with the directory of the server programs of a shared cluster. `scripts/postgres-matrix` sets
/// it to servers of other versions.
pub(crate) const BINARIES_VARIABLE: &str = "TENURE_TEST_PG_BINARIES";

/// Directory of PostgreSQL's programs: that of the shared cluster, the one `pg_config` reports, or the newest below
/// `/usr/lib/postgresql`.
pub(crate) fn find_binaries() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(BINARIES_VARIABLE) {
        return Ok(folder.into());
    }
    let reported =
        run(Command::new("pg_config").arg("--bindir")).ok().map(|folder| PathBuf::from(folder.trim()));
    let mut installed: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|version| Some((version.file_name().to_str()?.parse().ok()?, version.path().join("bin"))))
        .collect();
    installed.sort();
    reported
        .into_iter()
        .chain(installed.into_iter().rev().map(|(_, folder)| folder))
        .find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
        .ok_or_else(|| RigError::new("no PostgreSQL server found; install the package postgresql"))
}

/// A PostgreSQL client program from the server's directory, or else from the system. Some server packages have no
/// clients.
pub(crate) fn program(binaries: &Path, name: &str) -> PathBuf {
    Some(binaries.join(name)).filter(|program| program.exists()).unwrap_or_else(|| name.into())
}

/// Runs SQL through `psql` without user settings.
pub(crate) fn psql(binaries: &Path, conninfo: &str, sql: &str) -> Result<String> {
    let mut command = Command::new(program(binaries, "psql"));
    forget_postgres_variables(&mut command);
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", conninfo]).stdin(Stdio::null());
    // Run the SQL from a file, because all statements of one `-c` would be one transaction.
    let script = tempfile::NamedTempFile::new().map_err(|error| RigError::new(error.to_string()))?;
    fs::write(script.path(), sql).map_err(|error| RigError::new(error.to_string()))?;
    let rows = run(command.arg("-f").arg(script.path()))?;
    Ok(rows.trim_end_matches('\n').to_owned())
}

/// The output of `pg_dump`.
pub(crate) fn dump(binaries: &Path, conninfo: &str, options: &[&str]) -> Result<String> {
    run(Command::new(binaries.join("pg_dump"))
        .args(["--inserts", "--no-owner", "-d", conninfo])
        .args(options))
}

pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Percent-encodes a text for a URL.
pub(crate) fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
