//! TLS, client certificates, and certificate reload.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tenure::port::{AccessStore as _, Credential, CredentialVerifier};
use tenure::runtime::wall_ms;
use tenure_server::settings::{Timeouts, TlsFiles};
use tenure_server::{Server, Settings, StartError};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::limits::quick;
use crate::support::{Answer, TestServer, answer, settings, test_server, until, within};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name = named(&[(DnType::CommonName, name)]);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

fn named(parts: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    parts.iter().for_each(|(kind, value)| name.push(kind.clone(), *value));
    name
}

/// Certificate for localhost and a subject, with its key.
fn issue(authority: &Authority, subject: &[(DnType, &str)]) -> (rcgen::Certificate, KeyPair) {
    let mut params = CertificateParams::new(vec!["localhost".into()]).expect("parameters");
    params.distinguished_name = named(subject);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, authority).expect("signed");
    (certificate, key)
}

fn write(folder: &Path, authority: &Authority, client_ca: Option<&Authority>) -> TlsFiles {
    let (certificate, key) = issue(authority, &[(DnType::CommonName, "localhost")]);
    let files = TlsFiles {
        cert: folder.join("cert.pem"),
        key: folder.join("key.pem"),
        client_ca: client_ca.map(|_| folder.join("clients.pem")),
    };
    std::fs::write(&files.key, key.serialize_pem()).expect("written");
    std::fs::write(&files.cert, certificate.pem()).expect("written");
    if let (Some(path), Some(authority)) = (&files.client_ca, client_ca) {
        std::fs::write(path, authority.pem()).expect("written");
    }
    files
}

async fn ask(
    fixture: &TestServer,
    trusted: &Authority,
    own: Option<&(rcgen::Certificate, KeyPair)>,
    token: Option<&str>,
    path: &str,
) -> Result<Answer, String> {
    let stream = shake_hands(fixture, trusted, own, &[]).await?;
    let request = fixture.request("GET", path);
    let request = match token {
        Some(token) => request.header("authorization", format!("Bearer {token}")),
        None => request,
    };
    answer(stream, request.body(Full::default()).expect("a request")).await.map_err(|error| error.to_string())
}

async fn shake_hands(
    fixture: &TestServer,
    trusted: &Authority,
    own: Option<&(rcgen::Certificate, KeyPair)>,
    spoken: &[&[u8]],
) -> Result<TlsStream<TcpStream>, String> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.der().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = builder.with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
            builder.with_client_auth_cert(chain, key).expect("a certificate")
        }
    };
    config.alpn_protocols = spoken.iter().map(|protocol| protocol.to_vec()).collect();
    let name = ServerName::try_from("localhost").expect("a name");
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, fixture.connect().await).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn an_http2_client_that_does_not_read_a_stream_is_cut_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = authority("ours");
    let tls = Some(write(folder.path(), &ours, None));
    let timeouts = Timeouts { idle: Duration::from_secs(600), ..quick() };
    let fixture = test_server(Settings { tls, timeouts, ..settings() }).await;
    let stream = shake_hands(&fixture, &ours, None, &[b"h2"]).await.expect("a handshake");
    let mut builder = hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
    builder.initial_stream_window_size(1);
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = builder.handshake::<_, Full<bytes::Bytes>>(io).await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let request =
        http::Request::builder().uri(format!("https://{}/internal/v1/notifications", fixture.address()));
    let answer = within(sender.send_request(request.body(Full::default()).expect("a request")))
        .await
        .expect("a response");
    assert_eq!((answer.status().as_u16(), answer.version()), (200, http::Version::HTTP_2));
    // The response is held and never read.
    let _ = within(connection).await;
    drop(answer);
}

#[tokio::test]
async fn a_server_with_tls_and_authentication_listens_on_any_address() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = authority("ours");
    let tls = Some(write(folder.path(), &ours, None));
    let listen = vec!["0.0.0.0:0".parse().expect("an address")];
    let fixture = test_server(Settings { listen, tls, auth: true, ..settings() }).await;
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], fixture.address().port()));
    assert_eq!(fixture.server.addresses()[0].url(), format!("https://{address}"));
    let token = fixture.principal("reader", &["*:read"]).await;
    let answer = ask(&fixture, &ours, None, Some(&token.text), "/v1/elections").await.expect("a response");
    assert_eq!(answer.status, 200);
    assert!(answer.header("strict-transport-security").contains("max-age"));
    assert_eq!(ask(&fixture, &ours, None, None, "/v1/elections").await.expect("a response").status, 401);
    assert!(ask(&fixture, &authority("strange"), None, None, "/healthz").await.is_err(), "not our authority");
}

