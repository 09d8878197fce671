//! Negative controls: each known mistake, put back in, must be reported by the oracle that is there for it.
//!
//! Each is a short script in an election of its own, run twice over the same code: as it is, where the oracle must stay
//! silent, and with the mistake, where it must not. The mistakes of the store are scripted at the port, where a session
//! believes exactly as the rule of trust says: for two thirds of a lease from *before* a beat or a grant was sent, if
//! the store said yes. Trust kept as a flag takes two worker processes and a cable whose answers are withheld.

use std::time::Duration;

use tenure::Token;
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::port::{Expire, Pulse, Release, Store, StoreError, Take, Via};
use tenure_testkit::rig::{PgCluster, true_boottime_ns};
use tokio::runtime::Handle;

use crate::Failed;
use crate::crew::{Crew, Hand};
use crate::forward::Forwarder;
use crate::ledger::{Entry, Ledger, POSTGRES_TABLES};
use crate::operator::key;
use crate::oracles::{overlaps, stale_rows, tokens_that_did_not_grow};
use crate::report::Progress;
use crate::script::{LEASE, belief, free_take, journal, lead, stand, take_over, until};
use crate::servers::{migrate, plan};
use crate::theatre::Control;
use crate::verdict::terms;
use crate::worker::Election;

/// Runs all controls on a server of their own.
pub(crate) fn run(progress: &mut Progress, runtime: &Handle) -> Result<Vec<Control>, Failed> {
    progress.stage("controls", 20.0);
    let cluster = PgCluster::start()?;
    cluster.psql("postgres", POSTGRES_TABLES)?;
    runtime.block_on(migrate(&cluster.url()))?;
    let forwarder = Forwarder::to(cluster.port(), runtime)?;
    let scene = Scene { cluster, forwarder, runtime: runtime.clone() };
    type Script = fn(&Scene, bool) -> Result<bool, Failed>;
    let scripts: [(&str, Script); 7] = [
        ("trust kept as a flag", trust_as_a_flag),
        ("clock read after the answer", |scene, sabotaged| scene.play(clock_after_answer(scene, sabotaged))),
        ("a guard that takes no lock", |scene, sabotaged| scene.play(guard_without_lock(scene, sabotaged))),
        ("a fence that forgets", |scene, sabotaged| scene.play(fence_that_forgets(scene, sabotaged))),
        ("a beat that revives", |scene, sabotaged| scene.play(beat_that_revives(scene, sabotaged))),
        ("a take without compare-and-swap", |scene, sabotaged| {
            scene.play(take_without_cas(scene, sabotaged))
        }),
        ("a restore that keeps its epoch", |scene, sabotaged| {
            scene.play(restore_without_epoch(scene, sabotaged))
        }),
    ];
    let mut controls = Vec::new();
    for (mistake, script) in scripts {
        progress.doing(mistake);
        let silent_without = !script(&scene, false)?;
        controls.push(Control { mistake, caught: script(&scene, true)?, silent_without });
    }
    Ok(controls)
}

struct Scene {
    forwarder: Forwarder,
    cluster: PgCluster,
    runtime: Handle,
}

impl Scene {
    fn play(&self, script: impl Future<Output = Result<bool, Failed>>) -> Result<bool, Failed> {
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), script).await? })
    }

    async fn store(&self) -> Result<Postgres, StoreError> {
        Postgres::connect(PostgresOptions::new(self.cluster.url())).await
    }
}

/// A leader that believes until it is told is cut off from its answers; another takes over.
fn trust_as_a_flag(scene: &Scene, sabotaged: bool) -> Result<bool, Failed> {
    let mut crew = Crew::new()?;
    let election = Election { index: 0, name: format!("flag-{sabotaged}"), slots: 1 };
    for (worker, url) in [scene.forwarder.url("postgres"), scene.cluster.url()].into_iter().enumerate() {
        let mut plan = plan(worker, url);
        plan.lease_ms = u64::try_from(LEASE.as_millis())?;
        plan.elections = vec![election.clone()];
        plan.trust_is_a_flag = sabotaged;
        crew.hands.push(Hand::new(plan));
    }
    crew.start(0)?;
    until(|| Ok(!terms(&crew)?.is_empty()))?;
    crew.start(1)?;
    // The second must stand before the first falls silent.
    std::thread::sleep(LEASE);
    scene.forwarder.withhold_answers(true);
    let taken = until(|| Ok(terms(&crew)?.iter().any(|term| term.worker == 1)));
    std::thread::sleep(LEASE / 3);
    scene.forwarder.withhold_answers(false);
    taken?;
    (0..2).for_each(|worker| crew.kill(worker));
    Ok(!overlaps(&terms(&crew)?).is_empty())
}

