//! One replica of [`assign`](super::assign): a process of its own, told what to do on its standard input.

use std::io::{BufRead, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::port::{Outcome, Settlement, TaskId};
use tenure::runtime::now;
use tenure::{Claimed, Tenure, Token};

use super::{queue, seat};
use crate::BenchError;

/// How long a replica waits for somebody to lead.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a replica is to do.
#[derive(Clone, Debug)]
pub struct Replica {
    /// The store.
    pub store: String,
    /// Whose tasks are claimed.
    pub queue: String,
    /// By how many at once.
    pub callers: usize,
}

/// What a replica measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Measured {
    /// How long each claim took, in microseconds.
    pub(super) micros: Vec<u64>,
    /// How many went wrong.
    pub(super) failed: u64,
    /// From the first claim to the last, in microseconds.
    pub(super) took_micros: u64,
}

/// Says `ready`, waits for a line, claims until nothing is left, says what it measured, waits for a line, and ends.
pub async fn replica(replica: &Replica) -> Result<(), BenchError> {
    let tenure = Tenure::open(&replica.store).await?;
    tenure.claims().stand().await?;
    // Whatever a first call sets up is not what is measured.
    warm_up(&tenure, &replica.queue).await?;
    say("ready")?;
    hear()?;
    let start = now();
    let callers: Vec<_> = (0..replica.callers)
        .map(|_| tokio::spawn(claim_all(tenure.clone(), replica.queue.clone())))
        .collect();
    let (mut measured, mut held) = (Measured::default(), Vec::new());
    for caller in callers {
        let (micros, failed, claims) = caller.await.map_err(|error| BenchError::Helper(error.to_string()))?;
        measured.micros.extend(micros);
        measured.failed += failed;
        held.extend(claims);
    }
    measured.took_micros = u64::try_from(now().since(start).as_micros()).unwrap_or(u64::MAX);
    say(&serde_json::to_string(&measured).map_err(|error| BenchError::Helper(error.to_string()))?)?;
    hear()?;
    settle(&tenure, held).await?;
    tenure.close().await?;
    Ok(())
}

/// Claims one by one until nothing is left.
async fn claim_all(tenure: Tenure, name: String) -> (Vec<u64>, u64, Vec<(TaskId, Token)>) {
    let (claims, queue, seat) = (tenure.claims(), queue(&name), seat(&tenure));
    let (mut micros, mut failed, mut held) = (Vec::new(), 0, Vec::new());
    loop {
        let start = now();
        match claims.claim(&queue, seat.clone(), Duration::ZERO).await {
            Ok(Claimed::Tasks(tasks)) if tasks.is_empty() => return (micros, failed, held),
            Ok(Claimed::Tasks(tasks)) => {
                micros.push(u64::try_from(now().since(start).as_micros()).unwrap_or(u64::MAX));
                held.extend(tasks.into_iter().map(|task| (task.id, task.token)));
            }
            _ => failed += 1,
        }
        if failed > 10_000 {
            return (micros, failed, held);
        }
    }
}

/// Asks a queue with nothing in it, set as the one that is measured, until somebody answers.
async fn warm_up(tenure: &Tenure, name: &str) -> Result<(), BenchError> {
    let (claims, queue, start) = (tenure.claims(), queue(&format!("{name}-warm")), now());
    let mut answers = 0;
    while answers < 20 {
        match claims.claim(&queue, seat(tenure), Duration::ZERO).await? {
            Claimed::Tasks(_) => answers += 1,
            other if now().since(start) > PATIENCE => {
                return Err(BenchError::Helper(format!("nobody hands out tasks: {other:?}")));
            }
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    Ok(())
}

async fn settle(tenure: &Tenure, held: Vec<(TaskId, Token)>) -> Result<(), BenchError> {
    let settlement = |(task, token)| Settlement {
        namespace: super::namespace(),
        task,
        token,
        outcome: Outcome::Complete(None),
    };
    let settlements: Vec<Settlement> = held.into_iter().map(settlement).collect();
    for some in settlements.chunks(1_000) {
        tenure.store().settle(some).await?;
    }
    Ok(())
}

fn say(line: &str) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Waits for a line; whoever started us is gone if there is none.
fn hear() -> Result<(), BenchError> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line)? {
        0 => Err(BenchError::Helper("whoever started this replica is gone".into())),
        _ => Ok(()),
    }
}
