//! Which namespace, and how the API server is found.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tenure_core::Timing;
use tenure_core::port::{StoreError, Trouble};

const FORM: &str = "give k8s:NAMESPACE, or k8s: for the namespace of the pod or of the kubeconfig; after a ?, any of kubeconfig=FILE, \
     context=NAME, pace=client-go and label_leader=KEY, joined by &";

/// client-go's defaults: LeaseDuration and RetryPeriod. Its RenewDeadline, ten seconds, is two thirds of the lease, which is how long
/// Tenure trusts.
const CLIENT_GO: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(2));

/// A namespace of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) namespace: Option<String>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) context: Option<String>,
    pub(super) label_leader: Option<String>,
    pub(super) paced: bool,
}

impl Address {
    /// The pace that the address asks for.
    pub(super) fn pace(&self) -> Option<Timing> {
        Timing::new(CLIENT_GO.0, Some(CLIENT_GO.1)).ok().filter(|_| self.paced)
    }
}

impl FromStr for Address {
    type Err = StoreError;

    fn from_str(url: &str) -> Result<Self, StoreError> {
        let rest =
            url.strip_prefix("k8s:").ok_or_else(|| refused(format!("{url:?} is no address; {FORM}")))?;
        let (namespace, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut address = Address::default();
        if !namespace.is_empty() {
            if !is_label(namespace) {
                return Err(refused(format!("{namespace:?} is no name of a Kubernetes namespace; {FORM}")));
            }
            address.namespace = Some(namespace.into());
        }
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("kubeconfig", file)) if !file.is_empty() => address.kubeconfig = Some(file.into()),
                Some(("context", name)) if !name.is_empty() => address.context = Some(name.into()),
                Some(("pace", "client-go")) => address.paced = true,
                Some(("label_leader", key)) if is_label_key(key) => address.label_leader = Some(key.into()),
                Some(("label_leader", key)) => {
                    return Err(refused(format!("{key:?} is no key of a Kubernetes label; {FORM}")));
                }
                _ => return Err(refused(format!("{part:?} is not understood; {FORM}"))),
            }
        }
        Ok(address)
    }
}

/// A DNS label: what namespaces are called.
fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.len() <= 63 && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// A label's key: a name, possibly behind the DNS name of whoever it belongs to and a slash.
fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(|prefix| prefix.split('.').all(|part| !part.is_empty() && is_label(part)))
        && !name.is_empty()
        && is_label_value(name)
}

/// What a label may be set to.
pub(super) fn is_label_value(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= 63 && text.chars().all(inner) && edge(text.chars().next()) && edge(text.chars().last())
}

fn refused(message: impl Into<String>) -> StoreError {
    StoreError::new(Trouble::Address, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read() {
        let read = |url: &str| url.parse::<Address>().unwrap();
        assert_eq!(read("k8s:"), Address::default());
        assert_eq!(read("k8s:prod").namespace.as_deref(), Some("prod"));
        let all = read("k8s:prod?kubeconfig=/a/b&context=c&pace=client-go&label_leader=acme.io/leads");
        assert_eq!((all.kubeconfig, all.context.as_deref()), (Some("/a/b".into()), Some("c")));
        assert_eq!((all.paced, all.label_leader.as_deref()), (true, Some("acme.io/leads")));
    }

    #[test]
    fn the_pace_of_client_go_is_its_defaults() {
        let timing = "k8s:?pace=client-go".parse::<Address>().unwrap().pace().unwrap();
        let seconds = [timing.lease(), timing.trust(), timing.beat()].map(|time| time.as_secs());
        assert_eq!(seconds, [15, 10, 2], "LeaseDuration, RenewDeadline, RetryPeriod");
        assert_eq!("k8s:".parse::<Address>().unwrap().pace(), None);
    }

    #[test]
    fn a_bad_address_is_refused_with_the_right_form() {
        for url in [
            "k8s:Prod",
            "k8s:a/b",
            "k8s:-a",
            "k8s:a?x=1",
            "k8s:?pace=slow",
            "k8s:?label_leader=a/b/c",
            "k8s:?context=",
        ] {
            let error = url.parse::<Address>().expect_err(url);
            assert!(
                error.kind == Trouble::Address && error.message.contains("k8s:NAMESPACE"),
                "{url}: {error}"
            );
        }
    }
}
