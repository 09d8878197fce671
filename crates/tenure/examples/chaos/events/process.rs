//! A process of this stage: writers, or a member of the group.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tokio::signal::unix::Signal;

use super::plan::{Plan, Role};
use super::reader::{Tell, Temper};
use super::{books, reader};
use crate::Failed;
use crate::process::{insist, open, word};
use crate::servers::LEASE;

/// Lives the life of a process.
pub(crate) async fn live(plan: Plan, terminate: Signal) -> Result<(), Failed> {
    // There from the start: it counts as a process that lived.
    let log = OpenOptions::new().create(true).append(true).open(&plan.log)?;
    match (plan.role, plan.url.starts_with("sqlite:")) {
        (Role::Writes(writers), true) => sqlite::write(&plan, writers, terminate).await,
        (Role::Writes(writers), false) => postgres::write(&plan, writers, terminate).await,
        (Role::Reads, true) => sqlite::read(&plan, log, terminate).await,
        (Role::Reads, false) => postgres::read(&plan, log, terminate).await,
    }
}

fn tell(log: File) -> Tell {
    let log = Mutex::new(log);
    Arc::new(move |accepted| {
        let _ = writeln!(log.lock().unwrap_or_else(PoisonError::into_inner), "{}", word(accepted));
    })
}

macro_rules! process_on {
    ($dialect:ident, $database:ty, $patience_ms:literal, $pause_ms:literal) => {
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
                    let (pool, mut dice) = (pool.clone(), SplitMix::new(tenure::runtime::random()));
                    // No other has had it, in whatever process.
                    let writer = dice.next_u64();
                    writing.spawn(async move {
                        loop {
                            // What fails was rolled back, or not: the books say.
                            let written =
                                books::$dialect::write(&pool, &mut dice, $patience_ms, writer).await;
                            let wait = if written.is_ok() { dice.next_u64() % 30 } else { 100 };
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
                    let tenure = open(&plan.url, &format!("member-{}", plan.hand), LEASE).await;
                    let temper = || Temper::calm($pause_ms);
                    let join = async || reader::$dialect::join(&tenure, &pool, to.clone(), temper()).await;
                    let consumer = insist(join).await;
                    (tenure, consumer)
                };
                let (tenure, consumer) = tokio::select! {
                    joined = join => joined,
                    _ = terminate.recv() => return Ok(()),
                };
                tokio::spawn(reader::$dialect::careless(tenure.clone(), pool.clone(), lost, tell(log)));
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
