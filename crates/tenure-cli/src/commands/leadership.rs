//! Candidate and leadership of `tenure run` and `tenure campaign`, in one store or in two.

use std::os::fd::OwnedFd;

use tenure::port::LeaderRequestKind;
use tenure::store::StoreOptions;
use tenure::{BootInstant, DualElector, DualLeadership, Elector, Leadership, Tenure, TermEnd};

use super::end_sessions::StoredSession;
use crate::args::{CandidateArgs, GlobalArgs};
use crate::error::CliError;
use crate::store;

/// A candidate in the store and, with `--second-store`, in the second store.
pub(crate) struct RunCandidate {
    pub(crate) tenure: Tenure,
    other: Option<Tenure>,
    stands: RunElector,
    /// Options of the store, then of the second store.
    options: Vec<StoreOptions>,
}

enum RunElector {
    Once(Elector),
    Twice(DualElector),
}

/// Leadership in one store or in both.
pub(crate) enum RunLeadership {
    One(Leadership),
    Both(Box<DualLeadership>),
}

impl RunCandidate {
    /// Joins the election with these options. `grace` is the time that the work may take to stop.
    pub(crate) async fn stand(
        global: &GlobalArgs,
        name: &str,
        args: &CandidateArgs,
        grace: std::time::Duration,
    ) -> Result<RunCandidate, CliError> {
        let tenure = store::session(global, name, args).await?;
        let other = store::second_session(global, args).await?;
        let elector = store::candidate(&tenure, global, name, args).grace(grace).start().await?;
        let stands = match &other {
            None => RunElector::Once(elector),
            Some(other) => {
                let (other, global) = (other.clone(), global.clone());
                let (name, args) = (name.to_owned(), args.clone());
                RunElector::Twice(DualElector::new(elector, move || {
                    store::candidate(&other, &global, &name, &args).grace(grace)
                }))
            }
        };
        let options =
            std::iter::once(store::options(global)?).chain(store::second_options(global, args)?).collect();
        Ok(RunCandidate { tenure, other, stands, options })
    }

    /// The candidate in the first store.
    pub(crate) fn elector(&self) -> &Elector {
        match &self.stands {
            RunElector::Once(elector) => elector,
            RunElector::Twice(moving) => moving.first(),
        }
    }

    pub(crate) async fn elected(&self) -> Result<RunLeadership, tenure::Error> {
        match &self.stands {
            RunElector::Once(elector) => elector.elected().await.map(RunLeadership::One),
            RunElector::Twice(moving) => {
                moving.elected().await.map(|both| RunLeadership::Both(Box::new(both)))
            }
        }
    }

    /// Kernel locks by which the stores detect that this process is alive. The watchdog keeps them open.
    pub(crate) fn locks(&self, held: &RunLeadership) -> Vec<OwnedFd> {
        let first = self.tenure.store().kernel_lock(held.first().session());
        let second = match (&self.other, held) {
            (Some(other), RunLeadership::Both(both)) => other.store().kernel_lock(both.second().session()),
            _ => None,
        };
        first.into_iter().chain(second).collect()
    }

    /// Completes with an error when a store has failed permanently for this process. The process must then be
    /// restarted.
    pub(crate) async fn store_failed(&self) -> CliError {
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

    /// Input for the watchdog to end the sessions of this process after its death. Empty if the store detects a dead
    /// process itself.
    pub(crate) fn orphan_cleanup(&self, held: &RunLeadership) -> Vec<u8> {
        let sessions = std::iter::once(held.first()).chain(held.second()).map(Leadership::session);
        let lease = self.tenure.timing().lease();
        let stored =
            self.options.iter().zip(sessions).filter(|(options, _)| store::keeps_dead_sessions(options));
        StoredSession::encode(
            stored.map(|(options, session)| StoredSession::new(options, session, lease)).collect(),
        )
    }

    /// Closes the sessions in all stores.
    pub(crate) async fn close(self) -> Result<(), tenure::Error> {
        let RunCandidate { tenure, other, stands, .. } = self;
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

impl RunLeadership {
    pub(crate) fn first(&self) -> &Leadership {
        match self {
            RunLeadership::One(leadership) => leadership,
            RunLeadership::Both(both) => both.first(),
        }
    }

    pub(crate) fn second(&self) -> Option<&Leadership> {
        match self {
            RunLeadership::One(_) => None,
            RunLeadership::Both(both) => Some(both.second()),
        }
    }

    pub(crate) fn trusted_until(&self) -> BootInstant {
        match self {
            RunLeadership::One(leadership) => leadership.trusted_until(),
            RunLeadership::Both(both) => both.trusted_until(),
        }
    }

    pub(crate) async fn lost(&self) -> TermEnd {
        match self {
            RunLeadership::One(leadership) => leadership.lost().await,
            RunLeadership::Both(both) => both.lost().await,
        }
    }

    pub(crate) async fn leader_request(&self) -> LeaderRequestKind {
        match self {
            RunLeadership::One(leadership) => leadership.leader_request().await,
            RunLeadership::Both(both) => both.leader_request().await,
        }
    }

    pub(crate) async fn resign(self) -> Result<(), tenure::Error> {
        match self {
            RunLeadership::One(leadership) => leadership.resign().await,
            RunLeadership::Both(both) => both.resign().await,
        }
    }

    /// The token, or both tokens, as text.
    pub(crate) fn tokens(&self) -> String {
        match self {
            RunLeadership::One(leadership) => format!("token {}", leadership.token()),
            RunLeadership::Both(both) => {
                let (first, second) = both.tokens();
                format!("tokens {first} and {second}")
            }
        }
    }
}
