//! Where negative controls are played: each known mistake, made on purpose, must be reported by the oracle that is there for it; and without
//! it, the same script must leave the oracle silent.
//!
//! Each play has a database of its own. A mistake of the database is put into its functions; any other is made by the script itself.

use std::time::Duration;

use tenure_testkit::rig::PgCluster;
use tokio::runtime::Handle;

use crate::Failed;
use crate::report::Progress;
use crate::servers::migrate;

/// What came of one control.
pub(crate) struct Control {
    pub(crate) mistake: &'static str,
    /// The oracle reported the mistake.
    pub(crate) caught: bool,
    /// It was silent without it.
    pub(crate) silent_without: bool,
}

/// A mistake of the database: in which function, what is taken out of it, and what is put there instead.
pub(crate) type Mistake = (&'static str, &'static str, &'static str);

/// A server for controls.
pub(crate) struct Theatre<'a> {
    cluster: PgCluster,
    progress: &'a mut Progress,
    runtime: &'a Handle,
}

impl<'a> Theatre<'a> {
    pub(crate) fn open(progress: &'a mut Progress, runtime: &'a Handle) -> Result<Self, Failed> {
        progress.stage("controls", 10.0);
        Ok(Theatre { cluster: PgCluster::start()?, progress, runtime })
    }

    /// Plays a script rightly, and then wrongly. It is told where its database is and whether to make the mistake, and tells whether
    /// the oracle reported anything.
    pub(crate) fn control(
        &mut self,
        mistake: &'static str,
        changes: &[Mistake],
        script: impl AsyncFn(&str, bool) -> Result<bool, Failed>,
    ) -> Result<Control, Failed> {
        self.progress.doing(mistake);
        let play = |wrong: bool| -> Result<bool, Failed> {
            let name = format!("{}_{wrong}", mistake.replace(|it: char| !it.is_ascii_alphanumeric(), "_"));
            let url = self.cluster.create_database(&name)?;
            self.runtime.block_on(migrate(&url))?;
            for change in changes.iter().filter(|_| wrong) {
                self.sabotage(&name, change)?;
            }
            let limit = Duration::from_secs(20);
            self.runtime.block_on(async { tokio::time::timeout(limit, script(&url, wrong)).await? })
        };
        let silent_without = !play(false)?;
        Ok(Control { mistake, caught: play(true)?, silent_without })
    }

    fn sabotage(&self, database: &str, (function, from, to): &Mistake) -> Result<(), Failed> {
        let sql = format!(
            "SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
             WHERE n.nspname = 'tenure' AND p.proname = '{function}'"
        );
        let definition = self.cluster.psql(database, &sql)?;
        if !definition.contains(from) {
            let missing = "does not contain";
            return Err(format!("tenure.{function} {missing} {from:?}: the control controls nothing").into());
        }
        self.cluster.psql(database, &definition.replace(from, to))?;
        Ok(())
    }
}