#[tokio::test]
async fn a_certificate_of_a_trusted_authority_proves_its_subject() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = (authority("ours"), authority("their own"));
    let tls = Some(write(folder.path(), &ours, Some(&theirs)));
    let fixture = test_server(Settings { tls, auth: true, ..settings() }).await;
    let subject = [(DnType::OrganizationName, "acme"), (DnType::CommonName, "worker-1")];
    let worker = issue(&theirs, &subject);
    let list = async |own| ask(&fixture, &ours, own, None, "/v1/elections?namespace=prod").await;
    let other = list(Some(&worker)).await.expect("a response");
    assert_eq!((other.status, other.code().as_str()), (401, "unknown-certificate"));
    let credential = Credential {
        id: "c1".into(),
        name: "worker-1".into(),
        verifier: CredentialVerifier::Certificate { certificate_subject: "CN=worker-1,O=acme".into() },
        grants: vec!["prod:read".parse().expect("a grant")],
        created_at_ms: wall_ms(),
        created_by: "the test".into(),
        expires_at_ms: None,
        revoked_at_ms: None,
    };
    fixture.store.put_credential(&credential).await.expect("kept");
    until("it is known", async || list(Some(&worker)).await.is_ok_and(|answer| answer.status == 200)).await;
    // A forged subject, and an untrusted authority.
    let forged = issue(&theirs, &[(DnType::CommonName, "worker-1,O=acme")]);
    assert_eq!(list(Some(&forged)).await.expect("a response").code(), "unknown-certificate");
    let untrusted = issue(&authority("evil"), &subject);
    assert!(list(Some(&untrusted)).await.is_err(), "a certificate of an untrusted authority was accepted");
    assert_eq!(list(None).await.expect("a response").status, 401);
    let revoked = Credential { revoked_at_ms: Some(wall_ms()), ..credential };
    fixture.store.put_credential(&revoked).await.expect("revoked");
    until("it is rejected", async || list(Some(&worker)).await.is_ok_and(|answer| answer.status == 401))
        .await;
}

#[tokio::test]
async fn a_renewed_certificate_is_used_and_a_broken_one_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let (old, new) = (authority("old"), authority("new"));
    let tls = write(folder.path(), &old, None);
    let fixture = test_server(Settings { tls: Some(tls.clone()), auth: true, ..settings() }).await;
    assert_eq!(ask(&fixture, &old, None, None, "/healthz").await.expect("a response").status, 200);
    std::fs::write(&tls.cert, "-----BEGIN nothing").expect("written");
    assert_eq!(ask(&fixture, &old, None, None, "/healthz").await.expect("a response").status, 200);
    write(folder.path(), &new, None);
    until("the new one is used", async || ask(&fixture, &new, None, None, "/healthz").await.is_ok()).await;
}

#[tokio::test]
async fn invalid_tls_files_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = authority("ours");
    let good = write(folder.path(), &ours, None);
    let other = tempfile::tempdir().expect("a folder");
    let other = write(other.path(), &ours, None);
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").expect("written");
    let none = folder.path().join("none.pem");
    let store = Arc::new(tenure::store::memory::MemoryStore::new());
    for (tls, named) in [
        (TlsFiles { cert: none.clone(), ..good.clone() }, "none.pem"),
        (TlsFiles { key: none.clone(), ..good.clone() }, "none.pem"),
        (TlsFiles { key: empty.clone(), ..good.clone() }, "--tls-key"),
        (TlsFiles { cert: empty.clone(), ..good.clone() }, "--tls-cert"),
        (TlsFiles { client_ca: Some(empty.clone()), ..good.clone() }, "--client-ca"),
        (TlsFiles { key: other.key.clone(), ..good.clone() }, "do not match"),
    ] {
        let refused =
            Server::start(Settings { tls: Some(tls), auth: true, ..settings() }, store.clone()).await;
        let error = refused.err().expect("refused");
        assert!(matches!(&error, StartError::Tls(text) if text.contains(named)), "{error}");
    }
}

#[tokio::test]
async fn a_client_without_handshake_is_disconnected() {
    use tokio::io::AsyncReadExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let ours = authority("ours");
    let tls = Some(write(folder.path(), &ours, None));
    let mut settings = Settings { tls, auth: true, ..settings() };
    settings.timeouts.handshake = std::time::Duration::from_millis(200);
    let fixture = test_server(settings).await;
    let mut silent = fixture.connect().await;
    assert_eq!(crate::support::within(silent.read(&mut [0; 1])).await.unwrap_or(0), 0);
    assert_eq!(ask(&fixture, &ours, None, None, "/healthz").await.expect("a response").status, 200);
}

#[tokio::test]
async fn a_client_without_handshake_does_not_delay_the_shutdown() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = authority("ours");
    let tls = Some(write(folder.path(), &ours, None));
    // Longer than the test runs.
    let long = std::time::Duration::from_secs(600);
    let timeouts = Timeouts { handshake: long, drain: long, idle: long, header: long, ..Timeouts::default() };
    let fixture = test_server(Settings { tls, timeouts, ..settings() }).await;
    let _silent = fixture.connect().await;
    // A later connection is answered only after the silent one was accepted.
    assert_eq!(ask(&fixture, &ours, None, None, "/healthz").await.expect("a response").status, 200);
    within(fixture.server.shutdown()).await;
}
