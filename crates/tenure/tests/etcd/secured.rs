//! TLS both ways, users and passwords.

use std::sync::Arc;

use tenure::backend::etcd::Etcd;
use tenure::backend::{ServerAccess, StoreOptions};
use tenure::port::{StoreError, Trouble, Wake};
use tenure_testkit::conformance::{Actor, election};
use tenure_testkit::rig::EtcdCluster;

async fn connect(cluster: &EtcdCluster, access: ServerAccess) -> Result<Etcd, StoreError> {
    Etcd::connect(&StoreOptions { url: cluster.url(), access, ..StoreOptions::default() }).await
}

async fn refused(cluster: &EtcdCluster, access: ServerAccess) -> StoreError {
    connect(cluster, access).await.err().expect("it is refused")
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_behind_certificates_and_passwords_is_used_by_whom_it_knows() {
    let mut cluster = EtcdCluster::secured().unwrap();
    let [ca, cert, key] = cluster.certificates().unwrap();
    let trusting = ServerAccess { ca_file: Some(ca), ..ServerAccess::default() };
    let known = ServerAccess { client_cert: Some(cert), client_key: Some(key), ..trusting.clone() };

    let strange = refused(&cluster, ServerAccess::default()).await;
    assert!(strange.kind == Trouble::Unfit && strange.message.contains("TENURE_CA_FILE"), "{strange}");
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
    let as_user = |user: &str| ServerAccess { user: Some(user.into()), ..known.clone() };

    let nobody = refused(&cluster, known.clone()).await;
    assert!(nobody.kind == Trouble::Denied && nobody.message.contains("TENURE_ETCD_USER"), "{nobody}");
    let wrong = refused(&cluster, as_user("app:canary2")).await;
    assert!(wrong.kind == Trouble::Denied && wrong.message.contains("TENURE_ETCD_USER"), "{wrong}");
    assert!(!wrong.message.contains("canary"), "{wrong}");
    let denied = refused(&cluster, as_user("guest:canary")).await;
    assert!(denied.kind == Trouble::Denied && denied.message.contains("readwrite on the prefix"), "{denied}");

    // The server's own certificate has a common name.
    let vault = known.ca_file.as_ref().and_then(|file| file.parent()).unwrap();
    let named = ServerAccess {
        client_cert: Some(vault.join("server.crt")),
        client_key: Some(vault.join("server.key")),
        ..as_user("app:canary")
    };
    let named = refused(&cluster, named).await;
    assert!(named.kind == Trouble::Denied && named.message.contains("without a common name"), "{named}");

    let store = Arc::new(connect(&cluster, as_user("app:canary")).await.unwrap());
    let [a, b] = [Actor::open(store.clone(), "a").await, Actor::open(store.clone(), "b").await];
    let (key, mut hints) = (election("e"), a.store.wakes());
    assert_eq!(hints.next().await, Some(Wake::Resync));
    a.stand(&key).await;
    b.stand(&key).await;
    let token = a.take(&key, 0).await;
    a.release(&key, 0, token).await;
    while !matches!(hints.next().await, Some(Wake::Released { .. })) {}

    // A token that etcd gave is known to nobody after it was started again, and after users were changed it is old.
    cluster.kill9(0).unwrap();
    cluster.start_again(0).unwrap();
    assert!(a.lives().await && b.take(&key, 0).await > token);
    cluster.etcdctl(&["user", "add", "another:canary"]).unwrap();
    assert!(a.lives().await && b.lives().await);
    drop(hints);
    // Whoever is not trusted any more is told.
    cluster.etcdctl(&["user", "revoke-role", "app", "tenure"]).unwrap();
    let denied = a.store.beat(&a.id).await.unwrap_err();
    assert_eq!(denied.kind, Trouble::Denied, "{denied}");
    let over = refused(&cluster, as_user("app")).await;
    assert_eq!(over.kind, Trouble::Denied, "{over}");
}
