//! What the scripts of the controls are made of: sessions that act at the port, step by step.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use tenure::backend::postgres::Postgres;
use tenure::port::{Candidacy, Directory, Expire, NewSession, Store, Take, Takeover};
use tenure::{ElectionKey, SessionId, Token};

use crate::Failed;
use crate::oracles::Term;

/// The lease of the scripted sessions.
pub(crate) const LEASE: Duration = Duration::from_millis(900);

/// A session that stands, or leads under a token.
pub(crate) struct Actor {
    pub(crate) session: SessionId,
    pub(crate) token: Token,
}

/// Opens a session and lets it stand.
pub(crate) async fn stand(store: &Postgres, name: &str, election: &ElectionKey) -> Result<Actor, Failed> {
    let session = SessionId::from_stored(&format!("{name}@{election}"));
    let new = NewSession {
        id: session.clone(),
        name: name.into(),
        lease: LEASE,
        takeover: Takeover::Lease,
        owner: None,
    };
    store.open(&new).await?;
    let candidacy = Candidacy {
        session: session.clone(),
        election: election.clone(),
        id: name.into(),
        priority: 0,
        observer: false,
        capabilities: vec![],
        requires: vec![],
        slots: 1,
        metadata: Default::default(),
    };
    store.join(&candidacy).await?;
    Ok(Actor { session, token: Token::ZERO })
}

/// Opens a session, lets it stand, and makes it leader.
pub(crate) async fn lead(store: &Postgres, name: &str, election: &ElectionKey) -> Result<Actor, Failed> {
    let actor = stand(store, name, election).await?;
    let token = store.take(&free_take(&actor, election)).await?.ok_or("a free lease was not granted")?;
    Ok(Actor { token, ..actor })
}

/// A take of a lease that nobody has had yet.
pub(crate) fn free_take(actor: &Actor, election: &ElectionKey) -> Take {
    let (session, election) = (actor.session.clone(), election.clone());
    Take { session, epoch: 1, election, slot: 0, token: Token::first(1), holder: None, expire: None }
}

/// A take-over from a holder whose beat is as it stands now.
pub(crate) async fn take_over(
    store: &Postgres,
    taker: &Actor,
    holder: &Actor,
    election: &ElectionKey,
) -> Result<Take, Failed> {
    let view = store.election(election).await?.ok_or("there is no such election")?;
    let beat = view.leases.first().and_then(|lease| lease.holder.as_ref()).map(|holder| holder.beat);
    let session = holder.session.clone();
    let (token, expire) = (holder.token, Some(Expire { session: session.clone(), epoch: 1, beat }));
    Ok(Take { holder: Some(session), token, expire, ..free_take(taker, election) })
}

/// What a process believes that was granted this token, or whose beat was counted, and that read its clock then.
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

/// Writes a row under whatever the transaction was given.
pub(crate) async fn journal(tx: &mut PgConnection, election: &str, token: Token) -> Result<(), Failed> {
    let token = token.as_u64();
    let sql =
        format!("INSERT INTO journal (election, slot, token, worker) VALUES ('{election}', 0, {token}, 0)");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(tx).await?;
    Ok(())
}

/// Looks until it is so, for half a minute.
pub(crate) fn until(mut done: impl FnMut() -> Result<bool, Failed>) -> Result<(), Failed> {
    for _ in 0..1500 {
        if done()? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("a script waited in vain".into())
}
