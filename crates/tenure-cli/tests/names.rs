//! `tenure names` with real processes: on SQLite, through a server and over gossip.

#![allow(unreachable_pub, dead_code)]

mod support;

use std::process::{Child, Command, Stdio};

use support::{World, until};
use tenure_testkit::rig::free_port;

/// A process that holds a name until it is dropped.
struct Holder(Child);

impl Holder {
    fn start(command: &mut Command) -> Holder {
        Holder(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("tenure runs"))
    }

    fn end(mut self) -> Option<i32> {
        let status = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
        self.0.wait().expect("it ends").code()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn holder(world: &World) -> Option<String> {
    let found = world.run(&["names", "show", "printer", "-o", "json"]);
    let view: serde_json::Value = serde_json::from_slice(&found.stdout).ok()?;
    view["holder"].as_str().map(Into::into)
}

fn a_name_has_one_holder_and_moves(world: World) {
    assert_eq!(world.run(&["names", "show", "printer"]).status.code(), Some(75));
    let register = |id: &str, extra: &[&str]| {
        let address = format!("address={id}:631");
        let mut args =
            vec!["names", "register", "printer", "--name", id, "--metadata", &address, "--lease", "1500ms"];
        args.extend(extra);
        world.command(&args)
    };
    let first = Holder::start(&mut register("a", &[]));
    until("it is registered", || holder(&world).as_deref() == Some("a"), || world.logs());
    let refused = register("b", &[]).output().expect("tenure runs");
    assert_eq!(refused.status.code(), Some(75));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("registered by a"), "{refused:?}");
    let list = world.json(&["names", "list", "-o", "json"]);
    assert_eq!(list["names"][0]["metadata"]["address"], "a:631");
    let token = list["names"][0]["token"].as_u64().expect("a token");
    let second = Holder::start(&mut register("b", &["--wait", "1m"]));
    assert_eq!(first.end(), Some(0));
    until("it moved", || holder(&world).as_deref() == Some("b"), || world.logs());
    let list = world.json(&["names", "list", "-o", "json"]);
    assert!(list["names"][0]["token"].as_u64().expect("a token") > token);
    // An operator revokes the name.
    world.ok(&["elections", "pause", "printer", "--namespace", "names"]);
    until("the name is free", || holder(&world).is_none(), || world.logs());
    drop(second);
}

#[test]
fn on_sqlite_a_name_has_one_holder_and_moves() {
    a_name_has_one_holder_and_moves(World::sqlite());
}

#[test]
fn through_a_server_a_name_has_one_holder_and_moves() {
    a_name_has_one_holder_and_moves(World::http());
}

#[test]
fn over_gossip_a_name_is_visible_to_others_and_has_no_token() {
    let mut world = World::sqlite();
    let port = free_port().expect("a port");
    let quick = "round=50ms&silence_limit=1s&hold_down=300ms";
    world.store = format!("gossip:127.0.0.1:{port}?{quick}");
    let register = ["names", "register", "printer", "--name", "a", "--metadata", "zone=1"];
    let held = Holder::start(&mut world.command(&register));
    let mut other = World::sqlite();
    other.store = format!("gossip:127.0.0.1:0?seed=127.0.0.1:{port}&{quick}");
    until("other members see it", || holder(&other).as_deref() == Some("a"), || other.logs());
    let list = other.json(&["names", "list", "-o", "json"]);
    assert!(list["names"][0].get("token").is_none(), "{list}");
    assert_eq!(list["names"][0]["metadata"]["zone"], "1");
    let refused = other.run(&["names", "register", "printer", "--name", "b"]);
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    assert_eq!(held.end(), Some(0));
}
