//! TLS configuration of clients: trusted authorities and client certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tenure_core::port::{ErrorKind, StoreError};

use super::set;
use crate::store::ClientAuth;

/// Build the TLS configuration. Reads no file unless `needed` is set.
pub(in crate::store) fn config(access: &ClientAuth, needed: bool) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| misconfigured(format!("TLS is not available: {error}")))?;
    if !needed {
        return Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
    }
    let given = |path: &Option<PathBuf>, name: &str| path.clone().or_else(|| set(name).map(PathBuf::from));
    let builder = match given(&access.ca_file, "TENURE_CA") {
        Some(file) => builder.with_root_certificates(roots(&file)?),
        None => builder.with_native_roots().map_err(|error| {
            misconfigured(format!(
                "the system's certificates cannot be read: {error}; set $TENURE_CA to a file"
            ))
        })?,
    };
    let cert = given(&access.client_cert, "TENURE_CLIENT_CERT");
    let key = given(&access.client_key, "TENURE_CLIENT_KEY");
    match (cert, key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(cert), Some(key)) => {
            let chain = certificates(&cert)?;
            let secret = PrivateKeyDer::from_pem_file(&key)
                .map_err(|error| misconfigured(format!("no private key in {}: {error}", key.display())))?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| {
                misconfigured(format!("{} and {} do not match: {error}", cert.display(), key.display()))
            })
        }
        _ => Err(misconfigured(
            "a client certificate needs its key, and a key its certificate: set both \
               $TENURE_CLIENT_CERT and $TENURE_CLIENT_KEY",
        )),
    }
}

fn roots(file: &Path) -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| {
            misconfigured(format!("{} contains an invalid certificate: {error}", file.display()))
        })?;
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let failed = |error: &dyn std::fmt::Display| {
        misconfigured(format!("no certificates in {}: {error}", file.display()))
    };
    let found = CertificateDer::pem_file_iter(file).map_err(|error| failed(&error))?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
    if found.is_empty() { Err(failed(&"it is not PEM, or is empty")) } else { Ok(found) }
}

fn misconfigured(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Misconfigured, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_files_are_named_in_errors() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("ca.pem");
        std::fs::write(&empty, "nothing").unwrap();
        for file in [empty, folder.path().join("missing.pem")] {
            let access = ClientAuth { ca_file: Some(file.clone()), ..ClientAuth::default() };
            let error = config(&access, true).unwrap_err();
            assert!(error.message.contains(&*file.to_string_lossy()), "{error}");
        }
    }
}
