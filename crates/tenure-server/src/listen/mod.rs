//! Sockets, TLS, timeouts and shutdown.
//!
//! Every connection is one task with one [`ConnectionActivity`](activity::ConnectionActivity). A sweeper
//! checks all of them a few times per second and closes those that wait too long: for headers, for a request,
//! or for a client that does not read its response. So a slow client holds its permit only until its timeout,
//! and connections need no timers of their own.

mod activity;
mod bind;
mod certificate_subject;
mod connection;
mod connection_table;
mod peer;
mod socket;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

pub(crate) use self::bind::{Listener, bind};
use self::connection::ConnectionContext;
use self::connection_table::ConnectionTable;
pub use self::peer::Peer;
pub(crate) use self::tls::Tls;
use crate::App;
use crate::settings::Settings;

/// All listeners and connections.
pub(crate) struct ListenerSet {
    table: Arc<ConnectionTable>,
    doors: Vec<JoinHandle<()>>,
    helpers: Vec<JoinHandle<()>>,
}

/// Start accepting connections.
pub(crate) fn serve(
    listeners: Vec<Listener>,
    tls: Option<Arc<Tls>>,
    app: &App,
    settings: &Settings,
) -> ListenerSet {
    let table = Arc::new(ConnectionTable::new(settings));
    let context = Arc::new(ConnectionContext::new(app, settings, table.clone()));
    let doors = listeners.into_iter().map(|listener| tokio::spawn(listener.run(context.clone()))).collect();
    let mut helpers = vec![tokio::spawn(table.clone().sweep())];
    helpers.extend(tls.map(|tls| tokio::spawn(tls.reload())));
    ListenerSet { table, doors, helpers }
}

impl ListenerSet {
    /// Stop accepting and let current requests finish; `false` if some had to be cut off.
    pub(crate) async fn drain(&self, bound: Duration) -> bool {
        self.doors.iter().for_each(JoinHandle::abort);
        self.table.finish();
        let drained = tokio::time::timeout(bound, self.table.empty()).await.is_ok();
        self.table.stop();
        drained
    }
}

impl Drop for ListenerSet {
    fn drop(&mut self) {
        self.doors.iter().for_each(JoinHandle::abort);
        self.helpers.iter().for_each(JoinHandle::abort);
        self.table.stop();
    }
}
