//! Tokens: how they are made, read and checked. They are kept by [`Office`](tenure::port::Office).
//!
//! The text of a token is `tenure_<id>_<secret>`. The prefix is for scanners that look for leaked secrets; the id, 64
//! random bits as 16 hexadecimal digits, is public and says which credential is meant; the secret, 256 random bits as 64
//! hexadecimal digits, is shown once and never kept. The store has its SHA-256 only. That is enough, and a slow hash
//! would add nothing: nobody guesses 256 bits, however fast they can try.

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
    fn debug_shows_no_secret() {
        let token = Token::generate(tenure::runtime::random);
        let shown = format!("{token:?}");
        let (id, secret) = parse(&token.text).unwrap();
        assert!(shown.contains(id));
        assert!(!shown.contains(secret) && !shown.contains(&token.digest), "{shown}");
    }
}
