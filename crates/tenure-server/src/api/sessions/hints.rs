//! One ear on the store for all who listen to this server.

use std::sync::Arc;

use tenure::port::{Backend, Wake};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

/// How many hints wait for a slow listener before it is told to look at everything instead.
const HINTS_KEPT: usize = 1024;

/// The store's hints, for any number of listeners. The store hears of one.
#[derive(Debug)]
pub(crate) struct Hints {
    sender: broadcast::Sender<Wake>,
    ear: JoinHandle<()>,
}

impl Hints {
    /// Listens to a store until dropped.
    pub(crate) fn of(store: &Arc<dyn Backend>) -> Arc<Hints> {
        let sender = broadcast::Sender::new(HINTS_KEPT);
        let (mut wakes, to) = (store.wakes(), sender.clone());
        let ear = tokio::spawn(async move {
            while let Some(wake) = wakes.next().await {
                // What this process alone knows of its own connections and kernel is never passed on.
                if !matches!(wake, Wake::Died(_) | Wake::Severed(_)) {
                    // Nobody listening is no trouble.
                    let _ = to.send(wake);
                }
            }
        });
        Arc::new(Hints { sender, ear })
    }

    /// What is said from now on.
    pub(super) fn listen(&self) -> broadcast::Receiver<Wake> {
        self.sender.subscribe()
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        self.ear.abort();
    }
}
