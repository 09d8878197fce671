//! What `tenure doctor` wants to know about a server.

use std::time::Duration;

use tenure_core::port::{Finding, StoreError, Verdict};

use super::error::garbled;
use super::listen::ListenState;
use super::{Postgres, SERVER_VERSIONS, get};
use crate::runtime;

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
        Ok(vec![
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
        ])
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
