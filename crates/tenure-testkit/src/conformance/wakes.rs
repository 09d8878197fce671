//! Claims about hints, for stores that give them. Hints may come late, doubled, or among others, so each claim waits for
//! the one it wants; one that never comes is found by the test runner's own limit.

use super::{Actor, Subject, ask, election};
use tenure_core::port::{AskKind, Pause, Release, Via, Wake, Wakes};

/// Hand-over takes as long as a hint does.
pub async fn a_release_is_heard_by_another_client(subject: &Subject) {
    let (a, b, mut hints) = listening(subject).await;
    let key = election("e");
    let token = a.take(&key, 0).await;
    let release = Release { successor: Some(b.id.clone()), via: Via::Preempt, ..a.giving(&key, 0, token) };
    a.store.release(&release).await.unwrap();
    let expected = Wake::Released {
        election: key,
        slot: 0,
        token,
        by: a.id.clone(),
        successor: Some(b.id.clone()),
        via: Via::Preempt,
    };
    until(&mut hints, &expected).await;
}

/// So does the end of a session.
pub async fn an_end_is_heard_by_another_client(subject: &Subject) {
    let (a, _b, mut hints) = listening(subject).await;
    a.store.end(&a.id).await.unwrap();
    until(&mut hints, &Wake::Ended(a.id.clone())).await;
}

/// The holder need not wait for its next beat.
pub async fn an_ask_is_heard_by_its_holder(subject: &Subject) {
    let (a, b, mut hints) = listening(subject).await;
    let key = election("e");
    let token = b.take(&key, 0).await;
    a.store.ask(&ask(&key, token, AskKind::Resign)).await.unwrap();
    until(&mut hints, &Wake::Asked(b.id.clone())).await;
}

/// A new leader, a candidate, a pause, an expiry.
pub async fn changes_of_an_election_are_heard(subject: &Subject) {
    let (a, b, mut hints) = listening(subject).await;
    let (key, changed) = (election("e"), Wake::Changed(election("e")));
    a.take(&key, 0).await;
    until(&mut hints, &changed).await;
    a.stand(&key).await;
    until(&mut hints, &changed).await;
    a.store.leave(&a.id, &key).await.unwrap();
    until(&mut hints, &changed).await;
    let pause = Pause { by: "ops".into(), reason: String::new(), at_ms: 1 };
    a.store.set_paused(&key, Some(&pause)).await.unwrap();
    until(&mut hints, &changed).await;
    a.stand(&key).await;
    until(&mut hints, &changed).await;
    b.expire(&a, &key).await;
    until(&mut hints, &changed).await;
}

/// Two candidates, and what the second hears from now on.
async fn listening(subject: &Subject) -> (Actor, Actor, Wakes) {
    let (a, b, key) = (subject.actor("a").await, subject.actor("b").await, election("e"));
    a.stand(&key).await;
    b.stand(&key).await;
    let mut hints = b.store.wakes();
    // Some stores need a moment until they listen: speak until something is heard.
    loop {
        b.stand(&key).await;
        let heard = tokio::time::timeout(std::time::Duration::from_millis(50), hints.next()).await;
        if heard.is_ok() {
            return (a, b, hints);
        }
    }
}

async fn until(hints: &mut Wakes, expected: &Wake) {
    loop {
        match hints.next().await {
            Some(wake) if wake == *expected => return,
            Some(_) => {}
            None => panic!("the hints ended before {expected:?}"),
        }
    }
}
