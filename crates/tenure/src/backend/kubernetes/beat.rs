//! A session says that it lives.
//!
//! Who holds nothing renews the object of its session; who holds something renews each Lease that it holds, and nothing else: at the pace of client-go, and
//! for its eyes too. The beat counts only if *all* of them could be renewed. One that is not ours any more ends the session, and an error says nothing.
//!
//! What is asked of a holder is noted in the very Lease that it renews: so its next renewal finds that somebody has changed the Lease, reads it anew, and
//! has the request.

use futures_util::stream::{self, StreamExt};
use tenure_core::port::{Ask, Pulse, StoreError};
use tenure_core::{SessionId, Token};

use super::Kubernetes;
use super::memo::{Held, Known, is_held};
use super::object::Object;
use super::reading::Slot;
use super::record::{Holder, RECORD, Record, SessionRecord};
use super::store::{TRIES, changing, hold_on};
use crate::runtime;

/// How many Leases are renewed at once: the server counts how many requests it serves at a time, and each is a connection.
const AT_ONCE: usize = 16;

/// What came of renewing one Lease.
enum Renewal {
    Done(Box<Object>),
    /// It is not ours any more.
    Lost,
}

impl Kubernetes {
    pub(super) async fn beat_once(&self, id: &SessionId) -> Result<Pulse, StoreError> {
        for _ in 0..TRIES {
            let known = match self.memo.known(id) {
                Some(known) if known.gone => return Ok(Pulse::Gone),
                Some(known) => known,
                None => match self.recall(id).await? {
                    Some(known) => {
                        self.memo.learn(known.clone());
                        known
                    }
                    None => return Ok(Pulse::Gone),
                },
            };
            let pulse = match known.held.is_empty() {
                true => self.beat_own(id, known).await?,
                false => self.beat_held(id, known).await?,
            };
            if let Some(pulse) = pulse {
                return Ok(pulse);
            }
        }
        Err(changing("beat"))
    }

    /// A session that may be used through others too, as it is now; `None` if it is over.
    async fn recall(&self, id: &SessionId) -> Result<Option<Known>, StoreError> {
        // Its object and what it holds are not read at one moment: only if they fit together they are what they were at one.
        let found = self.read_session(id).await?.and_then(|reading| Known::read(&reading, id));
        match found {
            Some(known) => Ok(Some(known)),
            None => Ok(Known::read(&self.read_all().await?, id)),
        }
    }

    /// Renews the object of the session. `None`: it holds something after all.
    async fn beat_own(&self, id: &SessionId, mut known: Known) -> Result<Option<Pulse>, StoreError> {
        let seen = self.memo.seen();
        for tried in 0..TRIES {
            known.record.view.beat = known.beat.max(known.record.view.beat) + 1;
            known.record.view.beat_at_ms = runtime::wall_ms();
            known.record.remember(&seen);
            let object = known.record.written(known.object.clone(), runtime::wall_ms());
            if let Some(object) = self.api.put(&object).await? {
                let beat = known.record.view.beat;
                self.memo.with(id, |now| {
                    now.beat = now.beat.max(beat);
                    now.see(object, known.record);
                });
                return Ok(Some(Pulse::Alive { epoch: 0, asks: Vec::new() }));
            }
            // Somebody else has changed it: this very session, by another call; or whoever ended it.
            let found = self.api.get(known.object.name()).await?;
            let found = found.and_then(|object| Some((SessionRecord::of(&object)?, object)));
            let Some((record, object)) = found.filter(|(r, _)| r.view.id == *id && r.view.live) else {
                self.memo.forget(id);
                return Ok(Some(Pulse::Gone));
            };
            let is_foreign = record.view.owner.is_some();
            let holds_now = self.memo.known(id).is_some_and(|now| !now.held.is_empty());
            if holds_now || is_foreign && !record.holds.is_empty() {
                return Ok(None);
            }
            (known.object, known.record) = (object, record);
            hold_on(tried).await;
        }
        Err(changing("beat"))
    }

