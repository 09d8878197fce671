//! Signing secrets of webhooks, read from a file or generated. Arguments are visible to other users, so no option takes
//! a secret.

use std::path::Path;

use tenure::rules::event::{secret_of, signing_key};
use tenure::runtime::random;

use super::input;
use crate::error::CliError;

/// Reads a secret from a file, without the line break at its end.
pub(crate) fn read(path: &Path) -> Result<String, CliError> {
    let bytes = input::bytes("--secret-file", path)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        CliError::usage(format!("--secret-file {}: the secret is not UTF-8 text", path.display()))
    })?;
    let secret = text.trim_end_matches(['\r', '\n']).to_owned();
    match signing_key(&secret) {
        Ok(_) => Ok(secret),
        Err(error) => Err(CliError::usage(format!(
            "--secret-file {}: {error}; without the option a secret is generated",
            path.display()
        ))),
    }
}

/// Generates a secret of 256 random bits.
pub(crate) fn generated() -> String {
    secret_of(std::array::from_fn(|_| random()))
}
