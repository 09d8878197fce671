//! Mutual TLS, users and passwords.

use std::sync::Arc;

use tenure::port::{ErrorKind, Notification, StoreError};
use tenure::store::etcd::EtcdStore;
use tenure::store::{ClientAuth, StoreOptions};
use tenure_testkit::conformance::{TestSession, election};
use tenure_testkit::rig::EtcdCluster;

async fn connect(cluster: &EtcdCluster, access: ClientAuth) -> Result<EtcdStore, StoreError> {
    EtcdStore::connect(&StoreOptions { url: cluster.url(), access, ..StoreOptions::default() }).await
}

async fn refused(cluster: &EtcdCluster, access: ClientAuth) -> StoreError {
    connect(cluster, access).await.err().expect("the connection must be rejected")
}

#[tokio::test(flavor = "multi_thread")]
async fn mutual_tls_and_passwords_are_supported() {
    let mut cluster = EtcdCluster::secured().unwrap();
    let [ca, cert, key] = cluster.certificates().unwrap();
    let trusting = ClientAuth { ca_file: Some(ca), ..ClientAuth::default() };
    let known = ClientAuth { client_cert: Some(cert), client_key: Some(key), ..trusting.clone() };

    let untrusted = refused(&cluster, ClientAuth::default()).await;
    assert!(
        untrusted.kind == ErrorKind::Misconfigured && untrusted.message.contains("TENURE_CA"),
        "{untrusted}"
    );
    let unproven = refused(&cluster, trusting).await;
    assert!(unproven.message.contains("ertificate"), "{unproven}");
    connect(&cluster, known.clone()).await.unwrap();

    cluster.etcdctl(&["role", "add", "tenure"]).unwrap();
    cluster
        .etcdctl(&["role", "grant-permission", "--prefix=true", "tenure", "readwrite", "/tenure/"])
        .unwrap();
    cluster.etcdctl(&["user", "add", "app:canary"]).unwrap();
    cluster.etcdctl(&["user", "grant-role", "app", "tenure"]).unwrap();
    cluster.etcdctl(&["user", "add", "guest:canary"]).unwrap();
    cluster.enable_auth("master").unwrap();
    let as_user = |user: &str| ClientAuth { user: Some(user.into()), ..known.clone() };

    let no_user = refused(&cluster, known.clone()).await;
    assert!(no_user.kind == ErrorKind::Denied && no_user.message.contains("TENURE_ETCD_USER"), "{no_user}");
    let wrong = refused(&cluster, as_user("app:canary2")).await;
    assert!(wrong.kind == ErrorKind::Denied && wrong.message.contains("TENURE_ETCD_USER"), "{wrong}");
    assert!(!wrong.message.contains("canary"), "{wrong}");
    let denied = refused(&cluster, as_user("guest:canary")).await;
    assert!(
        denied.kind == ErrorKind::Denied && denied.message.contains("readwrite on the prefix"),
        "{denied}"
    );

    // The server certificate has a common name.
    let vault = known.ca_file.as_ref().and_then(|file| file.parent()).unwrap();
    let named = ClientAuth {
        client_cert: Some(vault.join("server.crt")),
        client_key: Some(vault.join("server.key")),
        ..as_user("app:canary")
    };
    let named = refused(&cluster, named).await;
    assert!(named.kind == ErrorKind::Denied && named.message.contains("without a common name"), "{named}");

    let store = Arc::new(connect(&cluster, as_user("app:canary")).await.unwrap());
    let [a, b] = [TestSession::open(store.clone(), "a").await, TestSession::open(store.clone(), "b").await];
    let (key, mut notifications) = (election("e"), a.store.notifications());
    assert_eq!(notifications.next().await, Some(Notification::Resync));
    a.join(&key).await;
    b.join(&key).await;
    let token = a.take(&key, 0).await;
    a.release(&key, 0, token).await;
    while !matches!(notifications.next().await, Some(Notification::LeaseReleased { .. })) {}

    // An authentication token becomes invalid when etcd restarts and when users change.
    cluster.kill9(0).unwrap();
    cluster.start_again(0).unwrap();
    assert!(a.is_live().await && b.take(&key, 0).await > token);
    cluster.etcdctl(&["user", "add", "another:canary"]).unwrap();
    assert!(a.is_live().await && b.is_live().await);
    drop(notifications);
    // A revoked role is reported as denied.
    cluster.etcdctl(&["user", "revoke-role", "app", "tenure"]).unwrap();
    let denied = a.store.heartbeat(&a.id).await.unwrap_err();
    assert_eq!(denied.kind, ErrorKind::Denied, "{denied}");
    let revoked = refused(&cluster, as_user("app")).await;
    assert_eq!(revoked.kind, ErrorKind::Denied, "{revoked}");
}
