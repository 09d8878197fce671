//! TLS between the library and servers.

use std::path::Path;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tenure::port::{Credential, CredentialVerifier, ErrorKind, Store, StoreError};
use tenure::runtime::wall_ms;
use tenure::store::{self, ClientAuth, StoreOptions};
use tenure_server::settings::TlsFiles;
use tenure_server::{Server, Settings};
use tenure_testkit::conformance::{TestSession, election};

use super::support::memory;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority")
}

/// Write a certificate for localhost and its key.
fn issue(authority: &Authority, folder: &Path, name: &str) {
    let mut params = CertificateParams::new(vec!["localhost".into()]).expect("parameters");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, authority).expect("signed");
    std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).expect("written");
    std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("written");
}

async fn open(url: &str, access: ClientAuth) -> Result<Arc<dyn Store>, StoreError> {
    store::open(&StoreOptions { url: url.into(), access, ..StoreOptions::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn client_and_server_certificates_are_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| Some(folder.path().join(name));
    let ours = authority();
    issue(&ours, folder.path(), "server");
    issue(&ours, folder.path(), "worker");
    std::fs::write(folder.path().join("ca.pem"), ours.pem()).expect("written");
    std::fs::write(folder.path().join("strange.pem"), authority().pem()).expect("written");
    let store = memory();
    let credential = Credential {
        id: "00000000000000aa".into(),
        name: "worker".into(),
        verifier: CredentialVerifier::Certificate { certificate_subject: "CN=worker".into() },
        grants: vec!["default:read,lead".parse().expect("a grant")],
        created_at_ms: wall_ms(),
        created_by: "the test".into(),
        expires_at_ms: None,
        revoked_at_ms: None,
    };
    store.backend().put_credential(&credential).await.expect("kept");
    let tls = TlsFiles {
        cert: folder.path().join("server.pem"),
        key: folder.path().join("server.key"),
        client_ca: file("ca.pem"),
    };
    let listen = vec!["127.0.0.1:0".parse().expect("an address")];
    let settings = Settings { listen, tls: Some(tls), auth: true, ..Settings::default() };
    let server = Server::start(settings, store.backend()).await.expect("a server");
    let port = server.addresses()[0].socket_addr().expect("a port").port();
    let url = format!("https://localhost:{port}");

    let trusting = ClientAuth { ca_file: file("ca.pem"), ..ClientAuth::default() };
    let proving =
        ClientAuth { client_cert: file("worker.pem"), client_key: file("worker.key"), ..trusting.clone() };
    let actor = TestSession::open(open(&url, proving.clone()).await.expect("known"), "worker").await;
    actor.join(&election("e")).await;
    actor.take(&election("e"), 0).await;
    let session = store.backend().sessions(Some(std::slice::from_ref(&actor.id))).await.unwrap().remove(0);
    assert_eq!(session.owner.as_deref(), Some("worker"));

    let text = async |url: &str, access: ClientAuth| open(url, access).await.err().expect("refused");
    let unknown = text(&url, trusting.clone()).await;
    assert_eq!(unknown.kind, ErrorKind::Denied);
    assert!(unknown.message.contains("TENURE_CLIENT_CERT"), "{unknown}");
    let strange = text(&url, ClientAuth { ca_file: file("strange.pem"), ..proving.clone() }).await;
    assert_eq!(strange.kind, ErrorKind::Misconfigured);
    assert!(strange.message.contains("TENURE_CA"), "{strange}");
    // The certificate names only localhost.
    let misnamed = text(&format!("https://127.0.0.1:{port}"), proving.clone()).await;
    assert!(misnamed.message.contains("names"), "{misnamed}");
    let half = text(&url, ClientAuth { client_key: None, ..proving }).await;
    assert!(half.message.contains("TENURE_CLIENT_KEY"), "{half}");
    let plain = text(&format!("http://localhost:{port}"), trusting).await;
    assert_eq!(plain.kind, ErrorKind::Unreachable, "{plain}");
}
