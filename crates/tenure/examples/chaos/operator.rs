//! Operator actions on an election: resign, transfer, pause and resume, through the same port as `tenure elections`.
//!
//! Each call opens a connection and has a limit of two seconds, because the server may be down.

use std::future::Future;
use std::time::Duration;

use tenure::port::{ElectionAdmin, ElectionStore, ElectionView, LeaderRequest, LeaderRequestKind, Pause};
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure::{ElectionKey, Name};
use tenure_core::{Entropy, SplitMix};
use tokio::runtime::Handle;

use crate::Failed;

/// An operator with a database connection.
pub(crate) struct Operator {
    pub(crate) url: String,
    pub(crate) runtime: Handle,
}

pub(crate) fn key(election: &str) -> ElectionKey {
    ElectionKey::new(Name::default_namespace(), election.parse().expect("our own names are valid"))
}

impl Operator {
    /// Ask every leader of the election to resign.
    pub(crate) fn resign(&self, election: &str) -> Result<(), Failed> {
        self.within(async {
            let (store, view) = self.open_election(election).await?;
            send_requests(&store, &view, |_| Some(LeaderRequestKind::Resign)).await
        })
    }

    /// Ask the leaders to transfer to a random candidate.
    pub(crate) fn transfer(&self, election: &str, entropy: &mut SplitMix) -> Result<(), Failed> {
        self.within(async {
            let (store, view) = self.open_election(election).await?;
            send_requests(&store, &view, |holder| {
                let others: Vec<_> = view.candidates.iter().filter(|it| it.session.id != *holder).collect();
                let drawn = usize::try_from(entropy.next_u64() % others.len().max(1) as u64).unwrap_or(0);
                others.get(drawn).map(|it| LeaderRequestKind::Transfer(it.session.id.clone()))
            })
            .await
        })
    }

    /// Pause or resume the election.
    pub(crate) fn pause(&self, election: &str, paused: bool) -> Result<(), Failed> {
        self.within(async {
            let (store, _) = self.open_election(election).await?;
            let at_ms = tenure::runtime::wall_ms();
            let pause = Pause { paused_by: "chaos".into(), reason: "chaos test".into(), paused_at_ms: at_ms };
            store.set_election_paused(&key(election), paused.then_some(&pause)).await?;
            Ok(())
        })
    }

    async fn open_election(&self, election: &str) -> Result<(PostgresStore, ElectionView), Failed> {
        let store = PostgresStore::connect(PostgresOptions::new(&self.url)).await?;
        let view = store.election(&key(election)).await?.ok_or("the election does not exist yet")?;
        Ok((store, view))
    }

    fn within(&self, work: impl Future<Output = Result<(), Failed>>) -> Result<(), Failed> {
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(2), work).await? })
    }
}

async fn send_requests(
    store: &PostgresStore,
    view: &ElectionView,
    mut kind: impl FnMut(&tenure::SessionId) -> Option<LeaderRequestKind>,
) -> Result<(), Failed> {
    for (lease, holder) in view.holders() {
        if let Some(kind) = kind(&holder.id) {
            let (election, slot, token) = (view.key.clone(), lease.slot, lease.token);
            store
                .request_leader(&LeaderRequest { election, slot, token, kind, requested_by: "chaos".into() })
                .await?;
        }
    }
    Ok(())
}
