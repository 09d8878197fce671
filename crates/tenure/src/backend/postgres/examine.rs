//! What `tenure doctor` wants to know about a server.

use std::time::Duration;

use tenure_core::port::{Finding, StoreError, Verdict};

use super::error::{explain, garbled};
use super::lane::{Endpoint, last_rows};
use super::listen::ListenState;
use super::{Postgres, QUERIES, SERVER_VERSIONS, get};
use crate::backend::migrations::Migrate;
use crate::backend::schema;
use crate::runtime;

/// How many new connections are looked at for replicas behind the address.
const LOOKS: u32 = 4;

/// How long the listener's own test of itself may take.
const EARS_PATIENCE: Duration = Duration::from_secs(5);

/// Whether this version of servers is one that was tested: `PostgreSQL 15.14 (Debian …)`.
fn server(version: String) -> Finding {
    let number =
        version.split(' ').nth(1).and_then(|number| number.split(|c: char| !c.is_ascii_digit()).next());
    let major: Option<i32> = number.and_then(|major| major.parse().ok());
    if major.is_some_and(|major| SERVER_VERSIONS.contains(&major)) {
        return Finding::new("server", version, Verdict::Good, "");
    }
    let (oldest, newest) = (SERVER_VERSIONS.start(), SERVER_VERSIONS.end());
    Finding::new(
        "server",
        version,
        Verdict::Fair,
        format!("Tenure is tested on versions {oldest} to {newest}"),
    )
}

/// Whether a new connection reaches a server that only reads.
async fn is_read_only(endpoint: &Endpoint) -> Result<bool, String> {
    let told = |error| explain(&error, &endpoint.place).message;
    let mut connection = endpoint.connect().await.map_err(told)?;
    let rows = last_rows(&mut connection, QUERIES.get("server_facts")).await.map_err(told)?;
    let flag = |column: &str| {
        rows.first().map_or(Ok(false), |row| row.try_get(column)).map_err(|error| error.to_string())
    };
    Ok(flag("in_recovery")? || flag("read_only")?)
}

impl Postgres {
    /// The server's clock, read twice by `tenure doctor` to compare rates.
    pub(super) async fn server_seconds(&self) -> Result<f64, StoreError> {
        let rows = self.call("server_clock", &[]).await?;
        get(rows.first().ok_or_else(|| garbled("its clock", "no row"))?, "seconds")
    }

