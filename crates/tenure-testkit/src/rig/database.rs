//! A database per test, on a cluster that many tests share.
//!
//! Creating a cluster takes about a second, creating a database a few hundredths. nextest runs each test in its own
//! process, so most tests use a [`fresh_database`] on the cluster given by the variable [`SHARED_CLUSTER_VARIABLE`], or
//! else on [`PgCluster::shared`]. A test that breaks the server starts its own cluster. Creating tables takes longer
//! than creating the database; a [`prepared_database`] is a copy of the database that the first such test created.

use std::path::PathBuf;

use super::pgtools::{find_binaries, psql};
use super::{PgCluster, Result, RigError, port};

/// Environment variable with the URL of a superuser's database on a shared cluster. `scripts/test` sets it.
pub const SHARED_CLUSTER_VARIABLE: &str = "TENURE_TEST_PG";

/// A database with a unique name, dropped with this value.
#[derive(Debug)]
pub struct FreshDatabase {
    name: String,
    url: String,
    admin_url: String,
    binaries: PathBuf,
}

/// Creates an empty database on the shared cluster.
pub fn fresh_database() -> Result<FreshDatabase> {
    FreshDatabase::create("")
}

/// Creates a database on the shared cluster in which this script has run.
pub fn prepared_database(script: &str) -> Result<FreshDatabase> {
    let template = format!("prepared_{:016x}", digest(script));
    let copy = || FreshDatabase::create(&format!("TEMPLATE {template}"));
    match copy() {
        Err(error) if error.to_string().contains("does not exist") => {}
        copied => return copied,
    }
    // If several processes find no template at the same time, one renames its own database to it; the others drop
    // theirs.
    let draft = fresh_database()?;
    draft.psql(script)?;
    let named = psql(
        &draft.binaries,
        &draft.admin_url,
        &format!("ALTER DATABASE {} RENAME TO {template}", draft.name),
    );
    match named {
        Err(error) if !error.to_string().contains("already exists") => Err(error),
        _ => copy(),
    }
}

/// FNV-1a, the same in every process.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl FreshDatabase {
    fn create(how: &str) -> Result<FreshDatabase> {
        let admin_url = match std::env::var(SHARED_CLUSTER_VARIABLE) {
            Ok(url) => url,
            Err(_) => PgCluster::shared()?.url(),
        };
        let name = format!("t_{}_{:016x}", std::process::id(), port::random());
        let url = with_database(&admin_url, &name)?;
        let binaries = find_binaries()?;
        psql(&binaries, &admin_url, &format!("CREATE DATABASE {name} {how}"))?;
        Ok(FreshDatabase { name, url, admin_url, binaries })
    }

    /// Name of the database, a plain identifier.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// URL of the database, over TCP.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// URL of the database for another role.
    pub fn url_as(&self, role: &str) -> String {
        let (scheme, rest) = self.url.split_once("://").expect("the URL has a user");
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        format!("{scheme}://{role}@{host}")
    }

    /// Runs SQL in the database as another role.
    pub fn psql_as(&self, role: &str, sql: &str) -> Result<String> {
        psql(&self.binaries, &self.url_as(role), sql)
    }

    /// The output of `pg_dump`, as a script for [`psql`](Self::psql).
    pub fn dump(&self, options: &[&str]) -> Result<String> {
        super::pgtools::dump(&self.binaries, &self.url, options)
    }

    /// Runs SQL in the database; see [`PgCluster::psql`].
    pub fn psql(&self, sql: &str) -> Result<String> {
        psql(&self.binaries, &self.url, sql)
    }
}

impl Drop for FreshDatabase {
    fn drop(&mut self) {
        // `DROP DATABASE` terminates open connections. It fails if the cluster is gone, and then so is the database.
        let _ = psql(&self.binaries, &self.admin_url, &format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

/// Replaces the database in a URL of the form `postgres://user@host:port/DATABASE?options`.
fn with_database(url: &str, database: &str) -> Result<String> {
    let (rest, options) = url.split_once('?').map_or((url, None), |(rest, options)| (rest, Some(options)));
    let (scheme, rest) = rest.split_once("://").ok_or_else(|| not_an_address(url))?;
    let authority = rest.split('/').next().filter(|it| !it.is_empty()).ok_or_else(|| not_an_address(url))?;
    let options = options.map(|it| format!("?{it}")).unwrap_or_default();
    Ok(format!("{scheme}://{authority}/{database}{options}"))
}

fn not_an_address(url: &str) -> RigError {
    RigError::new(format!(
        "{SHARED_CLUSTER_VARIABLE} must look like postgres://user@host:port/database, not {url}"
    ))
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn another_database_keeps_user_host_and_options() {
        let url = with_database("postgres://u:p@h:1/old?sslmode=disable", "new").unwrap();
        assert_eq!(url, "postgres://u:p@h:1/new?sslmode=disable");
        assert_eq!(with_database("postgres://u@h:1", "new").unwrap(), "postgres://u@h:1/new");
        assert!(with_database("h:1", "new").is_err());
    }
}
