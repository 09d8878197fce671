//! Negative controls for queues: each known bug, injected into the stored functions, must be reported by an oracle.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::port::{
    AssignmentMode, ClaimAuthority, ClaimBatchResponse, ClaimOutcome, ClaimRequest, ClaimedTask, NewTask,
    PRIORITY_STEP_MS, QueueSettings, SettleResult, Store,
};
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_testkit::conformance::TestSession;
use tenure_testkit::conformance::test_queue::{
    HOUR_MS, TestMaintenance, TestQueue, claim_request, claim_request_on, queue,
};
use tenure_testkit::rig::true_boottime_ns;
use tokio::runtime::Handle;

use super::notes::{Note, Run};
use super::oracles::{Epoch, Holding, claims_against_mode, shared_tasks, stale_settlements, strict_order};
use super::plan::ORDERS;
use crate::Failed;
use crate::control_runner::{Control, ControlRunner};
use crate::report::Progress;

/// Run all controls.
pub(crate) fn run(progress: &mut Progress, runtime: &Handle) -> Result<Vec<Control>, Failed> {
    let mut runner = ControlRunner::open(progress, runtime)?;
    let no_token = [
        ("complete_tasks", "AND t.token = tokens[width_bucket(t.id, ids)]", ""),
        ("settle_tasks", "AND t.token = item.token", ""),
    ];
    let no_mode = [("claim_tasks", "refusal := 'mode exclusive';", "refusal := NULL;")];
    let no_compare = [
        ("maintain_queues", "c.state = 'claimed' AND c.claim_expires_at < clock_", "c.state = 'claimed'"),
        ("maintain_queues", "WHEN c.claim_expires_at < clock_ THEN", "WHEN true THEN"),
    ];
    let no_order = [
        ("lock_first_tasks", "ORDER BY t.effective_at, t.id LIMIT wanted", "ORDER BY t.id DESC LIMIT wanted"),
        ("lock_first_tasks", "ORDER BY h.effective_at, h.id", "ORDER BY h.id DESC"),
    ];
    Ok(vec![
        runner.control("a settlement without its token", &no_token, stale_settlement)?,
        runner.control("a claim that ignores the mode", &no_mode, claim_against_mode)?,
        runner.control("a recovery of a live claim", &no_compare, claimed_twice)?,
        runner.control("a broker that assigns the last task first", &no_order, out_of_order)?,
    ])
}

async fn store(url: &str) -> Result<Arc<dyn Store>, Failed> {
    Ok(Arc::new(PostgresStore::connect(PostgresOptions::new(url)).await?))
}

async fn test_queue_at(url: &str) -> Result<TestQueue, Failed> {
    Ok(TestQueue { store: store(url).await?, key: queue(ORDERS) })
}

/// A maintenance process with its own store, so that it shares no state with the queue client.
async fn maintenance(url: &str) -> Result<TestMaintenance, Failed> {
    Ok(TestMaintenance::by(TestSession::open(store(url).await?, "maintenance").await).await)
}

/// A worker completes a task whose claim was lost and given to another worker.
async fn stale_settlement(url: &str, _: bool) -> Result<bool, Failed> {
    let (test_queue, maintenance) = (test_queue_at(url).await?, maintenance(url).await?);
    let id = test_queue.submit_one(NewTask::default()).await;
    let old =
        first(test_queue.claim(ClaimRequest { claim_timeout_ms: Some(1), ..claim_request("a", 1) }).await)?;
    maintenance.run_until(|sum| sum.recovered >= 1).await;
    first(test_queue.claim(claim_request("b", 1)).await)?;
    let accepted = test_queue.settle(&old, ClaimOutcome::Complete(None)).await != SettleResult::ClaimLost;
    let note = Note::Stale { task: id.0, token: old.token.as_u64(), accepted };
    let last = HashMap::from([(id.0, test_queue.task(id).await.token.as_u64())]);
    Ok(!stale_settlements(&[note], &last).is_empty())
}

