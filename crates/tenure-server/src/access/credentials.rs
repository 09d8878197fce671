//! Whom the store knows, kept in memory for a moment.
//!
//! The store is the truth. What is kept here is read again every [`EVERY`]. Whoever is not known waits for a reading that
//! began after they came; there is one in [`AGAIN`] at most, shared by all who wait, so that strangers can not wear out the
//! store. When the store has
//! not answered for [`STALE`], nobody is believed any more: a revocation may have been missed.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::StatusCode;
use tenure::Moment;
use tenure::port::{Backend, Credential, Proof, StoreError};
use tenure::runtime::Runtime;
use tokio::sync::{Mutex, watch};

use super::{Principal, is_dashboard_session, session, token, unknown};
use crate::problem::Problem;

/// How often the store is read.
const EVERY: Duration = Duration::from_secs(2);
/// How often it is read at most because somebody unknown asks.
const AGAIN: Duration = Duration::from_secs(1);
/// For how long what was read is believed.
const STALE: Duration = Duration::from_secs(30);

/// Whom the store knows.
pub struct Credentials {
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    known: RwLock<Arc<Known>>,
    /// When somebody last began to read and was done, whatever came of it.
    reading: Mutex<(Moment, Moment)>,
    /// Changes whenever the store knows others than before.
    news: watch::Sender<()>,
}

#[derive(Default)]
struct Known {
    by_id: HashMap<String, Arc<Entry>>,
    by_subject: HashMap<String, Vec<Arc<Entry>>>,
    at: Moment,
}

