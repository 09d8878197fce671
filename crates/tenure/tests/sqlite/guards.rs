//! The guard and the fence.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::sqlite::{Sqlite, SqliteOptions, fence, guard};
use tenure::{FenceError, GuardError};
use tenure_core::port::Trouble;
use tenure_core::{ElectionKey, Token};
use tenure_testkit::conformance::{Actor, election};

use super::child::open;

/// A leader, and a rival that does not wait for long.
pub(crate) struct Rivals {
    pub(crate) store: Sqlite,
    pub(crate) leader: Actor,
    pub(crate) rival: Actor,
    pub(crate) key: ElectionKey,
    pub(crate) token: Token,
    _dir: tempfile::TempDir,
}

impl Rivals {
    pub(crate) async fn new() -> Rivals {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        let (store, key) = (open(&path).await, election("e"));
        let leader = Actor::open(Arc::new(store.clone()), "leader").await;
        leader.stand(&key).await;
        let token = leader.take(&key, 0).await;
        let impatient = SqliteOptions::new(&path).busy_timeout(Duration::from_millis(50));
        let rival = Actor::open(Arc::new(Sqlite::open(impatient).await.unwrap()), "rival").await;
        rival.stand(&key).await;
        sqlx::query("CREATE TABLE work (token INTEGER)").execute(store.pool()).await.unwrap();
        Rivals { store, leader, rival, key, token, _dir: dir }
    }

    /// Whether the rival was kept out while the leader's guarded transaction was open.
    pub(crate) async fn guard_keeps_the_rival_out(&self) -> bool {
        let bid = self.rival.overbid(&self.key, 0).await;
        // Begun as people do: without a lock.
        let mut transaction = self.store.pool().begin().await.unwrap();
        self.store.guard(&mut transaction, &self.key, 0, self.token, &self.leader.id).await.unwrap();
        let taken = self.rival.store.take(&bid).await;
        let written = sqlx::query("INSERT INTO work VALUES (1)").execute(&mut *transaction).await;
        let committed = written.is_ok() && transaction.commit().await.is_ok();
        committed && taken.is_err_and(|error| error.kind == Trouble::Timeout)
    }
}

#[tokio::test]
async fn nobody_takes_over_before_a_guarded_commit() {
    let rivals = Rivals::new().await;
    assert!(rivals.guard_keeps_the_rival_out().await);
    let bid = rivals.rival.overbid(&rivals.key, 0).await;
    assert!(rivals.rival.store.take(&bid).await.unwrap().is_some(), "afterwards it may");
}

#[tokio::test]
async fn an_old_leader_writes_nothing() {
    let Rivals { store, leader, rival, key, token, _dir } = Rivals::new().await;
    // It read before the take-over, so what it saw is old.
    let mut early = store.pool().begin().await.unwrap();
    sqlx::query("SELECT * FROM work").fetch_all(&mut *early).await.unwrap();
    let new = rival.store.take(&rival.overbid(&key, 0).await).await.unwrap().unwrap();
    let error = guard(&mut early, &key, 0, token, &leader.id).await.unwrap_err();
    assert!(matches!(error, GuardError::Store(_)), "its snapshot is too old to write: {error}");
    early.rollback().await.unwrap();
    let mut late = store.pool().begin().await.unwrap();
    for (slot, token, session) in
        [(0, token, &leader.id), (0, new, &leader.id), (0, token, &rival.id), (1, new, &rival.id)]
    {
        let refused = guard(&mut late, &key, slot, token, session).await;
        assert_eq!(refused, Err(GuardError::NotHeld { election: key.clone(), slot, token }));
    }
    assert_eq!(guard(&mut late, &key, 0, new, &rival.id).await, Ok(()));
}

#[tokio::test]
async fn a_guard_without_a_transaction_is_refused() {
    let Rivals { store, leader, rival: _rival, key, token, _dir } = Rivals::new().await;
    let mut connection = store.pool().acquire().await.unwrap();
    let refused = guard(&mut connection, &key, 0, token, &leader.id).await;
    assert_eq!(refused, Err(GuardError::NotInTransaction));
}

#[tokio::test]
async fn a_fence_lets_no_lower_token_through() {
    let Rivals { store, _dir, .. } = Rivals::new().await;
    let token = Token::from_u64;
    for (given, seen) in [(5, None), (5, None), (4, Some(5)), (9, None), (8, Some(9)), (9, None)] {
        let mut transaction = store.pool().begin().await.unwrap();
        let result = fence(&mut transaction, "reports", token(given)).await;
        let expected = seen.map_or(Ok(()), |seen| {
            Err(FenceError::Stale { name: "reports".into(), seen: token(seen), given: token(given) })
        });
        assert_eq!(result, expected);
        transaction.commit().await.unwrap();
    }
    let mut transaction = store.pool().begin().await.unwrap();
    fence(&mut transaction, "another", token(1)).await.unwrap();
    fence(&mut transaction, "reports", token(100)).await.unwrap();
    transaction.rollback().await.unwrap();
    let mut transaction = store.pool().begin().await.unwrap();
    assert_eq!(
        fence(&mut transaction, "reports", token(9)).await,
        Ok(()),
        "what was rolled back was not seen"
    );
}
