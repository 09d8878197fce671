//! Whom we believe over TLS, and how we show who we are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tenure_core::port::{StoreError, Trouble};

use super::set;
use crate::backend::ServerAccess;

/// How to speak TLS; for servers that are spoken to in the open, nothing is read.
pub(in crate::backend) fn config(access: &ServerAccess, needed: bool) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unfit(format!("TLS cannot be used: {error}")))?;
    if !needed {
        return Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
    }
    let given = |path: &Option<PathBuf>, name: &str| path.clone().or_else(|| set(name).map(PathBuf::from));
    let builder = match given(&access.ca_file, "TENURE_CA_FILE") {
        Some(file) => builder.with_root_certificates(roots(&file)?),
        None => builder.with_native_roots().map_err(|error| {
            unfit(format!(
                "the system's certificates cannot be read: {error}; name a file in $TENURE_CA_FILE"
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
                .map_err(|error| unfit(format!("no private key in {}: {error}", key.display())))?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| {
                unfit(format!("{} and {} do not go together: {error}", cert.display(), key.display()))
            })
        }
        _ => Err(unfit(
            "a client certificate needs its key, and a key its certificate: set both \
                        $TENURE_CLIENT_CERT and $TENURE_CLIENT_KEY",
        )),
    }
}

fn roots(file: &Path) -> Result<RootCertStore, StoreError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| {
            unfit(format!("{} has a certificate that cannot be believed: {error}", file.display()))
        })?;
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let failed =
        |error: &dyn std::fmt::Display| unfit(format!("no certificates in {}: {error}", file.display()));
    let found = CertificateDer::pem_file_iter(file).map_err(|error| failed(&error))?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
    if found.is_empty() { Err(failed(&"it is not PEM, or has none")) } else { Ok(found) }
}

fn unfit(message: impl Into<String>) -> StoreError {
    StoreError::new(Trouble::Unfit, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_make_no_sense_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("ca.pem");
        std::fs::write(&empty, "nothing").unwrap();
        for file in [empty, folder.path().join("missing.pem")] {
            let access = ServerAccess { ca_file: Some(file.clone()), ..ServerAccess::default() };
            let error = config(&access, true).unwrap_err();
            assert!(error.message.contains(&*file.to_string_lossy()), "{error}");
        }
    }
}
