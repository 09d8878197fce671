//! Broker and maintenance for commands on a store without workers and servers.

use std::time::Duration;

use tenure::port::{Store, broker_election};
use tenure::runtime::now;
use tenure::{Tenure, leaders};

use crate::error::CliError;

/// Maximum time to wait for a broker.
const BROKER_TIMEOUT: Duration = Duration::from_secs(3);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Makes this process campaign as broker if no broker is elected, and waits up to [`BROKER_TIMEOUT`] for one. Workers
/// and servers campaign too, so this matters only for a store without them. Succeeds even if no broker is elected in
/// time.
pub(crate) async fn ensure_broker(tenure: &Tenure) -> Result<(), CliError> {
    let store = tenure.store().as_ref();
    if store.routes_to_broker() || has_broker(store).await? {
        return Ok(());
    }
    tenure.tasks().campaign_for_maintenance().await?;
    let deadline = now() + BROKER_TIMEOUT;
    while !has_broker(store).await? && now() < deadline {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Whether a broker is elected.
pub(crate) async fn has_broker(store: &dyn Store) -> Result<bool, CliError> {
    let election = store.election(&broker_election()).await?;
    Ok(election.is_some_and(|view| !leaders(&view).is_empty()))
}
