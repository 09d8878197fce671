//! The same on real stores: two processes' worth of handles on one file, and on one server.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::Tenure;
use tenure::port::*;

use crate::on_stores::on_real_stores;
use crate::support::*;

async fn process_at(url: &str, name: &str) -> Tenure {
    Tenure::builder().url(url).name(name).lease(2 * SECOND).open().await.expect("the store opens")
}

/// Workers of two processes on an exclusive queue, the first of which leaves in the middle.
async fn the_leader_leaves(url: &str) {
    let (a, b) = (process_at(url, "a").await, process_at(url, "b").await);
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

/// One sleeps, another submits; and an operator calls off what runs.
async fn a_sleeper_is_woken_and_a_handler_stopped(url: &str) {
    let (a, b) = (process_at(url, "a").await, process_at(url, "b").await);
    let mail = queue("mail");
    let waiting = tokio::spawn({
        let (claims, mail, seat) = (a.claims(), mail.clone(), seat(&a, "w", 1));
        async move { tasks(claims.claim(&mail, seat, Duration::from_secs(60)).await.unwrap()) }
    });
    tokio::time::sleep(300 * MS).await;
    b.claims().submit(&mail, many(1)).await.unwrap();
    assert_eq!(waiting.await.unwrap().len(), 1);

    let (said, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |task: tenure::TaskContext| {
        let said = said.clone();
        async move {
            let dropped = Dropped(said.clone());
            said.send("begun").unwrap();
            std::future::pending::<()>().await;
            drop((dropped, task));
        }
    };
    let worker = a.worker("print").handler(handler).start().await.unwrap();
    let id = b.claims().submit(&queue("print"), many(1)).await.unwrap()[0].id;
    assert_eq!(begun.recv().await, Some("begun"));
    b.store().order(&mail.namespace, &[id], Order::Cancel).await.unwrap();
    assert_eq!(begun.recv().await, Some("dropped"));
    worker.drain().await.unwrap();
    b.close().await.unwrap();
    a.close().await.unwrap();
}

struct Dropped(tokio::sync::mpsc::UnboundedSender<&'static str>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

on_real_stores!(the_leader_leaves, a_sleeper_is_woken_and_a_handler_stopped);
