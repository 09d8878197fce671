//! The secrets of a cluster (Raft, gossip).
//!
//! A process encrypts with the first secret and accepts messages encrypted with any of them. To replace a
//! secret while the cluster runs, restart the processes one after the other, three times: with the old and then
//! the new secret; with the new and then the old one; with the new one alone.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tenure_core::port::{ErrorKind, StoreError};

/// Minimum length of a secret used between machines.
const LENGTH_MIN: usize = 16;

/// Maximum number of accepted secrets: each is tried for every connection or datagram.
const COUNT_MAX: usize = 4;

/// One or more secrets. Never empty; a cluster on one machine without a configured secret uses the empty
/// secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secrets(Arc<[String]>);

impl Secrets {
    /// Parses the secrets in `text`, one per line.
    pub(crate) fn parse(text: &str) -> Result<Secrets, StoreError> {
        let mut secrets: Vec<String> = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if !secrets.iter().any(|known| known == line) {
                secrets.push(line.to_owned());
            }
        }
        if secrets.len() > COUNT_MAX {
            let message = format!("{} cluster secrets given; the maximum is {COUNT_MAX}", secrets.len());
            return Err(StoreError::new(ErrorKind::Denied, message));
        }
        if secrets.is_empty() {
            secrets.push(String::new());
        }
        Ok(Secrets(secrets.into()))
    }

    /// Reads the secrets from `file`, or else from the file that `${variable}_FILE` names, or else from
    /// `$variable`.
    pub(crate) fn read(file: Option<&Path>, variable: &str) -> Result<Secrets, StoreError> {
        Secrets::choose(file, variable, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn choose(
        file: Option<&Path>,
        variable: &str,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Secrets, StoreError> {
        let (by_name, value) = (environment(&format!("{variable}_FILE")), environment(variable));
        let file = match (file, &by_name, &value) {
            (Some(file), ..) => Some(file),
            (None, Some(_), Some(_)) => {
                let message = format!("${variable} and ${variable}_FILE are both set; set one of them");
                return Err(StoreError::new(ErrorKind::Denied, message));
            }
            (None, by_name, _) => by_name.as_ref().map(Path::new),
        };
        let Some(file) = file else { return Secrets::parse(&value.unwrap_or_default()) };
        let text = std::fs::read_to_string(file).map_err(|error| {
            let message = format!("cannot read the cluster secret from {}: {error}", file.display());
            StoreError::new(ErrorKind::Denied, message)
        })?;
        if text.trim().is_empty() {
            let message = format!("{} contains no secret; write one into it", file.display());
            return Err(StoreError::new(ErrorKind::Denied, message));
        }
        Secrets::parse(&text)
    }

    /// The secret for encryption.
    #[cfg_attr(not(feature = "raft"), allow(dead_code, reason = "gossip uses the first accepted secret"))]
    pub(crate) fn sent(&self) -> &[u8] {
        self.0[0].as_bytes()
    }

    /// The secrets for decryption, starting with the one for encryption.
    pub(crate) fn accepted(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(String::as_bytes)
    }

    /// Whether each secret is long enough to be used between machines.
    pub(crate) fn are_long_enough(&self) -> bool {
        self.0.iter().all(|secret| secret.len() >= LENGTH_MIN)
    }
}

/// Advice about secrets that are too short; `variable` is the environment variable they are read from.
pub(crate) fn remedy(variable: &str) -> String {
    format!(
        "set the same secret of at least {LENGTH_MIN} characters on all members: in ${variable}, or in a file that ${variable}_FILE names"
    )
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} hidden)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(secrets: &Secrets) -> Vec<&str> {
        secrets.accepted().map(|secret| std::str::from_utf8(secret).unwrap()).collect()
    }

    #[test]
    fn each_line_is_a_secret_and_the_first_one_encrypts() {
        let secrets = Secrets::parse("new secret\n\n  old secret \r\nnew secret\n").unwrap();
        assert_eq!(all(&secrets), ["new secret", "old secret"]);
        assert_eq!(secrets.sent(), b"new secret");
        assert_eq!(all(&Secrets::parse("").unwrap()), [""]);
        assert!(Secrets::parse("a\nb\nc\nd\ne").is_err());
        assert!(!format!("{secrets:?}").contains("secret"), "{secrets:?}");
    }

    #[test]
    fn a_short_secret_among_several_is_found() {
        assert!(Secrets::parse("sixteen letters!\nsixteen letters?").unwrap().are_long_enough());
        assert!(!Secrets::parse("sixteen letters!\nshort").unwrap().are_long_enough());
    }

    #[test]
    fn a_file_overrides_the_environment_which_names_a_file_or_a_secret() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (given, named, empty) = (write("a", "given\n"), write("b", "named"), write("c", " \n"));
        let named = named.display().to_string();
        let by = |file: Option<&Path>, of_file: Option<&str>, value: Option<&str>| {
            Secrets::choose(file, "X", |name| match name {
                "X_FILE" => of_file.map(str::to_owned),
                _ => value.map(str::to_owned),
            })
        };
        assert_eq!(by(Some(&given), Some(&named), Some("value")).unwrap().sent(), b"given");
        assert_eq!(by(None, Some(&named), None).unwrap().sent(), b"named");
        assert_eq!(by(None, None, Some("value")).unwrap().sent(), b"value");
        assert_eq!(by(None, None, None).unwrap().sent(), b"");
        for refused in [by(None, Some(&named), Some("value")), by(Some(&empty), None, None)] {
            assert_eq!(refused.unwrap_err().kind, ErrorKind::Denied);
        }
        assert!(by(Some(Path::new("/nonexistent")), None, None).is_err());
    }
}
