//! Negative controls: each known mistake must make a conformance test fail. Otherwise the conformance test proves nothing.

use std::sync::Arc;

use tenure_testkit::conformance::{StoreUnderTest, adoption, leases, sessions};

use super::child::open;
use super::guards::Rivals;

/// Whether a conformance test passes on a store with these mistakes: statement, original text, replacement.
async fn passes<F>(mistakes: &'static [(&str, &str, &str)], test: impl FnOnce(StoreUnderTest) -> F) -> bool
where
    F: Future<Output = ()> + Send + 'static,
{
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let store = StoreUnderTest::new(move || {
        let dir = dir.clone();
        async move {
            let mut sqlite = open(&dir.path().join("t.db")).await;
            for (name, from, to) in mistakes {
                sqlite.inject_bug(name, from, to);
            }
            Arc::new(sqlite) as _
        }
    });
    tokio::spawn(test(store)).await.is_ok()
}

#[tokio::test]
async fn a_heartbeat_that_revives_a_session_is_detected() {
    let test = async |store: StoreUnderTest| sessions::an_expired_session_stays_ended(&store).await;
    assert!(passes(&[], test).await);
    assert!(!passes(&[("session_heartbeat", " AND state = 'live'", "")], test).await);
}

#[tokio::test]
async fn an_expiry_that_ignores_the_heartbeat_count_is_detected() {
    let test =
        async |store: StoreUnderTest| sessions::a_session_with_a_newer_heartbeat_is_not_expired(&store).await;
    assert!(passes(&[], test).await);
    assert!(!passes(&[("session_expire", " AND ($9 IS NULL OR heartbeat_count = $9)", "")], test).await);
}

#[tokio::test]
async fn a_take_without_compare_and_swap_is_detected() {
    const MISTAKES: &[(&str, &str, &str)] = &[
        ("session_expire", "AND l.token = $4 AND l.session IS $5", ""),
        ("lease_take", "AND token = $4 AND session IS $5", ""),
    ];
    let test = async |store: StoreUnderTest| leases::a_take_compares_token_and_holder(&store).await;
    assert!(passes(&[], test).await);
    assert!(!passes(MISTAKES, test).await);
    let test = async |store: StoreUnderTest| leases::of_concurrent_takes_one_wins(&store).await;
    assert!(passes(&[], test).await);
    assert!(!passes(MISTAKES, test).await);
}

#[tokio::test]
async fn a_release_that_ignores_the_token_is_detected() {
    let test =
        async |store: StoreUnderTest| leases::a_release_under_the_wrong_token_does_nothing(&store).await;
    assert!(passes(&[], test).await);
    assert!(!passes(&[("lease_release", "AND token = ?4 AND session = ?5", "")], test).await);
}

#[tokio::test]
async fn an_adoption_that_ignores_tokens_or_holders_is_detected() {
    const TOKEN: (&str, &str, &str) = ("lease_adopt", "AND ?4 > coalesce(", "AND ?4 > 0 * coalesce(");
    let test =
        async |store: StoreUnderTest| adoption::an_older_grant_of_the_same_store_is_rejected(&store).await;
    assert!(passes(&[], test).await);
    assert!(!passes(&[TOKEN], test).await);
    const HOLDER: (&str, &str, &str) = (
        "lease_adopt",
        "AND (NOT EXISTS (SELECT 1 FROM tenure_sessions h",
        "AND (1 OR NOT EXISTS (SELECT 1 FROM tenure_sessions h",
    );
    let test =
        async |store: StoreUnderTest| adoption::another_store_waits_until_the_lease_is_free(&store).await;
    assert!(passes(&[], test).await);
    assert!(!passes(&[HOLDER], test).await);
}

#[tokio::test]
async fn a_guard_without_a_write_lock_is_detected() {
    let mut rivals = Rivals::new().await;
    rivals.store.inject_bug(
        "lease_guard",
        "UPDATE tenure_leases SET token = token",
        "SELECT 1 FROM tenure_leases",
    );
    rivals.store.inject_bug("lease_guard", "RETURNING token", "");
    assert!(!rivals.guard_blocks_the_rival().await);
}