/// A leader whose answer comes late counts its trust from then.
async fn clock_after_answer(scene: &Scene, sabotaged: bool) -> Result<bool, Failed> {
    let near = scene.store().await?;
    let far = Postgres::connect(PostgresOptions::new(scene.forwarder.url("postgres"))).await?;
    let election = key(&format!("late-{sabotaged}"));
    let a = lead(&far, "late-a", &election).await?;
    let b = stand(&near, "late-b", &election).await?;
    far.beat(&a.session).await?;
    scene.forwarder.withhold_answers(true);
    let (sent, session) = (true_boottime_ns(), a.session.clone());
    let beating = tokio::spawn(async move { (far.beat(&session).await, true_boottime_ns()) });
    tokio::time::sleep(LEASE.mul_f64(1.05)).await;
    let from_ns = true_boottime_ns();
    let taken = near.take(&take_over(&near, &b, &a, &election).await?).await?;
    scene.forwarder.withhold_answers(false);
    let (pulse, answered) = beating.await?;
    let mut believed = vec![belief(1, taken, from_ns)];
    if matches!(pulse, Ok(Pulse::Alive { .. })) {
        let counted_from = if sabotaged { answered } else { sent };
        believed.push(belief(0, Some(a.token), counted_from));
    }
    Ok(!overlaps(&believed.into_iter().flatten().collect::<Vec<_>>()).is_empty())
}

/// A transaction under a guard is held open over a take-over, and then committed.
async fn guard_without_lock(scene: &Scene, sabotaged: bool) -> Result<bool, Failed> {
    let mut store = scene.store().await?;
    if sabotaged {
        store.sabotage("lease_guard", "FOR SHARE", "");
    }
    let name = format!("guard-{sabotaged}");
    let election = key(&name);
    let a = lead(&store, "guard-a", &election).await?;
    let b = stand(&store, "guard-b", &election).await?;
    let mut old = store.pool().begin().await?;
    store.guard(&mut old, &election, 0, a.token, &a.session, Duration::from_secs(5)).await?;
    let take = take_over(&store, &b, &a, &election).await?;
    let taken = match tokio::time::timeout(Duration::from_millis(600), store.take(&take)).await {
        Ok(Ok(taken)) => taken,
        // It waits for the old leader's commit, as it must.
        _ => None,
    };
    if let Some(token) = taken {
        let mut new = store.pool().begin().await?;
        store.guard(&mut new, &election, 0, token, &b.session, Duration::from_secs(5)).await?;
        journal(&mut new, &name, token).await?;
        new.commit().await?;
    }
    journal(&mut old, &name, a.token).await?;
    old.commit().await?;
    let rows = Ledger::open(&scene.cluster.url())?.rows("journal").await?;
    let rows: Vec<_> = rows.into_iter().filter(|(lease, _)| lease.starts_with(&name)).collect();
    Ok(!stale_rows(&rows).is_empty())
}

/// The fence's memory is wiped between a new leader's write and an old one's.
async fn fence_that_forgets(scene: &Scene, sabotaged: bool) -> Result<bool, Failed> {
    let ledger = Ledger::open(&scene.cluster.url())?;
    let election = format!("fence-{sabotaged}");
    for token in [7, 5] {
        let entry = Entry { election: election.clone(), slot: 0, token: Token::from_u64(token), worker: 0 };
        ledger.careless(&entry).await;
        if sabotaged {
            ledger.execute("DELETE FROM tenure.fences").await?;
        }
    }
    let rows = ledger.rows("fenced").await?;
    let rows: Vec<_> = rows.into_iter().filter(|(lease, _)| lease.starts_with(&election)).collect();
    Ok(!stale_rows(&rows).is_empty())
}

