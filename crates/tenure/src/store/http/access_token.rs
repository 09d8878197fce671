//! Access token for servers.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use http::HeaderValue;
use tenure_core::port::{ErrorKind, StoreError};

use crate::store::ClientAuth;
use crate::store::http_client::set;

/// Environment variables with the access token.
pub(super) const TOKEN_ENV: &str = "TENURE_ACCESS_TOKEN";
pub(super) const TOKEN_FILE_ENV: &str = "TENURE_ACCESS_TOKEN_FILE";

/// Source of the access token, and its current value.
pub(super) struct AccessTokenSource {
    file: Option<PathBuf>,
    header: Mutex<Option<HeaderValue>>,
}

impl AccessTokenSource {
    /// Read the access token from the options, else from the environment.
    pub(super) fn find(access: &ClientAuth) -> Result<AccessTokenSource, StoreError> {
        let given = access.access_token.clone().or_else(|| set(TOKEN_ENV));
        let file = if given.is_some() { None } else { set(TOKEN_FILE_ENV).map(PathBuf::from) };
        let header = match (&given, &file) {
            (Some(token), _) => Some(header(token, TOKEN_ENV)?),
            (None, Some(file)) => Some(read(file)?),
            (None, None) => None,
        };
        Ok(AccessTokenSource { file, header: Mutex::new(header) })
    }

    /// Value of the `Authorization` header, marked as sensitive.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        self.header.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Read the file again, because the access token may have been rotated. Returns whether it changed.
    pub(super) fn reload(&self) -> bool {
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
            format!("cannot read the access token from {} (${TOKEN_FILE_ENV}): {error}", file.display());
        StoreError::new(ErrorKind::Denied, message)
    })?;
    header(&text, TOKEN_FILE_ENV)
}

fn header(token: &str, from: &str) -> Result<HeaderValue, StoreError> {
    // The message does not contain the value, which may be a secret.
    let no_token = || {
        StoreError::new(
            ErrorKind::Denied,
            format!("${from} does not contain an access token: one line without spaces"),
        )
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
    fn an_access_token_is_one_word_and_never_shown() {
        assert_eq!(header(" abc\n", TOKEN_ENV).unwrap(), "Bearer abc");
        assert!(!format!("{:?}", header("canary", TOKEN_ENV).unwrap()).contains("canary"));
        for bad in ["", " \n", "canary two", "canary\u{7f}"] {
            let error = header(bad, TOKEN_ENV).unwrap_err();
            assert!(error.message.contains(TOKEN_ENV) && !error.message.contains("canary"), "{error}");
        }
        let access = ClientAuth { access_token: Some("canary".into()), ..ClientAuth::default() };
        assert!(!format!("{access:?}").contains("canary"));
    }

    #[test]
    fn a_rotated_file_is_reloaded() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "old\n").unwrap();
        let access_token =
            AccessTokenSource { header: Mutex::new(Some(read(&file).unwrap())), file: Some(file.clone()) };
        assert!(!access_token.reload());
        std::fs::write(&file, "new\n").unwrap();
        assert!(access_token.reload());
        assert_eq!(access_token.header().unwrap(), "Bearer new");
        std::fs::remove_file(&file).unwrap();
        assert!(!access_token.reload(), "a missing file changes nothing");
    }
}
