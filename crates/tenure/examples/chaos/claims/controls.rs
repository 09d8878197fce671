//! Negative controls for claims: each known mistake, put back into the database's functions, must be reported by an oracle.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::port::{
    Authority, Backend, ClaimAnswer, ClaimedTask, Mode, NewTask, Outcome, PRIORITY_STEP_MS, QueueSettings,
    Seat, Settled,
};
use tenure_testkit::conformance::Actor;
use tenure_testkit::conformance::floor::{Floor, HOUR_MS, Keeper, queue, seat, seat_on};
use tenure_testkit::rig::true_boottime_ns;
use tokio::runtime::Handle;

use super::notes::{Note, Run};
use super::oracles::{Epoch, Holding, claims_past_the_mode, shared_tasks, stale_settlements, strict_order};
use super::plan::ORDERS;
use crate::Failed;
use crate::report::Progress;
use crate::theatre::{Control, Theatre};

/// Plays all controls.
pub(crate) fn run(progress: &mut Progress, runtime: &Handle) -> Result<Vec<Control>, Failed> {
    let mut theatre = Theatre::open(progress, runtime)?;
    let no_token = [
        ("complete", "AND t.token = tokens[width_bucket(t.id, ids)]", ""),
        ("settle", "AND t.token = item.token", ""),
    ];
    let no_mode = [("claim", "note := 'mode exclusive';", "note := NULL;")];
    let no_compare = [
        ("tend", "c.state = 'claimed' AND c.deadline < clock_ AND", "c.state = 'claimed' AND"),
        ("tend", "WHEN c.deadline < clock_ THEN", "WHEN true THEN"),
    ];
    let no_order = [
        ("firsts", "ORDER BY t.effective_at, t.id LIMIT wanted", "ORDER BY t.id DESC LIMIT wanted"),
        ("firsts", "ORDER BY h.effective_at, h.id", "ORDER BY h.id DESC"),
    ];
    Ok(vec![
        theatre.control("a settlement without its token", &no_token, stale_settlement)?,
        theatre.control("a claim without a look at the mode", &no_mode, claim_past_the_mode)?,
        theatre.control("a recovery of what is not lost", &no_compare, two_hands)?,
        theatre.control("a leader that hands out the last first", &no_order, out_of_order)?,
    ])
}

async fn store(url: &str) -> Result<Arc<dyn Backend>, Failed> {
    Ok(Arc::new(Postgres::connect(PostgresOptions::new(url)).await?))
}

async fn floor(url: &str) -> Result<Floor, Failed> {
    Ok(Floor { store: store(url).await?, key: queue(ORDERS) })
}

/// A keeper with a store of its own: what it remembers, the floor does not.
async fn keeper(url: &str) -> Result<Keeper, Failed> {
    Ok(Keeper::by(Actor::open(store(url).await?, "keeper").await).await)
}

/// A worker whose claim was lost, and has been given to another, completes it.
async fn stale_settlement(url: &str, _: bool) -> Result<bool, Failed> {
    let (floor, keeper) = (floor(url).await?, keeper(url).await?);
    let id = floor.submit_one(NewTask::default()).await;
    let old = first(floor.claim(Seat { hold_ms: Some(1), ..seat("a", 1) }).await)?;
    keeper.tend_until(|sum| sum.returned >= 1).await;
    first(floor.claim(seat("b", 1)).await)?;
    let accepted = floor.settle(&old, Outcome::Complete(None)).await != Settled::Lost;
    let note = Note::Stale { task: id.0, token: old.token.as_u64(), accepted };
    let last = HashMap::from([(id.0, floor.task(id).await.token.as_u64())]);
    Ok(!stale_settlements(&[note], &last).is_empty())
}

/// A worker claims directly what only the leader may hand out.
async fn claim_past_the_mode(url: &str, _: bool) -> Result<bool, Failed> {
    let floor = floor(url).await?;
    floor.submit(vec![NewTask::default(); 3]).await;
    floor.set(QueueSettings { mode: Mode::Exclusive, ..QueueSettings::default() }).await;
    let epoch = Epoch { exclusive: true, from_ms: tenure::runtime::wall_ms(), to_ms: i64::MAX };
    tokio::time::sleep(Duration::from_millis(10)).await;
    let mut holdings = Vec::new();
    if let ClaimAnswer::Served { tasks, .. } = floor.ask(Authority::Direct, vec![seat("a", 2)]).await {
        for task in tasks.into_iter().flatten() {
            holdings.push(holding(&floor, 0, &task).await);
        }
    }
    Ok(!claims_past_the_mode(ORDERS, &[epoch], &holdings).is_empty())
}

/// A worker that lives has a task; the keeper tends, and another one asks for tasks.
async fn two_hands(url: &str, _: bool) -> Result<bool, Failed> {
    let (floor, keeper) = (floor(url).await?, keeper(url).await?);
    let actor = Actor::open(floor.store.clone(), "a").await;
    floor.submit_one(NewTask { max_run_ms: Some(HOUR_MS), ..NewTask::default() }).await;
    let task = first(floor.claim(seat_on(&actor, 1)).await)?;
    let mut holdings = vec![holding(&floor, 0, &task).await];
    keeper.tend().await;
    for task in floor.claim(seat("b", 1)).await {
        let begun = holding(&floor, 1, &task).await;
        holdings.push(Holding { to_ns: u64::MAX, ..begun });
    }
    tokio::time::sleep(Duration::from_millis(2)).await;
    if actor.lives().await {
        holdings[0].to_ns = true_boottime_ns();
    }
    Ok(!shared_tasks(&holdings).is_empty())
}

/// The leader hands out one by one what was submitted long before.
async fn out_of_order(url: &str, _: bool) -> Result<bool, Failed> {
    let (floor, keeper) = (floor(url).await?, keeper(url).await?);
    floor.set(QueueSettings { mode: Mode::Exclusive, ..QueueSettings::default() }).await;
    let tasks = [5, 3, 1, -1].map(|priority| NewTask { priority, ..NewTask::default() });
    let ids = floor.submit(tasks.into()).await;
    let at_ms = tenure::runtime::wall_ms();
    let acknowledged = ids.iter().map(|id| (id.0, at_ms)).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut holdings = Vec::new();
    for _ in &ids {
        let answer = floor.ask(keeper.authority(), vec![seat("w", 1)]).await;
        if let ClaimAnswer::Served { tasks, .. } = answer {
            for task in tasks.into_iter().flatten() {
                holdings.push(holding(&floor, 0, &task).await);
            }
        }
    }
    let order = strict_order(ORDERS, &holdings, &acknowledged);
    if order.turns < ids.len() {
        return Err("the leader did not hand out everything".into());
    }
    Ok(!order.violations.is_empty())
}

async fn holding(floor: &Floor, hand: usize, task: &ClaimedTask) -> Holding {
    let now_ns = true_boottime_ns();
    let run = Run {
        task: task.id.0,
        token: task.token.as_u64(),
        queue: task.queue.to_string(),
        key: None,
        effective_at_ms: task.enqueued_at_ms - i64::from(task.priority) * PRIORITY_STEP_MS,
        turn: task.turn,
        claimed_at_ms: floor.task(task.id).await.claimed_at_ms,
    };
    Holding { hand, run, from_ns: now_ns, to_ns: now_ns, ended: false }
}

fn first(tasks: Vec<ClaimedTask>) -> Result<ClaimedTask, Failed> {
    Ok(tasks.into_iter().next().ok_or("nothing was handed out")?)
}
