//! Kubernetes: requests to the API server are counted by a proxy.

use crate::BenchError;
use crate::baseline::BenchDirectory;

use super::counting_proxy::CountingProxy;

/// URL prefix.
pub(super) const SCHEME: &str = "k8s:";

/// A URL whose requests go through a counting proxy, and the proxy; `None` if the API server uses TLS. Only `kubectl
/// proxy` and test servers do not; for others use the metric `apiserver_request_total`.
pub(super) async fn through_proxy(
    url: &str,
    directory: &BenchDirectory,
) -> Result<Option<(String, CountingProxy)>, BenchError> {
    let Some(config) = url.strip_prefix(SCHEME).and_then(|_| parameter(url, "kubeconfig")) else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(config)?;
    let Some(server) = server(&text) else { return Ok(None) };
    let proxy = CountingProxy::to(server.to_owned()).await?;
    let copy = directory.path("kubeconfig");
    std::fs::write(&copy, text.replace(server, &format!("127.0.0.1:{}", proxy.port)))?;
    Ok(Some((url.replace(config, &copy.display().to_string()), proxy)))
}

fn parameter<'u>(url: &'u str, name: &str) -> Option<&'u str> {
    let (_, query) = url.split_once('?')?;
    query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// Host and port of the only server in a kubeconfig, if it is one without TLS.
fn server(config: &str) -> Option<&str> {
    let mut servers = config.match_indices("server").filter_map(|(at, word)| {
        let value = config[at + word.len()..].trim_start_matches(['"', '\'', ':', ' ']);
        let value = value.strip_prefix("http://")?;
        value.split(['"', '\'', '/', ',', '}', ' ', '\n', '\r']).next()
    });
    servers.next().filter(|_| servers.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_tls_is_found() {
        let yaml = "clusters:\n- name: a\n  cluster:\n    server: http://127.0.0.1:8001\nusers: []\n";
        assert_eq!(server(yaml), Some("127.0.0.1:8001"));
        assert_eq!(server(r#"{"cluster":{"server":"http://h:1/"}}"#), Some("h:1"));
        assert_eq!(server("server: https://h:6443\n"), None);
        assert_eq!(server("server: http://a:1\nserver: http://b:2\n"), None, "ambiguous");
        assert_eq!(parameter("k8s:a?context=b&kubeconfig=/c", "kubeconfig"), Some("/c"));
        assert_eq!(parameter("k8s:a", "kubeconfig"), None);
    }
}
