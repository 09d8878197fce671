//! The dashboard: server-rendered, live, and readable without a script.

use crate::route::Routes;

/// The routes of the dashboard.
pub(crate) fn routes() -> Routes {
    Routes::new()
}
