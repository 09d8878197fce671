//! Negative controls for elections: each known bug, injected on purpose, must be reported by its oracle.
//!
//! Each control is a short script with an election of its own. It runs twice: without the bug, where the oracle must be
//! silent, and with the bug, where the oracle must report it.
//!
//! Most scripts call the store port directly. They compute when a session believes that it leads by the trust rule: for
//! two thirds of a lease, counted from *before* a confirmed heartbeat or grant was sent. Only the first control, where
//! trust is kept as a flag, runs two worker processes and a proxy that withholds responses.

use std::time::Duration;

use tenure::Token;
use tenure::port::{
    ElectionStore, ExpireSessionRequest, HeartbeatResponse, ReleaseLeaseRequest, StartReason, StoreError,
    TakeLeaseRequest,
};
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_testkit::rig::{PgCluster, true_boottime_ns};
use tokio::runtime::Handle;

use crate::Failed;
use crate::control_runner::Control;
use crate::evaluation::terms;
use crate::operator::key;
use crate::oracles::{overlaps, stale_rows, tokens_that_did_not_grow};
use crate::postgres::{migrate, plan};
use crate::proxy::Proxy;
use crate::report::Progress;
use crate::script::{LEASE, belief, free_lease_request, join, journal, lead, takeover_request, until};
use crate::tables::{Entry, POSTGRES_TABLES, WriteTables};
use crate::worker::Election;
use crate::worker_processes::{WorkerProcesses, WorkerSlot};

/// Run all controls on a PostgreSQL server of their own.
pub(crate) fn run(progress: &mut Progress, runtime: &Handle) -> Result<Vec<Control>, Failed> {
    progress.scenario("controls", 20.0);
    let cluster = PgCluster::start()?;
    cluster.psql("postgres", POSTGRES_TABLES)?;
    runtime.block_on(migrate(&cluster.url()))?;
    let proxy = Proxy::to(cluster.port(), runtime)?;
    let control = ControlContext { cluster, proxy, runtime: runtime.clone() };
    type Script = fn(&ControlContext, bool) -> Result<bool, Failed>;
    let scripts: [(&str, Script); 7] = [
        ("trust kept as a flag", trust_as_a_flag),
        ("clock read after the response", |control, buggy| control.run(clock_after_answer(control, buggy))),
        ("a guard that takes no lock", |control, buggy| control.run(guard_without_lock(control, buggy))),
        ("a fence that forgets", |control, buggy| control.run(fence_that_forgets(control, buggy))),
        ("a heartbeat that revives an expired session", |control, buggy| {
            control.run(heartbeat_that_revives(control, buggy))
        }),
        ("a take without compare-and-swap", |control, buggy| control.run(take_without_cas(control, buggy))),
        ("a restore that keeps its epoch", |control, buggy| {
            control.run(restore_without_epoch(control, buggy))
        }),
    ];
    let mut controls = Vec::new();
    for (bug, script) in scripts {
        progress.doing(bug);
        let silent_without = !script(&control, false)?;
        controls.push(Control { bug, caught: script(&control, true)?, silent_without });
    }
    Ok(controls)
}

struct ControlContext {
    proxy: Proxy,
    cluster: PgCluster,
    runtime: Handle,
}

impl ControlContext {
    fn run(&self, script: impl Future<Output = Result<bool, Failed>>) -> Result<bool, Failed> {
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), script).await? })
    }

    async fn store(&self) -> Result<PostgresStore, StoreError> {
        PostgresStore::connect(PostgresOptions::new(self.cluster.url())).await
    }
}

/// The leader stops receiving responses, and another candidate takes over. With the bug, the leader believes that it
/// leads until the store tells it otherwise.
fn trust_as_a_flag(control: &ControlContext, buggy: bool) -> Result<bool, Failed> {
    let mut workers = WorkerProcesses::new()?;
    let election = Election { index: 0, name: format!("flag-{buggy}"), slots: 1 };
    for (worker, url) in [control.proxy.url("postgres"), control.cluster.url()].into_iter().enumerate() {
        let mut plan = plan(worker, url);
        plan.lease_ms = u64::try_from(LEASE.as_millis())?;
        plan.elections = vec![election.clone()];
        plan.trust_is_a_flag = buggy;
        workers.slots.push(WorkerSlot::new(plan));
    }
    workers.start(0)?;
    until(|| Ok(!terms(&workers)?.is_empty()))?;
    workers.start(1)?;
    // The second worker must be a candidate before the first one loses its connection.
    std::thread::sleep(LEASE);
    control.proxy.withhold_responses(true);
    let taken = until(|| Ok(terms(&workers)?.iter().any(|term| term.worker == 1)));
    std::thread::sleep(LEASE / 3);
    control.proxy.withhold_responses(false);
    taken?;
    (0..2).for_each(|worker| workers.kill(worker));
    Ok(!overlaps(&terms(&workers)?).is_empty())
}

