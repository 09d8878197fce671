//! PostgreSQL's own programs, and how to quote for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::process::{forget_postgres_variables, run};
use super::{Error, Result};

/// The variable that says where the programs of a shared cluster are, so that nobody has to look for them again.
/// `scripts/postgres-matrix` sets it to the servers of other versions.
pub(crate) const BINARIES_VARIABLE: &str = "TENURE_TEST_PG_BINARIES";

/// Where PostgreSQL's programs are: where the shared cluster's are, what `pg_config` says, or else the newest below
/// `/usr/lib/postgresql`.
pub(crate) fn find_binaries() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(BINARIES_VARIABLE) {
        return Ok(folder.into());
    }
    let told = run(Command::new("pg_config").arg("--bindir")).ok().map(|folder| PathBuf::from(folder.trim()));
    let mut installed: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|version| Some((version.file_name().to_str()?.parse().ok()?, version.path().join("bin"))))
        .collect();
    installed.sort();
    told.into_iter()
        .chain(installed.into_iter().rev().map(|(_, folder)| folder))
        .find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
        .ok_or_else(|| {
            Error::new("there is no PostgreSQL server on this machine: install the package postgresql")
        })
}

/// One of PostgreSQL's client programs: that of the server's folder, or else the machine's own. Some packages of servers
/// have no clients.
pub(crate) fn program(binaries: &Path, name: &str) -> PathBuf {
    Some(binaries.join(name)).filter(|program| program.exists()).unwrap_or_else(|| name.into())
}

/// Runs SQL through `psql`, reading no settings of the person's.
pub(crate) fn psql(binaries: &Path, conninfo: &str, sql: &str) -> Result<String> {
    let mut command = Command::new(program(binaries, "psql"));
    forget_postgres_variables(&mut command);
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", conninfo]).stdin(Stdio::null());
    // From a file, since all statements of one `-c` would be one transaction.
    let script = tempfile::NamedTempFile::new().map_err(|error| Error::new(error.to_string()))?;
    fs::write(script.path(), sql).map_err(|error| Error::new(error.to_string()))?;
    let rows = run(command.arg("-f").arg(script.path()))?;
    Ok(rows.trim_end_matches('\n').to_owned())
}

/// A text as SQL, `postgresql.conf` and libpq's conninfo all write it, as long as it has no backslash.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A text as a part of an address.
pub(crate) fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
