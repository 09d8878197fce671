//! Tokens: how they are made, read and checked. They are kept by [`Office`](tenure::port::Office).
//!
//! The text of a token is `tenure_<id>_<secret>`. The prefix is for scanners that look for leaked secrets; the id, 64
//! random bits as 16 hexadecimal digits, is public and says which credential is meant; the secret, 256 random bits as 64
//! hexadecimal digits, is shown once and never kept. The store has its SHA-256 only. That is enough, and a slow hash
//! would add nothing: nobody guesses 256 bits, however fast they can try.

use std::borrow::Cow;
use std::fmt::{self, Write};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const PREFIX: &str = "tenure_";
const ID_DIGITS: usize = 16;
const SECRET_DIGITS: usize = 64;

/// A token that was just made: the only time that its text is known.
///
/// ```
/// use tenure_server::access::token::{self, Token};
///
/// let made = Token::generate(tenure::runtime::random);
/// let (id, secret) = token::parse(&made.text).unwrap();
/// assert_eq!(id, made.id);
/// assert!(token::verify(secret, &made.digest));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// What its owner keeps: `tenure_<id>_<secret>`.
    pub text: String,
    /// Which credential it is; public.
    pub id: String,
    /// What the store keeps: SHA-256 of the secret, in hexadecimal.
    pub digest: String,
}

impl Token {
    /// A new token. `random` yields 64 bits that nobody can guess: [`tenure::runtime::random`].
    pub fn generate(mut random: impl FnMut() -> u64) -> Token {
        let id = format!("{:016x}", random());
        let secret = format!("{:016x}{:016x}{:016x}{:016x}", random(), random(), random(), random());
        Token { text: format!("{PREFIX}{id}_{secret}"), digest: digest(&secret), id }
    }
}

/// Never shows the secret, not even in a panic.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The id and the secret of a token's text; `None` if it is none.
pub fn parse(text: &str) -> Option<(&str, &str)> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    (is_hex(id, ID_DIGITS) && is_hex(secret, SECRET_DIGITS)).then_some((id, secret))
}

/// A path to be shown: whatever looks like the secret of a token in it is left out. Only the id stays.
pub(crate) fn redact(path: &str) -> Cow<'_, str> {
    // However it was written.
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

/// Whether this is the secret of that digest. Takes as long for a wrong one as for the right one.
pub fn verify(secret: &str, expected: &str) -> bool {
    digest(secret).as_bytes().ct_eq(expected.as_bytes()).into()
}

/// SHA-256 of a secret, in hexadecimal.
fn digest(secret: &str) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(secret.as_bytes()) {
        // Writing to a string can not fail.
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
    fn a_token_is_its_id_and_256_bits_of_secret() {
        let token = Token::generate(counting());
        let secret = "0000000000000002000000000000000300000000000000040000000000000005";
        assert_eq!(token.text, format!("tenure_0000000000000001_{secret}"));
        assert_eq!(parse(&token.text), Some(("0000000000000001", secret)));
    }

    #[test]
    fn the_digest_is_sha_256_and_not_the_secret() {
        // As `printf abc | sha256sum` has it.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest("abc"), known);
        let token = Token::generate(counting());
        assert!(!token.digest.contains(parse(&token.text).unwrap().1));
    }

    #[test]
    fn only_the_right_secret_is_accepted() {
        let (one, other) =
            (Token::generate(tenure::runtime::random), Token::generate(tenure::runtime::random));
        let (_, secret) = parse(&one.text).unwrap();
        assert!(verify(secret, &one.digest));
        assert!(!verify(secret, &other.digest));
        assert!(!verify(&secret[1..], &one.digest));
        assert!(!verify("", &one.digest));
        assert!(!verify(secret, ""));
        // The digest itself, as somebody has it who read the table, is no secret.
        assert!(!verify(&one.digest, &one.digest));
    }

    #[test]
    fn what_is_no_token_is_not_read_as_one() {
        let text = Token::generate(tenure::runtime::random).text;
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
    fn a_path_is_shown_without_secrets() {
        let token = Token::generate(tenure::runtime::random);
        let (id, secret) = parse(&token.text).unwrap();
        for text in [token.text.clone(), token.text.replace('_', "%5f"), token.text.replace('t', "%74")] {
            let path = format!("/v1/tokens/{text}/rotate");
            assert_eq!(redact(&path), format!("/v1/tokens/tenure_{id}_…/rotate"));
            // Half a secret is one, too.
            assert!(!redact(&path[..path.len() - 20]).contains(&secret[..8]));
        }
        for path in ["/", "/v1/tokens/0123", "/a%20b/tenure_x", "/tenure_é", "//"] {
            assert_eq!(redact(path), path);
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let token = Token::generate(tenure::runtime::random);
        let shown = format!("{token:?}");
        let (id, secret) = parse(&token.text).unwrap();
        assert!(shown.contains(id));
        assert!(!shown.contains(secret) && !shown.contains(&token.digest), "{shown}");
    }
}
