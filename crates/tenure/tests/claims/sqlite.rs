//! The same on a real store: two processes' worth of handles on one file.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Tenure;
use tenure::port::*;

use crate::support::*;

async fn on_file(folder: &tempfile::TempDir, name: &str) -> Tenure {
    let url = format!("sqlite:{}", folder.path().join("tenure.db").display());
    Tenure::builder().url(url).name(name).lease(2 * SECOND).open().await.expect("a file opens")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_two_processes_share_a_file_and_the_leader_may_leave() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (on_file(&folder, "a").await, on_file(&folder, "b").await);
    let (mail, seen) = (queue("mail"), Arc::new(Mutex::new(Vec::new())));
    let exclusive = QueueSettings { mode: Mode::Exclusive, ..QueueSettings::default() };
    a.store().set_queue(&mail, &exclusive).await.unwrap();
    let mut workers = Vec::new();
    for tenure in [&a, &b] {
        let seen = seen.clone();
        let handler = move |task: tenure::TaskContext| {
            let seen = seen.clone();
            async move { seen.lock().unwrap().push((task.task().turn, task.id())) }
        };
        workers.push(tenure.worker("mail").name(tenure.name()).handler(handler).start().await.unwrap());
    }
    for batch in many(300).chunks(50) {
        b.claims().submit(&mail, batch.to_vec()).await.unwrap();
    }
    let done = async |count: u64| {
        let view = b.store().queue(&mail).await.unwrap().unwrap();
        view.count(TaskState::Completed) >= count
    };
    until("some are done", async || done(50).await).await;
    workers.remove(0).drain().await.unwrap();
    a.close().await.unwrap();
    until("all are done", async || done(300).await).await;
    let seen = seen.lock().unwrap().clone();
    let distinct: BTreeSet<_> = seen.iter().map(|(_, id)| *id).collect();
    assert_eq!(distinct.len(), 300);
    let turns: BTreeSet<_> = seen.iter().map(|(turn, _)| turn.expect("the leader handed it out")).collect();
    assert_eq!(turns.len(), seen.len(), "no turn was given twice");
    workers.remove(0).drain().await.unwrap();
    b.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sleeps_on_a_file_is_woken_by_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (on_file(&folder, "a").await, on_file(&folder, "b").await);
    let mail = queue("mail");
    let waiting = tokio::spawn({
        let (claims, mail, seat) = (a.claims(), mail.clone(), seat(&a, "w", 1));
        async move { tasks(claims.claim(&mail, seat, Duration::from_secs(60)).await.unwrap()) }
    });
    tokio::time::sleep(300 * MS).await;
    b.claims().submit(&mail, many(1)).await.unwrap();
    assert_eq!(waiting.await.unwrap().len(), 1);
    b.close().await.unwrap();
    a.close().await.unwrap();
}
