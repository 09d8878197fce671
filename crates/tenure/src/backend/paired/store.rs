//! The path of the machine: the elector decides, the keeper holds.

use std::os::fd::OwnedFd;

use async_trait::async_trait;
use tenure_core::port::{
    Adopt, Ask, Candidacy, Expire, Joined, NewSession, Observation, Pulse, Release, Scope, Store, StoreError,
    Take, Takeover, Trouble, Via, Wake, WakeSource, Wakes,
};
use tenure_core::{ElectionKey, SessionId, Token};

use super::Paired;
use crate::backend::no_hints;

#[async_trait]
impl Store for Paired {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        session.check()?;
        // A connection to the keeper says nothing about who leads.
        let kept = NewSession { takeover: Takeover::Lease, ..session.clone() };
        let Pulse::Alive { epoch, .. } = self.keeper.open(&kept).await? else { return Ok(Pulse::Gone) };
        let pulse = self.elector.open(session).await?;
        match pulse {
            Pulse::Alive { .. } => drop(self.is_of_its_time(&session.id, epoch)),
            Pulse::Gone => self.keeper.end(&session.id).await?,
        }
        Ok(pulse)
    }

    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        // In this order: who can not reach the keeper must fall silent to those who would take over.
        match self.keeper.beat(session).await? {
            Pulse::Alive { epoch, .. } if self.is_of_its_time(session, epoch) => {}
            // The elector hears no more of it either, and the others wait until its work must have ended.
            _ => {
                self.forget(session);
                return Ok(Pulse::Gone);
            }
        }
        let pulse = self.elector.beat(session).await?;
        if pulse == Pulse::Gone {
            self.bury_later(session);
        }
        Ok(pulse)
    }

    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        self.forget(session);
        let (kept, elected) = tokio::join!(self.keeper.end(session), self.elector.end(session));
        elected.and(kept)
    }

    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        self.elector.join(candidacy).await
    }

    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.elector.leave(session, election).await
    }

    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        self.elector.observe(session, scope).await
    }

    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        let token = self.elector.take(take).await?;
        let taken = match token {
            Some(token) => self.adopted(take, token).await,
            None => Ok(None),
        };
        // Who was silent for a lease is dead whether or not the lease could be had. Who leads does not wait for the burial.
        if let Some(expired) = &take.expire {
            let (paired, session) = (self.clone(), expired.session.clone());
            tokio::spawn(async move { paired.buried_if_over(&session).await });
        }
        taken
    }

    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        let (kept, elected) = tokio::join!(self.keeper.release(release), self.elector.release(release));
        // What is left there is held under a token that the next one is greater than.
        if let Err(error) = kept {
            tracing::debug!(election = %release.election, "a lease is not given back where the work is: {error}");
        }
        elected
    }

    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        let id = std::slice::from_ref(&expire.session);
        let known = |views: Vec<tenure_core::port::SessionView>| views.into_iter().next();
        match known(self.elector.sessions(Some(id)).await?) {
            // One that the elector does not know was seen by its beats at the keeper: see `sessions`.
            None => {
                let epoch = self.epoch.load(std::sync::atomic::Ordering::Relaxed);
                return self.keeper.expire(&Expire { epoch, ..expire.clone() }).await;
            }
            Some(view) if view.live => self.elector.expire(expire).await?,
            Some(_) => {}
        }
        match known(self.elector.sessions(Some(id)).await?) {
            Some(view) if view.live => Ok(()),
            _ => self.bury(&expire.session).await,
        }
    }

    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        self.elector.ask(ask).await
    }

    fn watch(&self, sessions: &[SessionId]) {
        self.elector.watch(sessions);
    }

    fn kernel_lock(&self, session: &SessionId) -> Option<OwnedFd> {
        self.elector.kernel_lock(session).or_else(|| self.keeper.kernel_lock(session))
    }

    fn wakes(&self) -> Wakes {
        Box::new(Both { elector: self.elector.wakes(), keeper: self.keeper.wakes() })
    }
}

impl Paired {
    /// The other half of a take: what the elector granted is held where the work is, or given back.
    async fn adopted(&self, take: &Take, token: Token) -> Result<Option<Token>, StoreError> {
        // After the grant: a cluster that was restored in between has another name, and does not compare.
        let by = self.elector.identity().await?;
        let (session, election, slot) = (take.session.clone(), take.election.clone(), take.slot);
        let adopt = Adopt { session, election, slot, token, by };
        // An error leaves it unknown, and what is found in one's own name is given back. Nobody believes before this is told.
        if self.keeper.adopt(&adopt).await? {
            return Ok(Some(token));
        }
        let Adopt { session, election, slot, token, by } = adopt;
        let message = format!(
            "{by} granted {election} under token {token}, and {} does not accept it: another leader holds it there, elected later or elsewhere; if this \
             goes on, give all processes the same --elect",
            self.keeper.promises().backend
        );
        let release =
            Release { session, election, slot, token, successor: None, via: Via::Release, leave: false };
        self.elector.release(&release).await?;
        Err(StoreError::new(Trouble::Unavailable, message))
    }

    /// Nobody waits for it.
    pub(super) fn bury_later(&self, session: &SessionId) {
        let (paired, session) = (self.clone(), session.clone());
        tokio::spawn(async move { paired.buried(&session).await });
    }

    async fn buried_if_over(&self, session: &SessionId) {
        match self.elector.sessions(Some(std::slice::from_ref(session))).await {
            Ok(views) if views.iter().any(|view| view.live) => {}
            Ok(_) => self.buried(session).await,
            Err(error) => tracing::debug!(session = session.short(), "not known to be over: {error}"),
        }
    }

    async fn buried(&self, session: &SessionId) {
        if let Err(error) = self.bury(session).await {
            // The claims' leader finds that it is silent.
            tracing::debug!(
                session = session.short(),
                "a dead session still counts where the work is: {error}"
            );
        }
    }
}

/// The hints of both: about elections from one, about work from the other.
struct Both {
    elector: Wakes,
    keeper: Wakes,
}

#[async_trait]
impl WakeSource for Both {
    async fn next(&mut self) -> Option<Wake> {
        loop {
            tokio::select! {
                wake = self.elector.next() => match wake {
                    Some(wake) => return Some(wake),
                    None => self.elector = no_hints(),
                },
                wake = self.keeper.next() => match wake {
                    Some(wake) if is_about_work(&wake) => return Some(wake),
                    Some(_) => {}
                    None => self.keeper = no_hints(),
                },
            }
        }
    }
}

fn is_about_work(wake: &Wake) -> bool {
    match wake {
        Wake::Work(_)
        | Wake::Recalled(_)
        | Wake::Pool(_)
        | Wake::Events(_)
        | Wake::Group(_)
        | Wake::Schedules
        | Wake::Resync => true,
        Wake::Released { .. }
        | Wake::Changed(_)
        | Wake::Asked(_)
        | Wake::Ended(_)
        | Wake::Died(_)
        | Wake::Severed(_) => false,
    }
}
