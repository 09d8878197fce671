//! Negative controls for claims: each known mistake, put back into the database's functions, must be reported by the oracle
//! that is there for it; and without it, the same script must leave the oracle silent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::port::{
    Authority, ClaimAnswer, ClaimedTask, Mode, NewTask, Outcome, PRIORITY_STEP_MS, QueueSettings, Seat,
    Settled,
};
use tenure_testkit::conformance::Actor;
use tenure_testkit::conformance::floor::{Floor, HOUR_MS, Keeper, queue, seat, seat_on};
use tenure_testkit::rig::{PgCluster, true_boottime_ns};
use tokio::runtime::Handle;

use super::notes::{Note, Run};
use super::oracles::{Epoch, Holding, claims_past_the_mode, shared_tasks, stale_settlements, strict_order};
use crate::Failed;
use crate::controls::Control;
use crate::report::Progress;
use crate::servers::migrate;

/// A mistake: in which function, what is taken out of it, and what is put there instead.
type Mistake = (&'static str, &'static str, &'static str);

/// Runs all controls on a server of their own.
pub(crate) fn run(progress: &mut Progress, runtime: &Handle) -> Result<Vec<Control>, Failed> {
    progress.stage("controls", 10.0);
    let cluster = PgCluster::start()?;
    runtime.block_on(migrate(&cluster.url()))?;
    let keeper = runtime.block_on(async {
        Ok::<_, Failed>(Keeper::by(Actor::open(store(&cluster).await?, "keeper").await).await)
    })?;
    let scene = Scene { cluster, keeper, runtime: runtime.clone() };
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
    let controls = [
        scene.control(progress, "a settlement without its token", &no_token, stale_settlement)?,
        scene.control(progress, "a claim without a look at the mode", &no_mode, claim_past_the_mode)?,
        scene.control(progress, "a recovery of what is not lost", &no_compare, two_hands)?,
        scene.control(progress, "a leader that hands out the last first", &no_order, out_of_order)?,
    ];
    Ok(controls.into())
}

struct Scene {
    cluster: PgCluster,
    keeper: Keeper,
    runtime: Handle,
}

async fn store(cluster: &PgCluster) -> Result<Arc<dyn tenure::port::Backend>, Failed> {
    Ok(Arc::new(Postgres::connect(PostgresOptions::new(cluster.url())).await?))
}

impl Scene {
    fn control(
        &self,
        progress: &mut Progress,
        mistake: &'static str,
        changes: &[Mistake],
        script: impl AsyncFn(&Scene, &str) -> Result<bool, Failed>,
    ) -> Result<Control, Failed> {
        progress.doing(mistake);
        let play = |name: &str| {
            let name = format!("{name}-{}", mistake.replace(' ', "-"));
            let limit = Duration::from_secs(20);
            self.runtime.block_on(async { tokio::time::timeout(limit, script(self, &name)).await? })
        };
        let silent_without = !play("right")?;
        let before: Vec<String> =
            changes.iter().map(|(function, ..)| self.definition(function)).collect::<Result<_, _>>()?;
        for change in changes {
            self.sabotage(change)?;
        }
        let caught = play("wrong")?;
        for definition in before.iter().rev() {
            self.cluster.psql("postgres", definition)?;
        }
        Ok(Control { mistake, caught, silent_without })
    }

    fn definition(&self, function: &str) -> Result<String, Failed> {
        let sql = format!(
            "SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
             WHERE n.nspname = 'tenure' AND p.proname = '{function}'"
        );
        Ok(self.cluster.psql("postgres", &sql)?)
    }

    fn sabotage(&self, (function, from, to): &Mistake) -> Result<(), Failed> {
        let definition = self.definition(function)?;
        if !definition.contains(from) {
            return Err(
                format!("tenure.{function} does not contain {from:?}: the control controls nothing").into()
            );
        }
        self.cluster.psql("postgres", &definition.replace(from, to))?;
        Ok(())
    }

    /// A queue of its own for each script, through a store that remembers nothing.
    async fn floor(&self, name: &str) -> Result<Floor, Failed> {
        Ok(Floor { store: store(&self.cluster).await?, key: queue(name) })
    }
}

/// A worker whose claim was lost, and has been given to another, completes it.
async fn stale_settlement(scene: &Scene, name: &str) -> Result<bool, Failed> {
    let floor = scene.floor(name).await?;
    let id = floor.submit_one(NewTask::default()).await;
    let old = first(floor.claim(Seat { hold_ms: Some(1), ..seat("a", 1) }).await)?;
    scene.keeper.tend_until(|sum| sum.returned >= 1).await;
    first(floor.claim(seat("b", 1)).await)?;
    let accepted = floor.settle(&old, Outcome::Complete(None)).await != Settled::Lost;
    let note = Note::Stale { task: id.0, token: old.token.as_u64(), accepted };
    let last = HashMap::from([(id.0, floor.task(id).await.token.as_u64())]);
    Ok(!stale_settlements(&[note], &last).is_empty())
}

/// A worker claims directly what only the leader may hand out.
async fn claim_past_the_mode(scene: &Scene, name: &str) -> Result<bool, Failed> {
    let floor = scene.floor(name).await?;
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
    Ok(!claims_past_the_mode(name, &[epoch], &holdings).is_empty())
}

/// A worker that lives has a task; the keeper tends, and another one asks for tasks.
async fn two_hands(scene: &Scene, name: &str) -> Result<bool, Failed> {
    let floor = scene.floor(name).await?;
    let actor = Actor::open(floor.store.clone(), "a").await;
    floor.submit_one(NewTask { max_run_ms: Some(HOUR_MS), ..NewTask::default() }).await;
    let task = first(floor.claim(seat_on(&actor, 1)).await)?;
    let mut holdings = vec![holding(&floor, 0, &task).await];
    scene.keeper.tend().await;
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
async fn out_of_order(scene: &Scene, name: &str) -> Result<bool, Failed> {
    let floor = scene.floor(name).await?;
    floor.set(QueueSettings { mode: Mode::Exclusive, ..QueueSettings::default() }).await;
    let tasks = [5, 3, 1, -1].map(|priority| NewTask { priority, ..NewTask::default() });
    let ids = floor.submit(tasks.into()).await;
    let at_ms = tenure::runtime::wall_ms();
    let acknowledged = ids.iter().map(|id| (id.0, at_ms)).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut holdings = Vec::new();
    for _ in &ids {
        let answer = floor.ask(scene.keeper.authority(), vec![seat("w", 1)]).await;
        if let ClaimAnswer::Served { tasks, .. } = answer {
            for task in tasks.into_iter().flatten() {
                holdings.push(holding(&floor, 0, &task).await);
            }
        }
    }
    let order = strict_order(name, &holdings, &acknowledged);
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
