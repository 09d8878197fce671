//! Checks of `tenure doctor`.

use std::time::Duration;

use tenure_core::port::{Finding, FindingStatus, StoreError};

use super::call_pool::{Endpoint, last_rows};
use super::error::{explain, unexpected_response};
use super::listen::ListenState;
use super::{PostgresStore, QUERIES, SERVER_VERSIONS, get};
use crate::runtime;
use crate::store::migrations::SchemaMigrator;
use crate::store::schema;

/// Number of new connections that are checked for replicas behind the address.
const CONNECTION_CHECKS: u32 = 4;

/// Timeout of the self-test of the notification listener.
const SELF_TEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Check whether the server version is a tested one: `PostgreSQL 15.14 (Debian …)`.
fn server(version: String) -> Finding {
    let number =
        version.split(' ').nth(1).and_then(|number| number.split(|c: char| !c.is_ascii_digit()).next());
    let major: Option<i32> = number.and_then(|major| major.parse().ok());
    if major.is_some_and(|major| SERVER_VERSIONS.contains(&major)) {
        return Finding::new("server", version, FindingStatus::Ok, "");
    }
    let (oldest, newest) = (SERVER_VERSIONS.start(), SERVER_VERSIONS.end());
    Finding::new(
        "server",
        version,
        FindingStatus::Warning,
        format!("Tenure is tested on versions {oldest} to {newest}"),
    )
}

/// Whether a new connection reaches a read-only server.
async fn is_read_only(endpoint: &Endpoint) -> Result<bool, String> {
    let explained = |error| explain(&error, &endpoint.address).message;
    let mut connection = endpoint.connect().await.map_err(explained)?;
    let rows = last_rows(&mut connection, QUERIES.get("server_status")).await.map_err(explained)?;
    let flag = |column: &str| {
        rows.first().map_or(Ok(false), |row| row.try_get(column)).map_err(|error| error.to_string())
    };
    Ok(flag("in_recovery")? || flag("read_only")?)
}

impl PostgresStore {
    /// The server's clock, read twice by `tenure doctor` to compare rates.
    pub(super) async fn server_seconds(&self) -> Result<f64, StoreError> {
        let rows = self.call("server_clock", &[]).await?;
        get(rows.first().ok_or_else(|| unexpected_response("the clock", "no row"))?, "seconds")
    }

