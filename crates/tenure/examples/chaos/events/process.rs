//! A process of the event scenarios: writers, or a member of the group.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tokio::signal::unix::Signal;

use super::plan::{Plan, Role};
use super::reader::{HandlerBehaviour, StaleCommitCallback};
use super::{chains, reader};
use crate::Failed;
use crate::postgres::LEASE;
use crate::process::{open, outcome_line, retry};

/// Run a process.
pub(crate) async fn run_process(plan: Plan, terminate: Signal) -> Result<(), Failed> {
    // Created at the start, because the number of logs is the number of processes.
    let log = OpenOptions::new().create(true).append(true).open(&plan.log)?;
    match (plan.role, plan.url.starts_with("sqlite:")) {
        (Role::Writes(writers), true) => sqlite::write(&plan, writers, terminate).await,
        (Role::Writes(writers), false) => postgres::write(&plan, writers, terminate).await,
        (Role::Reads, true) => sqlite::read(&plan, log, terminate).await,
        (Role::Reads, false) => postgres::read(&plan, log, terminate).await,
    }
}

fn log_outcome(log: File) -> StaleCommitCallback {
    let log = Mutex::new(log);
    Arc::new(move |accepted| {
        let _ = writeln!(log.lock().unwrap_or_else(PoisonError::into_inner), "{}", outcome_line(accepted));
    })
}

macro_rules! process_on {
    ($dialect:ident, $database:ty, $writer_pause_ms:literal, $pause_ms:literal) => {
        mod $dialect {
            use super::*;

            pub(super) async fn write(
                plan: &Plan,
                writers: usize,
                mut terminate: Signal,
            ) -> Result<(), Failed> {
                let pool = super::super::pools::$dialect(&plan.url, u32::try_from(writers)?)?;
                let mut writing = tokio::task::JoinSet::new();
                for _ in 0..writers {
                    let (pool, mut rng) = (pool.clone(), SplitMix::new(tenure::runtime::random()));
                    // Unique among all processes.
                    let writer = rng.next_u64();
                    writing.spawn(async move {
                        loop {
                            // The transaction may or may not have been rolled back; the chain tables tell.
                            let written =
                                chains::$dialect::write(&pool, &mut rng, $writer_pause_ms, writer).await;
                            let wait = if written.is_ok() { rng.next_u64() % 30 } else { 100 };
                            tokio::time::sleep(Duration::from_millis(wait)).await;
                        }
                    });
                }
                terminate.recv().await;
                Ok(())
            }

            pub(super) async fn read(plan: &Plan, log: File, mut terminate: Signal) -> Result<(), Failed> {
                let pool = super::super::pools::$dialect(&plan.url, 6)?;
                let (to, lost) = tokio::sync::mpsc::unbounded_channel();
                let join = async {
                    let tenure = open(&plan.url, &format!("member-{}", plan.process), LEASE).await;
                    let behaviour = || HandlerBehaviour::never_fails($pause_ms);
                    let join = async || reader::$dialect::join(&tenure, &pool, to.clone(), behaviour()).await;
                    let consumer = retry(join).await;
                    (tenure, consumer)
                };
                let (tenure, consumer) = tokio::select! {
                    joined = join => joined,
                    _ = terminate.recv() => return Ok(()),
                };
                tokio::spawn(reader::$dialect::send_stale_commits(
                    tenure.clone(),
                    pool.clone(),
                    lost,
                    log_outcome(log),
                ));
                terminate.recv().await;
                let leave = async {
                    let _ = consumer.drain().await;
                    let _ = tenure.close().await;
                };
                let _ = tokio::time::timeout(Duration::from_secs(3), leave).await;
                Ok(())
            }
        }
    };
}

process_on!(sqlite, sqlx::Sqlite, 2, 5);
process_on!(postgres, sqlx::Postgres, 20, 40);
