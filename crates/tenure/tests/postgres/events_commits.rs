//! Commits of offsets in the handler's transaction.

use std::time::Duration;

use tenure::store::postgres::commit_partition;
use tenure_core::port::{
    CommitResult, ElectionStore, ErrorKind, EventAdmin, EventStore, ExpireSessionRequest,
};
use tenure_core::rules::event::partition_for_key;

use crate::events::*;
use crate::support::*;

/// Publishes one event to a partition of `t` and returns its offset.
async fn published(store: &tenure::store::postgres::PostgresStore, partition: u32) -> u64 {
    let partitions = store.partition_offsets(&topic("t")).await.unwrap().unwrap().len() as u32;
    let key =
        (0..).map(|n| format!("k{n}")).find(|key| partition_for_key(key, partitions) == partition).unwrap();
    store.publish(&topic("t"), &[keyed(&key, 1)]).await.unwrap();
    store.partition_offsets(&topic("t")).await.unwrap().unwrap()[partition as usize].end_offset
}

async fn expired(store: &tenure::store::postgres::PostgresStore, session: &str) {
    store
        .expire_session(&ExpireSessionRequest { session: id(session), epoch: 1, heartbeat_count: Some(0) })
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_locks_its_partition_until_the_transaction_ends() {
    let (database, store) = with_topic(2).await;
    let lease = member(&store, "a", &[0, 1]).await.remove(0);
    member(&store, "b", &[]).await;
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::raw_sql("CREATE TABLE effects (n integer); INSERT INTO effects VALUES (1)")
        .execute(&mut *tx)
        .await
        .unwrap();
    let offset = published(&store, 0).await;
    let request = commit(0, lease.token, offset);
    assert_eq!(commit_partition(&mut tx, &request, LEASE).await.unwrap(), CommitResult::Committed);
    expired(&store, "a").await;
    let got: Vec<u32> = taken(&store, "b", &[0, 1]).await.iter().map(|taken| taken.partition).collect();
    assert_eq!(got, [1], "the partition without an open commit");
    tx.commit().await.unwrap();
    let next = taken(&store, "b", &[0]).await.remove(0);
    assert!(next.token > lease.token && next.offset == offset);
    assert_eq!(database.psql("SELECT count(*) FROM effects").unwrap(), "1");
    // The former member is refused, and its transaction is rolled back.
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::raw_sql("INSERT INTO effects VALUES (2)").execute(&mut *tx).await.unwrap();
    assert_eq!(commit_partition(&mut tx, &request, LEASE).await.unwrap(), CommitResult::LeaseLost);
    tx.rollback().await.unwrap();
    assert_eq!(database.psql("SELECT count(*) FROM effects").unwrap(), "1");
}

/// Negative control: the token is compared without a lock.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_lock_a_stale_commit_is_accepted() {
    for (broken, accepted) in [(false, false), (true, true)] {
        let (database, store) = with_topic(1).await;
        if broken {
            crate::claims_plans::inject_function_bug(
                &database,
                "tenure.commit_partition",
                &[
                    ("AND s.session IS NOT NULL FOR UPDATE", "AND s.session IS NOT NULL"),
                    ("IF new_offset > old_offset THEN", "IF new_offset > old_offset AND false THEN"),
                ],
            );
        }
        let offset = published(&store, 0).await;
        let lease = member(&store, "a", &[0]).await.remove(0);
        member(&store, "b", &[]).await;
        let mut tx = store.pool().begin().await.unwrap();
        let result = commit_partition(&mut tx, &commit(0, lease.token, offset), LEASE).await.unwrap();
        assert_eq!(result, CommitResult::Committed);
        expired(&store, "a").await;
        let taken_meanwhile = !taken(&store, "b", &[0]).await.is_empty();
        let committed = tx.commit().await.is_ok();
        assert_eq!(taken_meanwhile && committed, accepted, "broken: {broken}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_suspended_in_a_transaction_blocks_no_longer_than_its_lease() {
    let (_database, store) = with_topic(1).await;
    store.publish(&topic("t"), &[keyed("k", 1)]).await.unwrap();
    let offset = all(&store, 1).await[0].offset;
    let lease = member(&store, "a", &[0]).await.remove(0);
    member(&store, "b", &[]).await;
    let mut stopped = store.pool().begin().await.unwrap();
    let request = commit(0, lease.token, offset);
    commit_partition(&mut stopped, &request, Duration::from_millis(400)).await.unwrap();
    expired(&store, "a").await;
    // If the partition is never taken, the timeout of the test run ends this loop.
    let next = loop {
        if let Some(next) = taken(&store, "b", &[0]).await.pop() {
            break next;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(next.offset, 0, "the suspended transaction was rolled back");
    assert!(stopped.commit().await.is_err());
    let mut tx = store.pool().begin().await.unwrap();
    assert_eq!(commit_partition(&mut tx, &request, LEASE).await.unwrap(), CommitResult::LeaseLost);
}

#[tokio::test(flavor = "multi_thread")]
async fn timeouts_are_lowered_to_the_lease_and_never_raised() {
    let (_database, store) = with_topic(1).await;
    let lease = member(&store, "a", &[0]).await.remove(0);
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::raw_sql("SET LOCAL statement_timeout = '2s'").execute(&mut *tx).await.unwrap();
    commit_partition(&mut tx, &commit(0, lease.token, 0), LEASE).await.unwrap();
    let timeouts = "SELECT current_setting('statement_timeout') || ' ' \
                  || current_setting('idle_in_transaction_session_timeout')";
    let timeouts: String = sqlx::query_scalar(timeouts).fetch_one(&mut *tx).await.unwrap();
    assert_eq!(timeouts, "2s 10s");
}

/// A reset waits for an open commit; the next commit of that member is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_waits_for_an_open_commit() {
    let (database, store) = with_topic(1).await;
    for n in 0..3 {
        store.publish(&topic("t"), &[keyed("k", n)]).await.unwrap();
    }
    let last = all(&store, 1).await[2].offset;
    let lease = member(&store, "a", &[0]).await.remove(0);
    let mut tx = store.pool().begin().await.unwrap();
    commit_partition(&mut tx, &commit(0, lease.token, last), LEASE).await.unwrap();
    let other = store.clone();
    let earliest = tenure_core::port::StartOffset::Earliest;
    let reset = tokio::spawn(async move { other.reset_group(&group("t", "g"), earliest, None, false).await });
    until_blocked(&database, 1).await;
    tx.commit().await.unwrap();
    let moved = reset.await.unwrap().unwrap();
    assert_eq!((moved[0].from_offset, moved[0].to_offset), (last, 0));
    let request = commit(0, lease.token, last);
    assert_eq!(store.commit_partitions(&[request]).await.unwrap(), [CommitResult::LeaseLost]);
}

/// Two commits of the same partitions run concurrently, in opposite orders.
#[tokio::test(flavor = "multi_thread")]
async fn commits_of_several_partitions_do_not_deadlock() {
    let (_database, store) = with_topic(8).await;
    let leases = member(&store, "a", &[0, 1, 2, 3, 4, 5, 6, 7]).await;
    let mut commits = Vec::new();
    for lease in &leases {
        commits.push(commit(lease.partition, lease.token, published(&store, lease.partition).await));
    }
    let reversed: Vec<_> = commits.iter().rev().cloned().collect();
    for _ in 0..20 {
        let (one, other) =
            tokio::join!(store.commit_partitions(&commits), store.commit_partitions(&reversed));
        assert_eq!(one.unwrap(), [CommitResult::Committed; 8]);
        assert_eq!(other.unwrap(), [CommitResult::Committed; 8]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_parks_a_missing_event_is_rolled_back() {
    let (_database, store) = with_topic(1).await;
    let lease = member(&store, "a", &[0]).await.remove(0);
    let mut request = commit(0, lease.token, published(&store, 0).await);
    request.parked = vec![tenure_core::port::ParkEventRequest {
        event_id: tenure_core::port::EventId(6),
        offset: 7,
        state: tenure_core::port::ParkedEventState::Waiting,
    }];
    let error = store.commit_partitions(&[request]).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Request);
    assert_eq!(
        error,
        tenure_core::rules::event::parked_event_missing(&group("t", "g"), 0, tenure_core::port::EventId(6))
    );
    assert_eq!(
        store.group_assignment(&group("t", "g")).await.unwrap().unwrap().partition_leases[0].committed_offset,
        0
    );
}

/// Same state as after a server crash with `synchronous_commit = off`: the event is lost, and another event will get its
/// offset.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_beyond_the_end_of_the_partition_is_refused() {
    let (_database, store) = with_topic(1).await;
    let offset = published(&store, 0).await;
    let lease = member(&store, "a", &[0]).await.remove(0);
    let beyond = commit(0, lease.token, offset + 1);
    assert_eq!(store.commit_partitions(&[beyond]).await.unwrap(), [CommitResult::LeaseLost]);
    assert_eq!(
        store.group_assignment(&group("t", "g")).await.unwrap().unwrap().partition_leases[0].committed_offset,
        0
    );
    let existing = commit(0, lease.token, offset);
    assert_eq!(store.commit_partitions(&[existing]).await.unwrap(), [CommitResult::Committed]);
}