    pub(super) async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        let rows = self.call("server_settings", &[]).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("the settings", "no row"))?;
        let text = |column: &str| get::<String>(row, column);
        let (standbys, commit, fsync) = (text("standbys")?, text("synchronous_commit")?, text("fsync")?);
        let mut findings = vec![
            server(text("version")?),
            Finding::new(
                "epoch",
                format!("{}, WAL timeline {}", text("epoch")?, text("timeline")?),
                FindingStatus::Ok,
                "",
            ),
            self.replication(&standbys, &commit),
            match fsync.as_str() {
                "on" => Finding::new("durability", "fsync is on", FindingStatus::Ok, ""),
                _ => Finding::new(
                    "durability",
                    "fsync is off",
                    FindingStatus::Error,
                    "a crash of the server may repeat tokens",
                ),
            },
            self.check_notifications().await,
        ];
        findings.extend(self.read_only_servers().await);
        findings.push(self.connection_limit().await?);
        findings.extend(self.old_transactions().await?);
        findings.extend(self.schema_findings().await?);
        Ok(findings)
    }

    /// Check several new connections: a load balancer or a list of hosts may lead to replicas too.
    async fn read_only_servers(&self) -> Vec<Finding> {
        let shared = &self.shared;
        let mut findings = Vec::new();
        for (check, endpoint, checks) in
            [("address", &shared.endpoint, CONNECTION_CHECKS), ("direct address", &shared.direct, 1)]
        {
            let mut read_only = 0;
            for _ in 0..checks {
                match is_read_only(endpoint).await {
                    Ok(found) => read_only += u32::from(found),
                    Err(why) => {
                        findings.push(Finding::new(
                            check,
                            why,
                            FindingStatus::Error,
                            "check the address and the server",
                        ));
                        break;
                    }
                }
            }
            if read_only > 0 {
                let found = format!("{read_only} of {checks} connections reached a read-only server");
                let advice = "a replica or reader endpoint cannot grant leases, and LISTEN does not work there: use \
                              the address of the primary";
                findings.push(Finding::new(check, found, FindingStatus::Error, advice));
            }
        }
        findings
    }

    /// Compare the limits of the server with the maximum number of connections of all live processes.
    async fn connection_limit(&self) -> Result<Finding, StoreError> {
        let rows = self.call("server_connections", &[]).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("the connection limits", "no row"))?;
        let limits = [
            ("max_connections allows", get::<i64>(row, "server_limit")?),
            ("the database allows", get(row, "database_limit")?),
            ("the role allows", get(row, "role_limit")?),
        ];
        let (which, limit) = limits
            .into_iter()
            .filter(|(_, limit)| *limit >= 0)
            .min_by_key(|(_, limit)| *limit)
            .unwrap_or(limits[0]);
        let (processes, each) = (get::<i64>(row, "processes")?, i64::from(self.shared.connections_max));
        let found =
            format!("{processes} processes may open {} ({each} each), {which} {limit}", processes * each);
        Ok(match processes * each > limit {
            false => Finding::new("connections", found, FindingStatus::Ok, ""),
            true => Finding::new(
                "connections",
                found,
                FindingStatus::Warning,
                "under load the server will reject connections: raise the limit or use PgBouncer",
            ),
        })
    }

    /// Transactions and replicas that prevent the removal of dead rows.
    async fn old_transactions(&self) -> Result<Vec<Finding>, StoreError> {
        const CHECK: &str = "old transactions";
        let mut findings = Vec::new();
        for row in self.call("server_old_transactions", &[]).await? {
            let holder: String = get(&row, "holder")?;
            let age = get::<Option<i64>>(&row, "open_ms")?
                .map_or(String::new(), |ms| format!(", open for {} s", ms / 1000));
            let advice = "it prevents the removal of dead rows, which slows down queues and events: end it \
                          (pg_terminate_backend, ROLLBACK PREPARED, pg_drop_replication_slot)";
            findings.push(Finding::new(CHECK, format!("{holder}{age}"), FindingStatus::Warning, advice));
        }
        let rows = self.call("server_hidden_processes", &[]).await?;
        let hidden: i64 = rows.first().map_or(Ok(0), |row| get(row, "hidden"))?;
        if hidden > 0 {
            let found = format!("{hidden} processes of other users are not visible to this role");
            findings.push(Finding::new(
                CHECK,
                found,
                FindingStatus::Warning,
                "GRANT pg_read_all_stats to the role, or run doctor as the owner",
            ));
        }
        if findings.is_empty() {
            findings.push(Finding::new(CHECK, "none", FindingStatus::Ok, ""));
        }
        Ok(findings)
    }

    async fn schema_findings(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(schema::findings(&self.schema_status().await?))
    }

    fn replication(&self, standbys: &str, commit: &str) -> Finding {
        let synchronous = !standbys.is_empty() && commit != "off" && commit != "local";
        match (self.shared.sync_replication, synchronous) {
            (true, _) => Finding::new(
                "replication",
                "required: a grant counts only after a standby has confirmed it",
                FindingStatus::Ok,
                "",
            ),
            (false, true) => {
                let advice = "with --sync-replication, a grant counts only after a standby has confirmed it";
                Finding::new("replication", format!("synchronous to {standbys}"), FindingStatus::Ok, advice)
            }
            (false, false) => {
                let advice = "a failover may lose the last grants; tokens still grow, and candidates wait for a whole lease before \
                              they lead. Fence off the old primary";
                Finding::new("replication", "asynchronous or none", FindingStatus::Warning, advice)
            }
        }
    }

    /// Check whether notifications arrive, which also detects a pooler.
    async fn check_notifications(&self) -> Finding {
        let _subscription = self.shared.listener.subscribe();
        let until = runtime::now() + SELF_TEST_TIMEOUT;
        while matches!(self.listen_state(), ListenState::Off | ListenState::Starting)
            && runtime::now() < until
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let polling = "takeovers rely on polling; set --direct-url to bypass the pooler";
        match self.listen_state() {
            ListenState::Active => {
                Finding::new("notifications", "NOTIFY arrives; no pooler", FindingStatus::Ok, "")
            }
            ListenState::Broken(why) => Finding::new("notifications", why, FindingStatus::Warning, polling),
            _ => Finding::new(
                "notifications",
                "NOTIFY does not arrive: there is a pooler",
                FindingStatus::Warning,
                polling,
            ),
        }
    }
}
