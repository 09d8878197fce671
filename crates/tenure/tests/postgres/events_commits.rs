//! Commits of shares, in the handler's own transaction.

use std::time::Duration;

use tenure::backend::postgres::commit_share;
use tenure_core::event::slot_of;
use tenure_core::port::{Bureau, Committed, Events, Expire, Store, Trouble};

use crate::events::*;
use crate::support::*;

/// Publishes one event to `t`, which has one slot or whose slots are all the same to it; where it lies.
async fn published(store: &tenure::backend::postgres::Postgres, slot: u32) -> u64 {
    let slots = store.slot_ends(&topic("t")).await.unwrap().unwrap().len() as u32;
    let key = (0..).map(|n| format!("k{n}")).find(|key| slot_of(key, slots) == slot).unwrap();
    store.publish(&topic("t"), &[keyed(&key, 1)]).await.unwrap();
    store.slot_ends(&topic("t")).await.unwrap().unwrap()[slot as usize].latest
}

async fn expired(store: &tenure::backend::postgres::Postgres, session: &str) {
    store.expire(&Expire { session: id(session), epoch: 1, beat: Some(0) }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_holds_its_share_until_the_transaction_is_over() {
    let (database, store) = with_topic(2).await;
    let share = member(&store, "a", &[0, 1]).await.remove(0);
    member(&store, "b", &[]).await;
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::raw_sql("CREATE TABLE effects (n integer); INSERT INTO effects VALUES (1)")
        .execute(&mut *tx)
        .await
        .unwrap();
    let position = published(&store, 0).await;
    let said = commit(0, share.token, position);
    assert_eq!(commit_share(&mut tx, &said, LEASE).await.unwrap(), Committed::Yes);
    expired(&store, "a").await;
    let got: Vec<u32> = taken(&store, "b", &[0, 1]).await.iter().map(|taken| taken.slot).collect();
    assert_eq!(got, [1], "the one that nobody is at");
    tx.commit().await.unwrap();
    let next = taken(&store, "b", &[0]).await.remove(0);
    assert!(next.token > share.token && next.position == position);
    assert_eq!(database.psql("SELECT count(*) FROM effects").unwrap(), "1");
    // Whoever lost it is refused, and what it did is undone.
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::raw_sql("INSERT INTO effects VALUES (2)").execute(&mut *tx).await.unwrap();
    assert_eq!(commit_share(&mut tx, &said, LEASE).await.unwrap(), Committed::Stale);
    tx.rollback().await.unwrap();
    assert_eq!(database.psql("SELECT count(*) FROM effects").unwrap(), "1");
}

/// The known mistake: a token that is looked at, and not held.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_lock_a_stale_commit_is_accepted() {
    for (broken, accepted) in [(false, false), (true, true)] {
        let (database, store) = with_topic(1).await;
        if broken {
            crate::claims_plans::sabotage_function(
                &database,
                "tenure.commit_share",
                &[
                    ("AND s.session IS NOT NULL FOR UPDATE", "AND s.session IS NOT NULL"),
                    ("IF read_to > before_ THEN", "IF read_to > before_ AND false THEN"),
                ],
            );
        }
        let position = published(&store, 0).await;
        let share = member(&store, "a", &[0]).await.remove(0);
        member(&store, "b", &[]).await;
        let mut tx = store.pool().begin().await.unwrap();
        let said = commit_share(&mut tx, &commit(0, share.token, position), LEASE).await.unwrap();
        assert_eq!(said, Committed::Yes);
        expired(&store, "a").await;
        let taken_meanwhile = !taken(&store, "b", &[0]).await.is_empty();
        let committed = tx.commit().await.is_ok();
        assert_eq!(taken_meanwhile && committed, accepted, "broken: {broken}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_stopped_in_mid_transaction_blocks_for_no_longer_than_its_lease() {
    let (_database, store) = with_topic(1).await;
    store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    let position = all(&store, 1).await[0].position;
    let share = member(&store, "a", &[0]).await.remove(0);
    member(&store, "b", &[]).await;
    let mut stopped = store.pool().begin().await.unwrap();
    let said = commit(0, share.token, position);
    commit_share(&mut stopped, &said, Duration::from_millis(400)).await.unwrap();
    expired(&store, "a").await;
    // Only a hang makes this fail.
    let next = loop {
        if let Some(next) = taken(&store, "b", &[0]).await.pop() {
            break next;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(next.position, 0, "what the stopped one did is undone");
    assert!(stopped.commit().await.is_err());
    let mut tx = store.pool().begin().await.unwrap();
    assert_eq!(commit_share(&mut tx, &said, LEASE).await.unwrap(), Committed::Stale);
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_lowered_to_the_lease_and_never_raised() {
    let (_database, store) = with_topic(1).await;
    let share = member(&store, "a", &[0]).await.remove(0);
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SET LOCAL statement_timeout = '2s'").execute(&mut *tx).await.unwrap();
    commit_share(&mut tx, &commit(0, share.token, 0), LEASE).await.unwrap();
    let limits = "SELECT current_setting('statement_timeout') || ' ' \
                  || current_setting('idle_in_transaction_session_timeout')";
    let limits: String = sqlx::query_scalar(limits).fetch_one(&mut *tx).await.unwrap();
    assert_eq!(limits, "2s 10s");
}

/// A reset waits for the transaction of who is at it, and then that one's next commit is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_comes_after_the_commit_that_is_under_way() {
    let (database, store) = with_topic(1).await;
    for n in 0..3 {
        store.publish(&topic("t"), &[keyed("k", n)]).await.unwrap();
    }
    let last = all(&store, 1).await[2].position;
    let share = member(&store, "a", &[0]).await.remove(0);
    let mut tx = store.pool().begin().await.unwrap();
    commit_share(&mut tx, &commit(0, share.token, last), LEASE).await.unwrap();
    let other = store.clone();
    let earliest = tenure_core::port::Begin::Earliest;
    let reset = tokio::spawn(async move { other.reset_group(&group("t", "g"), earliest, None, false).await });
    until_blocked(&database, 1).await;
    tx.commit().await.unwrap();
    let moved = reset.await.unwrap().unwrap();
    assert_eq!((moved[0].from, moved[0].to), (last, 0));
    let said = commit(0, share.token, last);
    assert_eq!(store.commit_shares(&[said]).await.unwrap(), [Committed::Stale]);
}

/// Two who commit several shares at once, each in another order.
#[tokio::test(flavor = "multi_thread")]
async fn commits_of_several_shares_do_not_deadlock() {
    let (_database, store) = with_topic(8).await;
    let shares = member(&store, "a", &[0, 1, 2, 3, 4, 5, 6, 7]).await;
    let mut commits = Vec::new();
    for share in &shares {
        commits.push(commit(share.slot, share.token, published(&store, share.slot).await));
    }
    let back: Vec<_> = commits.iter().rev().cloned().collect();
    for _ in 0..20 {
        let (one, other) = tokio::join!(store.commit_shares(&commits), store.commit_shares(&back));
        assert_eq!(one.unwrap(), [Committed::Yes; 8]);
        assert_eq!(other.unwrap(), [Committed::Yes; 8]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_set_aside_undoes_the_commit() {
    let (_database, store) = with_topic(1).await;
    let share = member(&store, "a", &[0]).await.remove(0);
    let mut said = commit(0, share.token, published(&store, 0).await);
    said.set_aside = vec![tenure_core::port::SetAside {
        event: tenure_core::port::EventId(6),
        position: 7,
        how: tenure_core::port::Aside::Behind,
    }];
    let error = store.commit_shares(&[said]).await.unwrap_err();
    assert_eq!(error.kind, Trouble::Request);
    assert_eq!(
        error,
        tenure_core::event::nothing_to_set_aside(&group("t", "g"), 0, tenure_core::port::EventId(6))
    );
    assert_eq!(store.look_group(&group("t", "g")).await.unwrap().unwrap().shares[0].position, 0);
}

/// As when a server crashed that had not waited for its disk: the event is gone, and its position will be another's.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_read_what_is_not_there_goes_no_further() {
    let (_database, store) = with_topic(1).await;
    let position = published(&store, 0).await;
    let share = member(&store, "a", &[0]).await.remove(0);
    let beyond = commit(0, share.token, position + 1);
    assert_eq!(store.commit_shares(&[beyond]).await.unwrap(), [Committed::Stale]);
    assert_eq!(store.look_group(&group("t", "g")).await.unwrap().unwrap().shares[0].position, 0);
    let there = commit(0, share.token, position);
    assert_eq!(store.commit_shares(&[there]).await.unwrap(), [Committed::Yes]);
}
