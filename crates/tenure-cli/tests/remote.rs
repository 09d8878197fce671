//! Clients of servers that die, with real processes: what they hold, they keep.

#![allow(unreachable_pub, dead_code)]

#[path = "remote/plain.rs"]
mod plain;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plain::Plain;
use support::{Server, World, until};
use tenure::runtime::now;
use tenure::{Elector, Leadership, Moment, Tenure};

/// Leads one election of its own, through servers.
struct Holder {
    tenure: Tenure,
    /// Stands for as long as this lives.
    _elector: Elector,
    leadership: Leadership,
    name: String,
}

impl Holder {
    async fn elected(url: &str, name: &str) -> Holder {
        let tenure = Tenure::builder().url(url).name(name).open().await.expect("a session");
        let elector = tenure.elector(name).start().await.expect("a candidate");
        let leadership = elector.elected().await.expect("a leadership");
        Holder { tenure, _elector: elector, leadership, name: name.to_owned() }
    }

    /// Whether the trust that it has comes from a beat that was sent after this moment.
    fn has_beaten_since(&self, moment: Moment) -> bool {
        self.tenure.trusted_until() > moment + self.tenure.timing().trust()
    }
}

/// Waits until every holder lives on beats that were sent after `moment`, and none lost what it held on the way there.
async fn all_beat_on(holders: &[Holder], moment: Moment, world: &World) {
    for holder in holders {
        let name = &holder.name;
        while !holder.has_beaten_since(moment) {
            assert!(
                holder.leadership.is_leader(),
                "{name} lost what it held: {:?}\n{}",
                holder.tenure.trouble(),
                world.logs()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(holder.leadership.is_leader(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_keep_what_they_hold_while_servers_hang_and_die() {
    let world = World::postgres();
    let mut servers = Vec::from(["a", "b", "c"].map(|name| Server::start(&world, name)));
    let urls: Vec<_> = servers.iter().map(|server| server.url.clone()).collect();
    let all = urls.join(",");
    let mut holders = Vec::new();
    for n in 0..6 {
        holders.push(Holder::elected(&all, &format!("holder-{n}")).await);
    }
    // These were told of one server only, and hear of the others from it.
    until("the servers know one another", || plain::replicas(&urls[0]) == 3, || world.logs());
    for (n, url) in urls.iter().enumerate() {
        holders.push(Holder::elected(url, &format!("told-of-{n}")).await);
    }
    let tokens: Vec<_> = holders.iter().map(|holder| holder.leadership.token()).collect();
    let plain = Plain::campaign(&urls, "plain");
    let load = Load::on(&urls);

    // One hangs: its kernel accepts connections, and nothing answers.
    servers[0].signal("STOP");
    let stopped = now();
    all_beat_on(&holders, stopped, &world).await;
    plain.until_renewed_since(stopped);
    // Another dies. All that is left is the third.
    let mut killed = servers.remove(1);
    killed.signal("KILL");
    killed.process.wait().expect("it is gone");
    let dead = now();
    all_beat_on(&holders, dead, &world).await;
    plain.until_renewed_since(dead);
    // And the one that hung comes back, the third one dies.
    servers[0].signal("CONT");
    until("it answers again", || plain::replicas(&urls[0]) > 0, || world.logs());
    servers[1].signal("KILL");
    let dead = now();
    all_beat_on(&holders, dead, &world).await;
    plain.until_renewed_since(dead);

    load.stop();
    for (holder, token) in holders.iter().zip(tokens) {
        let shown = world.json(&["leader", "show", &holder.name, "-o", "json"]);
        assert_eq!(shown["leaders"][0]["token"].as_u64(), Some(token.as_u64()), "{shown}");
        assert_eq!(
            shown["terms"].as_array().map(Vec::len),
            Some(1),
            "one term, from the beginning to now: {shown}"
        );
    }
    assert_eq!(
        world.json(&["leader", "show", "plain", "-o", "json"])["leaders"][0]["token"].as_u64(),
        Some(plain.token)
    );
}

/// Readers that ask all servers for leaders as fast as they answer.
struct Load {
    over: Arc<AtomicBool>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Load {
    fn on(urls: &[String]) -> Load {
        let over = Arc::new(AtomicBool::new(false));
        let reader = |url: &String| {
            let (url, over) = (url.clone(), over.clone());
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    // A server that is down answers nothing; that is what this test is about.
                    if plain::call(&url, "GET", "/v1/elections/holder-0/leader", None).is_err() {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                }
            })
        };
        Load { readers: urls.iter().map(reader).collect(), over }
    }

    fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        self.readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
    }
}

/// A leader that ends in good order hands over at once, also when another replica serves the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_change_across_servers() {
    let world = World::postgres();
    let servers = ["a", "b"].map(|name| Server::start(&world, name));
    let open =
        async |n: usize| Tenure::builder().url(&servers[n].url).name(format!("n{n}")).open().await.unwrap();
    let (a, b) = (open(0).await, open(1).await);
    let first = a.elector("nightly").priority(1).start().await.unwrap();
    let leadership = first.elected().await.unwrap();
    let second = b.elector("nightly").start().await.unwrap();
    let token = leadership.token();
    drop(leadership);
    a.close().await.unwrap();
    let next = second.elected().await.unwrap();
    assert!(next.token() > token);
    let c = open(0).await;
    let third = c.elector("nightly").priority(9).start().await.unwrap();
    // The higher priority asks, and the leader, whose work is done, makes way.
    drop(next);
    let best = third.elected().await.unwrap();
    assert!(best.token() > token);
    let shown = world.json(&["leader", "show", "nightly", "-o", "json"]);
    assert_eq!(shown["leader"], "n0");
}

#[test]
fn a_unix_socket_serves_as_well() {
    let mut world = World::sqlite();
    let path = format!("unix:{}", world.path("t.sock").display());
    let server = Server::start_with(&world, "socket", &["--listen", &path], &[]);
    world.store = format!("http+unix:{}", world.path("t.sock").display());
    assert_eq!(world.run(&["run", "n", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert!(world.ok(&["leader", "list"]).contains('n'));
    drop(server);
    let gone = world.run(&["leader", "list"]);
    assert_eq!(gone.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("t.sock"));
}

#[test]
fn what_is_wrong_with_a_server_is_said() {
    let world = World::sqlite();
    let stranger = plain::Stranger::start(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
    );
    let gibberish = plain::Stranger::start("SSH-2.0-OpenSSH_9.9\r\n");
    let hello = r#"{"version":"9.0.0","protocol":99}"#;
    let newer = plain::Stranger::start(&format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{hello}",
        hello.len()
    ));
    let cases: [(&str, i32, &[&str]); 7] = [
        ("http://127.0.0.1:1", 69, &["http://127.0.0.1:1", "check that it runs"]),
        ("http://u:canary@127.0.0.1:1", 64, &["TENURE_ACCESS_TOKEN"]),
        ("http://127.0.0.1:1/tenure", 64, &["http://HOST:PORT"]),
        (&stranger.url, 64, &["no Tenure server", "text/html"]),
        (&gibberish.url, 69, &["does not speak HTTP", "https://"]),
        (&newer.url, 69, &["9.0.0", "upgrade this program"]),
        ("http+unix:relative.sock", 64, &["absolute"]),
    ];
    for (url, code, words) in cases {
        let output = world.run(&["leader", "list", "--store", url]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{url}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{url} should say {words:?}: {text}");
        assert!(!text.contains("canary"), "a secret was printed: {text}");
    }
    let open = world
        .command(&["leader", "list", "--store", "http://192.0.2.1:1"])
        .env("TENURE_ACCESS_TOKEN", "canary")
        .output();
    let text = String::from_utf8_lossy(&open.unwrap().stderr).into_owned();
    assert!(text.contains("https://") && !text.contains("canary"), "{text}");
}

#[test]
fn tokens_open_the_door() {
    let mut world = World::sqlite();
    let token = |name: &str, grant: &str| {
        world.ok(&["token", "create", "--name", name, "--grant", grant]).trim().to_owned()
    };
    let (ops, worker) = (token("ops", "*:admin"), token("worker", "default:read,lead"));
    let server = Server::start_with(&world, "guarded", &["--listen", "127.0.0.1:0", "--auth"], &[]);
    world.store = server.url.clone();
    let as_whom = |token: &str, args: &[&str]| {
        let output = world.command(args).env("TENURE_ACCESS_TOKEN", token).output().expect("tenure runs");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let nobody = world.run(&["leader", "list"]);
    assert_eq!(nobody.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("$TENURE_ACCESS_TOKEN"));
    assert_eq!(as_whom(&worker, &["run", "n", "--", "sh", "-c", "exit 7"]).0, Some(7));
    assert_eq!(as_whom(&worker, &["leader", "list"]).0, Some(0));
    let (code, _, told) = as_whom(&worker, &["run", "n", "--namespace", "prod", "--", "true"]);
    assert_eq!(code, Some(69), "{told}");
    assert!(told.contains("prod"), "{told}");
    let (code, _, told) = as_whom(&worker, &["leader", "pause", "n"]);
    assert_eq!(code, Some(69), "{told}");
    // What is done to tokens through the server is done by whoever does it, and a digest never leaves it.
    let (code, made, told) = as_whom(&ops, &["token", "create", "--name", "late", "--grant", "default:read"]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(as_whom(made.trim(), &["leader", "list"]).0, Some(0));
    let (code, _, told) = as_whom(&ops, &["token", "revoke", "late"]);
    assert_eq!(code, Some(0), "{told}");
    until(
        "the revoked token is worth nothing",
        || as_whom(made.trim(), &["leader", "list"]).0 == Some(69),
        String::new,
    );
    assert_eq!(as_whom(&worker, &["token", "list"]).0, Some(69));
    // A token in a file, too.
    std::fs::write(world.path("token"), format!("{worker}\n")).unwrap();
    let file = world
        .command(&["leader", "list"])
        .env("TENURE_ACCESS_TOKEN_FILE", world.path("token"))
        .output()
        .unwrap();
    assert_eq!(file.status.code(), Some(0));
}