    /// Renews all that the session holds. `None`: what it holds has changed.
    async fn beat_held(&self, id: &SessionId, known: Known) -> Result<Option<Pulse>, StoreError> {
        let beat = known.beat + 1;
        // Whether it arrives or not, the next one is another.
        self.memo.with(id, |now| now.beat = now.beat.max(beat));
        let holder = &known;
        let renewals =
            known.held.iter().map(|(at, held)| async move { (at, self.renew(holder, held, beat).await) });
        let renewals: Vec<_> = renewals.collect();
        let mut asks = Vec::new();
        let (mut lost, mut failed) = (None, None);
        let renewals: Vec<_> = stream::iter(renewals).buffer_unordered(AT_ONCE).collect().await;
        for (at, renewal) in renewals {
            let token = known.held[at].token;
            match renewal {
                Ok(Renewal::Done(object)) => {
                    asks.extend(asks_of(&object, at, token));
                    self.memo.with(id, |now| {
                        if let Some(held) = now.held.get_mut(at).filter(|held| held.token == token) {
                            held.object = *object;
                        }
                    });
                }
                Ok(Renewal::Lost) => lost = Some((at.clone(), token)),
                Err(error) => failed = Some(error),
            }
        }
        if let Some((at, token)) = lost {
            return self.lost(id, &known, &at, token).await;
        }
        failed.map_or(Ok(Some(Pulse::Alive { epoch: 0, asks })), Err)
    }

    async fn renew(&self, known: &Known, held: &Held, beat: u64) -> Result<Renewal, StoreError> {
        let mut object = held.object.clone();
        let identity = known.record.identity.as_str();
        for tried in 0..TRIES {
            let wall_ms = runtime::wall_ms();
            let mut view = known.record.view.clone();
            (view.beat, view.beat_at_ms) = (beat, wall_ms);
            let mut record: Record = object.note(RECORD).unwrap_or_default();
            record.holder = Some(Holder { identity: identity.into(), token: held.token, session: view });
            let now = object.next_time(wall_ms);
            object.set_time("renewTime", now);
            object.set_note(RECORD, &record);
            if let Some(object) = self.api.put(&object).await? {
                return Ok(Renewal::Done(Box::new(object)));
            }
            match self.api.get(object.name()).await? {
                Some(found) if is_held(&found, identity, held.token) => object = found,
                _ => return Ok(Renewal::Lost),
            }
            hold_on(tried).await;
        }
        Err(changing("beat"))
    }

    /// Renews one Lease without a new beat; `false` if it is not ours any more.
    pub(super) async fn renew_one(&self, known: &Known, held: &Held) -> Result<bool, StoreError> {
        Ok(matches!(self.renew(known, held, known.beat).await?, Renewal::Done(_)))
    }

    /// A Lease is not ours any more: either it was just given back, or the session is over.
    async fn lost(
        &self,
        id: &SessionId,
        known: &Known,
        at: &Slot,
        token: Token,
    ) -> Result<Option<Pulse>, StoreError> {
        let is_missed = match self
            .memo
            .with(id, |now| now.held.get(at).is_some_and(|held| held.token == token))
        {
            Some(is_missed) => is_missed,
            // Nothing is remembered of it, so its object has to say.
            None => {
                let object = self.api.get(known.object.name()).await?;
                let record =
                    object.as_ref().and_then(SessionRecord::of).filter(|r| r.view.id == *id && r.view.live);
                record.is_none_or(|r| {
                    r.holds.iter().any(|h| (&h.election, h.slot) == (&at.0, at.1) && h.token == token)
                })
            }
        };
        if !is_missed {
            return Ok(None);
        }
        tracing::warn!(election = %at.0, slot = at.1, "the Lease is not ours any more: somebody took it, edited it or deleted it");
        self.memo.with(id, |now| now.gone = true);
        self.pod.leads_nothing(&self.api, id);
        // The others need not wait for what is over; if this fails they do.
        if known.held.len() == 1 {
            let _ = self.bury_own(id).await;
        }
        Ok(Some(Pulse::Gone))
    }
}

impl Known {
    /// The object of the session is this now.
    pub(super) fn see(&mut self, object: Object, record: SessionRecord) {
        (self.object, self.record) = (object, record);
    }
}

/// What is asked of whoever holds a slot under this token.
fn asks_of(object: &Object, (key, slot): &Slot, token: Token) -> Vec<Ask> {
    let record: Record = object.note(RECORD).unwrap_or_default();
    let of_it = |ask: &Ask| (&ask.election, ask.slot, ask.token) == (key, *slot, token);
    record.asks.into_iter().filter(of_it).collect()
}