    pub(super) async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        let rows = self.call("server_examine", &[]).await?;
        let row = rows.first().ok_or_else(|| garbled("its settings", "no row"))?;
        let text = |column: &str| get::<String>(row, column);
        let (standbys, commit, fsync) = (text("standbys")?, text("synchronous_commit")?, text("fsync")?);
        let mut findings = vec![
            server(text("version")?),
            Finding::new(
                "epoch",
                format!("{}, WAL timeline {}", text("epoch")?, text("timeline")?),
                Verdict::Good,
                "",
            ),
            self.replication(&standbys, &commit),
            match fsync.as_str() {
                "on" => Finding::new("durability", "fsync is on", Verdict::Good, ""),
                _ => Finding::new(
                    "durability",
                    "fsync is off",
                    Verdict::Bad,
                    "a crash of the server may repeat tokens",
                ),
            },
            self.hints().await,
        ];
        findings.extend(self.read_only_servers().await);
        findings.push(self.connection_limit().await?);
        findings.extend(self.old_transactions().await?);
        findings.extend(self.schema_findings().await?);
        Ok(findings)
    }

    /// Looks at several new connections: an address may lead to replicas as well, by a load balancer or a list of hosts.
    async fn read_only_servers(&self) -> Vec<Finding> {
        let shared = &self.shared;
        let mut findings = Vec::new();
        for (check, endpoint, looks) in
            [("address", &shared.endpoint, LOOKS), ("direct address", &shared.direct, 1)]
        {
            let mut read_only = 0;
            for _ in 0..looks {
                match is_read_only(endpoint).await {
                    Ok(found) => read_only += u32::from(found),
                    Err(why) => {
                        findings.push(Finding::new(
                            check,
                            why,
                            Verdict::Bad,
                            "check the address and the server",
                        ));
                        break;
                    }
                }
            }
            if read_only > 0 {
                let found = format!("{read_only} of {looks} connections reached a server that only reads");
                let advice = "a replica or a reader endpoint cannot grant leases, and LISTEN does not work there: give \
                              the address of the primary";
                findings.push(Finding::new(check, found, Verdict::Bad, advice));
            }
        }
        findings
    }

    /// Compares the server's limits with the most that the processes seen may open.
    async fn connection_limit(&self) -> Result<Finding, StoreError> {
        let rows = self.call("server_connections", &[]).await?;
        let row = rows.first().ok_or_else(|| garbled("its connections", "no row"))?;
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
            false => Finding::new("connections", found, Verdict::Good, ""),
            true => Finding::new(
                "connections",
                found,
                Verdict::Fair,
                "under load, connections will be refused: raise the limit or put PgBouncer in between",
            ),
        })
    }

    /// Transactions and replicas that keep the server from removing dead rows.
    async fn old_transactions(&self) -> Result<Vec<Finding>, StoreError> {
        const CHECK: &str = "old transactions";
        let mut findings = Vec::new();
        for row in self.call("server_old_transactions", &[]).await? {
            let holder: String = get(&row, "holder")?;
            let age = get::<Option<i64>>(&row, "open_ms")?
                .map_or(String::new(), |ms| format!(", open for {} s", ms / 1000));
            let advice = "dead rows cannot be removed meanwhile, and queues and events slow down: end it \
                          (pg_terminate_backend, ROLLBACK PREPARED, pg_drop_replication_slot)";
            findings.push(Finding::new(CHECK, format!("{holder}{age}"), Verdict::Fair, advice));
        }
        let rows = self.call("server_hidden", &[]).await?;
        let hidden: i64 = rows.first().map_or(Ok(0), |row| get(row, "hidden"))?;
        if hidden > 0 {
            let found = format!("{hidden} processes of other users are not visible to this role");
            findings.push(Finding::new(
                CHECK,
                found,
                Verdict::Fair,
                "GRANT pg_read_all_stats to it, or run doctor as the owner",
            ));
        }
        if findings.is_empty() {
            findings.push(Finding::new(CHECK, "none", Verdict::Good, ""));
        }
        Ok(findings)
    }

    async fn schema_findings(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(schema::findings(&self.schema_status().await?))
    }

    fn replication(&self, standbys: &str, commit: &str) -> Finding {
        let synchronous = !standbys.is_empty() && commit != "off" && commit != "local";
        match (self.shared.strict, synchronous) {
            (true, _) => {
                Finding::new("replication", "strict: a grant is on a standby too", Verdict::Good, "")
            }
            (false, true) => {
                let advice = "with --strict, a grant that no standby has would not count";
                Finding::new("replication", format!("synchronous to {standbys}"), Verdict::Good, advice)
            }
            (false, false) => {
                let advice = "after a failover the last grants may be lost: tokens grow all the same, and a lease passes \
                              before anybody leads. An old primary must be fenced off";
                Finding::new("replication", "asynchronous, or none", Verdict::Fair, advice)
            }
        }
    }

    /// Whether notifications arrive, which is also how a pooler in between shows.
    async fn hints(&self) -> Finding {
        let _ears = self.shared.ears.open();
        let until = runtime::now() + EARS_PATIENCE;
        while matches!(self.listening(), ListenState::Off | ListenState::Starting) && runtime::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let polling = "leaders are found by polling; give --direct-url past the pooler";
        match self.listening() {
            ListenState::Hearing => {
                Finding::new("hints", "NOTIFY arrives; no pooler in between", Verdict::Good, "")
            }
            ListenState::Broken(why) => Finding::new("hints", why, Verdict::Fair, polling),
            _ => Finding::new(
                "hints",
                "NOTIFY does not arrive: a pooler is in between",
                Verdict::Fair,
                polling,
            ),
        }
    }
}
