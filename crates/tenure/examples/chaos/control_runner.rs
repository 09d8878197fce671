//! Runner of negative controls: each known bug, injected on purpose, must be reported by its oracle; without the bug,
//! the same script must pass.
//!
//! Each script has a database of its own. A database bug is injected into a stored function; other bugs are made by the
//! script itself.

use std::time::Duration;

use tenure_testkit::rig::PgCluster;
use tokio::runtime::Handle;

use crate::Failed;
use crate::postgres::migrate;
use crate::report::Progress;

/// Result of one control.
pub(crate) struct Control {
    pub(crate) bug: &'static str,
    /// Whether the oracle reported the bug.
    pub(crate) caught: bool,
    /// Whether the oracle was silent without the bug.
    pub(crate) silent_without: bool,
}

/// A bug in the database: function, text to replace, replacement.
pub(crate) type DatabaseBug = (&'static str, &'static str, &'static str);

/// A PostgreSQL server for the controls.
pub(crate) struct ControlRunner<'a> {
    cluster: PgCluster,
    progress: &'a mut Progress,
    runtime: &'a Handle,
}

impl<'a> ControlRunner<'a> {
    pub(crate) fn open(progress: &'a mut Progress, runtime: &'a Handle) -> Result<Self, Failed> {
        progress.scenario("controls", 10.0);
        Ok(ControlRunner { cluster: PgCluster::start()?, progress, runtime })
    }

    /// Run a script without and with the bug. The script receives the database URL and whether to make the bug, and
    /// returns whether the oracle reported a violation.
    pub(crate) fn control(
        &mut self,
        bug: &'static str,
        changes: &[DatabaseBug],
        script: impl AsyncFn(&str, bool) -> Result<bool, Failed>,
    ) -> Result<Control, Failed> {
        self.progress.doing(bug);
        let run = |buggy: bool| -> Result<bool, Failed> {
            let name = format!("{}_{buggy}", bug.replace(|it: char| !it.is_ascii_alphanumeric(), "_"));
            let url = self.cluster.create_database(&name)?;
            self.runtime.block_on(migrate(&url))?;
            for change in changes.iter().filter(|_| buggy) {
                self.inject(&name, change)?;
            }
            let limit = Duration::from_secs(20);
            self.runtime.block_on(async { tokio::time::timeout(limit, script(&url, buggy)).await? })
        };
        let silent_without = !run(false)?;
        Ok(Control { bug, caught: run(true)?, silent_without })
    }

    fn inject(&self, database: &str, (function, from, to): &DatabaseBug) -> Result<(), Failed> {
        let sql = format!(
            "SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
             WHERE n.nspname = 'tenure' AND p.proname = '{function}'"
        );
        let definition = self.cluster.psql(database, &sql)?;
        if !definition.contains(from) {
            let missing = "does not contain";
            return Err(format!("tenure.{function} {missing} {from:?}; update the negative control").into());
        }
        self.cluster.psql(database, &definition.replace(from, to))?;
        Ok(())
    }
}
