//! Negative controls for events: each known bug must be reported by the chains.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tenure::Outbox;
use tenure::port::{
    CommitResult, Event, GroupKey, JoinGroupRequest, PartitionCommit, ReadEventsRequest, StartOffset, Store,
    TakePartitionsRequest, TakenPartition, TopicSettings,
};
use tenure::rules::event::partition_for_key;
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_testkit::conformance::TestSession;
use tokio::runtime::Handle;

use super::chains::{GROUP, PARTITIONS, postgres as chains, topic};
use super::pools;
use crate::Failed;
use crate::control_runner::{Control, ControlRunner};
use crate::report::Progress;

/// Run all controls.
pub(super) fn run(progress: &mut Progress, runtime: &Handle) -> Result<Vec<Control>, Failed> {
    let mut runner = ControlRunner::open(progress, runtime)?;
    let no_token =
        ("commit_partition", "AND s.token = in_token AND s.session IS NOT NULL FOR UPDATE", "FOR UPDATE");
    let no_lock = (
        "assign_offsets_on_commit",
        "s.topic_id = NEW.topic_id AND s.partition = NEW.partition FOR UPDATE;",
        "s.topic_id = NEW.topic_id AND s.partition = NEW.partition;",
    );
    Ok(vec![
        runner.control(
            "an offset committed outside of the transaction",
            &[],
            evaluated(separate_offset_commit),
        )?,
        runner.control("a commit without its token", &[no_token], evaluated(stale_commit))?,
        runner.control("an offset without the lock of its partition", &[no_lock], evaluated(late_commit))?,
    ])
}

/// Run a script, then compare the chains.
fn evaluated(
    script: impl AsyncFn(&ControlContext, bool) -> Result<(), Failed>,
) -> impl AsyncFn(&str, bool) -> Result<bool, Failed> {
    async move |url, buggy| {
        let control = ControlContext::open(url).await?;
        script(&control, buggy).await?;
        let report = chains::evaluate(&control.pool).await?;
        Ok(report.lost + report.reordered + report.doubled > 0)
    }
}

/// A database with the chain tables, and a store on it.
struct ControlContext {
    store: Arc<dyn Store>,
    pool: PgPool,
    group: GroupKey,
}

/// A member that has every partition.
struct Reader<'a> {
    control: &'a ControlContext,
    actor: TestSession,
    partitions: Vec<TakenPartition>,
}

impl ControlContext {
    async fn open(url: &str) -> Result<ControlContext, Failed> {
        let store: Arc<dyn Store> = Arc::new(PostgresStore::connect(PostgresOptions::new(url)).await?);
        let settings = TopicSettings { partitions: PARTITIONS, ..TopicSettings::default() };
        store.set_topic(&topic()?, &settings).await?;
        let pool = pools::postgres(url, 8)?;
        chains::create(&pool).await?;
        Ok(ControlContext { store, pool, group: GroupKey::new(topic()?, GROUP.parse()?) })
    }

    async fn publish(&self, key: &str) -> Result<(), Failed> {
        let mut tx = self.pool.begin().await?;
        chains::publish(&mut tx, key).await?;
        Ok(tx.commit().await?)
    }

    /// Join the group and take all partitions.
    async fn reader(&self, name: &str) -> Result<Reader<'_>, Failed> {
        let actor = TestSession::open(self.store.clone(), name).await;
        let (group, session) = (self.group.clone(), actor.id.clone());
        let join = JoinGroupRequest {
            group: group.clone(),
            session: session.clone(),
            member: name.into(),
            from: StartOffset::Earliest,
        };
        let assignment = self.store.join_group(&join).await?;
        let wanted = assignment.partition_leases.iter().map(|lease| (lease.partition, lease.token)).collect();
        let partitions =
            self.store.take_partitions(&TakePartitionsRequest { group, session, partitions: wanted }).await?;
        if partitions.len() != PARTITIONS as usize {
            return Err("not all partitions were free".into());
        }
        Ok(Reader { control: self, actor, partitions })
    }
}

