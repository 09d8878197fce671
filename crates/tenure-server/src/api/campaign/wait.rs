//! Waiting for a lease, for as long as the request allows.

use std::sync::Arc;

use serde::Serialize;
use tenure::port::Candidacy;
use tenure::{Moment, SessionId, Token};
use tenure_core::lease::{Bar, Turn};
use utoipa::ToSchema;

use crate::App;
use crate::access::Slot;
use crate::board::Entry;
use crate::problem::Problem;

/// A candidate that waits.
pub(super) struct Waiting<'a> {
    pub(super) app: &'a App,
    /// The request's place among those that are worked on, which it leaves while it waits.
    pub(super) slot: &'a Slot,
    pub(super) candidacy: &'a Candidacy,
    /// The token under which it says that it leads.
    pub(super) named: Option<Token>,
    /// How long it waits.
    pub(super) deadline: Moment,
    /// From when a lease would come too late to be trusted.
    pub(super) pointless: Moment,
}

/// What came of it.
pub(super) struct Outcome {
    /// Slot and token, if it leads.
    pub(super) held: Option<(u32, Token)>,
    /// Slot and token of what its session holds and it did not name.
    pub(super) unnamed: Option<(u32, Token)>,
    pub(super) standing: Standing,
    /// The election as it was seen last.
    pub(super) view: Option<Arc<Entry>>,
}

/// How a candidate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Standing {
    /// It leads.
    Leads,
    /// Its session holds a lease that it did not name: see `unnamed`.
    Holds,
    /// It waits for its turn.
    Waits,
    /// An operator has paused the election.
    Paused,
    /// It watches, and never leads.
    Observes,
    /// It lacks something that a leader must be able to do.
    Incapable,
}

impl Waiting<'_> {
    /// Waits until it leads, or cannot, or time is up.
    pub(super) async fn outcome(&self) -> Result<Outcome, Problem> {
        let runtime = self.app.runtime.as_ref();
        let (election, session) = (&self.candidacy.election, &self.candidacy.session);
        let mut changes = self.app.board.changes();
        let mut joined_again = false;
        // Looked at anew: what the server knows from before does not show this candidate.
        let mut seen = self.app.board.look(election).await?;
        loop {
            let entry = seen.elections.get(election).cloned();
            let turn = entry.as_ref().map(|entry| self.app.board.turn(entry, session, runtime));
            let waits = |held, standing| Ok(Outcome { unnamed: None, held, standing, view: entry.clone() });
            let (standing, until) = match turn.unwrap_or(Turn::Barred(Bar::NotStanding)) {
                Turn::Holds { slot, token } if self.is_named(token, seen.epoch) => {
                    return waits(Some((slot, token)), Standing::Leads);
                }
                // A take of an earlier request, whose answer was lost; or of a later one, and this one was late. Nobody knows
                // here which, so it is neither believed nor given back: whoever asks says that, by its token.
                Turn::Holds { slot, token } => {
                    let unnamed = Some((slot, token));
                    return Ok(Outcome { unnamed, held: None, standing: Standing::Holds, view: entry });
                }
                Turn::Take(take) => {
                    if runtime.now() >= self.pointless {
                        return waits(None, Standing::Waits);
                    }
                    if let Some(token) = self.app.store.take(&take).await? {
                        return waits(Some((take.slot, token)), Standing::Leads);
                    }
                    if runtime.now() >= self.deadline {
                        return waits(None, Standing::Waits);
                    }
                    seen = self.app.board.look(election).await?;
                    continue;
                }
                Turn::Wait { until, ask } => {
                    if let Some(ask) = ask {
                        self.app.store.ask(&ask).await?;
                    }
                    let holders = entry.iter().flat_map(|entry| entry.holders());
                    let holders: Vec<SessionId> = holders.map(|(_, holder)| holder.id.clone()).collect();
                    self.app.store.watch(&holders);
                    (Standing::Waits, until)
                }
                Turn::Barred(Bar::Paused) => (Standing::Paused, None),
                Turn::Barred(Bar::Observer) => return waits(None, Standing::Observes),
                Turn::Barred(Bar::Incapable) => return waits(None, Standing::Incapable),
                // What was seen of it before was no longer so, or its session has just been expired.
                Turn::Barred(_) if !joined_again => {
                    joined_again = true;
                    super::join(self.app, self.candidacy).await?;
                    seen = self.app.board.look(election).await?;
                    continue;
                }
                Turn::Barred(_) => return Err(super::gone(session).field("session")),
            };
            if runtime.now() >= self.deadline {
                return waits(None, standing);
            }
            self.slot.lengthen()?;
            let silence = until.unwrap_or(self.deadline).min(self.deadline);
            tokio::select! {
                changed = changes.changed() => {
                    seen = self.app.board.seen();
                    if changed.is_err() || self.app.board.is_closed() {
                        return waits(None, standing);
                    }
                }
                // Whether somebody is silent is known only from a look that was sent after they should have beaten.
                () = runtime.sleep_until(silence) => seen = self.app.board.look(election).await?,
            }
        }
    }

    /// A lease of another epoch may have been granted to somebody else on this one.
    fn is_named(&self, token: Token, epoch: u32) -> bool {
        self.named == Some(token) && token.epoch() == epoch
    }
}
