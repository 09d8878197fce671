//! Notifications, for stores that send them. They may be late, duplicated or mixed with others, so each test waits
//! for the one it expects; a missing one is detected by the timeout of the test runner.

use super::{StoreUnderTest, TestSession, election, leader_request};
use tenure_core::port::{
    BoxNotificationSource, LeaderRequestKind, Notification, Pause, ReleaseLeaseRequest, StartReason,
};

/// A release notifies the other candidates, so that a handover does not wait for a poll.
pub async fn a_release_notifies_another_client(subject: &StoreUnderTest) {
    let (a, b, mut notifications) = listening(subject).await;
    let key = election("e");
    let token = a.take(&key, 0).await;
    let release = ReleaseLeaseRequest {
        successor: Some(b.id.clone()),
        start_reason: StartReason::Preempt,
        ..a.release_request(&key, 0, token)
    };
    a.store.release_lease(&release).await.unwrap();
    let expected = Notification::LeaseReleased {
        election: key,
        slot: 0,
        token,
        released_by: a.id.clone(),
        successor: Some(b.id.clone()),
        start_reason: StartReason::Preempt,
    };
    until(&mut notifications, &expected).await;
}

/// Ending a session notifies the other candidates too.
pub async fn the_end_of_a_session_notifies_another_client(subject: &StoreUnderTest) {
    let (a, _b, mut notifications) = listening(subject).await;
    a.store.end_session(&a.id).await.unwrap();
    until(&mut notifications, &Notification::SessionEnded(a.id.clone())).await;
}

/// A leader request notifies the leader, so that it need not wait for its next heartbeat.
pub async fn a_leader_request_notifies_the_leader(subject: &StoreUnderTest) {
    let (a, b, mut notifications) = listening(subject).await;
    let key = election("e");
    let token = b.take(&key, 0).await;
    a.store.request_leader(&leader_request(&key, token, LeaderRequestKind::Resign)).await.unwrap();
    until(&mut notifications, &Notification::LeaderRequested(b.id.clone())).await;
}

/// Other clients are notified of a new leader, a new candidate, a pause and an expiry.
pub async fn changes_of_an_election_are_notified(subject: &StoreUnderTest) {
    let (a, b, mut notifications) = listening(subject).await;
    let (key, changed) = (election("e"), Notification::ElectionChanged(election("e")));
    a.take(&key, 0).await;
    until(&mut notifications, &changed).await;
    a.join(&key).await;
    until(&mut notifications, &changed).await;
    a.store.leave_election(&a.id, &key).await.unwrap();
    until(&mut notifications, &changed).await;
    let pause = Pause { paused_by: "ops".into(), reason: String::new(), paused_at_ms: 1 };
    a.store.set_election_paused(&key, Some(&pause)).await.unwrap();
    until(&mut notifications, &changed).await;
    a.join(&key).await;
    until(&mut notifications, &changed).await;
    b.expire(&a, &key).await;
    until(&mut notifications, &changed).await;
}

/// Two candidates in one election, and the notification source of the second one.
async fn listening(subject: &StoreUnderTest) -> (TestSession, TestSession, BoxNotificationSource) {
    let (a, b, key) = (subject.session("a").await, subject.session("b").await, election("e"));
    a.join(&key).await;
    b.join(&key).await;
    let mut notifications = b.store.notifications();
    // Some stores need a moment until they listen, so send until a notification arrives.
    loop {
        b.join(&key).await;
        let received = tokio::time::timeout(std::time::Duration::from_millis(50), notifications.next()).await;
        if received.is_ok() {
            return (a, b, notifications);
        }
    }
}

async fn until(notifications: &mut BoxNotificationSource, expected: &Notification) {
    loop {
        match notifications.next().await {
            Some(wake) if wake == *expected => return,
            Some(_) => {}
            None => panic!("the notifications ended before {expected:?}"),
        }
    }
}
