//! Guards and fences.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::sqlite::{SqliteOptions, SqliteStore, fence, guard};
use tenure::{FenceError, GuardError};
use tenure_core::port::ErrorKind;
use tenure_core::{ElectionKey, Token};
use tenure_testkit::conformance::{TestSession, election};

use super::child::open;

/// A leader, and a rival with a short busy timeout.
pub(crate) struct Rivals {
    pub(crate) store: SqliteStore,
    pub(crate) leader: TestSession,
    pub(crate) rival: TestSession,
    pub(crate) key: ElectionKey,
    pub(crate) token: Token,
    _dir: tempfile::TempDir,
}

impl Rivals {
    pub(crate) async fn new() -> Rivals {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.db");
        let (store, key) = (open(&path).await, election("e"));
        let leader = TestSession::open(Arc::new(store.clone()), "leader").await;
        leader.join(&key).await;
        let token = leader.take(&key, 0).await;
        let short_timeout = SqliteOptions::new(&path).busy_timeout(Duration::from_millis(50));
        let rival =
            TestSession::open(Arc::new(SqliteStore::open(short_timeout).await.unwrap()), "rival").await;
        rival.join(&key).await;
        sqlx::query("CREATE TABLE work (token INTEGER)").execute(store.pool()).await.unwrap();
        Rivals { store, leader, rival, key, token, _dir: dir }
    }

    /// Whether the guarded transaction of the leader blocks a takeover by the rival.
    pub(crate) async fn guard_blocks_the_rival(&self) -> bool {
        let bid = self.rival.takeover_request(&self.key, 0).await;
        // A plain BEGIN takes no lock.
        let mut transaction = self.store.pool().begin().await.unwrap();
        self.store.guard(&mut transaction, &self.key, 0, self.token, &self.leader.id).await.unwrap();
        let taken = self.rival.store.take_lease(&bid).await;
        let written = sqlx::query("INSERT INTO work VALUES (1)").execute(&mut *transaction).await;
        let committed = written.is_ok() && transaction.commit().await.is_ok();
        committed && taken.is_err_and(|error| error.kind == ErrorKind::Timeout)
    }
}

#[tokio::test]
async fn a_guarded_transaction_blocks_a_takeover() {
    let rivals = Rivals::new().await;
    assert!(rivals.guard_blocks_the_rival().await);
    let bid = rivals.rival.takeover_request(&rivals.key, 0).await;
    assert!(rivals.rival.store.take_lease(&bid).await.unwrap().is_some(), "it succeeds after the commit");
}

#[tokio::test]
async fn a_guard_rejects_a_former_leader() {
    let Rivals { store, leader, rival, key, token, _dir } = Rivals::new().await;
    // This transaction has read before the takeover.
    let mut early = store.pool().begin().await.unwrap();
    sqlx::query("SELECT * FROM work").fetch_all(&mut *early).await.unwrap();
    let new = rival.store.take_lease(&rival.takeover_request(&key, 0).await).await.unwrap().unwrap();
    let error = guard(&mut early, &key, 0, token, &leader.id).await.unwrap_err();
    assert!(matches!(error, GuardError::Store(_)), "its snapshot is too old for a write: {error}");
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
async fn a_guard_without_a_transaction_is_rejected() {
    let Rivals { store, leader, rival: _rival, key, token, _dir } = Rivals::new().await;
    let mut connection = store.pool().acquire().await.unwrap();
    let refused = guard(&mut connection, &key, 0, token, &leader.id).await;
    assert_eq!(refused, Err(GuardError::NotInTransaction));
}

#[tokio::test]
async fn a_fence_rejects_a_lower_token() {
    let Rivals { store, _dir, .. } = Rivals::new().await;
    let token = Token::from_u64;
    for (given, seen) in [(5, None), (5, None), (4, Some(5)), (9, None), (8, Some(9)), (9, None)] {
        let mut transaction = store.pool().begin().await.unwrap();
        let result = fence(&mut transaction, "reports", token(given)).await;
        let expected = seen.map_or(Ok(()), |seen| {
            Err(FenceError::Stale { name: "reports".into(), highest: token(seen), token: token(given) })
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
        "a rolled back token does not count"
    );
}
