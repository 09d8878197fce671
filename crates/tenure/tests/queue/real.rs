//! Queues on real stores: two processes on one file, and on one server.

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
async fn the_broker_leaves(url: &str) {
    let (a, b) = (process_at(url, "a").await, process_at(url, "b").await);
    let (mail, seen) = (queue("mail"), Arc::new(Mutex::new(Vec::new())));
    let exclusive = QueueSettings { mode: AssignmentMode::Exclusive, ..QueueSettings::default() };
    a.store().set_queue(&mail, &exclusive).await.unwrap();
    let mut workers = Vec::new();
    for tenure in [&a, &b] {
        let seen = seen.clone();
        let handler = move |task: tenure::TaskContext| {
            let seen = seen.clone();
            async move { seen.lock().unwrap().push((task.task().claim_seq, task.id())) }
        };
        workers.push(tenure.worker("mail").name(tenure.name()).handler(handler).start().await.unwrap());
    }
    for batch in many(300).chunks(50) {
        b.tasks().submit(&mail, batch.to_vec()).await.unwrap();
    }
    let done = async |count: u64| {
        let view = b.store().queue(&mail).await.unwrap().unwrap();
        view.count(TaskState::Completed) >= count
    };
    until("some tasks are completed", async || done(50).await).await;
    workers.remove(0).drain().await.unwrap();
    a.close().await.unwrap();
    until("all tasks are completed", async || done(300).await).await;
    let seen = seen.lock().unwrap().clone();
    let distinct: BTreeSet<_> = seen.iter().map(|(_, id)| *id).collect();
    assert_eq!(distinct.len(), 300);
    let sequences: BTreeSet<_> =
        seen.iter().map(|(sequence, _)| sequence.expect("the broker assigned it")).collect();
    assert_eq!(sequences.len(), seen.len(), "no claim sequence repeats");
    workers.remove(0).drain().await.unwrap();
    b.close().await.unwrap();
}

/// One process waits, another submits; and an operator cancels a running task.
async fn a_waiting_claim_is_notified_and_a_cancelled_handler_stops(url: &str) {
    let (a, b) = (process_at(url, "a").await, process_at(url, "b").await);
    let mail = queue("mail");
    let waiting = tokio::spawn({
        let (claims, mail, request) = (a.tasks(), mail.clone(), claim_request(&a, "w", 1));
        async move { tasks(claims.claim(&mail, request, Duration::from_secs(60)).await.unwrap()) }
    });
    tokio::time::sleep(300 * MS).await;
    b.tasks().submit(&mail, many(1)).await.unwrap();
    assert_eq!(waiting.await.unwrap().len(), 1);

    let (sender, mut started) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |task: tenure::TaskContext| {
        let sender = sender.clone();
        async move {
            let dropped = Dropped(sender.clone());
            sender.send("started").unwrap();
            std::future::pending::<()>().await;
            drop((dropped, task));
        }
    };
    let worker = a.worker("print").handler(handler).start().await.unwrap();
    let id = b.tasks().submit(&queue("print"), many(1)).await.unwrap()[0].id;
    assert_eq!(started.recv().await, Some("started"));
    b.store().apply_task_action(&mail.namespace, &[id], TaskAction::Cancel).await.unwrap();
    assert_eq!(started.recv().await, Some("dropped"));
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

on_real_stores!(the_broker_leaves, a_waiting_claim_is_notified_and_a_cancelled_handler_stops);
