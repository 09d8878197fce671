//! One replica of [`claim_modes`](super::claim_modes): a process controlled through its standard input.

use std::io::{BufRead, Write};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::port::{ClaimOutcome, Settlement, TaskId};
use tenure::runtime::now;
use tenure::{ClaimResult, Tenure, Token};

use super::{claim_request, queue};
use crate::BenchError;

/// Time limit for a broker to become available.
const BROKER_LIMIT: Duration = Duration::from_secs(30);

/// Instructions of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaSpec {
    /// Store URL.
    pub store: String,
    /// Queue to claim from.
    pub queue: String,
    /// Number of concurrent callers.
    pub callers: usize,
}

/// Results of a replica.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ReplicaResult {
    /// Duration of each claim in microseconds.
    pub(super) micros: Vec<u64>,
    /// Number of failed claims.
    pub(super) failed: u64,
    /// Time from the first claim to the last in microseconds.
    pub(super) took_micros: u64,
}

/// Run a replica: print `ready`, wait for a line, claim until the queue is empty, print the results, wait for a line,
/// and exit.
pub async fn replica(replica: &ReplicaSpec) -> Result<(), BenchError> {
    let tenure = Tenure::open(&replica.store).await?;
    tenure.tasks().campaign_for_maintenance().await?;
    // The setup of the first calls is not measured.
    warm_up(&tenure, &replica.queue).await?;
    write_line("ready")?;
    read_line()?;
    let start = now();
    let callers: Vec<_> = (0..replica.callers)
        .map(|_| tokio::spawn(claim_all(tenure.clone(), replica.queue.clone())))
        .collect();
    let (mut measured, mut claimed) = (ReplicaResult::default(), Vec::new());
    for caller in callers {
        let (micros, failed, claims) = caller.await.map_err(|error| BenchError::Helper(error.to_string()))?;
        measured.micros.extend(micros);
        measured.failed += failed;
        claimed.extend(claims);
    }
    measured.took_micros = u64::try_from(now().since(start).as_micros()).unwrap_or(u64::MAX);
    write_line(&serde_json::to_string(&measured).map_err(|error| BenchError::Helper(error.to_string()))?)?;
    read_line()?;
    settle(&tenure, claimed).await?;
    tenure.close().await?;
    Ok(())
}

/// Claim one by one until the queue is empty.
async fn claim_all(tenure: Tenure, name: String) -> (Vec<u64>, u64, Vec<(TaskId, Token)>) {
    let (claims, queue, claim_request) = (tenure.tasks(), queue(&name), claim_request(&tenure));
    let (mut micros, mut failed, mut claimed) = (Vec::new(), 0, Vec::new());
    loop {
        let start = now();
        match claims.claim(&queue, claim_request.clone(), Duration::ZERO).await {
            Ok(ClaimResult::Tasks(tasks)) if tasks.is_empty() => return (micros, failed, claimed),
            Ok(ClaimResult::Tasks(tasks)) => {
                micros.push(u64::try_from(now().since(start).as_micros()).unwrap_or(u64::MAX));
                claimed.extend(tasks.into_iter().map(|task| (task.id, task.token)));
            }
            _ => failed += 1,
        }
        if failed > 10_000 {
            return (micros, failed, claimed);
        }
    }
}

/// Claim from an empty queue with the measured settings until claims are answered.
async fn warm_up(tenure: &Tenure, name: &str) -> Result<(), BenchError> {
    let (claims, queue, start) = (tenure.tasks(), queue(&format!("{name}-warm")), now());
    let mut answers = 0;
    while answers < 20 {
        match claims.claim(&queue, claim_request(tenure), Duration::ZERO).await? {
            ClaimResult::Tasks(_) => answers += 1,
            other if now().since(start) > BROKER_LIMIT => {
                return Err(BenchError::Helper(format!("no broker answers claims: {other:?}")));
            }
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    Ok(())
}

async fn settle(tenure: &Tenure, claimed: Vec<(TaskId, Token)>) -> Result<(), BenchError> {
    let settlement = |(task, token)| Settlement {
        namespace: super::namespace(),
        task,
        token,
        outcome: ClaimOutcome::Complete(None),
    };
    let settlements: Vec<Settlement> = claimed.into_iter().map(settlement).collect();
    for some in settlements.chunks(1_000) {
        tenure.store().settle(some).await?;
    }
    Ok(())
}

fn write_line(line: &str) -> Result<(), BenchError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Wait for a line; fails if the parent process has ended.
fn read_line() -> Result<(), BenchError> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line)? {
        0 => Err(BenchError::Helper("the parent process of this replica has ended".into())),
        _ => Ok(()),
    }
}
