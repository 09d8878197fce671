//! A real API server instead of the fake one, if available.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::process::run;
use super::super::{Result, RigError};

/// Environment variable with a kubeconfig whose user may create namespaces.
const VARIABLE: &str = "TENURE_TEST_KUBECONFIG";

/// Store URL of a new namespace on a real API server, if `$TENURE_TEST_KUBECONFIG` is set; see `scripts/kubernetes`.
/// The namespace is not removed.
pub fn real_kubernetes() -> Result<Option<String>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let Some(kubeconfig) = std::env::var_os(VARIABLE).filter(|file| !file.is_empty()) else {
        return Ok(None);
    };
    let kubeconfig =
        kubeconfig.into_string().map_err(|_| RigError::new(format!("${VARIABLE} is not valid text")))?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let namespace = format!("tenure-test-{}-{number}", std::process::id());
    run(Command::new("kubectl").args(["--kubeconfig", &kubeconfig, "create", "namespace", &namespace]))?;
    Ok(Some(format!("k8s:{namespace}?kubeconfig={kubeconfig}")))
}
