//! The path of the machine, call by call.

use std::time::Duration;

use async_trait::async_trait;
use tenure_core::book::Book;
use tenure_core::port::{
    Ask, Candidacy, Expire, Joined, NewSession, Observation, Pulse, Release, Scope, SessionView, Store,
    StoreError, Take, Takeover, Trouble, Wakes,
};
use tenure_core::{ElectionKey, SessionId, Token};

use super::memo::{Held, Known, is_held};
use super::names::{lease_name, session_name};
use super::object::Object;
use super::reading::{Reading, Slot, slot_of};
use super::record::{Hold, RECORD, Record, SessionRecord, Standing};
use super::writing::{changed, freed, lease_object};
use super::{Kubernetes, hints};
use crate::runtime;

/// How often a change is worked out anew because something moved. Everybody who moved something got ahead, so this many in a row means a server that
/// hardly answers.
pub(super) const TRIES: u32 = 64;

/// For how long the object of a session that is over is left to it, by the wall clock: so long its id is known to be used.
const REST_MS: i64 = 60_000;

/// After how many leases of silence, and at least how long, by the wall clock, the object of a session that holds nothing is used for another. No candidate
/// watched it, so it stood alone.
const ABANDONED: (i64, i64) = (20, 3_600_000);

/// After a conflict: whoever got ahead is done. A short while, and not the same for all.
pub(super) async fn hold_on(tried: u32) {
    let pause = Duration::from_micros(500 << tried.min(6));
    runtime::sleep_until(runtime::now() + runtime::jittered(pause)).await;
}

pub(super) fn changing(what: &str) -> StoreError {
    StoreError::new(
        Trouble::Unavailable,
        format!(
            "Kubernetes has changed under each of {TRIES} tries to {what}; is the API server overloaded?"
        ),
    )
}

impl Kubernetes {
    /// Reads all our objects at one moment, and of these elections what others made.
    pub(super) async fn read(&self, keys: &[ElectionKey]) -> Result<Reading, StoreError> {
        let mut reading = Reading::of(self.api.list().await?.objects);
        let mut missing = reading.missing();
        missing.extend(keys.iter().filter(|key| !reading.leases.contains_key(&((*key).clone(), 0))).cloned());
        for key in missing {
            if let Some(object) = self.api.get(&lease_name(&key, 0)).await?.filter(|o| slot_of(o).is_some()) {
                reading.add(object);
            }
        }
        self.memo.saw(&reading);
        Ok(reading)
    }

    /// Writes the Lease of a slot as the book has it after a change; `None` if something moved.
    pub(super) async fn write(
        &self,
        reading: &Reading,
        books: (&Book, &Book),
        (key, slot): (&ElectionKey, u32),
    ) -> Result<Option<Object>, StoreError> {
        let object = lease_object(&self.api.namespace, reading, books, (key, slot), runtime::wall_ms())?;
        self.api.put(&object).await
    }

    /// Changes what is noted of a living session; `false` if it is over.
    async fn amend(
        &self,
        reading: &Reading,
        id: &SessionId,
        mut edit: impl FnMut(&mut SessionRecord),
    ) -> Result<bool, StoreError> {
        let Some((object, _)) = reading.sessions.get(id) else { return Ok(false) };
        let (mut object, beat) = (object.clone(), reading.beat_of(id));
        let seen = self.memo.seen();
        for tried in 0..TRIES {
            let found = SessionRecord::of(&object).filter(|record| record.view.id == *id && record.view.live);
            let Some(mut record) = found else { return Ok(false) };
            let before = record.clone();
            record.view.beat = record.view.beat.max(beat);
            edit(&mut record);
            if record == before {
                return Ok(true);
            }
            record.remember(&seen);
            if let Some(object) = self.api.put(&record.written(object.clone(), runtime::wall_ms())).await? {
                self.memo.with(id, |known| known.see(object, record));
                return Ok(true);
            }
            let Some(found) = self.api.get(object.name()).await? else { return Ok(false) };
            object = found;
            hold_on(tried).await;
        }
        Err(changing("write of a session"))
    }

    /// Notes that a session is over, as long as nothing moved.
    async fn bury(&self, reading: &Reading, id: &SessionId) -> Result<bool, StoreError> {
        let Some((object, record)) = reading.sessions.get(id).filter(|(_, record)| record.view.live) else {
            return Ok(true);
        };
        let record = over(record, reading.beat_of(id));
        Ok(self.api.put(&record.written(object.clone(), runtime::wall_ms())).await?.is_some())
    }

