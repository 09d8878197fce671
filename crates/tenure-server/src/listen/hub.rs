//! All connections: how many, from where, and which wait too long.
//!
//! A connection on which no request has authenticated yet is one of a limited number. When there are that many, a new
//! connection takes the place of the oldest one from the address that has the most of them: clients that connect and say
//! nothing cannot keep others out.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::Moment;
use tenure::runtime::Runtime;
use tokio::sync::watch;

use super::activity::{Activity, Word};
use crate::metrics::{Gauged, names};
use crate::settings::{Limits, Settings, Timeouts};

/// How long a new connection keeps its place among those that have not authenticated, before another one from the same
/// address may take it. Without it, a crowd of clients that connect together would close one another's connections before
/// any of them could send a request.
const GRACE: Duration = Duration::from_secs(1);

/// All connections.
pub(crate) struct Hub {
    runtime: Arc<dyn Runtime>,
    limits: Limits,
    /// How many connections may be without an authenticated request.
    unauthenticated: usize,
    timeouts: Timeouts,
    next: AtomicU64,
    inside: Mutex<Inside>,
    count: watch::Sender<usize>,
}

#[derive(Default)]
struct Inside {
    connections: HashMap<u64, Arc<Activity>>,
    per_peer: HashMap<IpAddr, usize>,
    /// Connections on which no request has authenticated yet, by address and age.
    unauthenticated: HashMap<Option<IpAddr>, BTreeMap<u64, Moment>>,
    unauthenticated_count: usize,
    closing: bool,
}

impl Inside {
    /// Removes a connection from those that have not authenticated.
    fn no_longer_unauthenticated(&mut self, peer: Option<IpAddr>, number: u64) {
        let Some(numbers) = self.unauthenticated.get_mut(&peer) else { return };
        if numbers.remove(&number).is_some() {
            self.unauthenticated_count -= 1;
        }
        if numbers.is_empty() {
            self.unauthenticated.remove(&peer);
        }
    }

    /// Closes the oldest connection from the address that has the most of those that have not authenticated, for one from
    /// `peer`; `false` if there is none that may be closed.
    fn make_room(&mut self, peer: Option<IpAddr>, now: Moment) -> bool {
        let largest = self.unauthenticated.iter().max_by_key(|(_, numbers)| numbers.len());
        let oldest = largest.and_then(|(from, numbers)| {
            numbers.first_key_value().map(|(number, since)| (*from, *number, *since))
        });
        let Some((from, number, since)) = oldest else { return false };
        if from == peer && now.since(since) < GRACE {
            return false;
        }
        if let Some(activity) = self.connections.get(&number) {
            activity.tell(Word::Stop);
        }
        self.no_longer_unauthenticated(from, number);
        true
    }
}

/// A connection's place. Given back when dropped.
pub(crate) struct Place {
    pub(crate) standing: Arc<Standing>,
    pub(crate) activity: Arc<Activity>,
    _gauged: Gauged,
}

/// Whether a request on a connection has authenticated.
pub(crate) struct Standing {
    hub: Arc<Hub>,
    number: u64,
    peer: Option<IpAddr>,
    authenticated: AtomicBool,
}

impl Standing {
    /// A request on the connection has authenticated: it is not closed for others any more.
    pub(crate) fn authenticated(&self) {
        if !self.authenticated.swap(true, Ordering::Relaxed) {
            self.hub.locked().no_longer_unauthenticated(self.peer, self.number);
        }
    }
}

impl std::fmt::Debug for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Standing").field("authenticated", &self.authenticated).finish_non_exhaustive()
    }
}

/// Why a connection was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// There are too many.
    All,
    /// There are too many from that address.
    Peer,
    /// There are too many on which no request has authenticated.
    Unauthenticated,
    /// The server is about to end.
    Closing,
}

impl Hub {
    pub(crate) fn new(settings: &Settings) -> Hub {
        Hub {
            runtime: settings.runtime.clone(),
            limits: settings.limits,
            unauthenticated: match settings.auth {
                true => settings.limits.unauthenticated_connections.max(1),
                false => usize::MAX,
            },
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
        let now = self.runtime.now();
        if let Some(ip) = peer
            && inside.per_peer.get(&ip).is_some_and(|count| *count >= self.limits.connections_per_peer)
        {
            return Err(Full::Peer);
        }
        if inside.unauthenticated_count >= self.unauthenticated && !inside.make_room(peer, now) {
            return Err(Full::Unauthenticated);
        }
        if let Some(ip) = peer {
            *inside.per_peer.entry(ip).or_default() += 1;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let activity = Activity::new(self.runtime.clone());
        inside.connections.insert(number, activity.clone());
        inside.unauthenticated.entry(peer).or_default().insert(number, now);
        inside.unauthenticated_count += 1;
        self.count.send_replace(inside.connections.len());
        let standing =
            Arc::new(Standing { hub: self.clone(), number, peer, authenticated: AtomicBool::new(false) });
        Ok(Place { standing, activity, _gauged: Gauged::new(names::CONNECTIONS) })
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
        let Standing { hub, number, peer, .. } = &*self.standing;
        let mut inside = hub.locked();
        inside.connections.remove(number);
        inside.no_longer_unauthenticated(*peer, *number);
        if let Some(ip) = peer
            && let Some(count) = inside.per_peer.get_mut(ip)
        {
            *count -= 1;
            if *count == 0 {
                inside.per_peer.remove(ip);
            }
        }
        hub.count.send_replace(inside.connections.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(unauthenticated: usize, auth: bool) -> Arc<Hub> {
        let limits = Limits { unauthenticated_connections: unauthenticated, ..Limits::default() };
        Arc::new(Hub::new(&Settings { limits, auth, ..Settings::default() }))
    }

    fn ip(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    fn is_closed(place: &Place) -> bool {
        *place.activity.words().borrow() == Word::Stop
    }

    /// Silent connections took every place, and clients that came after them were refused.
    #[test]
    fn a_crowd_of_silent_connections_makes_room_for_others() {
        let hub = hub(3, true);
        let crowd: Vec<_> = (0..3).map(|_| hub.admit(ip(1)).expect("a place")).collect();
        let one = hub.admit(ip(2)).expect("the oldest of the crowd makes room");
        assert!(is_closed(&crowd[0]) && !is_closed(&crowd[1]));
        assert!(matches!(hub.admit(ip(1)), Err(Full::Unauthenticated)), "the crowd does not grow");
        one.standing.authenticated();
        let _two = hub.admit(ip(2)).expect("its place is free again");
        let _three = hub.admit(ip(3)).expect("room is made by the crowd, not by others");
        assert!(is_closed(&crowd[1]) && !is_closed(&one));
        drop(crowd);
        assert_eq!(hub.locked().unauthenticated_count, 2);
    }

    #[test]
    fn connections_are_not_told_apart_where_nobody_authenticates() {
        let hub = hub(1, false);
        let places: Vec<_> = (0..10).map(|_| hub.admit(ip(1)).expect("a place")).collect();
        assert!(!places.iter().any(is_closed));
    }
}
