//! `tenure __end-sessions`: ends the sessions of a killed `tenure run`, so that the next leader does not wait for the
//! lease to expire.
//!
//! The watchdog runs it after the supervisor is dead and no process of its command is left. It reads the sessions from
//! standard input, where other users of the machine cannot see URLs and passwords.

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::SessionId;
use tenure::runtime::{now, sleep_until};
use tenure::store::{self, StoreOptions};

use crate::child::END_SESSIONS;
use crate::error;

/// Delay before the next attempt if the store does not answer.
const RETRY: Duration = Duration::from_millis(500);

/// A session and its store.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredSession {
    url: String,
    direct_url: Option<String>,
    election_store: Option<String>,
    session: SessionId,
    lease_ms: u64,
}

impl StoredSession {
    pub(crate) fn new(options: &StoreOptions, session: &SessionId, lease: Duration) -> Self {
        StoredSession {
            url: options.url.clone(),
            direct_url: options.direct_url.clone(),
            election_store: options.election_store.clone(),
            session: session.clone(),
            lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Encodes sessions for [`main_if_requested`]; empty without sessions.
    pub(crate) fn encode(sessions: Vec<StoredSession>) -> Vec<u8> {
        if sessions.is_empty() { Vec::new() } else { serde_json::to_vec(&sessions).unwrap_or_default() }
    }

    /// Ends the session. Retries until the store answers, but no longer than the lease: after that the session has
    /// expired.
    async fn end(self) -> Result<(), String> {
        let options = StoreOptions {
            url: self.url,
            direct_url: self.direct_url,
            election_store: self.election_store,
            ..StoreOptions::default()
        };
        let give_up = now() + Duration::from_millis(self.lease_ms);
        loop {
            let ended = async { store::open(&options).await?.end_session(&self.session).await };
            let error = tokio::select! {
                ended = ended => match ended {
                    Ok(()) => return Ok(()),
                    Err(error) => error.message,
                },
                () = sleep_until(give_up) => "the store did not answer".to_owned(),
            };
            if now() + RETRY >= give_up {
                return Err(error);
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// If this process was started as `tenure __end-sessions`, ends the sessions and returns the exit code.
pub(crate) fn main_if_requested() -> Option<ExitCode> {
    std::env::args_os().nth(1).filter(|first| first == END_SESSIONS)?;
    Some(match end_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::output::err_line(format_args!(
                "tenure: cannot end the session of a killed tenure process; its lease expires instead: {error}"
            ));
            ExitCode::from(error::STORE)
        }
    })
}

fn end_all() -> Result<(), String> {
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input).map_err(|error| error.to_string())?;
    let sessions: Vec<StoredSession> = serde_json::from_slice(&input).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let ended = futures_util::future::join_all(sessions.into_iter().map(StoredSession::end)).await;
        ended.into_iter().collect()
    })
}
