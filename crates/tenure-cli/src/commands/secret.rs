//! Secrets of Standard Webhooks: read from a file, or made. Never on the command line, where everybody on the machine could read them.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tenure::runtime::random;

use super::input;
use crate::exit::Failure;

/// What they begin with.
const SECRET: &str = "whsec_";

/// A secret from a file; the line break at its end is not a part of it.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let bytes = input::bytes("--secret-file", path)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::usage(format!("--secret-file {}: the secret must be text, without more", path.display()))
    })?;
    let secret = text.trim_end_matches(['\r', '\n']).to_owned();
    match secret.strip_prefix(SECRET) {
        Some(key) if STANDARD.decode(key).is_err() => Err(Failure::usage(format!(
            "--secret-file {}: what follows {SECRET} is no base64; leave the option out, and a secret is made",
            path.display()
        ))),
        _ => Ok(secret),
    }
}

/// 256 random bits.
pub(crate) fn generated() -> String {
    let bits: Vec<u8> = (0..4).flat_map(|_| random().to_be_bytes()).collect();
    format!("{SECRET}{}", STANDARD.encode(bits))
}
