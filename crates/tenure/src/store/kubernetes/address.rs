//! Parsing of `k8s:` URLs.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::Timing;
use tenure_core::port::{ErrorKind, StoreError};

const USAGE: &str = "use k8s:NAMESPACE, or k8s: for the namespace of the pod or of the kubeconfig; parameters after ?: kubeconfig=FILE, \
     context=NAME, timing=client-go and leader_label=KEY, separated by &";

/// Defaults of client-go: LeaseDuration and RetryPeriod. Its RenewDeadline, ten seconds, is two thirds of the lease,
/// which is how long Tenure trusts a lease.
const CLIENT_GO: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(2));

/// A parsed `k8s:` URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) namespace: Option<String>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) context: Option<String>,
    pub(super) leader_label_key: Option<String>,
    pub(super) client_go_timing: bool,
}

impl Address {
    /// The timing that the URL selects.
    pub(super) fn timing(&self) -> Option<Timing> {
        Timing::new(CLIENT_GO.0, Some(CLIENT_GO.1)).ok().filter(|_| self.client_go_timing)
    }
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        let rest = url
            .strip_prefix("k8s:")
            .ok_or_else(|| invalid(format!("{url:?} is not a Kubernetes store URL; {USAGE}")))?;
        let (namespace, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut address = Address::default();
        if !namespace.is_empty() {
            if !is_label(namespace) {
                return Err(invalid(format!("{namespace:?} is not a valid Kubernetes namespace; {USAGE}")));
            }
            address.namespace = Some(namespace.into());
        }
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("kubeconfig", file)) if !file.is_empty() => address.kubeconfig = Some(file.into()),
                Some(("context", name)) if !name.is_empty() => address.context = Some(name.into()),
                Some(("timing", "client-go")) => address.client_go_timing = true,
                Some(("leader_label", key)) if is_label_key(key) => {
                    address.leader_label_key = Some(key.into())
                }
                Some(("leader_label", key)) => {
                    return Err(invalid(format!("{key:?} is not a valid Kubernetes label key; {USAGE}")));
                }
                _ => return Err(invalid(format!("unknown parameter {part:?}; {USAGE}"))),
            }
        }
        Ok(address)
    }
}

/// Whether a text is a DNS label, the form of namespace names.
fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= 63 && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether a text is a label key: a name, optionally after a DNS prefix and a slash.
fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(|prefix| prefix.split('.').all(|part| !part.is_empty() && is_label(part)))
        && !name.is_empty()
        && is_label_value(name)
}

/// Whether a text is a valid label value.
pub(super) fn is_label_value(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= 63 && text.chars().all(inner) && edge(text.chars().next()) && edge(text.chars().last())
}

fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Address, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed() {
        let read = |url: &str| url.parse::<Address>().unwrap();
        assert_eq!(read("k8s:"), Address::default());
        assert_eq!(read("k8s:prod").namespace.as_deref(), Some("prod"));
        let all = read("k8s:prod?kubeconfig=/a/b&context=c&timing=client-go&leader_label=acme.io/leads");
        assert_eq!((all.kubeconfig, all.context.as_deref()), (Some("/a/b".into()), Some("c")));
        assert_eq!((all.client_go_timing, all.leader_label_key.as_deref()), (true, Some("acme.io/leads")));
    }

    #[test]
    fn client_go_timing_equals_its_defaults() {
        let timing = "k8s:?timing=client-go".parse::<Address>().unwrap().timing().unwrap();
        let seconds =
            [timing.lease(), timing.trust(), timing.heartbeat_interval()].map(|time| time.as_secs());
        assert_eq!(seconds, [15, 10, 2], "LeaseDuration, RenewDeadline, RetryPeriod");
        assert_eq!("k8s:".parse::<Address>().unwrap().timing(), None);
    }

    #[test]
    fn an_invalid_url_is_rejected_with_the_usage() {
        for url in [
            "k8s:Prod",
            "k8s:a/b",
            "k8s:-a",
            "k8s:a?x=1",
            "k8s:?timing=slow",
            "k8s:?leader_label=a/b/c",
            "k8s:?context=",
        ] {
            let error = url.parse::<Address>().expect_err(url);
            assert!(
                error.kind == ErrorKind::Address && error.message.contains("k8s:NAMESPACE"),
                "{url}: {error}"
            );
        }
    }
}