struct Entry {
    credential: Credential,
    principal: Principal,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("known", &self.known().by_id.len()).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Whom the store knows, kept up to date until it is dropped.
    pub async fn watching(
        store: Arc<dyn Backend>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Arc<Self>, StoreError> {
        let began = runtime.now();
        let first = Known::new(store.credentials().await?, began);
        let reading = Mutex::new((first.at, runtime.now()));
        let known = RwLock::new(Arc::new(first));
        let news = watch::Sender::new(());
        let credentials = Arc::new(Credentials { store, runtime: runtime.clone(), known, reading, news });
        let weak = Arc::downgrade(&credentials);
        tokio::spawn(async move {
            loop {
                runtime.sleep_until(runtime.now() + EVERY).await;
                let Some(credentials) = weak.upgrade() else { return };
                credentials.read().await;
            }
        });
        Ok(credentials)
    }

    /// Whether [`by_token`](Self::by_token) answers without waiting for the store.
    pub(super) fn knows_token(&self, text: &str) -> bool {
        token::parse(text).is_none_or(|(id, _)| self.known().by_id.contains_key(id))
    }

    /// Whether [`by_subject`](Self::by_subject) answers without waiting for the store.
    pub(super) fn knows_subject(&self, subject: &str) -> bool {
        self.known().by_subject.contains_key(subject)
    }

    /// Whom a token's text belongs to.
    pub async fn by_token(&self, text: &str) -> Result<Principal, Problem> {
        let malformed = || unknown("unknown-token", "this is no token of this server");
        let (id, secret) = token::parse(text).ok_or_else(malformed)?;
        let mut known = self.fresh()?;
        if !known.by_id.contains_key(id) {
            self.read_since(self.runtime.now()).await;
            known = self.fresh()?;
        }
        let entry = known.by_id.get(id).ok_or_else(malformed)?;
        let matches = match &entry.credential.proof {
            Proof::Token { digest } => token::verify(secret, digest),
            Proof::Certificate { .. } => false,
        };
        if !matches {
            return Err(malformed());
        }
        self.valid(entry)
    }

    /// Whether [`by_session`](Self::by_session) answers without waiting for the store.
    pub(super) fn knows_session(&self, cookie: &str) -> bool {
        session::parse(cookie).is_none_or(|(id, _)| self.known().by_id.contains_key(&id))
    }

    /// Whom the cookie of a dashboard session belongs to: the principal of the token that it was made with.
    pub async fn by_session(&self, cookie: &str) -> Result<Principal, Problem> {
        let over = || unknown("unknown-session", "this is no session of the dashboard, or it is over");
        let (id, secret) = session::parse(cookie).ok_or_else(over)?;
        let mut known = self.fresh()?;
        if !known.by_id.contains_key(&id) {
            self.read_since(self.runtime.now()).await;
            known = self.fresh()?;
        }
        let entry = known.by_id.get(&id).ok_or_else(over)?;
        let Proof::Token { digest } = &entry.credential.proof else { return Err(over()) };
        if !token::verify(secret, digest) {
            return Err(over());
        }
        self.valid_with_token(&known, entry)
    }

    /// Makes a dashboard session for whoever shows an access token; the text of its cookie.
    pub(super) async fn log_in(&self, text: &str) -> Result<String, Problem> {
        self.by_token(text).await?;
        let known = self.fresh()?;
        let (id, _) = token::parse(text).unwrap_or_default();
        let missing = || unknown("unknown-token", "this is no token of this server");
        let of = &known.by_id.get(id).ok_or_else(missing)?.credential;
        let wall_ms = self.runtime.wall_ms();
        session::room(known.by_id.values().map(|entry| &entry.credential), id, wall_ms)?;
        let session::Made { cookie, credential } = session::make(of, wall_ms, || self.runtime.random());
        self.store.put_credential(&credential).await?;
        self.read().await;
        Ok(cookie)
    }

    /// Ends a dashboard session, on every replica within seconds.
    pub(super) async fn log_out(&self, cookie: &str) -> Result<(), Problem> {
        if self.by_session(cookie).await.is_err() {
            return Ok(());
        }
        let id = session::parse(cookie).map(|(id, _)| id).unwrap_or_default();
        let Some(entry) = self.known().by_id.get(&id).cloned() else { return Ok(()) };
        let revoked_at_ms = Some(self.runtime.wall_ms());
        self.store.put_credential(&Credential { revoked_at_ms, ..entry.credential.clone() }).await?;
        self.read().await;
        Ok(())
    }

    /// Whom a certificate's subject belongs to.
    pub async fn by_subject(&self, subject: &str) -> Result<Principal, Problem> {
        let mut known = self.fresh()?;
        if !known.by_subject.contains_key(subject) {
            self.read_since(self.runtime.now()).await;
            known = self.fresh()?;
        }
        let stranger =
            || unknown("unknown-certificate", format!("nobody is known by the certificate of {subject}"));
        let entries = known.by_subject.get(subject).ok_or_else(stranger)?;
        let mut worst = stranger();
        for entry in entries {
            match self.valid(entry) {
                Ok(principal) => return Ok(principal),
                Err(problem) => worst = problem,
            }
        }
        Err(worst)
    }

    /// Waits until a principal's credential is worth nothing any more.
    pub(super) async fn worthless(&self, principal: &Principal) {
        let Some(id) = principal.credential.as_deref() else { return std::future::pending().await };
        let mut news = self.news.subscribe();
        loop {
            let known = self.known();
            let entry = known.by_id.get(id).cloned();
            let Some(entry) = entry.filter(|entry| self.valid_with_token(&known, entry).is_ok()) else {
                return;
            };
            let expires = async {
                match entry.credential.expires_at_ms {
                    Some(at) => {
                        let left = u64::try_from(at - self.runtime.wall_ms()).unwrap_or(0);
                        self.runtime.sleep_until(self.runtime.now() + Duration::from_millis(left)).await;
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = news.changed() => {}
                () = expires => {}
            }
        }
    }

    /// Reads the store now.
    pub(super) async fn read(&self) {
        let mut reading = self.reading.lock().await;
        self.read_holding(&mut reading).await;
    }

    /// Reads the store, unless somebody began to after this moment.
    async fn read_since(&self, arrived: Moment) {
        let mut reading = self.reading.lock().await;
        let (began, done) = *reading;
        if began < arrived {
            self.runtime.sleep_until(done + AGAIN).await;
            self.read_holding(&mut reading).await;
        }
    }

    async fn read_holding(&self, reading: &mut (Moment, Moment)) {
        // Taken before asking: what was changed in between is not counted as seen.
        let began = self.runtime.now();
        match self.store.credentials().await {
            Ok(all) => {
                let known = Arc::new(Known::new(all, began));
                let same = self.known().is_like(&known);
                *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
                if !same {
                    self.news.send_replace(());
                }
            }
            Err(error) => tracing::warn!("reading the credentials: {error}"),
        }
        *reading = (began, self.runtime.now());
    }

    fn known(&self) -> Arc<Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fresh(&self) -> Result<Arc<Known>, Problem> {
        let known = self.known();
        if self.runtime.now().since(known.at) <= STALE {
            return Ok(known);
        }
        Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "access-unknown",
            "the store has not said for a while who may do what; a right may have been revoked",
        )
        .remedy("try again when the store is back, or ask another replica")
        .retry_after(2))
    }

    /// The principal of a credential; of a dashboard session, that of its token, for as long as both are worth something.
    fn valid_with_token(&self, known: &Known, entry: &Entry) -> Result<Principal, Problem> {
        let principal = self.valid(entry)?;
        if !is_dashboard_session(&entry.credential) {
            return Ok(principal);
        }
        let token = session::token_of(&entry.credential).and_then(|id| known.by_id.get(id));
        let gone = || unknown("revoked", "the token that this session was made with is gone");
        let of_token = self.valid(token.ok_or_else(gone)?)?;
        Ok(Principal { credential: principal.credential, ..of_token })
    }

    fn valid(&self, entry: &Entry) -> Result<Principal, Problem> {
        let credential = &entry.credential;
        if credential.revoked_at_ms.is_some() {
            return Err(unknown(
                "revoked",
                format!("credential {} of {} was revoked", credential.id, credential.name),
            ));
        }
        if !credential.is_valid(self.runtime.wall_ms()) {
            return Err(unknown(
                "expired",
                format!("credential {} of {} has expired", credential.id, credential.name),
            ));
        }
        Ok(entry.principal.clone())
    }
}

impl Known {
    fn new(all: Vec<Credential>, at: Moment) -> Known {
        let mut known = Known { at, ..Known::default() };
        for credential in all {
            let principal = Principal::of(&credential);
            let entry = Arc::new(Entry { credential, principal });
            if let Proof::Certificate { subject } = &entry.credential.proof {
                known.by_subject.entry(subject.clone()).or_default().push(entry.clone());
            }
            known.by_id.insert(entry.credential.id.clone(), entry);
        }
        known
    }

    fn is_like(&self, other: &Known) -> bool {
        let same = |(id, entry): (&String, &Arc<Entry>)| {
            other.by_id.get(id).is_some_and(|other| other.credential == entry.credential)
        };
        self.by_id.len() == other.by_id.len() && self.by_id.iter().all(same)
    }
}
