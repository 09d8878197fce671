//! A real API server in place of ours, if there is one.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::process::run;
use super::super::{Error, Result};

/// Names a kubeconfig of somebody who may make namespaces.
const VARIABLE: &str = "TENURE_TEST_KUBECONFIG";

/// The address of a fresh namespace of a real API server as a store, if `$TENURE_TEST_KUBECONFIG` tells of one: see `scripts/kubernetes`. The namespace is left
/// there.
pub fn real_kubernetes() -> Result<Option<String>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let Some(kubeconfig) = std::env::var_os(VARIABLE).filter(|file| !file.is_empty()) else {
        return Ok(None);
    };
    let kubeconfig = kubeconfig.into_string().map_err(|_| Error::new(format!("${VARIABLE} is no text")))?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let namespace = format!("tenure-test-{}-{number}", std::process::id());
    run(Command::new("kubectl").args(["--kubeconfig", &kubeconfig, "create", "namespace", &namespace]))?;
    Ok(Some(format!("k8s:{namespace}?kubeconfig={kubeconfig}")))
}
