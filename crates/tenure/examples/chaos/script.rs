//! Building blocks of control scripts: sessions that act at the port step by step.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use tenure::port::{
    Candidacy, ElectionAdmin, ElectionStore, ExpireSessionRequest, OpenSessionRequest, TakeLeaseRequest,
    TakeoverMode,
};
use tenure::store::postgres::PostgresStore;
use tenure::{ElectionKey, SessionId, Token};

use crate::Failed;
use crate::oracles::Term;

/// Lease of the scripted sessions.
pub(crate) const LEASE: Duration = Duration::from_millis(900);

/// A session that is a candidate, or leads under a token.
pub(crate) struct Actor {
    pub(crate) session: SessionId,
    pub(crate) token: Token,
}

/// Open a session and join an election.
pub(crate) async fn join(store: &PostgresStore, name: &str, election: &ElectionKey) -> Result<Actor, Failed> {
    let session = SessionId::from_stored(&format!("{name}@{election}"));
    let new = OpenSessionRequest {
        id: session.clone(),
        name: name.into(),
        lease: LEASE,
        takeover: TakeoverMode::Lease,
        owner: None,
    };
    store.open_session(&new).await?;
    let candidacy = Candidacy {
        session: session.clone(),
        election: election.clone(),
        name: name.into(),
        priority: 0,
        observer: false,
        capabilities: vec![],
        required_capabilities: vec![],
        slots: 1,
        metadata: Default::default(),
    };
    store.join_election(&candidacy).await?;
    Ok(Actor { session, token: Token::ZERO })
}

/// Open a session, join an election and take its lease.
pub(crate) async fn lead(store: &PostgresStore, name: &str, election: &ElectionKey) -> Result<Actor, Failed> {
    let actor = join(store, name, election).await?;
    let token = store
        .take_lease(&free_lease_request(&actor, election))
        .await?
        .ok_or("a free lease was not granted")?;
    Ok(Actor { token, ..actor })
}

/// A request for a lease that was never granted.
pub(crate) fn free_lease_request(actor: &Actor, election: &ElectionKey) -> TakeLeaseRequest {
    let (session, election) = (actor.session.clone(), election.clone());
    TakeLeaseRequest {
        session,
        epoch: 1,
        election,
        slot: 0,
        token: Token::first(1),
        holder: None,
        expire: None,
    }
}

/// A takeover request that expires the holder at its current heartbeat.
pub(crate) async fn takeover_request(
    store: &PostgresStore,
    taker: &Actor,
    holder: &Actor,
    election: &ElectionKey,
) -> Result<TakeLeaseRequest, Failed> {
    let view = store.election(election).await?.ok_or("the election does not exist")?;
    let heartbeat_count =
        view.leases.first().and_then(|lease| lease.holder.as_ref()).map(|holder| holder.heartbeat_count);
    let session = holder.session.clone();
    let (token, expire) =
        (holder.token, Some(ExpireSessionRequest { session: session.clone(), epoch: 1, heartbeat_count }));
    Ok(TakeLeaseRequest { holder: Some(session), token, expire, ..free_lease_request(taker, election) })
}

/// The term that a process believes in by the trust rule, if it sent a confirmed grant or heartbeat at `from_ns`.
pub(crate) fn belief(process: usize, token: Option<Token>, from_ns: u64) -> Option<Term> {
    let to_ns = from_ns + u64::try_from(LEASE.as_nanos() * 2 / 3).unwrap_or(0);
    let term = |token: Token| Term {
        process,
        worker: process,
        lease: (0, 0),
        token: token.as_u64(),
        from_ns,
        to_ns,
    };
    token.map(term)
}

/// Insert a journal row in a transaction.
pub(crate) async fn journal(tx: &mut PgConnection, election: &str, token: Token) -> Result<(), Failed> {
    let token = token.as_u64();
    let sql =
        format!("INSERT INTO journal (election, slot, token, worker) VALUES ('{election}', 0, {token}, 0)");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(tx).await?;
    Ok(())
}

/// Poll a condition for half a minute.
pub(crate) fn until(mut done: impl FnMut() -> Result<bool, Failed>) -> Result<(), Failed> {
    for _ in 0..1500 {
        if done()? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("a control script timed out".into())
}
