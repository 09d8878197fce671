//! A database for each test, on a cluster that many tests share.
//!
//! A cluster takes about a second to make, a database a few hundredths. So most tests take a [`fresh_database`]: on the
//! cluster that the variable [`SHARED_CLUSTER_VARIABLE`] points to, since nextest runs each test in a process of its own,
//! or else on [`PgCluster::shared`]. A test that breaks the server starts its own. Tables take longer than the database
//! that they are in: who wants some asks for a [`prepared_database`], which is a copy of one that the first such test made.

use std::path::PathBuf;

use super::pgtools::{find_binaries, psql};
use super::{Error, PgCluster, Result, port};

/// The variable with the address of a superuser's database on a cluster that test processes share. `scripts/test` sets
/// it.
pub const SHARED_CLUSTER_VARIABLE: &str = "TENURE_TEST_PG";

/// A database with a name of its own, dropped with this value.
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
    // Of those who find none at the same time, one gives its own the name; the others' are dropped.
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

/// FNV-1a: the same in every process.
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

    /// The database's name: a plain identifier.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The database's address, over TCP.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The database's address for another role.
    pub fn url_as(&self, role: &str) -> String {
        let (scheme, rest) = self.url.split_once("://").expect("it was made with one");
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        format!("{scheme}://{role}@{host}")
    }

    /// Runs SQL in the database as another role.
    pub fn psql_as(&self, role: &str, sql: &str) -> Result<String> {
        psql(&self.binaries, &self.url_as(role), sql)
    }

    /// What `pg_dump` writes of the database, as a script for [`psql`](Self::psql).
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
        // Whoever still holds a connection is cut off. If the cluster has gone, so has the database.
        let _ = psql(&self.binaries, &self.admin_url, &format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

/// The same address with another database: `postgres://user@host:port/` *this* `?options`.
fn with_database(url: &str, database: &str) -> Result<String> {
    let (rest, options) = url.split_once('?').map_or((url, None), |(rest, options)| (rest, Some(options)));
    let (scheme, rest) = rest.split_once("://").ok_or_else(|| not_an_address(url))?;
    let authority = rest.split('/').next().filter(|it| !it.is_empty()).ok_or_else(|| not_an_address(url))?;
    let options = options.map(|it| format!("?{it}")).unwrap_or_default();
    Ok(format!("{scheme}://{authority}/{database}{options}"))
}

fn not_an_address(url: &str) -> Error {
    Error::new(format!(
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
