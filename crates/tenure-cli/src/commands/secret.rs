//! Secrets of Standard Webhooks: read from a file, or made. Never on the command line, where everybody on the machine could read them.

use std::path::Path;

use tenure::event::{secret_of, signing_key};
use tenure::runtime::random;

use super::input;
use crate::exit::Failure;

/// A secret from a file; the line break at its end is not a part of it.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let bytes = input::bytes("--secret-file", path)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::usage(format!("--secret-file {}: the secret must be text, without more", path.display()))
    })?;
    let secret = text.trim_end_matches(['\r', '\n']).to_owned();
    match signing_key(&secret) {
        Ok(_) => Ok(secret),
        Err(error) => Err(Failure::usage(format!(
            "--secret-file {}: {error}; leave the option out, and a secret is made",
            path.display()
        ))),
    }
}

/// 256 random bits.
pub(crate) fn generated() -> String {
    secret_of(std::array::from_fn(|_| random()))
}
