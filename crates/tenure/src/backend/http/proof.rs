//! The token that is shown to servers.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use http::HeaderValue;
use tenure_core::port::{StoreError, Trouble};

use crate::backend::ServerAccess;
use crate::backend::wire::set;

/// The variables that say who we are, for messages.
pub(super) const TOKEN_ENV: &str = "TENURE_ACCESS_TOKEN";
pub(super) const TOKEN_FILE_ENV: &str = "TENURE_ACCESS_TOKEN_FILE";

/// Where the token comes from, and what it is now.
pub(super) struct Proof {
    file: Option<PathBuf>,
    header: Mutex<Option<HeaderValue>>,
}

impl Proof {
    /// What was given, else what the environment says.
    pub(super) fn find(access: &ServerAccess) -> Result<Proof, StoreError> {
        let given = access.token.clone().or_else(|| set(TOKEN_ENV));
        let file = if given.is_some() { None } else { set(TOKEN_FILE_ENV).map(PathBuf::from) };
        let header = match (&given, &file) {
            (Some(token), _) => Some(header(token, TOKEN_ENV)?),
            (None, Some(file)) => Some(read(file)?),
            (None, None) => None,
        };
        Ok(Proof { file, header: Mutex::new(header) })
    }

    /// What to send, marked as secret.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        self.header.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the file again, where the token comes from one: it may have been rotated. Whether it changed.
    pub(super) fn renew(&self) -> bool {
        let Some(new) = self.file.as_deref().and_then(|file| read(file).ok()) else { return false };
        let mut header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = header.as_ref() != Some(&new);
        *header = Some(new);
        changed
    }
}

fn read(file: &Path) -> Result<HeaderValue, StoreError> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let message =
            format!("cannot read the token in {}, which ${TOKEN_FILE_ENV} names: {error}", file.display());
        StoreError::new(Trouble::Denied, message)
    })?;
    header(&text, TOKEN_FILE_ENV)
}

fn header(token: &str, from: &str) -> Result<HeaderValue, StoreError> {
    // Not repeated: it is a secret, or what somebody took for one.
    let no_token = || {
        StoreError::new(Trouble::Denied, format!("what ${from} gives is no token: one line without spaces"))
    };
    let token = token.trim();
    if token.is_empty() || token.contains(char::is_whitespace) {
        return Err(no_token());
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| no_token())?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word_and_never_shown() {
        assert_eq!(header(" abc\n", TOKEN_ENV).unwrap(), "Bearer abc");
        assert!(!format!("{:?}", header("canary", TOKEN_ENV).unwrap()).contains("canary"));
        for bad in ["", " \n", "canary two", "canary\u{7f}"] {
            let error = header(bad, TOKEN_ENV).unwrap_err();
            assert!(error.message.contains(TOKEN_ENV) && !error.message.contains("canary"), "{error}");
        }
        let access = ServerAccess { token: Some("canary".into()), ..ServerAccess::default() };
        assert!(!format!("{access:?}").contains("canary"));
    }

    #[test]
    fn a_rotated_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "old\n").unwrap();
        let proof = Proof { header: Mutex::new(Some(read(&file).unwrap())), file: Some(file.clone()) };
        assert!(!proof.renew());
        std::fs::write(&file, "new\n").unwrap();
        assert!(proof.renew());
        assert_eq!(proof.header().unwrap(), "Bearer new");
        std::fs::remove_file(&file).unwrap();
        assert!(!proof.renew(), "what is not there changes nothing");
    }
}
