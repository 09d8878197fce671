//! Access tokens: creation, parsing and verification. They are stored by
//! [`AccessStore`](tenure::port::AccessStore).
//!
//! The text of an access token is `tenure_<id>_<secret>`. The prefix lets scanners find leaked secrets. The
//! id, 64 random bits as 16 hexadecimal digits, is public and identifies the credential. The secret, 256
//! random bits as 64 hexadecimal digits, is shown once and never stored; the store has its SHA-256. A slow
//! hash would add nothing, because 256 bits cannot be guessed.

use std::borrow::Cow;
use std::fmt::{self, Write};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const PREFIX: &str = "tenure_";
const ID_DIGITS: usize = 16;
const SECRET_DIGITS: usize = 64;

/// New access token. Its text is known only now.
///
/// ```
/// use tenure_server::access::access_token::{self, AccessToken};
///
/// let made = AccessToken::generate(tenure::runtime::random);
/// let (id, secret) = access_token::parse(&made.text).unwrap();
/// assert_eq!(id, made.id);
/// assert!(access_token::verify(secret, &made.digest));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken {
    /// Text, `tenure_<id>_<secret>`.
    pub text: String,
    /// Public id of the credential.
    pub id: String,
    /// SHA-256 of the secret in hexadecimal, as stored.
    pub digest: String,
}

impl AccessToken {
    /// Create an access token. `random` must return 64 unpredictable bits: [`tenure::runtime::random`].
    pub fn generate(mut random: impl FnMut() -> u64) -> AccessToken {
        let id = format!("{:016x}", random());
        let secret = format!("{:016x}{:016x}{:016x}{:016x}", random(), random(), random(), random());
        AccessToken { text: format!("{PREFIX}{id}_{secret}"), digest: digest(&secret), id }
    }
}

/// Omits the secret, so that no log line and no panic message shows it.
impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessToken").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Parse an access token into id and secret.
pub fn parse(text: &str) -> Option<(&str, &str)> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    (is_hex(id, ID_DIGITS) && is_hex(secret, SECRET_DIGITS)).then_some((id, secret))
}

/// Remove secrets of access tokens from a path for display. Only the id stays.
pub(crate) fn redact(path: &str) -> Cow<'_, str> {
    // The secret may be percent-encoded.
    let plain = percent_encoding::percent_decode_str(path).decode_utf8_lossy();
    let segments = plain.split('/').map(|segment| {
        let (start, secret) = segment.find(PREFIX).map(|at| segment.split_at(at + PREFIX.len()))?;
        let id = secret.get(..ID_DIGITS).filter(|id| is_hex(id, ID_DIGITS))?;
        secret[ID_DIGITS..].starts_with('_').then(|| format!("{start}{id}_…"))
    });
    let segments: Vec<_> = segments.collect();
    if segments.iter().all(Option::is_none) {
        return Cow::Borrowed(path);
    }
    let shown = plain.split('/').zip(segments);
    let shown: Vec<_> = shown.map(|(was, is)| is.unwrap_or_else(|| was.to_owned())).collect();
    Cow::Owned(shown.join("/"))
}

/// Verify a secret against a digest in constant time.
pub fn verify(secret: &str, expected: &str) -> bool {
    digest(secret).as_bytes().ct_eq(expected.as_bytes()).into()
}

/// SHA-256 of a secret in hexadecimal.
fn digest(secret: &str) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(secret.as_bytes()) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> impl FnMut() -> u64 {
        let mut n = 0;
        move || {
            n += 1;
            n
        }
    }

    #[test]
    fn an_access_token_has_an_id_and_a_secret_of_256_bits() {
        let token = AccessToken::generate(counting());
        let secret = "0000000000000002000000000000000300000000000000040000000000000005";
        assert_eq!(token.text, format!("tenure_0000000000000001_{secret}"));
        assert_eq!(parse(&token.text), Some(("0000000000000001", secret)));
    }

    #[test]
    fn the_digest_is_sha_256_and_not_the_secret() {
        // Value of `printf abc | sha256sum`.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest("abc"), known);
        let token = AccessToken::generate(counting());
        assert!(!token.digest.contains(parse(&token.text).unwrap().1));
    }

    #[test]
    fn only_the_right_secret_is_accepted() {
        let (one, other) =
            (AccessToken::generate(tenure::runtime::random), AccessToken::generate(tenure::runtime::random));
        let (_, secret) = parse(&one.text).unwrap();
        assert!(verify(secret, &one.digest));
        assert!(!verify(secret, &other.digest));
        assert!(!verify(&secret[1..], &one.digest));
        assert!(!verify("", &one.digest));
        assert!(!verify(secret, ""));
        // A digest read from the table is not accepted as the secret.
        assert!(!verify(&one.digest, &one.digest));
    }

    #[test]
    fn malformed_access_tokens_are_rejected() {
        let text = AccessToken::generate(tenure::runtime::random).text;
        let cut = &text[..text.len() - 1];
        let wrong = [
            "",
            "tenure_",
            "tenure__",
            "bearer",
            cut,
            &format!("{text}0"),
            &format!(" {text}"),
            &format!("{text}\n"),
            &text.to_uppercase(),
            &text.replace("tenure_", "tenant_"),
            &format!("{cut}é"),
        ];
        for text in wrong {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn secrets_are_removed_from_paths() {
        let token = AccessToken::generate(tenure::runtime::random);
        let (id, secret) = parse(&token.text).unwrap();
        for text in [token.text.clone(), token.text.replace('_', "%5f"), token.text.replace('t', "%74")] {
            let path = format!("/v1/credentials/{text}/rotate");
            assert_eq!(redact(&path), format!("/v1/credentials/tenure_{id}_…/rotate"));
            // Part of a secret is removed too.
            assert!(!redact(&path[..path.len() - 20]).contains(&secret[..8]));
        }
        for path in ["/", "/v1/credentials/0123", "/a%20b/tenure_x", "/tenure_é", "//"] {
            assert_eq!(redact(path), path);
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let token = AccessToken::generate(tenure::runtime::random);
        let shown = format!("{token:?}");
        let (id, secret) = parse(&token.text).unwrap();
        assert!(shown.contains(id));
        assert!(!shown.contains(secret) && !shown.contains(&token.digest), "{shown}");
    }
}
