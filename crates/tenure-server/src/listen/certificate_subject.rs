//! Certificate subject as text (RFC 4514): `CN=worker-1,O=acme`.
//!
//! Permissions depend on this text, so it must be exact: special characters are escaped, and different
//! subjects have different texts.

use std::fmt::Write as _;

use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{AttributeTypeAndValue, FromDer, X509Certificate};

/// Attributes with names; others are written by their object identifiers.
const NAMES: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// Subject of a certificate; `None` if it is empty or unreadable.
pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let mut parts: Vec<_> = certificate
        .subject()
        .iter_rdn()
        .map(|rdn| rdn.iter().map(attribute).collect::<Vec<_>>().join("+"))
        .collect();
    // RFC 4514 reverses the order of the certificate.
    parts.reverse();
    (!parts.is_empty()).then(|| parts.join(","))
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let number = attribute.attr_type().to_id_string();
    let name = NAMES.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
    match (name, attribute.as_str()) {
        (Some(name), Ok(text)) => format!("{name}={}", escaped(text)),
        (name, _) => {
            let value = attribute.attr_value();
            let mut text = format!("{}=#{:02x}", name.unwrap_or(&number), value.header.tag().0);
            for byte in value.data {
                // Writing to a string cannot fail.
                let _ = write!(text, "{byte:02x}");
            }
            text
        }
    }
}

fn escaped(text: &str) -> String {
    let last = text.chars().count().saturating_sub(1);
    let mut out = String::with_capacity(text.len());
    for (at, letter) in text.chars().enumerate() {
        match letter {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => out.extend(['\\', letter]),
            '#' if at == 0 => out.push_str("\\#"),
            ' ' if at == 0 || at == last => out.push_str("\\ "),
            letter if letter.is_control() => {
                let mut bytes = [0; 4];
                for byte in letter.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(out, "\\{byte:02x}");
                }
            }
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    fn subject(parts: &[(DnType, &str)]) -> Option<String> {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().expect("a key");
        super::of(params.self_signed(&key).expect("a certificate").der())
    }

    #[test]
    fn the_subject_is_written_in_reverse_order() {
        let parts = [
            (DnType::CountryName, "DE"),
            (DnType::OrganizationName, "acme"),
            (DnType::CommonName, "worker-1"),
        ];
        assert_eq!(subject(&parts).as_deref(), Some("CN=worker-1,O=acme,C=DE"));
        assert_eq!(subject(&[]), None);
    }

    #[test]
    fn special_characters_in_a_subject_are_escaped() {
        let forged = subject(&[(DnType::CommonName, "worker-1,O=acme")]);
        assert_eq!(forged.as_deref(), Some("CN=worker-1\\,O=acme"));
        assert_ne!(forged, subject(&[(DnType::OrganizationName, "acme"), (DnType::CommonName, "worker-1")]));
        let odd = subject(&[(DnType::CommonName, " #a\"b\\c+d\n ")]);
        assert_eq!(odd.as_deref(), Some("CN=\\ #a\\\"b\\\\c\\+d\\0a\\ "));
    }

    #[test]
    fn unnamed_attributes_use_their_object_identifier() {
        let parts = [(DnType::CustomDnType(vec![1, 2, 3, 4]), "x")];
        assert_eq!(subject(&parts).as_deref(), Some("1.2.3.4=#0c78"));
    }
}
