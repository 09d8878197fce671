//! What the store looks like, watched and kept in memory.
//!
//! Reads are answered from here, so that ten thousand readers cost the store what one does. What is shown is as old as
//! the last look at most; whoever needs to know for certain asks the store (`?consistent=true`), and whoever writes
//! does so under a token.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tenure::port::{Backend, ElectionView, StoreError};
use tenure::runtime::Runtime;
use tenure::{ElectionKey, Moment};
use tokio::sync::watch;

/// How often everything is looked at, hints or no hints.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Everything that the server knows of the store.
#[derive(Debug)]
pub struct Board {
    seen: RwLock<Arc<Seen>>,
    changes: watch::Sender<u64>,
}

/// What one look saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The elections.
    pub elections: BTreeMap<ElectionKey, Arc<ElectionView>>,
    /// When the last look that succeeded returned.
    pub at: Moment,
    /// Why the last look failed, if it did.
    pub trouble: Option<StoreError>,
}

impl Board {
    /// A board that is kept up to date until it is dropped.
    pub fn watching(store: Arc<dyn Backend>, runtime: Arc<dyn Runtime>) -> Arc<Board> {
        let board = Arc::new(Board { seen: RwLock::default(), changes: watch::Sender::new(0) });
        let weak = Arc::downgrade(&board);
        tokio::spawn(async move {
            loop {
                let looked = store.elections(None).await;
                let Some(board) = weak.upgrade() else { return };
                board.take_in(looked, runtime.now());
                drop(board);
                runtime.sleep_until(runtime.now() + LOOK_EVERY).await;
            }
        });
        board
    }

    /// What was seen last.
    pub fn seen(&self) -> Arc<Seen> {
        self.seen.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes whenever something is seen.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn take_in(&self, looked: Result<Vec<ElectionView>, StoreError>, now: Moment) {
        let mut seen = (*self.seen()).clone();
        match looked {
            Ok(views) => {
                seen.elections = views.into_iter().map(|view| (view.key.clone(), Arc::new(view))).collect();
                (seen.at, seen.trouble) = (now, None);
            }
            Err(error) => seen.trouble = Some(error),
        }
        *self.seen.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(seen);
        self.changes.send_modify(|n| *n += 1);
    }
}
