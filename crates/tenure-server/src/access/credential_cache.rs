//! Cache of the store's credentials.
//!
//! The cache is refreshed every [`REFRESH_INTERVAL`]. A client with an unknown credential waits for a read
//! that started after it arrived; such reads happen at most once per [`UNKNOWN_REFRESH_INTERVAL`] and are
//! shared by all waiting clients, so unknown clients cannot overload the store. If the store has not
//! responded for [`MAX_AGE`], every credential is rejected, because a revocation may have been missed.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::StatusCode;
use tenure::BootInstant;
use tenure::port::{Credential, CredentialVerifier, Store, StoreError};
use tenure::runtime::Runtime;
use tokio::sync::{Mutex, watch};

use super::{Principal, access_token, is_dashboard_session, session, unknown};
use crate::problem::Problem;

/// Refresh interval.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum interval between reads for unknown credentials.
const UNKNOWN_REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum age of the cache.
const MAX_AGE: Duration = Duration::from_secs(30);

/// Cache of the store's credentials.
pub struct CredentialCache {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    known: RwLock<Arc<CredentialIndex>>,
    /// Start and end of the last read, successful or not.
    reading: Mutex<(BootInstant, BootInstant)>,
    /// Notified whenever the credentials change.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct CredentialIndex {
    by_id: HashMap<String, Arc<CachedCredential>>,
    by_subject: HashMap<String, Vec<Arc<CachedCredential>>>,
    at: BootInstant,
}

struct CachedCredential {
    credential: Credential,
    principal: Principal,
}

impl std::fmt::Debug for CredentialCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CredentialCache").field("known", &self.known().by_id.len()).finish_non_exhaustive()
    }
}

