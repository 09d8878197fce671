//! Negative controls: each known mistake, put back in, must make a claim fail. If one does not, the claim proves nothing.

use std::sync::Arc;

use tenure_testkit::conformance::{Subject, adoption, leases, sessions};

use super::child::open;
use super::guards::Rivals;

/// Whether a claim holds on a store with these mistakes: statement, what it says, what it says instead.
async fn holds<F>(mistakes: &'static [(&str, &str, &str)], claim: impl FnOnce(Subject) -> F) -> bool
where
    F: Future<Output = ()> + Send + 'static,
{
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let subject = Subject::new(move || {
        let dir = dir.clone();
        async move {
            let mut store = open(&dir.path().join("t.db")).await;
            for (name, from, to) in mistakes {
                store.sabotage(name, from, to);
            }
            Arc::new(store) as _
        }
    });
    tokio::spawn(claim(subject)).await.is_ok()
}

#[tokio::test]
async fn a_beat_that_revives_is_found() {
    let claim = async |subject: Subject| sessions::an_expired_session_never_comes_back(&subject).await;
    assert!(holds(&[], claim).await);
    assert!(!holds(&[("session_beat", " AND state = 'live'", "")], claim).await);
}

#[tokio::test]
async fn an_expiry_that_does_not_compare_the_beat_is_found() {
    let claim = async |subject: Subject| sessions::a_session_that_beat_since_is_not_expired(&subject).await;
    assert!(holds(&[], claim).await);
    assert!(!holds(&[("session_expire", " AND ($9 IS NULL OR beat = $9)", "")], claim).await);
}

#[tokio::test]
async fn a_take_without_compare_and_swap_is_found() {
    const MISTAKES: &[(&str, &str, &str)] = &[
        ("session_expire", "AND l.token = $4 AND l.session IS $5", ""),
        ("lease_take", "AND token = $4 AND session IS $5", ""),
    ];
    let claim = async |subject: Subject| leases::what_was_seen_must_still_be_so(&subject).await;
    assert!(holds(&[], claim).await);
    assert!(!holds(MISTAKES, claim).await);
    let claim = async |subject: Subject| leases::of_concurrent_takers_one_wins(&subject).await;
    assert!(holds(&[], claim).await);
    assert!(!holds(MISTAKES, claim).await);
}

#[tokio::test]
async fn a_release_that_ignores_the_token_is_found() {
    let claim = async |subject: Subject| leases::a_release_under_the_wrong_token_does_nothing(&subject).await;
    assert!(holds(&[], claim).await);
    assert!(!holds(&[("lease_release", "AND token = ?4 AND session = ?5", "")], claim).await);
}

#[tokio::test]
async fn an_adoption_that_does_not_compare_is_found() {
    const TOKEN: (&str, &str, &str) = ("lease_adopt", "AND ?4 > coalesce(", "AND ?4 > 0 * coalesce(");
    let claim =
        async |subject: Subject| adoption::an_older_grant_of_the_same_elector_is_refused(&subject).await;
    assert!(holds(&[], claim).await);
    assert!(!holds(&[TOKEN], claim).await);
    const HOLDER: (&str, &str, &str) = (
        "lease_adopt",
        "AND (NOT EXISTS (SELECT 1 FROM tenure_sessions h",
        "AND (1 OR NOT EXISTS (SELECT 1 FROM tenure_sessions h",
    );
    let claim =
        async |subject: Subject| adoption::another_elector_waits_until_the_lease_is_free(&subject).await;
    assert!(holds(&[], claim).await);
    assert!(!holds(&[HOLDER], claim).await);
}

#[tokio::test]
async fn a_guard_that_takes_no_lock_is_found() {
    let mut rivals = Rivals::new().await;
    rivals.store.sabotage(
        "lease_guard",
        "UPDATE tenure_leases SET token = token",
        "SELECT 1 FROM tenure_leases",
    );
    rivals.store.sabotage("lease_guard", "RETURNING token", "");
    assert!(!rivals.guard_keeps_the_rival_out().await);
}
