//! A process that submits tasks, each under an idempotency key, with retries until the store confirms it.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::{NewTask, QueueKey, TaskState};
use tenure::{Name, Tenure};
use tenure_core::{Entropy, SplitMix};

use super::notes::{Note, NoteLog};
use super::plan::{MIXED, ORDERS, mixed, orders};

/// Number of ready tasks above which a queue gets no new tasks for a moment.
const BACKLOG: u64 = 300;

/// Submit tasks until the process ends.
pub(crate) async fn submit(tenure: &Tenure, note_log: Arc<NoteLog>) {
    let mut entropy = SplitMix::new(tenure::runtime::random());
    let mut serial = 0_u64;
    let prefix = tenure::runtime::random();
    loop {
        for name in [ORDERS, MIXED] {
            let queue = key(name);
            if crowded(tenure, &queue).await {
                continue;
            }
            for _ in 0..4 {
                let mut tasks = if name == ORDERS { orders(&mut entropy) } else { mixed(&mut entropy) };
                for task in &mut tasks {
                    serial += 1;
                    task.idempotency_key = Some(format!("{prefix:x}-{serial}"));
                }
                persist(tenure, &queue, tasks, &note_log).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(20 + entropy.next_u64() % 40)).await;
    }
}

/// Submit until the store confirms.
async fn persist(tenure: &Tenure, queue: &QueueKey, tasks: Vec<NewTask>, note_log: &NoteLog) {
    loop {
        match tenure.tasks().submit(queue, tasks.clone()).await {
            Ok(submitted) => {
                let at_ms = tenure::runtime::wall_ms();
                for (task, submitted) in tasks.iter().zip(submitted) {
                    let key = task.idempotency_key.clone().unwrap_or_default();
                    note_log.write(&Note::Submitted { key, task: submitted.id.0, at_ms });
                }
                return;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn crowded(tenure: &Tenure, queue: &QueueKey) -> bool {
    match tenure.store().queue(queue).await {
        Ok(Some(view)) => view.count(TaskState::Ready) + view.count(TaskState::Blocked) > BACKLOG,
        Ok(None) => false,
        Err(_) => true,
    }
}

/// A queue of the default namespace.
pub(crate) fn key(name: &str) -> QueueKey {
    QueueKey::new(Name::default_namespace(), name.parse().expect("our own names are valid"))
}
