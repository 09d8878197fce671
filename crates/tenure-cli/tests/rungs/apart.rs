//! Three servers elect in one store and keep their work in PostgreSQL: what a stopped leader writes is refused there.

use tenure_testkit::rig::{EtcdCluster, KubeApi, free_port};

use super::support::{Server, World, until};

const CLAIMS: &str = "namespace = 'tenure' AND name = 'claims' AND slot = 0";

/// Who holds the claims' lease where the work is.
fn held(world: &World) -> Option<(u64, String)> {
    let row =
        world.psql(&format!("SELECT token || ' ' || session FROM tenure.leases WHERE {CLAIMS}")).ok()?;
    let (token, session) = row.split_once(' ')?;
    Some((token.parse().ok()?, session.to_owned()))
}

fn guard(world: &World, (token, session): &(u64, String)) -> Result<String, String> {
    world.psql(&format!("SELECT tenure.guard('tenure', 'claims', 0, {token}, '{session}')"))
}

/// `elect` is the elector's address for each of the three, and for everybody else; `granted` is the token that the elector itself has granted last, if
/// it can be seen from outside.
fn a_stopped_leader_is_refused_by_the_database(
    elect: [String; 3],
    for_all: &str,
    granted: Option<&dyn Fn() -> Option<u64>>,
) {
    let world = World::postgres();
    let servers = std::thread::scope(|scope| {
        let start = |(name, elect): (&'static str, &'static str)| {
            let world = &world;
            let args = ["--listen", "127.0.0.1:0", "--lease", "2s", "--elect", elect];
            scope.spawn(move || (name, Server::start_with(world, name, &args, &[])))
        };
        let elect = elect.map(|url| &*url.leak());
        let starting = [("a", elect[0]), ("b", elect[1]), ("c", elect[2])].map(start);
        starting.map(|server| server.join().expect("a server"))
    });
    let show = || {
        world.run(&["leader", "show", "claims", "--namespace", "tenure", "--elect", for_all, "-o", "json"])
    };
    let shown = || serde_json::from_slice::<serde_json::Value>(&show().stdout).unwrap_or_default();
    let standing = || shown()["candidates"].as_array().map_or(0, Vec::len);
    until("all three stand", || standing() == 3, || world.logs());
    until("one of them leads where the work is", || held(&world).is_some(), || world.logs());
    let old = held(&world).expect("a leader");
    assert_eq!(
        world.psql("SELECT count(*) FROM tenure.elections").unwrap(),
        "0",
        "nobody stands in the database"
    );
    guard(&world, &old).expect("who leads writes");
    let leader = shown()["leader"].as_str().expect("somebody leads").to_owned();
    let (_, stopped) = servers.iter().find(|(name, _)| *name == leader).expect("one of the three");
    stopped.signal("STOP");
    until("the next one leads", || held(&world).is_some_and(|new| new.0 > old.0), || world.logs());
    let new = held(&world).expect("a leader");
    assert_ne!(new.1, old.1);
    let refused = guard(&world, &old).expect_err("a write of who was stopped is refused");
    assert!(refused.contains("does not hold"), "{refused}");
    guard(&world, &new).expect("who leads writes");
    stopped.signal("CONT");
    // It finds out, and stands again under another session; meanwhile nothing of its own has come back.
    until("all three stand", || standing() == 3, || world.logs());
    assert!(held(&world).is_some_and(|now| now.0 >= new.0));
    assert!(guard(&world, &old).is_err());
    if let Some(granted) = granted {
        let same = || granted().is_some_and(|token| held(&world).is_some_and(|now| now.0 == token));
        until("the database is fenced by the elector's own token", same, || world.logs());
    }
}

#[test]
fn elected_by_etcd() {
    let etcd = EtcdCluster::start().expect("etcd");
    let url = etcd.url();
    a_stopped_leader_is_refused_by_the_database([url.clone(), url.clone(), url.clone()], &url, None);
}

/// The token that fences in the database is the Lease's own count of its transitions.
#[test]
fn elected_by_kubernetes() {
    let api = KubeApi::start().expect("an API server");
    let url = api.url("prod");
    let granted =
        || api.lease("prod", "claims--ns-tenure")?["spec"]["leaseTransitions"].as_u64().map(|n| n + 1);
    a_stopped_leader_is_refused_by_the_database(
        [url.clone(), url.clone(), url.clone()],
        &url,
        Some(&granted),
    );
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
    a_stopped_leader_is_refused_by_the_database([member(1), member(2), member(3)], &for_all, None);
}

#[test]
fn what_can_not_be_apart_says_so() {
    let world = World::sqlite();
    let refused = |args: &[&str], part: &str| {
        let output = world.run(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{args:?}: {said}");
        assert!(said.contains(part), "{args:?}: {said}");
    };
    let store = world.store.clone();
    refused(&["leader", "list", "--elect", &store], "leave out --elect");
    refused(&["serve", "--listen", "127.0.0.1:0", "--elect", "memory:"], "forgets");
    refused(&["run", "nightly", "--and-store", &store, "--", "true"], "--and-store is --store");
    refused(
        &["run", "nightly", "--elect", "memory:", "--takeover", "connection", "--", "true"],
        "needs PostgreSQL",
    );
}
