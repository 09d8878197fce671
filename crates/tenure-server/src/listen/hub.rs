//! All connections: how many, from where, and which wait too long.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::runtime::Runtime;
use tokio::sync::watch;

use super::activity::{Activity, Word};
use crate::metrics::{Gauged, names};
use crate::settings::{Limits, Settings, Timeouts};

/// All connections.
pub(crate) struct Hub {
    runtime: Arc<dyn Runtime>,
    limits: Limits,
    timeouts: Timeouts,
    next: AtomicU64,
    inside: Mutex<Inside>,
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct Inside {
    connections: HashMap<u64, Arc<Activity>>,
    per_peer: HashMap<IpAddr, usize>,
    closing: bool,
}

/// A connection's place. Given back when dropped.
pub(crate) struct Place {
    hub: Arc<Hub>,
    number: u64,
    peer: Option<IpAddr>,
    pub(crate) activity: Arc<Activity>,
    _gauged: Gauged,
}

/// Why a connection was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// There are too many.
    All,
    /// There are too many from that address.
    Peer,
    /// The server is about to end.
    Closing,
}

impl Hub {
    pub(crate) fn new(settings: &Settings) -> Hub {
        Hub {
            runtime: settings.runtime.clone(),
            limits: settings.limits,
            timeouts: settings.timeouts,
            next: AtomicU64::new(0),
            inside: Mutex::default(),
            count: watch::Sender::new(0),
        }
    }

    /// A place for one more connection, if there is one.
    pub(crate) fn admit(self: &Arc<Self>, peer: Option<IpAddr>) -> Result<Place, Full> {
        let mut inside = self.locked();
        if inside.closing {
            return Err(Full::Closing);
        }
        if inside.connections.len() >= self.limits.connections {
            return Err(Full::All);
        }
        if let Some(ip) = peer {
            let count = inside.per_peer.entry(ip).or_default();
            if *count >= self.limits.connections_per_peer {
                return Err(Full::Peer);
            }
            *count += 1;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let activity = Activity::new(self.runtime.clone());
        inside.connections.insert(number, activity.clone());
        self.count.send_replace(inside.connections.len());
        Ok(Place { hub: self.clone(), number, peer, activity, _gauged: Gauged::new(names::CONNECTIONS) })
    }

    /// Ends what waits too long, until it is aborted.
    pub(crate) async fn sweep(self: Arc<Self>) {
        let shortest = [self.timeouts.header, self.timeouts.idle, self.timeouts.write].into_iter().min();
        let every =
            (shortest.unwrap_or_default() / 4).clamp(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            tokio::time::sleep(every).await;
            let now = self.runtime.now();
            self.each(|activity| activity.judge(now, &self.timeouts));
        }
    }

    /// Lets nobody in, and asks all to end when they have their answers.
    pub(crate) fn finish(&self) {
        self.locked().closing = true;
        self.each(|activity| activity.tell(Word::Finish));
    }

    /// Ends all at once.
    pub(crate) fn stop(&self) {
        self.locked().closing = true;
        self.each(|activity| activity.tell(Word::Stop));
    }

    /// Waits until there is none left.
    pub(crate) async fn empty(&self) {
        // The sender lives in this very value.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    fn each(&self, act: impl Fn(&Activity)) {
        self.locked().connections.values().for_each(|activity| act(activity));
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inside = self.hub.locked();
        inside.connections.remove(&self.number);
        if let Some(ip) = self.peer
            && let Some(count) = inside.per_peer.get_mut(&ip)
        {
            *count -= 1;
            if *count == 0 {
                inside.per_peer.remove(&ip);
            }
        }
        self.hub.count.send_replace(inside.connections.len());
    }
}