/// A worker claims a task directly although only the broker may assign it.
async fn claim_against_mode(url: &str, _: bool) -> Result<bool, Failed> {
    let test_queue = test_queue_at(url).await?;
    test_queue.submit(vec![NewTask::default(); 3]).await;
    test_queue.set(QueueSettings { mode: AssignmentMode::Exclusive, ..QueueSettings::default() }).await;
    let epoch = Epoch { exclusive: true, from_ms: tenure::runtime::wall_ms(), to_ms: i64::MAX };
    tokio::time::sleep(Duration::from_millis(10)).await;
    let mut holdings = Vec::new();
    if let ClaimBatchResponse::Served { tasks, .. } =
        test_queue.claim_batch(ClaimAuthority::Direct, vec![claim_request("a", 2)]).await
    {
        for task in tasks.into_iter().flatten() {
            holdings.push(holding(&test_queue, 0, &task).await);
        }
    }
    Ok(!claims_against_mode(ORDERS, &[epoch], &holdings).is_empty())
}

/// A live worker holds a task, maintenance runs, and another worker claims. With the bug, it gets the same task.
async fn claimed_twice(url: &str, _: bool) -> Result<bool, Failed> {
    let (test_queue, maintenance) = (test_queue_at(url).await?, maintenance(url).await?);
    let actor = TestSession::open(test_queue.store.clone(), "a").await;
    test_queue.submit_one(NewTask { max_run_ms: Some(HOUR_MS), ..NewTask::default() }).await;
    let task = first(test_queue.claim(claim_request_on(&actor, 1)).await)?;
    let mut holdings = vec![holding(&test_queue, 0, &task).await];
    maintenance.run().await;
    for task in test_queue.claim(claim_request("b", 1)).await {
        let begun = holding(&test_queue, 1, &task).await;
        holdings.push(Holding { to_ns: u64::MAX, ..begun });
    }
    tokio::time::sleep(Duration::from_millis(2)).await;
    if actor.is_live().await {
        holdings[0].to_ns = true_boottime_ns();
    }
    Ok(!shared_tasks(&holdings).is_empty())
}

/// The broker assigns tasks of different priority one by one, long after they were submitted.
async fn out_of_order(url: &str, _: bool) -> Result<bool, Failed> {
    let (test_queue, maintenance) = (test_queue_at(url).await?, maintenance(url).await?);
    test_queue.set(QueueSettings { mode: AssignmentMode::Exclusive, ..QueueSettings::default() }).await;
    let tasks = [5, 3, 1, -1].map(|priority| NewTask { priority, ..NewTask::default() });
    let ids = test_queue.submit(tasks.into()).await;
    let at_ms = tenure::runtime::wall_ms();
    let acknowledged = ids.iter().map(|id| (id.0, at_ms)).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut holdings = Vec::new();
    for _ in &ids {
        let answer = test_queue.claim_batch(maintenance.authority(), vec![claim_request("w", 1)]).await;
        if let ClaimBatchResponse::Served { tasks, .. } = answer {
            for task in tasks.into_iter().flatten() {
                holdings.push(holding(&test_queue, 0, &task).await);
            }
        }
    }
    let order = strict_order(ORDERS, &holdings, &acknowledged);
    if order.claims_checked < ids.len() {
        return Err("the broker did not assign all tasks".into());
    }
    Ok(!order.violations.is_empty())
}

async fn holding(test_queue: &TestQueue, process: usize, task: &ClaimedTask) -> Holding {
    let now_ns = true_boottime_ns();
    let run = Run {
        task: task.id.0,
        token: task.token.as_u64(),
        queue: task.queue.to_string(),
        key: None,
        effective_at_ms: task.submitted_at_ms - i64::from(task.priority) * PRIORITY_STEP_MS,
        claim_seq: task.claim_seq,
        claimed_at_ms: test_queue.task(task.id).await.claimed_at_ms,
    };
    Holding { process, run, from_ns: now_ns, to_ns: now_ns, ended: false }
}

fn first(tasks: Vec<ClaimedTask>) -> Result<ClaimedTask, Failed> {
    Ok(tasks.into_iter().next().ok_or("no task was claimed")?)
}
