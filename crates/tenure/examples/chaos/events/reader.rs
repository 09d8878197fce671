//! A member of the group that verifies the chains, and a task that sends stale commits.
//!
//! The handler works in the transaction that commits the offset of its group. When the library drops a handler because
//! the partition was lost, or because the process was paused for so long that it may have been, its batch is kept; so
//! are some completed batches. Another task waits until another member has had the partition, and then repeats the
//! effects and the commit under the old token: the store must reject these stale commits.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::{Backoff, GroupKey, GroupSettings, PartitionCommit};
use tenure::{EventBatch, HandlerError, Tenure, Token};

use super::chains::{GROUP, topic};

/// Receives the outcome of a stale commit: whether it was accepted, which must never happen.
pub(crate) type StaleCommitCallback = Arc<dyn Fn(bool) + Send + Sync>;

/// Behaviour of a member's handlers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandlerBehaviour {
    /// Maximum duration of a handler in milliseconds.
    pub(crate) pause_ms: u64,
    /// Number of concurrent handlers.
    pub(crate) concurrency: usize,
    /// On average one of this many events fails, panics or fails transiently; 0 means none.
    pub(crate) one_fails_in: u64,
}

impl HandlerBehaviour {
    /// A member whose handlers never fail.
    pub(crate) fn never_fails(pause_ms: u64) -> HandlerBehaviour {
        HandlerBehaviour { pause_ms, concurrency: 2, one_fails_in: 0 }
    }

    /// Whether the handler of this batch fails after its work.
    fn fails(&self, batch: &EventBatch) -> Result<(), HandlerError> {
        let fails =
            |_: &_| self.one_fails_in > 0 && tenure::runtime::random().is_multiple_of(self.one_fails_in);
        if !batch.iter().any(fails) {
            return Ok(());
        }
        match tenure::runtime::random() % 4 {
            // A panic without a message on standard error.
            0 => std::panic::resume_unwind(Box::new("intended panic")),
            1 => Err(HandlerError::transient("intended transient failure")),
            _ => Err(HandlerError::fail("intended failure")),
        }
    }
}

/// Retry soon, and practically never end as a dead letter.
const RETRIES: GroupSettings =
    GroupSettings { max_attempts: 10_000, backoff: Backoff { initial_ms: 10, max_ms: 100 } };

/// Maximum number of kept batches; below, the poll interval and the number of polls after which a batch is dropped.
const KEPT_MAX: usize = 64;
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const POLLS_MAX: u32 = 300;

/// Passes its batch to the stale committer when dropped. A handler that completes takes most batches out before.
struct Lost {
    batch: Option<EventBatch>,
    to: tokio::sync::mpsc::UnboundedSender<EventBatch>,
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            // The receiver may be gone.
            let _ = self.to.send(batch);
        }
    }
}

/// Partitions of a batch, each with its token and last offset.
fn partitions(batch: &EventBatch) -> Vec<(u32, Token, u64)> {
    let mut partitions = Vec::<(u32, Token, u64)>::new();
    for event in batch {
        let token = batch.token(event.partition).unwrap_or(Token::ZERO);
        match partitions.iter_mut().find(|(partition, ..)| *partition == event.partition) {
            Some((.., last)) => *last = event.offset,
            None => partitions.push((event.partition, token, event.offset)),
        }
    }
    partitions
}

/// Kept batches whose partitions another member may take.
#[derive(Default)]
struct KeptBatches(Vec<(EventBatch, u32)>);

impl KeptBatches {
    fn is_full(&self) -> bool {
        self.0.len() >= KEPT_MAX
    }

    fn add(&mut self, batch: EventBatch) {
        self.0.push((batch, POLLS_MAX));
    }

    /// Remove and return the batches of which a partition was leased again under a newer token, each with that
    /// partition. Batches whose tokens stay current are dropped after a while. One read serves all batches: a read per
    /// batch would overload the store.
    async fn superseded(&mut self, tenure: &Tenure) -> Vec<(EventBatch, (u32, Token, u64))> {
        let Ok(group) = group() else { return Vec::new() };
        let Ok(Some(assignment)) = tenure.store().group_assignment(&group).await else { return Vec::new() };
        let newer = |(partition, token, _): &(u32, Token, u64)| {
            assignment
                .partition_leases
                .iter()
                .any(|lease| lease.partition == *partition && lease.token > *token)
        };
        let mut superseded = Vec::new();
        self.0.retain_mut(|(batch, polls)| {
            *polls -= 1;
            let partition = partitions(batch).into_iter().find(newer);
            let keep = partition.is_none() && *polls > 0;
            superseded.extend(partition.map(|partition| (batch.clone(), partition)));
            keep
        });
        superseded
    }
}

