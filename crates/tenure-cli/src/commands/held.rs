//! What a candidate of `tenure run` and `tenure elect` holds: one leadership, or one in each of two stores.

use std::os::fd::OwnedFd;

use tenure::backend::StoreOptions;
use tenure::port::AskKind;
use tenure::{Both, Elector, Leadership, Moment, Moving, Over, Tenure};

use super::end_sessions::StoredSession;
use crate::args::{Global, Standing};
use crate::exit::Failure;
use crate::store;

/// A candidate in the store, and in the other one if there is one.
pub(crate) struct Candidate {
    pub(crate) tenure: Tenure,
    other: Option<Tenure>,
    stands: Stands,
    /// How the stores were opened: the store's options, then the other's.
    options: Vec<StoreOptions>,
}

enum Stands {
    Once(Elector),
    Twice(Moving),
}

/// Leadership, of either kind.
pub(crate) enum Held {
    One(Leadership),
    Both(Box<Both>),
}

impl Candidate {
    /// Stands as the arguments say, with this patience for work that is asked to end.
    pub(crate) async fn stand(
        global: &Global,
        name: &str,
        standing: &Standing,
        grace: std::time::Duration,
    ) -> Result<Candidate, Failure> {
        let tenure = store::session(global, name, standing).await?;
        let other = store::other_session(global, standing).await?;
        let elector = store::candidate(&tenure, global, name, standing).grace(grace).start().await?;
        let stands = match &other {
            None => Stands::Once(elector),
            Some(other) => {
                let (other, global) = (other.clone(), global.clone());
                let (name, standing) = (name.to_owned(), standing.clone());
                Stands::Twice(Moving::new(elector, move || {
                    store::candidate(&other, &global, &name, &standing).grace(grace)
                }))
            }
        };
        let options =
            std::iter::once(store::options(global)?).chain(store::other_options(global, standing)?).collect();
        Ok(Candidate { tenure, other, stands, options })
    }

    /// The candidate in the store that is asked first.
    pub(crate) fn elector(&self) -> &Elector {
        match &self.stands {
            Stands::Once(elector) => elector,
            Stands::Twice(moving) => moving.first(),
        }
    }

    pub(crate) async fn elected(&self) -> Result<Held, tenure::Error> {
        match &self.stands {
            Stands::Once(elector) => elector.elected().await.map(Held::One),
            Stands::Twice(moving) => moving.elected().await.map(|both| Held::Both(Box::new(both))),
        }
    }

    /// What says to the stores that this process lives, for the watchdog to hold on to.
    pub(crate) fn locks(&self, held: &Held) -> Vec<OwnedFd> {
        let first = self.tenure.store().kernel_lock(held.first().session());
        let second = match (&self.other, held) {
            (Some(other), Held::Both(both)) => other.store().kernel_lock(both.second().session()),
            _ => None,
        };
        first.into_iter().chain(second).collect()
    }

    /// Completes, with the reason, when a store can never answer again in this process, which must be restarted then.
    pub(crate) async fn store_failed(&self) -> Failure {
        let other = async {
            match &self.other {
                Some(other) => other.store().failed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = self.tenure.store().failed() => error.into(),
            error = other => error.into(),
        }
    }

    /// What ends the sessions of this process after its death, for the watchdog to keep; empty where the store notices a death itself.
    pub(crate) fn orphan_cleanup(&self, held: &Held) -> Vec<u8> {
        let sessions = std::iter::once(held.first()).chain(held.second()).map(Leadership::session);
        let lease = self.tenure.timing().lease();
        let stored =
            self.options.iter().zip(sessions).filter(|(options, _)| store::keeps_dead_sessions(options));
        StoredSession::encode(
            stored.map(|(options, session)| StoredSession::new(options, session, lease)).collect(),
        )
    }

    /// Leaves both.
    pub(crate) async fn close(self) -> Result<(), tenure::Error> {
        let Candidate { tenure, other, stands, .. } = self;
        drop(stands);
        match other {
            Some(other) => {
                let (second, first) = tokio::join!(other.close(), tenure.close());
                first.and(second)
            }
            None => tenure.close().await,
        }
    }
}

impl Held {
    pub(crate) fn first(&self) -> &Leadership {
        match self {
            Held::One(leadership) => leadership,
            Held::Both(both) => both.first(),
        }
    }

    pub(crate) fn second(&self) -> Option<&Leadership> {
        match self {
            Held::One(_) => None,
            Held::Both(both) => Some(both.second()),
        }
    }

    pub(crate) fn trusted_until(&self) -> Moment {
        match self {
            Held::One(leadership) => leadership.trusted_until(),
            Held::Both(both) => both.trusted_until(),
        }
    }

    pub(crate) async fn lost(&self) -> Over {
        match self {
            Held::One(leadership) => leadership.lost().await,
            Held::Both(both) => both.lost().await,
        }
    }

    pub(crate) async fn asked(&self) -> AskKind {
        match self {
            Held::One(leadership) => leadership.asked().await,
            Held::Both(both) => both.asked().await,
        }
    }

    pub(crate) async fn resign(self) -> Result<(), tenure::Error> {
        match self {
            Held::One(leadership) => leadership.resign().await,
            Held::Both(both) => both.resign().await,
        }
    }

    /// The token, or both, for people.
    pub(crate) fn tokens(&self) -> String {
        match self {
            Held::One(leadership) => format!("token {}", leadership.token()),
            Held::Both(both) => {
                let (first, second) = both.tokens();
                format!("tokens {first} and {second}")
            }
        }
    }
}