/// The response to a heartbeat of the leader is delayed. With the bug, the leader counts its trust from the response
/// instead of the request.
async fn clock_after_answer(control: &ControlContext, buggy: bool) -> Result<bool, Failed> {
    let near = control.store().await?;
    let far = PostgresStore::connect(PostgresOptions::new(control.proxy.url("postgres"))).await?;
    let election = key(&format!("late-{buggy}"));
    let a = lead(&far, "late-a", &election).await?;
    let b = join(&near, "late-b", &election).await?;
    far.heartbeat(&a.session).await?;
    control.proxy.withhold_responses(true);
    let (sent, session) = (true_boottime_ns(), a.session.clone());
    let beating = tokio::spawn(async move { (far.heartbeat(&session).await, true_boottime_ns()) });
    tokio::time::sleep(LEASE.mul_f64(1.05)).await;
    let from_ns = true_boottime_ns();
    let taken = near.take_lease(&takeover_request(&near, &b, &a, &election).await?).await?;
    control.proxy.withhold_responses(false);
    let (response, answered) = beating.await?;
    let mut believed = vec![belief(1, taken, from_ns)];
    if matches!(response, Ok(HeartbeatResponse::Live { .. })) {
        let counted_from = if buggy { answered } else { sent };
        believed.push(belief(0, Some(a.token), counted_from));
    }
    Ok(!overlaps(&believed.into_iter().flatten().collect::<Vec<_>>()).is_empty())
}

