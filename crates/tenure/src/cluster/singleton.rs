//! One run of a singleton as its code sees it.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures_core::future::BoxFuture;
use futures_util::FutureExt as _;
use tenure_core::Name;
use tenure_core::rules::cluster::{HANDOFF_MAX, HandoffTooLarge};
use tokio::sync::watch;

use super::registry::RegistryBackend;
use crate::callback;

/// One run of a singleton: its inputs, and the state that it leaves. See [`Supervisor`](super::Supervisor).
pub struct SingletonContext<F: RegistryBackend> {
    pub(super) name: Name,
    pub(super) lease: F::RunLease,
    state: Option<Vec<u8>>,
    stop: watch::Receiver<bool>,
    handoff: HandoffState,
}

/// State that a run leaves to the next one.
type HandoffState = Arc<Mutex<Option<Vec<u8>>>>;

impl<F: RegistryBackend> SingletonContext<F> {
    /// Name of the singleton.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The state that the previous run handed over, if it stopped in an orderly way and the state arrived.
    /// `None` after a crash.
    pub fn state(&self) -> Option<&[u8]> {
        self.state.as_deref()
    }

    /// Completes when the run must stop: the singleton moves to another member, or this member leaves. After
    /// the grace, the run is dropped.
    pub async fn stop_requested(&self) {
        let mut stop = self.stop.clone();
        // If the supervisor is gone, the run must stop as well.
        let _ = stop.wait_for(|stop| *stop).await;
    }

    /// Whether the run must stop.
    pub fn is_stop_requested(&self) -> bool {
        *self.stop.borrow()
    }

    /// Sets the state for the next run, replacing an earlier one. It is handed over when the singleton returns
    /// after a stop request. In all other cases the next run starts without state.
    pub fn set_handoff(&self, state: impl Into<Vec<u8>>) -> Result<(), HandoffTooLarge> {
        let state = state.into();
        if state.len() > HANDOFF_MAX {
            return Err(HandoffTooLarge(state.len()));
        }
        *self.handoff.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        Ok(())
    }
}

/// Function that runs a singleton.
pub(super) type SingletonFn<F> = Arc<dyn Fn(SingletonContext<F>) -> BoxFuture<'static, ()> + Send + Sync>;

/// A running singleton.
pub(super) struct SingletonRun {
    work: BoxFuture<'static, bool>,
    stop: watch::Sender<bool>,
    handoff: HandoffState,
}

impl SingletonRun {
    /// Creates a run. It starts when it is first awaited.
    pub(super) fn begin<F: RegistryBackend>(
        program: &SingletonFn<F>,
        name: Name,
        lease: F::RunLease,
        state: Option<Vec<u8>>,
    ) -> SingletonRun {
        let (stop, stop_receiver) = watch::channel(false);
        let handoff = HandoffState::default();
        let singleton =
            SingletonContext { name, lease, state, stop: stop_receiver, handoff: handoff.clone() };
        let program = program.clone();
        // The call happens inside, so that a panic before the first await is caught, too.
        let work = AssertUnwindSafe(async move { program(singleton).await }).catch_unwind();
        let reported = |ended: Result<(), Box<dyn std::any::Any + Send>>| {
            ended.map_err(|panic| callback::report("singleton", &*panic)).is_ok()
        };
        SingletonRun { work: Box::pin(work.map(reported)), stop, handoff }
    }

    /// Waits until the run ends by itself. Returns `false` if it panicked.
    pub(super) async fn ended(&mut self) -> bool {
        (&mut self.work).await
    }

    /// Tells the run to stop.
    pub(super) fn finish(&self) {
        self.stop.send_replace(true);
    }

    /// The state that the run left.
    pub(super) fn into_state(self) -> Option<Vec<u8>> {
        let mut handoff = self.handoff.lock().unwrap_or_else(PoisonError::into_inner);
        handoff.take()
    }
}
