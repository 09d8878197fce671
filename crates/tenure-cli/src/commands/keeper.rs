//! Who hands out what is exclusive and recovers what was lost, when there is no worker and no server.

use std::time::Duration;

use tenure::port::{Backend, claims_election};
use tenure::runtime::now;
use tenure::{Tenure, leaders};

use crate::exit::Failure;

/// How long to wait until somebody leads.
const FIRST_LOOK: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(20);

/// Sees to it that somebody leads the election of claims, for as long as `tenure` is open: workers and servers do; where there are
/// none, we do.
pub(crate) async fn is_there(tenure: &Tenure) -> Result<(), Failure> {
    let store = tenure.store().as_ref();
    if store.routes_claims() || is_led(store).await? {
        return Ok(());
    }
    tenure.claims().stand().await?;
    let deadline = now() + FIRST_LOOK;
    while !is_led(store).await? && now() < deadline {
        tokio::time::sleep(AGAIN).await;
    }
    Ok(())
}

/// Whether somebody leads it.
pub(crate) async fn is_led(store: &dyn Backend) -> Result<bool, Failure> {
    let election = store.election(&claims_election()).await?;
    Ok(election.is_some_and(|view| !leaders(&view).is_empty()))
}
