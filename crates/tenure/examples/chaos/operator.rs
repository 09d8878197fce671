//! What people do to a running election: resign, transfer, pause and resume, through the same port as `tenure leader`.
//!
//! Each call connects anew and is given two seconds: the server may be broken just now, and then nothing was asked.

use std::future::Future;
use std::time::Duration;

use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::port::{Ask, AskKind, Directory, ElectionView, Pause, Store};
use tenure::{ElectionKey, Name};
use tenure_core::{Entropy, SplitMix};
use tokio::runtime::Handle;

use crate::Failed;

/// An operator at the database.
pub(crate) struct Operator {
    pub(crate) url: String,
    pub(crate) runtime: Handle,
}

pub(crate) fn key(election: &str) -> ElectionKey {
    ElectionKey::new(Name::default_namespace(), election.parse().expect("our own names are valid"))
}

impl Operator {
    /// Asks every leader of the election to step down.
    pub(crate) fn resign(&self, election: &str) -> Result<(), Failed> {
        self.within(async {
            let (store, view) = self.look(election).await?;
            ask(&store, &view, |_| Some(AskKind::Resign)).await
        })
    }

    /// Asks the leaders to hand over to a candidate drawn at random.
    pub(crate) fn transfer(&self, election: &str, entropy: &mut SplitMix) -> Result<(), Failed> {
        self.within(async {
            let (store, view) = self.look(election).await?;
            ask(&store, &view, |holder| {
                let others: Vec<_> = view.candidates.iter().filter(|it| it.session.id != *holder).collect();
                let drawn = usize::try_from(entropy.next_u64() % others.len().max(1) as u64).unwrap_or(0);
                others.get(drawn).map(|it| AskKind::Transfer(it.session.id.clone()))
            })
            .await
        })
    }

    /// Lets nobody lead, or lets them again.
    pub(crate) fn pause(&self, election: &str, paused: bool) -> Result<(), Failed> {
        self.within(async {
            let (store, _) = self.look(election).await?;
            let at_ms = tenure::runtime::wall_ms();
            let pause = Pause { by: "chaos".into(), reason: "to see what happens".into(), at_ms };
            store.set_paused(&key(election), paused.then_some(&pause)).await?;
            Ok(())
        })
    }

    async fn look(&self, election: &str) -> Result<(Postgres, ElectionView), Failed> {
        let store = Postgres::connect(PostgresOptions::new(&self.url)).await?;
        let view = store.election(&key(election)).await?.ok_or("there is no such election yet")?;
        Ok((store, view))
    }

    fn within(&self, work: impl Future<Output = Result<(), Failed>>) -> Result<(), Failed> {
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(2), work).await? })
    }
}

async fn ask(
    store: &Postgres,
    view: &ElectionView,
    mut kind: impl FnMut(&tenure::SessionId) -> Option<AskKind>,
) -> Result<(), Failed> {
    for (lease, holder) in view.holders() {
        if let Some(kind) = kind(&holder.id) {
            let (election, slot, token) = (view.key.clone(), lease.slot, lease.token);
            store.ask(&Ask { election, slot, token, kind, by: "chaos".into() }).await?;
        }
    }
    Ok(())
}
