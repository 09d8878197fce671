//! Processes in their own network namespaces: threads, each with its own runtime, so that all their sockets are
//! in their namespace.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::Duration;

use tenure::cluster::{RegistryBackend, SupervisorBuilder};
use tenure_core::rules::cluster::owner;
use tokio::runtime::Handle;

use crate::support::*;

pub(crate) const JOBS: [&str; 6] = ["a1", "b2", "c3", "d4", "e5", "f6"];

/// A thread in another network namespace for the duration of the test, and the value it created.
pub(crate) struct NamespaceThread<T> {
    handle: Handle,
    pub(crate) value: T,
}

impl<T: Send + 'static> NamespaceThread<T> {
    pub(crate) fn new<F: Future<Output = T>>(
        enter: impl FnOnce() + Send + 'static,
        bring: impl FnOnce() -> F + Send + 'static,
    ) -> NamespaceThread<T> {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            enter();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let value = bring().await;
                let _ = sender.send(NamespaceThread { handle: Handle::current(), value });
                std::future::pending::<()>().await;
            });
        });
        receiver.recv().expect("the thread starts")
    }

    /// Runs a future on the thread.
    pub(crate) async fn run<R: Send + 'static>(&self, act: impl Future<Output = R> + Send + 'static) -> R {
        self.handle.spawn(act).await.expect("the task does not panic")
    }
}

pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..2400 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("not within a minute: {what}");
}

/// All jobs on the supervisor of one process, each recorded in the log while it runs.
pub(crate) fn working<F: RegistryBackend>(
    builder: SupervisorBuilder<F>,
    node: &str,
    log: &Log,
) -> SupervisorBuilder<F> {
    JOBS.iter().fold(builder, |builder, job| {
        let (log, node) = (log.clone(), node.to_owned());
        builder.singleton(*job, move |singleton| {
            let (log, node) = (log.clone(), node.clone());
            async move {
                let _running = log.begin(&singleton, &node);
                singleton.stop_requested().await;
            }
        })
    })
}

/// Whether each job runs once, on its owner among these nodes.
pub(crate) fn placed(running: &BTreeMap<String, Vec<String>>, nodes: &[&str]) -> bool {
    let belongs = |job: &str| owner(job, nodes.iter().map(|node| (*node, 1))).unwrap_or_default().to_owned();
    running.len() == JOBS.len() && running.iter().all(|(job, at)| *at == [belongs(job)])
}