impl CredentialCache {
    /// Create a cache that is refreshed until it is dropped.
    pub async fn start(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> Result<Arc<Self>, StoreError> {
        let began = runtime.now();
        let first = CredentialIndex::new(store.credentials().await?, began);
        let reading = Mutex::new((first.at, runtime.now()));
        let known = RwLock::new(Arc::new(first));
        let changed = watch::Sender::new(());
        let credentials =
            Arc::new(CredentialCache { store, runtime: runtime.clone(), known, reading, changed });
        let weak = Arc::downgrade(&credentials);
        tokio::spawn(async move {
            loop {
                runtime.sleep_until(runtime.now() + REFRESH_INTERVAL).await;
                let Some(credentials) = weak.upgrade() else { return };
                credentials.read().await;
            }
        });
        Ok(credentials)
    }

    /// Whether [`by_access_token`](Self::by_access_token) responds without reading the store.
    pub(super) fn has_token(&self, text: &str) -> bool {
        access_token::parse(text).is_none_or(|(id, _)| self.known().by_id.contains_key(id))
    }

    /// Whether [`by_subject`](Self::by_subject) responds without reading the store.
    pub(super) fn has_subject(&self, subject: &str) -> bool {
        self.known().by_subject.contains_key(subject)
    }

    /// Principal of an access token.
    pub async fn by_access_token(&self, text: &str) -> Result<Principal, Problem> {
        let malformed = || unknown("invalid-access-token", "the access token is unknown");
        let (id, secret) = access_token::parse(text).ok_or_else(malformed)?;
        let mut known = self.fresh()?;
        if !known.by_id.contains_key(id) {
            self.read_since(self.runtime.now()).await;
            known = self.fresh()?;
        }
        let entry = known.by_id.get(id).ok_or_else(malformed)?;
        let matches = match &entry.credential.verifier {
            CredentialVerifier::AccessToken { digest } => access_token::verify(secret, digest),
            CredentialVerifier::Certificate { .. } => false,
        };
        if !matches {
            return Err(malformed());
        }
        self.valid(entry)
    }

    /// Whether [`by_session`](Self::by_session) responds without reading the store.
    pub(super) fn has_session(&self, cookie: &str) -> bool {
        session::parse(cookie).is_none_or(|(id, _)| self.known().by_id.contains_key(&id))
    }

    /// Principal of a dashboard session: that of the access token it was created with.
    pub async fn by_session(&self, cookie: &str) -> Result<Principal, Problem> {
        let over = || unknown("unknown-session", "the dashboard session is unknown or has ended");
        let (id, secret) = session::parse(cookie).ok_or_else(over)?;
        let mut known = self.fresh()?;
        if !known.by_id.contains_key(&id) {
            self.read_since(self.runtime.now()).await;
            known = self.fresh()?;
        }
        let entry = known.by_id.get(&id).ok_or_else(over)?;
        let CredentialVerifier::AccessToken { digest } = &entry.credential.verifier else {
            return Err(over());
        };
        if !access_token::verify(secret, digest) {
            return Err(over());
        }
        self.valid_with_token(&known, entry)
    }

    /// Create a dashboard session for an access token and return its cookie.
    pub(super) async fn log_in(&self, text: &str) -> Result<String, Problem> {
        self.by_access_token(text).await?;
        let known = self.fresh()?;
        let (id, _) = access_token::parse(text).unwrap_or_default();
        let missing = || unknown("invalid-access-token", "the access token is unknown");
        let of = &known.by_id.get(id).ok_or_else(missing)?.credential;
        let wall_ms = self.runtime.wall_ms();
        session::check_login_limit(known.by_id.values().map(|entry| &entry.credential), id, wall_ms)?;
        let session::NewDashboardSession { cookie, credential } =
            session::create(of, wall_ms, || self.runtime.random());
        self.store.put_credential(&credential).await?;
        self.read().await;
        Ok(cookie)
    }

    /// End a dashboard session; effective on every replica within seconds.
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

    /// Principal of a certificate subject.
    pub async fn by_subject(&self, subject: &str) -> Result<Principal, Problem> {
        let mut known = self.fresh()?;
        if !known.by_subject.contains_key(subject) {
            self.read_since(self.runtime.now()).await;
            known = self.fresh()?;
        }
        let unknown_subject =
            || unknown("unknown-certificate", format!("the certificate subject {subject} is unknown"));
        let entries = known.by_subject.get(subject).ok_or_else(unknown_subject)?;
        let mut worst = unknown_subject();
        for entry in entries {
            match self.valid(entry) {
                Ok(principal) => return Ok(principal),
                Err(problem) => worst = problem,
            }
        }
        Err(worst)
    }

    /// Wait until a principal's credential is no longer valid.
    pub(super) async fn wait_until_invalid(&self, principal: &Principal) {
        let Some(id) = principal.credential.as_deref() else { return std::future::pending().await };
        let mut changed = self.changed.subscribe();
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
                _ = changed.changed() => {}
                () = expires => {}
            }
        }
    }

    /// Read the store now.
    pub(super) async fn read(&self) {
        let mut reading = self.reading.lock().await;
        self.read_holding(&mut reading).await;
    }

    /// Read the store, unless a read started after `arrived`. Such reads are at least
    /// [`UNKNOWN_REFRESH_INTERVAL`] apart.
    async fn read_since(&self, arrived: BootInstant) {
        let mut reading = self.reading.lock().await;
        let (began, done) = *reading;
        if began < arrived {
            self.runtime.sleep_until(done + UNKNOWN_REFRESH_INTERVAL).await;
            self.read_holding(&mut reading).await;
        }
    }

    async fn read_holding(&self, reading: &mut (BootInstant, BootInstant)) {
        // Taken before the read starts: a change during the read may be missing in its result.
        let began = self.runtime.now();
        match self.store.credentials().await {
            Ok(all) => {
                let known = Arc::new(CredentialIndex::new(all, began));
                let same = self.known().is_like(&known);
                *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
                if !same {
                    self.changed.send_replace(());
                }
            }
            Err(error) => tracing::warn!(%error, "reading credentials failed"),
        }
        *reading = (began, self.runtime.now());
    }

    fn known(&self) -> Arc<CredentialIndex> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fresh(&self) -> Result<Arc<CredentialIndex>, Problem> {
        let known = self.known();
        if self.runtime.now().since(known.at) <= MAX_AGE {
            return Ok(known);
        }
        Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "credentials-unavailable",
            "the store has not responded for a while, and a credential may have been revoked",
        )
        .remedy("retry when the store is available, or use another replica")
        .retry_after(2))
    }

    /// Principal of a credential. For a dashboard session it is the principal of its access token, while both
    /// are valid.
    fn valid_with_token(
        &self,
        known: &CredentialIndex,
        entry: &CachedCredential,
    ) -> Result<Principal, Problem> {
        let principal = self.valid(entry)?;
        if !is_dashboard_session(&entry.credential) {
            return Ok(principal);
        }
        let token = session::token_of(&entry.credential).and_then(|id| known.by_id.get(id));
        let missing = || unknown("revoked", "the access token of this session no longer exists");
        let of_token = self.valid(token.ok_or_else(missing)?)?;
        Ok(Principal { credential: principal.credential, ..of_token })
    }

    fn valid(&self, entry: &CachedCredential) -> Result<Principal, Problem> {
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

impl CredentialIndex {
    fn new(all: Vec<Credential>, at: BootInstant) -> CredentialIndex {
        let mut known = CredentialIndex { at, ..CredentialIndex::default() };
        for credential in all {
            let principal = Principal::of(&credential);
            let entry = Arc::new(CachedCredential { credential, principal });
            if let CredentialVerifier::Certificate { certificate_subject: subject } =
                &entry.credential.verifier
            {
                known.by_subject.entry(subject.clone()).or_default().push(entry.clone());
            }
            known.by_id.insert(entry.credential.id.clone(), entry);
        }
        known
    }

    fn is_like(&self, other: &CredentialIndex) -> bool {
        let same = |(id, entry): (&String, &Arc<CachedCredential>)| {
            other.by_id.get(id).is_some_and(|other| other.credential == entry.credential)
        };
        self.by_id.len() == other.by_id.len() && self.by_id.iter().all(same)
    }
}