/// A guarded transaction stays open during a takeover and then commits. With the bug, the guard takes no lock, so the
/// takeover does not wait for the commit.
async fn guard_without_lock(control: &ControlContext, buggy: bool) -> Result<bool, Failed> {
    let mut store = control.store().await?;
    if buggy {
        store.inject_bug("lease_guard", "FOR SHARE", "");
    }
    let name = format!("guard-{buggy}");
    let election = key(&name);
    let a = lead(&store, "guard-a", &election).await?;
    let b = join(&store, "guard-b", &election).await?;
    let mut old = store.pool().begin().await?;
    store.guard(&mut old, &election, 0, a.token, &a.session, Duration::from_secs(5)).await?;
    let take = takeover_request(&store, &b, &a, &election).await?;
    let taken = match tokio::time::timeout(Duration::from_millis(600), store.take_lease(&take)).await {
        Ok(Ok(taken)) => taken,
        // The timeout has passed: the takeover waits for the commit of the old leader, as required.
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
    let rows = WriteTables::open(&control.cluster.url())?.rows("journal").await?;
    let rows: Vec<_> = rows.into_iter().filter(|(lease, _)| lease.starts_with(&name)).collect();
    Ok(!stale_rows(&rows).is_empty())
}

/// A new leader writes, then an old one. With the bug, the state of the fence is deleted between the two writes.
async fn fence_that_forgets(control: &ControlContext, buggy: bool) -> Result<bool, Failed> {
    let tables = WriteTables::open(&control.cluster.url())?;
    let election = format!("fence-{buggy}");
    for token in [7, 5] {
        let entry = Entry { election: election.clone(), slot: 0, token: Token::from_u64(token), worker: 0 };
        tables.write_with_token(&entry).await;
        if buggy {
            tables.execute("DELETE FROM tenure.fences").await?;
        }
    }
    let rows = tables.rows("fenced").await?;
    let rows: Vec<_> = rows.into_iter().filter(|(lease, _)| lease.starts_with(&election)).collect();
    Ok(!stale_rows(&rows).is_empty())
}

/// A leader sends a heartbeat after another candidate has expired it and taken over. With the bug, the heartbeat makes
/// its session live again.
async fn heartbeat_that_revives(control: &ControlContext, buggy: bool) -> Result<bool, Failed> {
    let mut store = control.store().await?;
    if buggy {
        store.inject_bug("session_heartbeat", " AND state = 'live'", "");
    }
    let election = key(&format!("revive-{buggy}"));
    let a = lead(&store, "revive-a", &election).await?;
    let b = join(&store, "revive-b", &election).await?;
    let from_ns = true_boottime_ns();
    let taken = store.take_lease(&takeover_request(&store, &b, &a, &election).await?).await?;
    let sent = true_boottime_ns();
    let is_live = matches!(store.heartbeat(&a.session).await?, HeartbeatResponse::Live { .. });
    let believed = [belief(1, taken, from_ns), belief(0, is_live.then_some(a.token), sent)];
    Ok(!overlaps(&believed.into_iter().flatten().collect::<Vec<_>>()).is_empty())
}

/// Two candidates have observed the same free lease, and both try to take it. With the bug, both succeed.
async fn take_without_cas(control: &ControlContext, buggy: bool) -> Result<bool, Failed> {
    let mut store = control.store().await?;
    if buggy {
        store.inject_bug(
            "lease_take",
            "AND l.token = $5 AND l.session IS NOT DISTINCT FROM $6",
            "AND ($5::bigint IS NULL OR $6::text IS NULL OR true)",
        );
        let holder_is_dead =
            "AND NOT EXISTS (SELECT FROM tenure.sessions h WHERE h.id = l.session AND h.state = 'live')";
        store.inject_bug("lease_take", holder_is_dead, "");
    }
    let election = key(&format!("take-{buggy}"));
    let mut believed = Vec::new();
    let a = join(&store, "take-a", &election).await?;
    let b = join(&store, "take-b", &election).await?;
    for (process, candidate) in [a, b].into_iter().enumerate() {
        let from_ns = true_boottime_ns();
        let taken = store.take_lease(&free_lease_request(&candidate, &election)).await?;
        believed.extend(belief(process, taken, from_ns));
    }
    Ok(!overlaps(&believed).is_empty())
}

/// A database is dumped, more leases are granted, and the dump is restored in the same cluster. With the bug, the epoch
/// is the WAL timeline, which a restore in the same cluster does not change.
async fn restore_without_epoch(control: &ControlContext, buggy: bool) -> Result<bool, Failed> {
    let [first, second] = ["first", "second"].map(|name| format!("restore_{name}_{buggy}"));
    let url = control.cluster.create_database(&first)?;
    migrate(&url).await?;
    if buggy {
        let by_timeline = "CREATE OR REPLACE FUNCTION tenure.current_epoch() RETURNS bigint LANGUAGE sql \
                           AS 'SELECT tenure.timeline()'";
        control.cluster.psql(&first, by_timeline)?;
    }
    let store = PostgresStore::connect(PostgresOptions::new(&url)).await?;
    let election = key("restored");
    let a = lead(&store, "restore-a", &election).await?;
    let dump = control.cluster.dump(&first, &[])?;
    let release = ReleaseLeaseRequest {
        session: a.session.clone(),
        election: election.clone(),
        slot: 0,
        token: a.token,
        successor: None,
        start_reason: StartReason::Release,
        leave: false,
    };
    store.release_lease(&release).await?;
    let from_ns = true_boottime_ns();
    let again =
        store.take_lease(&TakeLeaseRequest { token: a.token, ..free_lease_request(&a, &election) }).await?;
    let mut believed = vec![belief(0, again, from_ns)];
    let url = control.cluster.create_database(&second)?;
    control.cluster.psql(&second, &dump)?;
    let store = PostgresStore::connect(PostgresOptions::new(&url)).await?;
    let b = join(&store, "restore-b", &election).await?;
    // Wait until the trust of the last leader has expired.
    tokio::time::sleep(LEASE.mul_f64(1.05)).await;
    let epoch = store.observe(&b.session, &tenure::port::ObserveScope::Own).await?.epoch;
    let take = takeover_request(&store, &b, &a, &election).await?;
    let expire = take.expire.clone().map(|expire| ExpireSessionRequest { epoch, ..expire });
    let from_ns = true_boottime_ns();
    believed.push(belief(1, store.take_lease(&TakeLeaseRequest { epoch, expire, ..take }).await?, from_ns));
    let believed: Vec<_> = believed.into_iter().flatten().collect();
    Ok(!tokens_that_did_not_grow(&believed).is_empty() || believed.len() < 2)
}
