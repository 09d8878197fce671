//! Names of Lease objects.
//!
//! A Lease has the name of its election wherever Kubernetes allows that name, so a Go controller's Lease and Tenure's
//! election of the same name are the same object. Other names are encoded reversibly:
//!
//! | election | Lease |
//! |---|---|
//! | `nightly` | `nightly` |
//! | `Nightly_run` | `x---0-nightly-2run` |
//! | `nightly` of the namespace `acme` | `nightly--ns-acme` |
//! | its second slot | `nightly--ns-acme--slot-1` |
//!
//! No unchanged name contains two dashes in a row, so the encoding is unambiguous. A name that is too long is replaced
//! by a digest; the annotation `tenure.dev/election` always has the full name.

use std::fmt::Write;

use ring::digest::{SHA256, digest};
use tenure_core::{ElectionKey, Name, SessionId};

/// Maximum length of an object name.
const NAME_MAX: usize = 253;
/// Prefix of an encoded name.
const REWRITTEN: &str = "x---0";
const NAMESPACE: &str = "--ns-";
const SLOT: &str = "--slot-";
const DIGEST: &str = "tenure--digest--";
const SESSION: &str = "tenure--session--";

/// Characters of election names that Kubernetes does not always allow; the index is their code digit.
const ODD: [char; 4] = ['-', '.', '_', ':'];

/// Name of the Lease of a slot.
pub(super) fn lease_name(key: &ElectionKey, slot: u32) -> String {
    let mut name = written(key.name.as_str());
    if key.namespace != Name::default_namespace() {
        name = format!("{name}{NAMESPACE}{}", written(key.namespace.as_str()));
    }
    if slot > 0 {
        name = format!("{name}{SLOT}{slot}");
    }
    if name.len() > NAME_MAX { format!("{DIGEST}{}", hex(&name)) } else { name }
}

/// Election and slot of a Lease name, unless the name is a digest or not an election's.
pub(super) fn election_of(name: &str) -> Option<(ElectionKey, u32)> {
    let (rest, slot) = match name.rsplit_once(SLOT) {
        Some((rest, slot)) => (rest, slot.parse().ok().filter(|slot| *slot > 0)?),
        None => (name, 0),
    };
    let (name, namespace) = match rest.split_once(NAMESPACE) {
        Some((name, namespace)) => (name, read(namespace)?.parse().ok()?),
        None => (rest, Name::default_namespace()),
    };
    Some((ElectionKey::new(namespace, read(name)?.parse().ok()?), slot))
}

/// Name of a new session object.
pub(super) fn session_name(id: &SessionId) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let id = id.as_str();
    let is_plain = !id.is_empty() && id.len() <= 64 && id.chars().all(plain);
    format!("{SESSION}{}", if is_plain { id.to_owned() } else { hex(id) })
}

/// Label value of an object that belongs to this election only.
pub(super) fn election_label(key: &ElectionKey) -> String {
    hex(&format!("{}/{}", key.namespace, key.name))
}

fn written(name: &str) -> String {
    if is_subdomain(name) && !name.contains("--") {
        return name.into();
    }
    let mut text = String::from(REWRITTEN);
    for c in name.chars() {
        match ODD.iter().position(|odd| *odd == c) {
            Some(digit) => {
                let _ = write!(text, "-{digit}");
            }
            None if c.is_ascii_uppercase() => {
                text.push('-');
                text.push(c.to_ascii_lowercase());
            }
            None => text.push(c),
        }
    }
    text
}

fn read(text: &str) -> Option<String> {
    let Some(rest) = text.strip_prefix(REWRITTEN) else {
        return (!text.contains("--")).then(|| text.into());
    };
    let mut name = String::new();
    let mut chars = rest.chars();
    while let Some(c) = chars.next() {
        name.push(match c {
            '-' => match chars.next()? {
                c if c.is_ascii_lowercase() => c.to_ascii_uppercase(),
                c => *ODD.get(c.to_digit(10)? as usize)?,
            },
            c => c,
        });
    }
    Some(name)
}

/// Whether a text is an RFC 1123 subdomain, the form of object names.
fn is_subdomain(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let part = |part: &str| {
        part.starts_with(edge) && part.ends_with(edge) && part.chars().all(|c| edge(c) || c == '-')
    };
    name.split('.').all(part)
}

fn hex(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().take(20).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(namespace: &str, name: &str) -> ElectionKey {
        ElectionKey::new(namespace.parse().unwrap(), name.parse().unwrap())
    }

    #[test]
    fn a_name_that_kubernetes_allows_is_unchanged() {
        for name in ["nightly", "a", "kube-scheduler", "my-controller.acme.io", "0-9"] {
            assert_eq!(lease_name(&key("default", name), 0), name);
        }
        assert_eq!(lease_name(&key("default", "Nightly_run"), 0), "x---0-nightly-2run");
        assert_eq!(lease_name(&key("acme", "nightly"), 1), "nightly--ns-acme--slot-1");
    }

    proptest! {
        #[test]
        fn encoded_names_are_valid_and_reversible(
            namespace in "[a-zA-Z0-9][a-zA-Z0-9._:-]{0,30}", name in "[a-zA-Z0-9][a-zA-Z0-9._:-]{0,80}", slot in 0u32..12,
        ) {
            let key = key(&namespace, &name);
            let lease = lease_name(&key, slot);
            prop_assert!(is_subdomain(&lease) && lease.len() <= NAME_MAX, "{lease}");
            prop_assert_eq!(election_of(&lease), Some((key, slot)));
        }

        #[test]
        fn long_names_become_valid_digests(name in "[A-Z0-9][a-zA-Z._:-]{120,127}", other in "[A-Z][A-Z._:-]{127}") {
            let (one, two) = (lease_name(&key(&other, &name), 3), lease_name(&key(&other, &name), 4));
            prop_assert!(is_subdomain(&one) && one.len() <= NAME_MAX && one != two, "{one}");
        }
    }
}
