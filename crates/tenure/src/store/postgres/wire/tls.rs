//! TLS, by the rules of libpq's `sslmode`.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::super::error::PgError;
use super::super::options::{RootCertificates, SslMode, Tls};

/// Perform the handshake with a server that has agreed to TLS.
pub(super) async fn handshake(
    stream: TcpStream,
    host: &str,
    settings: &Tls,
) -> Result<TlsStream<TcpStream>, PgError> {
    let name = ServerName::try_from(host.to_owned()).map_err(tls_error)?;
    let connector = TlsConnector::from(Arc::new(config(settings)?));
    connector.connect(name, stream).await.map_err(tls_error)
}

fn config(settings: &Tls) -> Result<ClientConfig, PgError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(tls_error)?;
    // As libpq does: `require` with an authority verifies the certificate and not the name.
    let verify = match settings.mode {
        SslMode::VerifyFull => Verify::Name,
        SslMode::VerifyCa => Verify::Authority,
        SslMode::Require if settings.root != RootCertificates::Default => Verify::Authority,
        _ => Verify::Nothing,
    };
    let builder = match verify {
        Verify::Name => builder.with_root_certificates(roots(&settings.root)?),
        Verify::Authority => {
            let verifier =
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots(&settings.root)?), provider)
                    .build()
                    .map_err(tls_error)?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyName(verifier)))
        }
        Verify::Nothing => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        }
    };
    match &settings.client {
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
            builder.with_client_auth_cert(chain, key).map_err(tls_error)
        }
        None => Ok(builder.with_no_client_auth()),
    }
}

enum Verify {
    Name,
    Authority,
    Nothing,
}

fn roots(which: &RootCertificates) -> Result<RootCertStore, PgError> {
    let mut store = RootCertStore::empty();
    match which {
        RootCertificates::File(path) => {
            for certificate in certificates(path)? {
                store.add(certificate).map_err(tls_error)?;
            }
        }
        RootCertificates::Default | RootCertificates::System => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(store)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PgError> {
    let found = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(path, error))?;
    found.collect::<Result<_, _>>().map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: impl std::fmt::Display) -> PgError {
    PgError::Tls(format!("cannot read {}: {error}", path.display()))
}

fn tls_error(error: impl std::fmt::Display) -> PgError {
    PgError::Tls(error.to_string())
}

/// Verifies the certificate chain and accepts every host name: `verify-ca`.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Accepts every certificate: `prefer`, and `require` without an authority.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
