//! Signing secrets of webhooks, as defined by Standard Webhooks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Prefix of a secret whose rest is base64.
const BASE64: &str = "whsec_";

/// Minimum size of a key in bytes; shorter ones can be guessed.
const KEY_MIN: usize = 16;

/// Why a secret is invalid. The message does not repeat it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// The part after the prefix is not base64.
    #[error("the part of the secret after `whsec_` is not valid base64")]
    NoBase64,
    /// The key is too short.
    #[error("the secret is a key of {0} bytes; use at least {KEY_MIN} bytes")]
    Short(usize),
}

/// A secret made of 256 random bits supplied by the caller.
pub fn secret_of(bits: [u64; 4]) -> String {
    let bits: Vec<u8> = bits.iter().flat_map(|part| part.to_be_bytes()).collect();
    format!("{BASE64}{}", STANDARD.encode(bits))
}

/// The key of a secret. A secret without the base64 prefix is used as it is.
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
    fn the_key_of_a_secret_is_validated() {
        let made = secret_of([1, 2, 3, u64::MAX]);
        assert_eq!((made.len(), signing_key(&made).unwrap().len()), (6 + 44, 32));
        assert_eq!(signing_key("0123456789abcdef").unwrap(), b"0123456789abcdef");
        assert_eq!(signing_key("0123456789abcde"), Err(SecretError::Short(15)));
        assert_eq!(signing_key("whsec_%%%%%%%%%%%%%%%%"), Err(SecretError::NoBase64));
        // Twelve characters, nine bytes.
        assert_eq!(signing_key("whsec_MfKQ9r8GKYqr"), Err(SecretError::Short(9)));
    }
}