fn group() -> Result<GroupKey, tenure::NameError> {
    Ok(GroupKey::new(topic()?, GROUP.parse()?))
}

fn partition_commit(batch: &EventBatch, (partition, token, last): (u32, Token, u64)) -> PartitionCommit {
    PartitionCommit {
        group: batch.group().clone(),
        partition,
        token,
        offset: Some(last),
        processed: Vec::new(),
        parked: Vec::new(),
        parked_results: Vec::new(),
    }
}

macro_rules! reader_on {
    ($dialect:ident, $database:ty) => {
        pub(crate) mod $dialect {
            use super::*;
            use crate::events::chains::{TOPIC, $dialect::record};
            use sqlx::Pool;
            use tenure::port::CommitResult;
            use tenure::{Consumer, Error, Outbox};
            use tokio::sync::mpsc;

            /// Join the group. Batches for the stale committer are sent to `to`.
            pub(crate) async fn join(
                tenure: &Tenure,
                pool: &Pool<$database>,
                to: mpsc::UnboundedSender<EventBatch>,
                behaviour: HandlerBehaviour,
            ) -> Result<Consumer, Error> {
                let member = tenure.name().to_owned();
                let builder =
                    tenure.consumer(TOPIC, GROUP).batch(50).concurrency(behaviour.concurrency).settings(RETRIES);
                let handler = move |batch: EventBatch, mut tx: tenure::Tx<$database>| {
                    let (to, member) = (to.clone(), member.clone());
                    async move {
                        let mut lost = Lost { batch: Some(batch.clone()), to };
                        // Identification of the handler, for diagnosis.
                        let tokens =
                            partitions(&batch).into_iter().map(|(partition, token, _)| format!("{partition}:{token}"));
                        let handler_name = format!(
                            "{member}, attempt {} of {}, {}",
                            batch.attempt(),
                            batch.len(),
                            tokens.collect::<Vec<_>>().join(" ")
                        );
                        let recorded = record(batch.events(), &mut tx, &handler_name).await;
                        let pause = tenure::runtime::random() % (behaviour.pause_ms + 1);
                        tokio::time::sleep(Duration::from_millis(pause)).await;
                        behaviour.fails(&batch)?;
                        if tenure::runtime::random() % 8 != 0 {
                            lost.batch = None;
                        }
                        recorded
                    }
                };
                builder.transactional(pool, handler).start().await
            }

            /// Send stale commits for lost batches.
            pub(crate) async fn send_stale_commits(
                tenure: Tenure,
                pool: Pool<$database>,
                mut lost: mpsc::UnboundedReceiver<EventBatch>,
                on_result: StaleCommitCallback,
            ) {
                let (mut kept_batches, mut commits) = (KeptBatches::default(), tokio::task::JoinSet::new());
                let mut poll = tokio::time::interval(POLL_INTERVAL);
                poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    tokio::select! {
                        batch = lost.recv(), if !kept_batches.is_full() => match batch {
                            Some(batch) => kept_batches.add(batch),
                            None => return,
                        },
                        _ = poll.tick() => {
                            for (batch, partition) in kept_batches.superseded(&tenure).await {
                                commits.spawn(commit_stale(pool.clone(), batch, partition, on_result.clone()));
                            }
                            while commits.try_join_next().is_some() {}
                        }
                    }
                }
            }

            async fn commit_stale(pool: Pool<$database>, batch: EventBatch, partition: (u32, Token, u64), on_result: StaleCommitCallback) {
                let commit = partition_commit(&batch, partition);
                let Ok(mut tx) = pool.begin().await else { return };
                match tx.commit_partition(&commit, Duration::from_secs(1)).await {
                    Ok(CommitResult::LeaseLost) => on_result(false),
                    Ok(CommitResult::Committed) => {
                        if record(batch.events(), &mut tx, "stale").await.is_ok()
                            && tx.commit().await.is_ok()
                        {
                            on_result(true);
                        }
                    }
                    Err(_) => {}
                }
            }
        }
    };
}

reader_on!(sqlite, sqlx::Sqlite);
reader_on!(postgres, sqlx::Postgres);
