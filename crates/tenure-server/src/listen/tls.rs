//! TLS from files that may be replaced while the server runs.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::server::StartError;
use crate::settings::TlsFiles;

/// Interval between checks of the files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// TLS configuration from the files as last read.
pub(crate) struct Tls {
    files: TlsFiles,
    current: RwLock<Arc<ServerConfig>>,
}

/// Identity of a file: modification time, size and inode.
type Stamp = Vec<Option<(i64, i64, u64, u64)>>;

impl Tls {
    /// Read the files.
    pub(crate) fn read(files: &TlsFiles) -> Result<Arc<Tls>, StartError> {
        let config = config(files).map_err(StartError::Tls)?;
        let open = std::fs::metadata(&files.key).is_ok_and(|key| key.permissions().mode() & 0o077 != 0);
        if open {
            tracing::warn!(key = %files.key.display(), "the private key is readable by other users; run chmod 600");
        }
        Ok(Arc::new(Tls { files: files.clone(), current: RwLock::new(Arc::new(config)) }))
    }

    /// Acceptor for the next handshake.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Reload the files whenever they change, until aborted. If they are invalid, the error is logged and the
    /// current configuration stays in use.
    pub(crate) async fn reload(self: Arc<Self>) {
        let mut seen = stamp(&self.files);
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let now = stamp(&self.files);
            if now == seen {
                continue;
            }
            seen = now;
            match config(&self.files) {
                Ok(config) => {
                    *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                    tracing::info!(cert = %self.files.cert.display(), "certificate reloaded");
                }
                // The certificate may have been written before its key. The next change triggers another
                // reload.
                Err(error) => {
                    tracing::error!(%error, "reloading the certificate failed; the current one stays in use")
                }
            }
        }
    }
}

fn stamp(files: &TlsFiles) -> Stamp {
    let of = |file: Metadata| (file.mtime(), file.mtime_nsec(), file.len(), file.ino());
    let paths = [Some(&files.cert), Some(&files.key), files.client_ca.as_ref()];
    paths.into_iter().flatten().map(|path| std::fs::metadata(path).ok().map(of)).collect()
}

fn config(files: &TlsFiles) -> Result<ServerConfig, String> {
    let chain = certificates(&files.cert, "--tls-cert")?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| unreadable(&files.key, "--tls-key", "private key", error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path, "--client-ca")? {
                roots.add(certificate).map_err(|error| format!("--client-ca {}: {error}", path.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                // Clients without a certificate may use an access token.
                .allow_unauthenticated()
                .build()
                .map_err(|error| format!("--client-ca {}: {error}", path.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| {
        let (cert, key) = (files.cert.display(), files.key.display());
        format!("--tls-cert {cert} and --tls-key {key} do not match: {error}")
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(path: &Path, flag: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error| unreadable(path, flag, "certificate", error);
    let found: Vec<_> =
        CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    if found.is_empty() {
        return Err(failed(rustls_pki_types::pem::Error::NoItemsFound));
    }
    Ok(found)
}

fn unreadable(path: &Path, flag: &str, what: &str, error: rustls_pki_types::pem::Error) -> String {
    use rustls_pki_types::pem::Error;
    let path = path.display();
    match error {
        Error::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            format!(
                "{flag} {path} is not readable by this user: {error}; change its owner, or use another file"
            )
        }
        Error::Io(error) => format!("{flag} {path} cannot be read: {error}"),
        Error::NoItemsFound => {
            format!("{flag} {path} contains no {what}; PEM is expected: -----BEGIN …-----")
        }
        error => format!("{flag} {path} is not a valid {what} in PEM: {error:?}"),
    }
}
