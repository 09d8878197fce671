//! The path of the machine, call by call.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::book::Book;
use tenure_core::port::{
    Ask, Candidacy, Expire, Joined, NewSession, Observation, Pulse, Release, Scope, SessionView, Store,
    StoreError, Take, Takeover, Trouble, Wakes,
};
use tenure_core::{ElectionKey, SessionId, Token};

use super::interest::{NAMED_MAX, Watched};
use super::memo::{Held, Known};
use super::names::lease_name;
use super::object::Object;
use super::reading::{Reading, Slot, slot_of};
use super::record::{Hold, SessionRecord};
use super::writing::{changed, lease_object};
use super::{Kubernetes, hints};
use crate::runtime;

/// How often a change is worked out anew because something moved. Everybody who moved something got ahead, so this many in a row means a server that
/// hardly answers.
pub(super) const TRIES: u32 = 64;

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
    /// Reads what there is about these elections, and those that this session ever had to do with, at one moment: their Leases, and the sessions
    /// that have to do with them. Everything, if that is not enough.
    pub(super) async fn read(
        &self,
        keys: &[ElectionKey],
        session: Option<&SessionId>,
    ) -> Result<Reading, StoreError> {
        self.interest.add(keys);
        let tried = session.map(|id| self.memo.tried(id)).unwrap_or_default();
        let about: BTreeSet<ElectionKey> = keys.iter().cloned().chain(tried).collect();
        if about.is_empty() || about.len() > NAMED_MAX || self.memo.looks_wide() {
            return self.read_all().await;
        }
        let mut reading = self.read_of(Some(about)).await?;
        if let Some(id) = session.filter(|id| !reading.sessions.contains_key(id)) {
            // It has nothing to do with them yet.
            let Some(name) = self.memo.name_of(id) else { return self.read_all().await };
            self.api.get(&name).await?.into_iter().for_each(|object| reading.add(object));
        }
        if reading.is_whole() {
            return Ok(reading);
        }
        self.memo.widen();
        self.read_all().await
    }

    /// Reads all our objects at one moment.
    pub(super) async fn read_all(&self) -> Result<Reading, StoreError> {
        self.read_of(None).await
    }

    /// And of the elections that it is about, what others made.
    async fn read_of(&self, about: Watched) -> Result<Reading, StoreError> {
        let objects = self.api.list(&about).await?.objects;
        let mut reading = Reading::of(about, objects);
        for key in reading.missing() {
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
            let reading = self.read_all().await?;
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
                    self.memo.learn(Known::new(object, record));
                    // A pod that comes back may still have its label.
                    self.pod.leads_nothing(&self.api, &session.id);
                    return Ok(Pulse::Alive { epoch: 0, asks: Vec::new() });
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
            let reading = self.read_all().await?;
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
        self.memo.tries(&candidacy.session, key);
        for tried in 0..TRIES {
            let reading = self.read(std::slice::from_ref(key), Some(&candidacy.session)).await?;
            let before = reading.book(runtime::wall_ms());
            let mut after = before.clone();
            let joined = after.join(candidacy, runtime::wall_ms());
            if joined != Joined::Standing {
                return Ok(joined);
            }
            if let Some((_, record)) = reading.sessions.get(&candidacy.session) {
                has_room(record, candidacy)?;
            }
            let first = changed(&reading, &before, &after, key).contains(&0);
            if first && self.write(&reading, (&before, &after), (key, 0)).await?.is_none() {
                hold_on(tried).await;
                continue;
            }
            let joined_at_ms = runtime::wall_ms();
            let lives = self
                .amend(&reading, &candidacy.session, |record| record.stand(candidacy, joined_at_ms))
                .await?;
            return if lives { self.agree(candidacy).await } else { Ok(Joined::Gone) };
        }
        Err(changing("join"))
    }

    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        let reading = self.find(session).await?;
        let gone = |record: &mut SessionRecord| {
            record.candidacies.retain(|standing| standing.candidacy.election != *election);
        };
        self.amend(&reading, session, gone).await.map(drop)
    }

    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        let reading = match scope {
            Scope::Only(keys) => self.read(keys, Some(session)).await?,
            Scope::Standing | Scope::Contested => self.read(&[], Some(session)).await?,
            Scope::All => self.read_all().await?,
        };
        Ok(reading.book(runtime::wall_ms()).observe(session, scope))
    }

    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        let at: Slot = (take.election.clone(), take.slot);
        self.memo.tries(&take.session, &take.election);
        for tried in 0..TRIES {
            let reading = self.read(std::slice::from_ref(&take.election), Some(&take.session)).await?;
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
            let sent = runtime::now();
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
            self.memo.granted(&take.session, at, held.clone());
            if !self.confirm(&reading, take, (&held, sent)).await? {
                self.give_up(take, token).await?;
                return Ok(None);
            }
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
            let reading = self.read(std::slice::from_ref(key), Some(&release.session)).await?;
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
            let reading = self.read_all().await?;
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
            let reading = self.read(std::slice::from_ref(&ask.election), None).await?;
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
        hints::open(self.api.clone(), self.interest.follow())
    }
}

/// Refuses what could not be noted.
fn has_room(record: &SessionRecord, candidacy: &Candidacy) -> Result<(), StoreError> {
    let mut record = record.clone();
    record.stand(candidacy, 0);
    if record.fits() {
        return Ok(());
    }
    let message = format!(
        "this process stands for {} elections, and Kubernetes has no room to note one more in the Lease of its session; let several processes share them, or use \
         another store",
        record.candidacies.len() - 1
    );
    Err(StoreError::new(Trouble::Request, message))
}
