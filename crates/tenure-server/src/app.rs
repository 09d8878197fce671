//! What every handler can reach.

use std::sync::{Arc, LazyLock};

use tenure::port::Backend;
use tenure::runtime::Runtime;
use tenure::{ElectionKey, Name};

use crate::access::Access;
use crate::api::Hints;
use crate::board::Board;
use crate::route::Routes;

/// The election in which the servers of a store stand: who they are, and which of them keeps house.
pub(crate) static SERVERS: LazyLock<ElectionKey> = LazyLock::new(|| {
    let name = |text: &str| text.parse::<Name>().expect("a name");
    ElectionKey::new(name("tenure"), name("servers"))
});

/// What every handler can reach. Clones share it.
#[derive(Clone)]
pub struct App {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) board: Arc<Board>,
    pub(crate) hints: Arc<Hints>,
    pub(crate) access: Arc<Access>,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl App {
    /// A server's inside, without its sockets.
    pub fn new(store: Arc<dyn Backend>, access: Access, runtime: Arc<dyn Runtime>) -> App {
        let board = Board::watching(store.clone(), runtime.clone());
        let hints = Hints::of(&store);
        App { store, board, hints, access: Arc::new(access), runtime }
    }

    /// What this server knows of its store.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Every route of this server, with what it needs.
    pub fn routes(&self) -> Routes {
        Routes::new()
            .merge(crate::metrics::routes())
            .merge(crate::api::routes())
            .merge(crate::pages::routes())
    }

    /// The service that answers requests.
    pub fn router(&self) -> axum::Router {
        self.routes().into_router(self.clone())
    }
}
