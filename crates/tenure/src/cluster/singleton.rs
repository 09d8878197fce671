//! One run of a singleton, as its code sees it.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures_core::future::BoxFuture;
use futures_util::FutureExt as _;
use tenure_core::Name;
use tenure_core::cluster::{HANDOFF_MAX, TooLarge};
use tokio::sync::watch;

use super::registry::Footing;
use crate::callback;

/// One run of a singleton: what it is told, and what it leaves behind. See [`Supervisor`](super::Supervisor).
pub struct Singleton<F: Footing> {
    pub(super) name: Name,
    pub(super) grip: F::Grip,
    state: Option<Vec<u8>>,
    leaving: watch::Receiver<bool>,
    left: Left,
}

/// What it leaves to the next run.
type Left = Arc<Mutex<Option<Vec<u8>>>>;

impl<F: Footing> Singleton<F> {
    /// Which singleton.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// What the last run handed on, if it ended in good order and that arrived. After a crash there is nothing.
    pub fn state(&self) -> Option<&[u8]> {
        self.state.as_deref()
    }

    /// Completes when it is to finish: it moves to another member, or this one leaves. What is not done when the grace is over is
    /// dropped.
    pub async fn leaving(&self) {
        let mut leaving = self.leaving.clone();
        // A supervisor that is gone wants it to end, too.
        let _ = leaving.wait_for(|leaving| *leaving).await;
    }

    /// Whether it is to finish.
    pub fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }

    /// Leaves this to the next run, in place of what was left before. It is handed on when the singleton returns after it was asked
    /// to finish; wherever else it ends, the next run begins without.
    pub fn hand_on(&self, state: impl Into<Vec<u8>>) -> Result<(), TooLarge> {
        let state = state.into();
        if state.len() > HANDOFF_MAX {
            return Err(TooLarge(state.len()));
        }
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        Ok(())
    }
}

/// What runs.
pub(super) type Program<F> = Arc<dyn Fn(Singleton<F>) -> BoxFuture<'static, ()> + Send + Sync>;

/// A run under way.
pub(super) struct Run {
    work: BoxFuture<'static, bool>,
    leaving: watch::Sender<bool>,
    left: Left,
}

impl Run {
    /// Begins a run. Nothing of it happens before it is waited for.
    pub(super) fn begin<F: Footing>(
        program: &Program<F>,
        name: Name,
        grip: F::Grip,
        state: Option<Vec<u8>>,
    ) -> Run {
        let (leaving, told) = watch::channel(false);
        let left = Left::default();
        let singleton = Singleton { name, grip, state, leaving: told, left: left.clone() };
        let program = program.clone();
        // Called inside as well, so that a program that panics before its first wait is caught too.
        let work = AssertUnwindSafe(async move { program(singleton).await }).catch_unwind();
        let reported = |ended: Result<(), Box<dyn std::any::Any + Send>>| {
            ended.map_err(|panic| callback::report("singleton", &*panic)).is_ok()
        };
        Run { work: Box::pin(work.map(reported)), leaving, left }
    }

    /// Waits until it has ended by itself. `false` if it panicked.
    pub(super) async fn ended(&mut self) -> bool {
        (&mut self.work).await
    }

    /// Tells it to finish.
    pub(super) fn finish(&self) {
        self.leaving.send_replace(true);
    }

    /// What it left.
    pub(super) fn into_state(self) -> Option<Vec<u8>> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.take()
    }
}
