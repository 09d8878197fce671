//! Processes in networks of their own: threads, each with a runtime that never leaves it, so that all that is opened there is there.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::time::Duration;

use tenure::cluster::{Footing, SupervisorBuilder};
use tenure_core::cluster::owner;
use tokio::runtime::Handle;

use crate::support::*;

pub(crate) const JOBS: [&str; 6] = ["a1", "b2", "c3", "d4", "e5", "f6"];

/// A thread that is elsewhere, for as long as the test lasts, and what it brought with it.
pub(crate) struct Island<T> {
    handle: Handle,
    pub(crate) brought: T,
}

impl<T: Send + 'static> Island<T> {
    pub(crate) fn new<F: Future<Output = T>>(
        enter: impl FnOnce() + Send + 'static,
        bring: impl FnOnce() -> F + Send + 'static,
    ) -> Island<T> {
        let (tell, told) = channel();
        std::thread::spawn(move || {
            enter();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let brought = bring().await;
                let _ = tell.send(Island { handle: Handle::current(), brought });
                std::future::pending::<()>().await;
            });
        });
        told.recv().expect("it begins")
    }

    /// Does something there.
    pub(crate) async fn run<R: Send + 'static>(&self, act: impl Future<Output = R> + Send + 'static) -> R {
        self.handle.spawn(act).await.expect("it does not panic")
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

/// All jobs on the supervisor of one process, each saying in the log that it runs.
pub(crate) fn working<F: Footing>(
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
                singleton.leaving().await;
            }
        })
    })
}

/// Whether each job runs once, where it belongs among these.
pub(crate) fn placed(running: &BTreeMap<String, Vec<String>>, nodes: &[&str]) -> bool {
    let belongs = |job: &str| owner(job, nodes.iter().map(|node| (*node, 1))).unwrap_or_default().to_owned();
    running.len() == JOBS.len() && running.iter().all(|(job, at)| *at == [belongs(job)])
}
