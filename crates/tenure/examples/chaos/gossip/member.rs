//! The members: real `tenure run --soft`, each with a command that writes down that it lives.
//!
//! Whoever leads runs the command, and that is what is judged: not what a process believes, but what is done in its name. Each life of
//! the command is a term, under a number of its own; it lasted at least from its first record to its last.

use std::convert::Infallible;
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use tenure_testkit::rig::true_boottime_ns;

use super::{HOLD_DOWN, PATIENCE, ROUND};
use crate::Failed;
use crate::crew::Job;
use crate::log::{Kind, Log, Record};

/// Where members listen, each in a network of its own.
const PORT: u16 = 8370;

/// How long a command that is told to end may go on.
pub(super) const KILL_AFTER: Duration = Duration::from_millis(300);

/// By which word this program is told that it is the command.
pub(crate) const COMMAND: &str = "gossip-command";

/// What a member is told to do.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemberPlan {
    pub(crate) member: usize,
    pub(crate) address: Ipv4Addr,
    /// Where all members are, itself among them.
    pub(crate) seeds: Vec<Ipv4Addr>,
    pub(crate) priority: i32,
    pub(crate) patience: Duration,
    pub(crate) secret: PathBuf,
    pub(crate) log: PathBuf,
}

impl MemberPlan {
    pub(crate) fn new(member: usize, addresses: &[Ipv4Addr], secret: &Path) -> Self {
        MemberPlan {
            member,
            address: addresses[member],
            seeds: addresses.to_vec(),
            priority: 0,
            patience: PATIENCE,
            secret: secret.to_owned(),
            log: PathBuf::default(),
        }
    }

    /// Where it leaves what it has to say.
    pub(super) fn said(&self) -> PathBuf {
        let name = self.log.file_name().unwrap_or_default().to_string_lossy();
        self.log.with_file_name(format!("said-by-{name}"))
    }

    fn store(&self) -> String {
        let others = self.seeds.iter().filter(|seed| **seed != self.address);
        let seeds: Vec<String> = others.map(|seed| format!("{seed}:{PORT}")).collect();
        let ms = |time: Duration| format!("{}ms", time.as_millis());
        format!(
            "gossip:{}:{PORT}?seed={}&round={}&patience={}&hold_down={}&secret_file={}",
            self.address,
            seeds.join(","),
            ms(ROUND),
            ms(self.patience),
            ms(HOLD_DOWN),
            self.secret.display()
        )
    }
}

impl Job for MemberPlan {
    const ROLE: &'static str = "gossip-member";

    fn log_to(&mut self, path: PathBuf) {
        self.log = path;
    }

    /// Built beside this one, unless `$TENURE` says where.
    fn program(&self) -> Result<PathBuf, Failed> {
        let beside = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("tenure"));
        let program = std::env::var_os("TENURE").map(PathBuf::from).or_else(beside);
        let found = program.filter(|program| program.is_file());
        Ok(found
            .ok_or("there is no `tenure` beside this program: build it, or say in $TENURE where it is")?)
    }

    fn instruct(&self, command: &mut Command) -> Result<(), Failed> {
        let (name, kill_after) = (format!("m{}", self.member), format!("{}ms", KILL_AFTER.as_millis()));
        command.args(["run", "warm", "--soft", "--id", &name, "--priority", &self.priority.to_string()]);
        command.args(["--kill-after", &kill_after, "--store", &self.store(), "--"]);
        command.arg(std::env::current_exe()?).arg(COMMAND).arg(&self.log);
        command.stderr(File::create(self.said())?);
        Ok(())
    }
}

/// Lives the life of the command: writes that it lives, until it is killed.
pub(crate) fn live(log: &str) -> Result<Infallible, Failed> {
    let (log, term) = (Log::open(Path::new(log))?, true_boottime_ns());
    loop {
        let at = true_boottime_ns();
        let record =
            Record { kind: Kind::Believes, election: 0, slot: 0, token: term, before: at, after: at };
        log.write(record);
        std::thread::sleep(Duration::from_millis(5));
    }
}
