//! Sockets, TLS, time-outs, shutting down.
//!
//! Every connection is one task, and one [`Activity`](activity::Activity) that says what it waits for. A sweeper looks at
//! all of them a few times a second and ends those that wait too long: for headers, for a request, for a client that does
//! not take its answer. So a client that trickles bytes costs a place for its bound, and no timer of its own.

mod activity;
mod bind;
mod connection;
mod hub;
mod peer;
mod socket;
mod subject;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

pub(crate) use self::bind::{Listener, bind};
use self::connection::Shop;
use self::hub::Hub;
pub use self::peer::Peer;
pub(crate) use self::tls::Tls;
use crate::App;
use crate::settings::Settings;

/// Everything that listens and all connections.
pub(crate) struct Listening {
    hub: Arc<Hub>,
    doors: Vec<JoinHandle<()>>,
    helpers: Vec<JoinHandle<()>>,
}

/// Opens for business.
pub(crate) fn serve(
    listeners: Vec<Listener>,
    tls: Option<Arc<Tls>>,
    app: &App,
    settings: &Settings,
) -> Listening {
    let hub = Arc::new(Hub::new(settings));
    let shop = Arc::new(Shop::new(app, settings, hub.clone()));
    let doors = listeners.into_iter().map(|listener| tokio::spawn(listener.run(shop.clone()))).collect();
    let mut helpers = vec![tokio::spawn(hub.clone().sweep())];
    helpers.extend(tls.map(|tls| tokio::spawn(tls.renew())));
    Listening { hub, doors, helpers }
}

impl Listening {
    /// Stops accepting and lets what is under way finish; `false` if something had to be cut off.
    pub(crate) async fn drain(&self, bound: Duration) -> bool {
        self.doors.iter().for_each(JoinHandle::abort);
        self.hub.finish();
        let drained = tokio::time::timeout(bound, self.hub.empty()).await.is_ok();
        self.hub.stop();
        drained
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.doors.iter().for_each(JoinHandle::abort);
        self.helpers.iter().for_each(JoinHandle::abort);
        self.hub.stop();
    }
}