    /// Notes that our own session is over, which holds nothing any more.
    pub(super) async fn bury_own(&self, id: &SessionId) -> Result<(), StoreError> {
        let reading = self.read(&[]).await?;
        self.bury(&reading, id).await.map(drop)
    }

    /// Frees what sessions that are over in the book held, then notes that they are over. `false` if something moved.
    async fn close(
        &self,
        reading: &Reading,
        books: (&Book, &Book),
        id: &SessionId,
    ) -> Result<bool, StoreError> {
        // The Leases first: a session that holds one is known by it.
        for (key, slot) in freed(books.0, books.1) {
            let held = books.0.kept(&key).and_then(|election| election.leases.get(slot as usize));
            if held.is_some_and(|lease| lease.session.as_ref() == Some(id))
                && self.write(reading, books, (&key, slot)).await?.is_none()
            {
                return Ok(false);
            }
        }
        self.bury(reading, id).await
    }

    /// The object for a new session: one that nobody needs any more, or a new one.
    fn vacant(&self, reading: &Reading, id: &SessionId) -> Object {
        let now = runtime::wall_ms();
        let is_idle = |record: &SessionRecord| {
            let silent_ms = now - record.view.beat_at_ms;
            let lease_ms = i64::try_from(record.view.lease_ms).unwrap_or(i64::MAX);
            match record.over_at_ms {
                Some(at) => now - at > REST_MS,
                None => {
                    let held = |hold: &Hold| {
                        let object = reading.leases.get(&(hold.election.clone(), hold.slot));
                        object.is_some_and(|object| is_held(object, &record.identity, hold.token))
                    };
                    let patience_ms = ABANDONED.1.max(lease_ms.saturating_mul(ABANDONED.0));
                    silent_ms > patience_ms && !record.holds.iter().any(held)
                }
            }
        };
        let idle = reading.sessions.values().find(|(_, record)| is_idle(record)).map(|(object, _)| object);
        let used = reading.waste.first().or(idle).cloned();
        used.unwrap_or_else(|| Object::new(&self.api.namespace, &session_name(id)))
    }

    /// A grant counts once the session's own object says it: whoever wanted to expire the session, which held nothing, has to look again.
    async fn settle(&self, reading: &Reading, take: &Take, token: Token) -> Result<bool, StoreError> {
        let hold = Hold { election: take.election.clone(), slot: take.slot, token };
        let lives = self
            .amend(reading, &take.session, |record| {
                record.holds.retain(|other| (&other.election, other.slot) != (&hold.election, hold.slot));
                record.holds.push(hold.clone());
            })
            .await?;
        if !lives || take.slot == 0 {
            return Ok(lives);
        }
        // Whether an election is paused is said by its first slot.
        let first = self.api.get(&lease_name(&take.election, 0)).await?;
        let record = first.and_then(|first| first.note::<Record>(RECORD));
        Ok(record.is_none_or(|record| record.paused.is_none()))
    }

    /// Withdraws a candidacy for another number of slots than somebody else's, who joined at the same moment.
    async fn agree(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        let reading = self.read(std::slice::from_ref(&candidacy.election)).await?;
        let others = reading.sessions.values().filter(|(_, r)| r.view.live && r.view.id != candidacy.session);
        let standing = others.flat_map(|(_, record)| &record.candidacies);
        let other = standing
            .map(|standing| &standing.candidacy)
            .find(|other| other.election == candidacy.election && other.slots != candidacy.slots);
        let Some(slots) = other.map(|other| other.slots) else { return Ok(Joined::Standing) };
        self.leave(&candidacy.session, &candidacy.election).await?;
        // Whoever of the two wrote last had no claim to.
        let first = reading.leases.get(&(candidacy.election.clone(), 0));
        if let Some(mut object) = first.cloned() {
            let mut record: Record = object.note(RECORD).unwrap_or_default();
            record.slots = slots;
            object.set_note(RECORD, &record);
            self.api.put(&object).await?;
        }
        Ok(Joined::SlotsDiffer { slots })
    }
}

fn over(record: &SessionRecord, beat: u64) -> SessionRecord {
    let view = SessionView { live: false, beat, ..record.view.clone() };
    let over_at_ms = Some(runtime::wall_ms());
    SessionRecord { view, over_at_ms, candidacies: Vec::new(), holds: Vec::new(), ..record.clone() }
}

