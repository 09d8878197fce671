//! `tenure raft`: members of a Raft cluster, through its servers.

use tenure_testkit::rig::free_port;

use super::support::{Server, World, until};

fn status(world: &World, through: &str) -> serde_json::Value {
    world.json(&["raft", "status", "--store", through, "-o", "json"])
}

/// The front page.
fn page(server: &str) -> String {
    use std::io::{Read, Write};
    let address = server.trim_start_matches("http://");
    let mut stream = std::net::TcpStream::connect(address).expect("connected");
    let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn members_are_added_and_removed_and_leadership_is_transferred_through_any_server() {
    let world = World::raft();
    let server = world.members[0].url.clone();
    let before = status(&world, &server);
    assert_eq!(before["members"].as_array().map(Vec::len), Some(3), "{before}");
    let leader = before["leader"].as_u64().expect("a leader");
    let next = 1 + leader % 3;
    world.ok(&["raft", "transfer-leader", &next.to_string(), "--store", &server]);
    assert_eq!(status(&world, &world.store.clone())["leader"], next);
    let page = page(&server);
    assert!(page.contains(&format!("Leader: node {next}")) && page.contains("Voter"), "{page}");

    let place = format!("127.0.0.1:{}", free_port().expect("a port"));
    let peers = world.store.split_once("peers=").expect("peers").1.to_owned();
    let store = format!("raft:{}?node=4&peers={peers},4@{place}", world.path("member4").display());
    let fourth = std::thread::scope(|scope| {
        let (world, store) = (&world, &store);
        let starting = scope.spawn(move || {
            Server::start_with(world, "member4", &["--listen", "127.0.0.1:0"], &[("TENURE_STORE", store)])
        });
        until(
            "the member is added",
            || world.run(&["raft", "add-member", "4", &place, "--store", &server]).status.success(),
            || world.logs(),
        );
        starting.join().expect("a member")
    });
    let after = status(&world, &fourth.url);
    let votes = |node: u64| {
        let members = after["members"].as_array().expect("members");
        members.iter().find(|member| member["node_id"] == node).map(|member| member["voter"].clone())
    };
    assert_eq!(votes(4), Some(true.into()), "{after}");
    world.ok(&["raft", "remove-member", "4", "--store", &server]);
    until(
        "the member is removed",
        || status(&world, &server)["members"].as_array().map(Vec::len) == Some(3),
        || world.logs(),
    );
}

#[test]
fn invalid_raft_commands_are_rejected_with_advice() {
    let sqlite = World::sqlite();
    let output = sqlite.run(&["raft", "status"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    assert!(stderr.contains("raft:?peers="), "{stderr}");

    let http = World::http();
    let output = http.run(&["raft", "status"]);
    assert_eq!(output.status.code(), Some(64), "{}", String::from_utf8_lossy(&output.stderr));

    let raft = World::raft();
    let server = raft.members[0].url.clone();
    for (args, part) in [
        (&["raft", "transfer-leader", "9"][..], "choose one of"),
        (&["raft", "remove-member", "9"], "not a member"),
        (&["raft", "add-member", "9", "nowhere"], "HOST:PORT"),
        (&["raft", "add-member", "1", "127.0.0.1:1"], "already"),
    ] {
        let output = raft.run(&[args, &["--store", &server]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains(part), "{args:?}: {stderr}");
    }
}