/// A leader that was expired beats again.
async fn beat_that_revives(scene: &Scene, sabotaged: bool) -> Result<bool, Failed> {
    let mut store = scene.store().await?;
    if sabotaged {
        store.sabotage("session_beat", " AND state = 'live'", "");
    }
    let election = key(&format!("revive-{sabotaged}"));
    let a = lead(&store, "revive-a", &election).await?;
    let b = stand(&store, "revive-b", &election).await?;
    let from_ns = true_boottime_ns();
    let taken = store.take(&take_over(&store, &b, &a, &election).await?).await?;
    let sent = true_boottime_ns();
    let alive = matches!(store.beat(&a.session).await?, Pulse::Alive { .. });
    let believed = [belief(1, taken, from_ns), belief(0, alive.then_some(a.token), sent)];
    Ok(!overlaps(&believed.into_iter().flatten().collect::<Vec<_>>()).is_empty())
}

/// Two candidates saw the same free lease, and both take it.
async fn take_without_cas(scene: &Scene, sabotaged: bool) -> Result<bool, Failed> {
    let mut store = scene.store().await?;
    if sabotaged {
        store.sabotage(
            "lease_take",
            "AND l.token = $5 AND l.session IS NOT DISTINCT FROM $6",
            "AND ($5::bigint IS NULL OR $6::text IS NULL OR true)",
        );
        let holder_is_dead =
            "AND NOT EXISTS (SELECT FROM tenure.sessions h WHERE h.id = l.session AND h.state = 'live')";
        store.sabotage("lease_take", holder_is_dead, "");
    }
    let election = key(&format!("take-{sabotaged}"));
    let mut believed = Vec::new();
    let a = stand(&store, "take-a", &election).await?;
    let b = stand(&store, "take-b", &election).await?;
    for (process, candidate) in [a, b].into_iter().enumerate() {
        let from_ns = true_boottime_ns();
        let taken = store.take(&free_take(&candidate, &election)).await?;
        believed.extend(belief(process, taken, from_ns));
    }
    Ok(!overlaps(&believed).is_empty())
}

/// A database is dumped, more is granted, and the dump is restored beside it: the epoch of the WAL is the same.
async fn restore_without_epoch(scene: &Scene, sabotaged: bool) -> Result<bool, Failed> {
    let [first, second] = ["first", "second"].map(|name| format!("restore_{name}_{sabotaged}"));
    let url = scene.cluster.create_database(&first)?;
    migrate(&url).await?;
    if sabotaged {
        let by_timeline = "CREATE OR REPLACE FUNCTION tenure.current_epoch() RETURNS bigint LANGUAGE sql \
                           AS 'SELECT tenure.timeline()'";
        scene.cluster.psql(&first, by_timeline)?;
    }
    let store = Postgres::connect(PostgresOptions::new(&url)).await?;
    let election = key("restored");
    let a = lead(&store, "restore-a", &election).await?;
    let dump = scene.cluster.dump(&first, &[])?;
    let release = Release {
        session: a.session.clone(),
        election: election.clone(),
        slot: 0,
        token: a.token,
        successor: None,
        via: Via::Release,
        leave: false,
    };
    store.release(&release).await?;
    let from_ns = true_boottime_ns();
    let again = store.take(&Take { token: a.token, ..free_take(&a, &election) }).await?;
    let mut believed = vec![belief(0, again, from_ns)];
    let url = scene.cluster.create_database(&second)?;
    scene.cluster.psql(&second, &dump)?;
    let store = Postgres::connect(PostgresOptions::new(&url)).await?;
    let b = stand(&store, "restore-b", &election).await?;
    // Until whoever believes must have stopped.
    tokio::time::sleep(LEASE.mul_f64(1.05)).await;
    let epoch = store.observe(&b.session, &tenure::port::Scope::Standing).await?.epoch;
    let take = take_over(&store, &b, &a, &election).await?;
    let expire = take.expire.clone().map(|expire| Expire { epoch, ..expire });
    let from_ns = true_boottime_ns();
    believed.push(belief(1, store.take(&Take { epoch, expire, ..take }).await?, from_ns));
    let believed: Vec<_> = believed.into_iter().flatten().collect();
    Ok(!tokens_that_did_not_grow(&believed).is_empty() || believed.len() < 2)
}
