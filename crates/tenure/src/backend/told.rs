//! Hints that a task of ours listens for, and passes on.

use async_trait::async_trait;
use tenure_core::port::{Wake, WakeSource};
use tokio::sync::mpsc;

/// The end of the line at which hints come in; the task ends when it is dropped.
pub(crate) struct Told(pub(crate) mpsc::Receiver<Wake>);

#[async_trait]
impl WakeSource for Told {
    async fn next(&mut self) -> Option<Wake> {
        self.0.recv().await
    }
}
