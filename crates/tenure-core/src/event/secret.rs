//! Secrets of Standard Webhooks, with which servers sign what they push and call.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// What a secret begins with whose rest is base64.
const BASE64: &str = "whsec_";

/// The fewest bytes of a key: a shorter one is guessed.
const KEY_MIN: usize = 16;

/// Why a secret makes no key. It is not repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It says that it is base64, and is not.
    #[error("what follows `whsec_` is no base64")]
    NoBase64,
    /// It is guessed.
    #[error("the secret is a key of {0} bytes; it must have {KEY_MIN} at least")]
    Short(usize),
}

/// A secret of 256 bits that the caller has drawn.
pub fn secret_of(bits: [u64; 4]) -> String {
    let bits: Vec<u8> = bits.iter().flat_map(|part| part.to_be_bytes()).collect();
    format!("{BASE64}{}", STANDARD.encode(bits))
}

/// The key that a secret stands for. What does not say that it is base64 is taken as it is.
pub fn signing_key(secret: &str) -> Result<Vec<u8>, SecretError> {
    let key = match secret.strip_prefix(BASE64) {
        Some(text) => STANDARD.decode(text).map_err(|_| SecretError::NoBase64)?,
        None => secret.as_bytes().to_vec(),
    };
    if key.len() < KEY_MIN {
        return Err(SecretError::Short(key.len()));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_judged_by_the_key_that_it_stands_for() {
        let made = secret_of([1, 2, 3, u64::MAX]);
        assert_eq!((made.len(), signing_key(&made).unwrap().len()), (6 + 44, 32));
        assert_eq!(signing_key("0123456789abcdef").unwrap(), b"0123456789abcdef");
        assert_eq!(signing_key("0123456789abcde"), Err(SecretError::Short(15)));
        assert_eq!(signing_key("whsec_%%%%%%%%%%%%%%%%"), Err(SecretError::NoBase64));
        // Twelve characters, and nine bytes.
        assert_eq!(signing_key("whsec_MfKQ9r8GKYqr"), Err(SecretError::Short(9)));
    }
}
