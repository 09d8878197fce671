//! Signatures of Standard Webhooks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use tenure_core::rules::event::signing_key;

/// Signature of a message: `v1,` and base64 of HMAC-SHA256 over id, timestamp and body.
pub(super) fn signature(secret: &str, id: &str, seconds: i64, body: &[u8]) -> String {
    // A secret that was stored before secrets were validated is used as raw bytes.
    let key = signing_key(secret).unwrap_or_else(|_| secret.as_bytes().to_vec());
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let mut context = hmac::Context::with_key(&key);
    context.update(format!("{id}.{seconds}.").as_bytes());
    context.update(body);
    format!("v1,{}", STANDARD.encode(context.sign()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_matches_the_standard() {
        // Example of the Standard Webhooks specification and its libraries.
        let signed = signature(
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}