impl Reader<'_> {
    /// Read the events after the taken offsets, or after those in `after`.
    async fn read(&self, after: &[PartitionCommit]) -> Result<Vec<Event>, Failed> {
        let offset_of = |lease: &TakenPartition| {
            let last = after.iter().find(|commit| commit.partition == lease.partition);
            last.and_then(|commit| commit.offset).unwrap_or(lease.offset)
        };
        let after = self.partitions.iter().map(|lease| (lease.partition, offset_of(lease))).collect();
        Ok(self.control.store.read_events(&ReadEventsRequest { topic: topic()?, after, limit: 100 }).await?)
    }

    /// The partition commits after processing these events.
    fn commits(&self, events: &[Event]) -> Vec<PartitionCommit> {
        let mut commits = Vec::<PartitionCommit>::new();
        for event in events {
            let lease = self.partitions.iter().find(|lease| lease.partition == event.partition);
            commits.retain(|commit| commit.partition != event.partition);
            commits.extend(lease.map(|lease| PartitionCommit {
                group: self.control.group.clone(),
                partition: lease.partition,
                token: lease.token,
                offset: Some(event.offset),
                processed: Vec::new(),
                parked: Vec::new(),
                parked_results: Vec::new(),
            }));
        }
        commits
    }

    /// Process the events in one transaction, as the library does; returns whether the commit succeeded.
    async fn handle(&self, events: &[Event]) -> Result<bool, Failed> {
        let mut tx = self.control.pool.begin().await?;
        chains::record(events, &mut tx, "m").await.map_err(|error| error.to_string())?;
        for commit in self.commits(events) {
            if tx.commit_partition(&commit, Duration::from_secs(10)).await? == CommitResult::LeaseLost {
                return Ok(false);
            }
        }
        tx.commit().await?;
        Ok(true)
    }

    async fn leave(&self) -> Result<(), Failed> {
        Ok(self.control.store.leave_group(&self.control.group, &self.actor.id).await?)
    }
}

/// A member dies after its effects, and another member reads the same events. With the bug, the effects were committed
/// before the offset instead of with it.
async fn separate_offset_commit(control: &ControlContext, buggy: bool) -> Result<(), Failed> {
    control.publish("key-1").await?;
    let first = control.reader("first").await?;
    let events = first.read(&[]).await?;
    let mut tx = control.pool.begin().await?;
    chains::record(&events, &mut tx, "first").await.map_err(|error| error.to_string())?;
    if buggy {
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    first.leave().await?;
    let second = control.reader("second").await?;
    let events = second.read(&[]).await?;
    second.handle(&events).await?;
    Ok(())
}

/// A stopped member resumes after another member has taken its partitions and processed the same events.
async fn stale_commit(control: &ControlContext, _: bool) -> Result<(), Failed> {
    control.publish("key-1").await?;
    let first = control.reader("first").await?;
    let events = first.read(&[]).await?;
    first.leave().await?;
    let second = control.reader("second").await?;
    second.handle(&second.read(&[]).await?).await?;
    first.handle(&events).await?;
    Ok(())
}

/// A transaction that has its offset commits after a transaction with a later offset.
async fn late_commit(control: &ControlContext, _: bool) -> Result<(), Failed> {
    let partition = partition_for_key("key-0", PARTITIONS);
    let other = (1..)
        .map(|n| format!("key-{n}"))
        .find(|key| partition_for_key(key, PARTITIONS) == partition)
        .unwrap_or_default();
    let reader = control.reader("m").await?;
    let mut early = control.pool.begin().await?;
    chains::publish(&mut early, "key-0").await?;
    sqlx::query("SET CONSTRAINTS ALL IMMEDIATE").execute(&mut *early).await?;
    // Without the bug, the lock makes this publication wait until `early` commits.
    let late = control.publish(&other);
    let then = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let read = reader.read(&[]).await?;
        reader.handle(&read).await?;
        early.commit().await?;
        Ok::<_, Failed>(reader.commits(&read))
    };
    let (published, last) = tokio::join!(late, then);
    published?;
    let rest = reader.read(&last?).await?;
    reader.handle(&rest).await?;
    Ok(())
}
