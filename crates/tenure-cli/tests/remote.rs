//! Clients of failing servers, with real processes: they keep their leases.

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
use tenure::{BootInstant, Elector, Leadership, Tenure};

/// Leads its own election through servers.
struct Holder {
    tenure: Tenure,
    /// Campaigns while this value lives.
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

    /// Whether its last successful heartbeat was sent after this instant.
    fn has_beaten_since(&self, moment: BootInstant) -> bool {
        self.tenure.trusted_until() > moment + self.tenure.timing().trust()
    }
}

/// Waits until every holder had a successful heartbeat after `moment`. Fails if a holder loses its lease.
async fn all_beat_on(holders: &[Holder], moment: BootInstant, world: &World) {
    for holder in holders {
        let name = &holder.name;
        while !holder.has_beaten_since(moment) {
            assert!(
                holder.leadership.is_leader(),
                "{name} lost its lease: {:?}\n{}",
                holder.tenure.last_error(),
                world.logs()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(holder.leadership.is_leader(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_keep_their_leases_while_servers_hang_and_die() {
    let world = World::postgres();
    let mut servers = Vec::from(["a", "b", "c"].map(|name| Server::start(&world, name)));
    let urls: Vec<_> = servers.iter().map(|server| server.url.clone()).collect();
    let all = urls.join(",");
    let mut holders = Vec::new();
    for n in 0..6 {
        holders.push(Holder::elected(&all, &format!("holder-{n}")).await);
    }
    // The next holders know only one server and learn the addresses of the others from it.
    until("the servers know one another", || plain::replicas(&urls[0]) == 3, || world.logs());
    for (n, url) in urls.iter().enumerate() {
        holders.push(Holder::elected(url, &format!("told-of-{n}")).await);
    }
    let tokens: Vec<_> = holders.iter().map(|holder| holder.leadership.token()).collect();
    let plain = Plain::campaign(&urls, "plain");
    let load = Load::on(&urls);

    // One server hangs: its kernel accepts connections, but nothing answers.
    servers[0].signal("STOP");
    let stopped = now();
    all_beat_on(&holders, stopped, &world).await;
    plain.until_renewed_since(stopped);
    // A second server dies; only the third is left.
    let mut killed = servers.remove(1);
    killed.signal("KILL");
    killed.process.wait().expect("it is gone");
    let dead = now();
    all_beat_on(&holders, dead, &world).await;
    plain.until_renewed_since(dead);
    // The hanging server continues and the third one dies.
    servers[0].signal("CONT");
    until("it answers again", || plain::replicas(&urls[0]) > 0, || world.logs());
    servers[1].signal("KILL");
    let dead = now();
    all_beat_on(&holders, dead, &world).await;
    plain.until_renewed_since(dead);

    load.stop();
    for (holder, token) in holders.iter().zip(tokens) {
        let shown = world.json(&["elections", "show", &holder.name, "-o", "json"]);
        assert_eq!(shown["leaders"][0]["token"].as_u64(), Some(token.as_u64()), "{shown}");
        assert_eq!(shown["terms"].as_array().map(Vec::len), Some(1), "a single term: {shown}");
    }
    assert_eq!(
        world.json(&["elections", "show", "plain", "-o", "json"])["leaders"][0]["token"].as_u64(),
        Some(plain.token)
    );
}

/// Readers that query all servers for leaders continuously.
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
                    // A server may be down.
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

/// A leader that exits cleanly hands over at once, even to a candidate on another server.
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
    // The candidate with the higher priority preempts the leader, whose work is done.
    drop(next);
    let best = third.elected().await.unwrap();
    assert!(best.token() > token);
    let shown = world.json(&["elections", "show", "nightly", "-o", "json"]);
    assert_eq!(shown["leader"], "n0");
}

#[test]
fn a_unix_socket_serves_as_well() {
    let mut world = World::sqlite();
    let path = format!("unix:{}", world.path("t.sock").display());
    let server = Server::start_with(&world, "socket", &["--listen", &path], &[]);
    world.store = format!("http+unix:{}", world.path("t.sock").display());
    assert_eq!(world.run(&["run", "n", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    assert!(world.ok(&["elections", "list"]).contains('n'));
    drop(server);
    let gone = world.run(&["elections", "list"]);
    assert_eq!(gone.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&gone.stderr).contains("t.sock"));
}

#[test]
fn server_errors_are_reported() {
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
        (&stranger.url, 64, &["text/html"]),
        (&gibberish.url, 69, &["HTTP", "https://"]),
        (&newer.url, 69, &["9.0.0", "upgrade this program"]),
        ("http+unix:relative.sock", 64, &["absolute"]),
    ];
    for (url, code, words) in cases {
        let output = world.run(&["elections", "list", "--store", url]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{url}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{url} should say {words:?}: {text}");
        assert!(!text.contains("canary"), "a secret was printed: {text}");
    }
    let open = world
        .command(&["elections", "list", "--store", "http://192.0.2.1:1"])
        .env("TENURE_ACCESS_TOKEN", "canary")
        .output();
    let text = String::from_utf8_lossy(&open.unwrap().stderr).into_owned();
    assert!(text.contains("https://") && !text.contains("canary"), "{text}");
}

#[test]
fn access_tokens_authorize_requests() {
    let mut world = World::sqlite();
    let token = |name: &str, grant: &str| {
        world.ok(&["credentials", "create", "--name", name, "--grant", grant]).trim().to_owned()
    };
    let (ops, worker) = (token("ops", "*:admin"), token("worker", "default:read,lead"));
    let server = Server::start_with(&world, "guarded", &["--listen", "127.0.0.1:0", "--auth"], &[]);
    world.store = server.url.clone();
    let as_principal = |token: &str, args: &[&str]| {
        let output = world.command(args).env("TENURE_ACCESS_TOKEN", token).output().expect("tenure runs");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let anonymous = world.run(&["elections", "list"]);
    assert_eq!(anonymous.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&anonymous.stderr).contains("$TENURE_ACCESS_TOKEN"));
    assert_eq!(as_principal(&worker, &["run", "n", "--", "sh", "-c", "exit 7"]).0, Some(7));
    assert_eq!(as_principal(&worker, &["elections", "list"]).0, Some(0));
    let (code, _, told) = as_principal(&worker, &["run", "n", "--namespace", "prod", "--", "true"]);
    assert_eq!(code, Some(69), "{told}");
    assert!(told.contains("prod"), "{told}");
    let (code, _, told) = as_principal(&worker, &["elections", "pause", "n"]);
    assert_eq!(code, Some(69), "{told}");
    // Credentials can be managed through the server, which never returns a digest.
    let (code, made, told) =
        as_principal(&ops, &["credentials", "create", "--name", "late", "--grant", "default:read"]);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(as_principal(made.trim(), &["elections", "list"]).0, Some(0));
    let (code, _, told) = as_principal(&ops, &["credentials", "revoke", "late"]);
    assert_eq!(code, Some(0), "{told}");
    until(
        "the revoked access token is rejected",
        || as_principal(made.trim(), &["elections", "list"]).0 == Some(69),
        String::new,
    );
    assert_eq!(as_principal(&worker, &["credentials", "list"]).0, Some(69));
    // An access token in a file.
    std::fs::write(world.path("token"), format!("{worker}\n")).unwrap();
    let file = world
        .command(&["elections", "list"])
        .env("TENURE_ACCESS_TOKEN_FILE", world.path("token"))
        .output()
        .unwrap();
    assert_eq!(file.status.code(), Some(0));
}
