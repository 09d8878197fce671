//! The members: real `tenure run --soft`, each with a command that logs that it runs.
//!
//! The leader runs the command, and the commands are checked: not the belief of a process, but its effects. Each run of
//! the command is a term with a number of its own; it lasted at least from its first to its last record.

use std::convert::Infallible;
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use tenure_testkit::rig::true_boottime_ns;

use super::{HOLD_DOWN, ROUND, SILENCE_LIMIT};
use crate::Failed;
use crate::log::{Kind, Log, Record};
use crate::worker_processes::Job;

/// Port of all members, each in its own network namespace.
const PORT: u16 = 8370;

/// Time that a terminated command has to end.
pub(super) const KILL_AFTER: Duration = Duration::from_millis(300);

/// First command-line argument that selects the command.
pub(crate) const COMMAND: &str = "gossip-command";

/// Instructions of a member.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct MemberPlan {
    pub(crate) member: usize,
    pub(crate) address: Ipv4Addr,
    /// Addresses of all members, including this one.
    pub(crate) seeds: Vec<Ipv4Addr>,
    pub(crate) priority: i32,
    pub(crate) silence_limit: Duration,
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
            silence_limit: SILENCE_LIMIT,
            secret: secret.to_owned(),
            log: PathBuf::default(),
        }
    }

    /// File with the standard error of the member.
    pub(super) fn stderr_path(&self) -> PathBuf {
        let name = self.log.file_name().unwrap_or_default().to_string_lossy();
        self.log.with_file_name(format!("stderr-of-{name}"))
    }

    fn store(&self) -> String {
        let others = self.seeds.iter().filter(|seed| **seed != self.address);
        let seeds: Vec<String> = others.map(|seed| format!("{seed}:{PORT}")).collect();
        let ms = |time: Duration| format!("{}ms", time.as_millis());
        format!(
            "gossip:{}:{PORT}?seed={}&round={}&silence_limit={}&hold_down={}&secret_file={}",
            self.address,
            seeds.join(","),
            ms(ROUND),
            ms(self.silence_limit),
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

    /// The program next to this one, unless `$TENURE` names another.
    fn program(&self) -> Result<PathBuf, Failed> {
        let next_to_this = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("tenure"));
        let program = std::env::var_os("TENURE").map(PathBuf::from).or_else(next_to_this);
        let found = program.filter(|program| program.is_file());
        Ok(found
            .ok_or("`tenure` was not found next to this program: build it, or set $TENURE to its path")?)
    }

    fn instruct(&self, command: &mut Command) -> Result<(), Failed> {
        let (name, kill_after) = (format!("m{}", self.member), format!("{}ms", KILL_AFTER.as_millis()));
        command.args(["run", "warm", "--soft", "--name", &name, "--priority", &self.priority.to_string()]);
        command.args(["--kill-after", &kill_after, "--store", &self.store(), "--"]);
        command.arg(std::env::current_exe()?).arg(COMMAND).arg(&self.log);
        command.stderr(File::create(self.stderr_path())?);
        Ok(())
    }
}

/// Run the command: log that it runs until it is killed.
pub(crate) fn run_process(log: &str) -> Result<Infallible, Failed> {
    let (log, term) = (Log::open(Path::new(log))?, true_boottime_ns());
    loop {
        let at = true_boottime_ns();
        let record =
            Record { kind: Kind::Believes, election: 0, slot: 0, token: term, before: at, after: at };
        log.write(record);
        std::thread::sleep(Duration::from_millis(5));
    }
}
