//! Three servers with a separate election store and data in PostgreSQL: the database rejects writes of a stopped
//! broker.

use tenure_testkit::rig::{EtcdCluster, KubeApi, free_port};

use super::support::{Server, World, until};

const BROKER: &str = "namespace = 'tenure' AND election = 'broker' AND slot = 0";

/// Token and session of the broker in the database.
fn held(world: &World) -> Option<(u64, String)> {
    let row =
        world.psql(&format!("SELECT token || ' ' || session FROM tenure.leases WHERE {BROKER}")).ok()?;
    let (token, session) = row.split_once(' ')?;
    Some((token.parse().ok()?, session.to_owned()))
}

fn guard(world: &World, (token, session): &(u64, String)) -> Result<String, String> {
    world.psql(&format!("SELECT tenure.guard('tenure', 'broker', 0, {token}, '{session}')"))
}

/// `elect` has the election store URLs of the three servers, `for_all` that of other processes. `granted` returns the
/// last token granted by the election store, if it can be read from outside.
fn the_database_rejects_a_stopped_broker(
    elect: [String; 3],
    for_all: &str,
    granted: Option<&dyn Fn() -> Option<u64>>,
) {
    let world = World::postgres();
    let servers = std::thread::scope(|scope| {
        let start = |(name, elect): (&'static str, &'static str)| {
            let world = &world;
            let args = ["--listen", "127.0.0.1:0", "--lease", "2s", "--election-store", elect];
            scope.spawn(move || (name, Server::start_with(world, name, &args, &[])))
        };
        let elect = elect.map(|url| &*url.leak());
        let starting = [("a", elect[0]), ("b", elect[1]), ("c", elect[2])].map(start);
        starting.map(|server| server.join().expect("a server"))
    });
    let show = || {
        world.run(&[
            "elections",
            "show",
            "broker",
            "--namespace",
            "tenure",
            "--election-store",
            for_all,
            "-o",
            "json",
        ])
    };
    let shown = || serde_json::from_slice::<serde_json::Value>(&show().stdout).unwrap_or_default();
    let standing = || shown()["candidates"].as_array().map_or(0, Vec::len);
    until("all three are candidates", || standing() == 3, || world.logs());
    until("one of them is the broker in the database", || held(&world).is_some(), || world.logs());
    let old = held(&world).expect("a leader");
    assert_eq!(
        world.psql("SELECT count(*) FROM tenure.elections").unwrap(),
        "0",
        "the database has no elections"
    );
    guard(&world, &old).expect("the broker may write");
    let leader = shown()["leader"].as_str().expect("a leader").to_owned();
    let (_, stopped) = servers.iter().find(|(name, _)| *name == leader).expect("one of the three");
    stopped.signal("STOP");
    until("another server is the broker", || held(&world).is_some_and(|new| new.0 > old.0), || world.logs());
    let new = held(&world).expect("a leader");
    assert_ne!(new.1, old.1);
    let refused = guard(&world, &old).expect_err("a write of the stopped broker is rejected");
    assert!(refused.contains("does not hold"), "{refused}");
    guard(&world, &new).expect("the broker may write");
    stopped.signal("CONT");
    // It rejoins under another session; its old token stays rejected.
    until("all three are candidates", || standing() == 3, || world.logs());
    assert!(held(&world).is_some_and(|now| now.0 >= new.0));
    assert!(guard(&world, &old).is_err());
    if let Some(granted) = granted {
        let same = || granted().is_some_and(|token| held(&world).is_some_and(|now| now.0 == token));
        until("the token in the database is that of the election store", same, || world.logs());
    }
}

#[test]
fn elected_by_etcd() {
    let etcd = EtcdCluster::start().expect("etcd");
    let url = etcd.url();
    the_database_rejects_a_stopped_broker([url.clone(), url.clone(), url.clone()], &url, None);
}

/// The token in the database is the number of transitions of the Lease object.
#[test]
fn elected_by_kubernetes() {
    let api = KubeApi::start().expect("an API server");
    let url = api.url("prod");
    let granted =
        || api.lease("prod", "broker--ns-tenure")?["spec"]["leaseTransitions"].as_u64().map(|n| n + 1);
    the_database_rejects_a_stopped_broker([url.clone(), url.clone(), url.clone()], &url, Some(&granted));
}

#[test]
fn elected_by_the_servers_themselves() {
    let folder = tempfile::tempdir().expect("a folder");
    let places = [1, 2, 3].map(|node| format!("{node}@127.0.0.1:{}", free_port().expect("a port")));
    let peers = places.join(",");
    let member = |node: u32| {
        let folder = folder.path().join(node.to_string());
        format!("raft:{}?node={node}&peers={peers}", folder.display())
    };
    let for_all = format!("raft:?peers={peers}");
    the_database_rejects_a_stopped_broker([member(1), member(2), member(3)], &for_all, None);
}

#[test]
fn invalid_election_stores_are_rejected() {
    let world = World::sqlite();
    let refused = |args: &[&str], part: &str| {
        let output = world.run(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    };
    let store = world.store.clone();
    refused(&["elections", "list", "--election-store", &store], "--election-store");
    refused(&["serve", "--listen", "127.0.0.1:0", "--election-store", "memory:"], "loses all leases");
    refused(
        &["run", "nightly", "--second-store", &store, "--", "true"],
        "--second-store and --store are the same",
    );
    refused(
        &["run", "nightly", "--election-store", "memory:", "--takeover", "connection", "--", "true"],
        "needs PostgreSQL",
    );
}