#[async_trait]
impl Store for Kubernetes {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        session.check()?;
        if session.takeover == Takeover::Connection {
            return Err(StoreError::new(
                Trouble::Request,
                "Kubernetes has no take-over mode `connection`: a Lease belongs to no connection; use `lease`",
            ));
        }
        let view = SessionView {
            id: session.id.clone(),
            name: session.name.clone(),
            beat: 0,
            lease_ms: u64::try_from(session.lease.as_millis()).unwrap_or(u64::MAX),
            live: true,
            beat_at_ms: runtime::wall_ms(),
            owner: session.owner.clone(),
        };
        let identity = format!("{}_{}", self.host, session.id);
        let record = SessionRecord {
            view,
            identity,
            over_at_ms: None,
            candidacies: Vec::new(),
            holds: Vec::new(),
            seen: Vec::new(),
        };
        for tried in 0..TRIES {
            let reading = self.read(&[]).await?;
            if reading.sessions.contains_key(&session.id) {
                // The id was used, possibly by our own first try, whose answer was lost: it is never used then.
                return Ok(Pulse::Gone);
            }
            let vacant = self.vacant(&reading, &session.id);
            let is_new = vacant.version().is_empty();
            let mut object = record.written(vacant, runtime::wall_ms());
            let now = object.next_time(runtime::wall_ms());
            object.set_time("acquireTime", now);
            match self.api.put(&object).await? {
                Some(object) => {
                    let known = Known { object, record, held: Default::default(), beat: 0, gone: false };
                    self.memo.learn(known);
                    // A pod that comes back may still have its label.
                    self.pod.leads_nothing(&self.api, &session.id);
                    return Ok(Pulse::Alive { timeline: 0, asks: Vec::new() });
                }
                // It once was this session's, and is another's now.
                None if is_new => return Ok(Pulse::Gone),
                None => hold_on(tried).await,
            }
        }
        Err(changing("open a session"))
    }

    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        self.beat_once(session).await
    }

    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        for tried in 0..TRIES {
            let reading = self.read(&[]).await?;
            let before = reading.book(runtime::wall_ms());
            let mut after = before.clone();
            after.end(session, runtime::wall_ms());
            self.memo.forget(session);
            if self.close(&reading, (&before, &after), session).await? {
                self.pod.leads_nothing(&self.api, session);
                return Ok(());
            }
            hold_on(tried).await;
        }
        Err(changing("end a session"))
    }

    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        let key = &candidacy.election;
        for tried in 0..TRIES {
            let reading = self.read(std::slice::from_ref(key)).await?;
            let before = reading.book(runtime::wall_ms());
            let mut after = before.clone();
            let joined = after.join(candidacy, runtime::wall_ms());
            if joined != Joined::Standing {
                return Ok(joined);
            }
            let first = changed(&reading, &before, &after, key).contains(&0);
            if first && self.write(&reading, (&before, &after), (key, 0)).await?.is_none() {
                hold_on(tried).await;
                continue;
            }
            let joined_at_ms = runtime::wall_ms();
            let lives = self
                .amend(&reading, &candidacy.session, |record| {
                    let of_it = |standing: &&mut Standing| standing.candidacy.election == *key;
                    match record.candidacies.iter_mut().find(of_it) {
                        Some(standing) => {
                            standing.candidacy = candidacy.clone();
                            standing.times += 1;
                        }
                        None => record.candidacies.push(Standing {
                            candidacy: candidacy.clone(),
                            joined_at_ms,
                            times: 0,
                        }),
                    }
                })
                .await?;
            return if lives { self.agree(candidacy).await } else { Ok(Joined::Gone) };
        }
        Err(changing("join"))
    }

    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        let reading = self.read(&[]).await?;
        let gone = |record: &mut SessionRecord| {
            record.candidacies.retain(|standing| standing.candidacy.election != *election);
        };
        self.amend(&reading, session, gone).await.map(drop)
    }

    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        let keys = if let Scope::Only(keys) = scope { keys.as_slice() } else { &[] };
        let reading = self.read(keys).await?;
        Ok(reading.book(runtime::wall_ms()).observe(session, scope))
    }

    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        let at: Slot = (take.election.clone(), take.slot);
        for tried in 0..TRIES {
            let reading = self.read(std::slice::from_ref(&take.election)).await?;
            let before = reading.book(runtime::wall_ms());
            let mut after = before.clone();
            let granted = after.take(take, runtime::wall_ms());
            let lives = |book: &Book, id: &SessionId| book.session(id).is_some_and(|session| session.live);
            let expired = take.expire.as_ref().map(|expire| &expire.session);
            let expired = expired.filter(|id| lives(&before, id) && !lives(&after, id));
            let Some(token) = granted else {
                // A session whose beat stood still is dead whether or not the lease can be had.
                match expired {
                    Some(id) if !self.close(&reading, (&before, &after), id).await? => {
                        hold_on(tried).await;
                        continue;
                    }
                    _ => return Ok(None),
                }
            };
            let Some(object) = self.write(&reading, (&before, &after), (&at.0, at.1)).await? else {
                hold_on(tried).await;
                continue;
            };
            if let Some(id) = expired {
                // It has lost this Lease by our taking it; the rest can wait for whoever looks next.
                let mut rest = before.clone();
                if let Some(expire) = &take.expire {
                    rest.expire(expire, runtime::wall_ms());
                }
                if let Err(error) = self.close_rest(&reading, (&before, &rest), id, &at).await {
                    tracing::debug!("what {id} held is not free yet: {error}");
                }
            }
            let held = Held { token, object };
            if !self.settle(&reading, take, token).await? {
                self.give_up(take, token).await?;
                return Ok(None);
            }
            self.memo.granted(&take.session, at, held);
            self.pod.leads(&self.api, take);
            return Ok(Some(token));
        }
        Err(changing("take a Lease"))
    }

    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        let key = &release.election;
        // First of all: a beat must not miss what was given back.
        self.memo.given_back(&release.session, key, release.slot, release.token);
        self.pod.leads_no_more(&self.api, release);
        for tried in 0..TRIES {
            let reading = self.read(std::slice::from_ref(key)).await?;
            let before = reading.book(runtime::wall_ms());
            let mut after = before.clone();
            after.release(release, runtime::wall_ms());
            let given = Hold { election: key.clone(), slot: release.slot, token: release.token };
            self.amend(&reading, &release.session, |record| {
                record.holds.retain(|hold| *hold != given);
                record.candidacies.retain(|s| !release.leave || s.candidacy.election != *key);
            })
            .await?;
            let row = |book: &Book| book.kept(key).map(|election| election.leases.clone());
            if row(&before) == row(&after)
                || self.write(&reading, (&before, &after), (key, release.slot)).await?.is_some()
            {
                return Ok(());
            }
            hold_on(tried).await;
        }
        Err(changing("release a Lease"))
    }

    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        for tried in 0..TRIES {
            let reading = self.read(&[]).await?;
            let before = reading.book(runtime::wall_ms());
            let mut after = before.clone();
            if !after.expire(expire, runtime::wall_ms())
                || self.close(&reading, (&before, &after), &expire.session).await?
            {
                return Ok(());
            }
            hold_on(tried).await;
        }
        Err(changing("expire a session"))
    }

    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        for tried in 0..TRIES {
            let reading = self.read(std::slice::from_ref(&ask.election)).await?;
            let before = reading.book(runtime::wall_ms());
            let mut after = before.clone();
            let asked = after.ask(ask);
            let slots = changed(&reading, &before, &after, &ask.election);
            if !asked
                || !slots.contains(&ask.slot)
                || self.write(&reading, (&before, &after), (&ask.election, ask.slot)).await?.is_some()
            {
                return Ok(asked);
            }
            hold_on(tried).await;
        }
        Err(changing("ask"))
    }

    fn wakes(&self) -> Wakes {
        hints::open(self.api.clone())
    }
}

impl Kubernetes {
    /// As [`close`](Self::close), but for one slot that is somebody else's already.
    async fn close_rest(
        &self,
        reading: &Reading,
        books: (&Book, &Book),
        id: &SessionId,
        taken: &Slot,
    ) -> Result<(), StoreError> {
        for (key, slot) in freed(books.0, books.1) {
            if (&key, slot) != (&taken.0, taken.1) {
                self.write(reading, books, (&key, slot)).await?;
            }
        }
        self.bury(reading, id).await.map(drop)
    }

    /// Gives back what was granted to a session that is over, or while the election was paused.
    async fn give_up(&self, take: &Take, token: Token) -> Result<(), StoreError> {
        let release = Release {
            session: take.session.clone(),
            election: take.election.clone(),
            slot: take.slot,
            token,
            successor: None,
            via: Default::default(),
            leave: false,
        };
        self.release(&release).await
    }
}
