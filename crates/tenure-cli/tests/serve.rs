//! `tenure serve`: output, rejected options, shutdown and secrets.

#![allow(dead_code, unreachable_pub)]

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use tenure::port::{Credential, CredentialVerifier};
use tenure::store::{self, StoreOptions};
use tenure_server::access::access_token::AccessToken;
use tenure_testkit::block_on;
use tenure_testkit::rig::PgCluster;

use support::{World, until};

/// A `tenure serve` process. Killed when dropped.
struct Serving {
    process: Child,
    out: std::path::PathBuf,
    err: std::path::PathBuf,
}

fn serve(world: &World, args: &[&str]) -> Serving {
    let mut command = world.command(&["serve"]);
    command.args(args);
    spawn(world, command)
}

fn spawn(world: &World, mut command: Command) -> Serving {
    let name = format!("serve-{:x}", tenure::runtime::random());
    let (out, err) = (world.path(&format!("{name}.out")), world.path(&format!("{name}.log")));
    command.stdout(File::create(&out).expect("a file")).stderr(File::create(&err).expect("a file"));
    Serving { process: command.spawn().expect("tenure runs"), out, err }
}

impl Serving {
    fn output_text(&self) -> String {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        format!("{}{}", read(&self.out), read(&self.err))
    }

    /// The printed address.
    fn address(&self) -> String {
        let find = || {
            let said = std::fs::read_to_string(&self.out).unwrap_or_default();
            let start = said.find("http://")? + "http://".len();
            Some(said[start..].split_whitespace().next()?.trim_end_matches(['"', ']', ',']).to_owned())
        };
        until("it listens", || find().is_some(), || self.output_text());
        find().expect("an address")
    }

    fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.process.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    fn code(&mut self) -> Option<i32> {
        until("it ends", || self.process.try_wait().expect("waiting").is_some(), String::new);
        self.process.wait().expect("waiting").code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a raw request. Returns the whole response.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(address: &str, path: &str, headers: &str) -> String {
    ask(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n"))
}

#[test]
fn it_prints_its_address_and_an_example_and_shuts_down_cleanly() {
    let world = World::sqlite();
    let mut serving = serve(&world, &["--listen", "127.0.0.1:0", "--name", "node-1"]);
    let address = serving.address();
    assert!(get(&address, "/healthz", "").starts_with("HTTP/1.1 200 "));
    let said = serving.output_text();
    assert!(said.contains(&format!("tenure run hello --store http://{address}")), "{said}");
    let replicas = get(&address, "/v1/replicas", "");
    assert!(replicas.contains("node-1") && replicas.contains(&address), "{replicas}");
    serving.signal("TERM");
    assert_eq!(serving.code(), Some(0), "{}", serving.output_text());
    assert!(!serving.output_text().contains("cut off"), "{}", serving.output_text());
    // It has left the coordinator election.
    let left = world.json(&["elections", "show", "coordinator", "--namespace", "tenure", "-o", "json"]);
    assert_eq!(left["leader"], serde_json::Value::Null, "{left}");
}

#[test]
fn a_second_signal_stops_it_at_once() {
    let world = World::sqlite();
    let mut serving = serve(&world, &["--listen", "127.0.0.1:0", "--drain-timeout", "1h"]);
    let address = serving.address();
    // A request that stays open until its own timeout.
    let mut half = TcpStream::connect(&address).expect("connected");
    let head = format!(
        "POST /internal/v1/sessions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
    );
    half.write_all(head.as_bytes()).expect("sent");
    assert!(get(&address, "/healthz", "").starts_with("HTTP/1.1 200 "));
    serving.signal("INT");
    until("it drains", || serving.output_text().contains("shutting down"), || serving.output_text());
    serving.signal("INT");
    assert_eq!(serving.code(), Some(0), "{}", serving.output_text());
    assert!(serving.output_text().contains("stopping at once"), "{}", serving.output_text());
}

#[test]
fn invalid_listen_options_are_rejected_with_advice() {
    let world = World::sqlite();
    let running = serve(&world, &["--listen", "127.0.0.1:0"]);
    let address = running.address();
    let none = world.path("none.pem");
    let none = none.to_str().expect("a path");
    let tls = ["--listen", "0.0.0.0:0", "--auth", "--tls-cert", none, "--tls-key", none];
    let cases: [(&[&str], i32, &str); 7] = [
        (&["--listen", &address], 125, "in use"),
        (&["--listen", "0.0.0.0:0"], 64, "--tls-cert"),
        (&["--listen", "0.0.0.0:0", "--auth"], 64, "tenure credentials create"),
        (&tls, 125, "none.pem"),
        (&["--listen", "nonsense"], 64, "nonsense"),
        (&["--tls-cert", none], 64, "--tls-key"),
        (&["--socket-mode", "777"], 64, "600"),
    ];
    for (args, code, part) in cases {
        let output = world.command(&["serve"]).args(args).stdin(Stdio::null()).output().expect("tenure runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(part), "{args:?}: {said}");
    }
}

#[test]
fn a_database_without_tables_is_an_error() {
    let cluster = PgCluster::shared().expect("a cluster");
    let name = format!("empty_{:x}", tenure::runtime::random());
    let mut world = World::sqlite();
    world.store = cluster.create_database(&name).expect("a database");
    let output = world.run(&["serve", "--listen", "127.0.0.1:0"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains("tenure migrate up"), "{said}");
}

/// Creates a credential. Returns its access token.
fn principal(url: &str, name: &str, grant: &str) -> AccessToken {
    let token = AccessToken::generate(tenure::runtime::random);
    let credential = Credential {
        id: token.id.clone(),
        name: name.into(),
        verifier: CredentialVerifier::AccessToken { digest: token.digest.clone() },
        grants: vec![grant.parse().expect("a grant")],
        created_at_ms: tenure::runtime::wall_ms(),
        created_by: "the test".into(),
        expires_at_ms: None,
        revoked_at_ms: None,
    };
    block_on(async {
        let options = StoreOptions { url: url.into(), ..StoreOptions::default() };
        store::open(&options).await.expect("a store").put_credential(&credential).await.expect("kept");
    });
    token
}

#[test]
fn no_secret_reaches_a_log_or_a_response() {
    let cluster = PgCluster::builder().password("canary-password").start().expect("a cluster");
    let mut world = World::sqlite();
    world.store = cluster.url();
    assert!(world.store.contains("canary-password"));
    world.ok(&["migrate", "up"]);
    let admin = principal(&world.store, "ops", "*:admin");
    let secret = admin.text.rsplit('_').next().expect("a secret").to_owned();
    let wrong = format!("tenure_{}_{}", admin.id, "c0ffee".repeat(11).get(..64).expect("long enough"));
    let canaries = [secret.as_str(), &admin.digest, "c0ffeec0ffee", "canary-password"];

    for format in ["text", "json"] {
        let mut command =
            world.command(&["serve", "--listen", "127.0.0.1:0", "--auth", "-vv", "--log-format", format]);
        command.env("TENURE_LOG_FILTER", "trace");
        let mut serving = spawn(&world, command);
        let address = serving.address();
        let good = format!("authorization: Bearer {}\r\n", admin.text);
        let mut answers = vec![
            get(&address, "/v1/elections", &good),
            get(&address, "/v1/credentials", &good),
            get(&address, "/v1/audit", &good),
            get(&address, "/metrics", &good),
            get(&address, "/v1/store", &good),
            get(&address, "/", &format!("cookie: tenure_session={}\r\n", admin.text)),
            get(&address, "/v1/elections", &format!("authorization: Bearer {wrong}\r\n")),
            get(&address, "/v1/elections", &format!("cookie: tenure_session={wrong}\r\n")),
            get(&address, "/v1/elections", &format!("{good}x-request-id: {}\r\n", admin.text)),
            get(&address, "/readyz", ""),
        ];
        // Access tokens in place of credential ids.
        for path in [
            format!("/v1/credentials/{}", admin.text),
            format!("/nowhere/{}", admin.text.replace('_', "%5F")),
        ] {
            answers.push(get(&address, &path, &good));
        }
        assert!(answers[0].starts_with("HTTP/1.1 200 "), "{}", answers[0]);
        assert!(answers[6].starts_with("HTTP/1.1 401 "), "{}", answers[6]);
        let form = format!("access_token={wrong}&next=/");
        answers.push(ask(
            &address,
            &format!(
                "POST /login HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{form}",
                form.len()
            ),
        ));
        // An access token created by the server: only in the response to its creation.
        let body = r#"{"name":"worker","grants":[{"namespace":"prod","permissions":["read"]}]}"#;
        let made = ask(
            &address,
            &format!(
                "POST /v1/credentials HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{good}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            ),
        );
        let fresh = made.split('"').find(|part| part.starts_with("tenure_")).expect("a token").to_owned();
        answers.push(get(&address, "/v1/credentials", &good));
        let said = serving.output_text();
        assert!(said.contains("principal") && said.contains("ops"), "the log has the principal: {said}");
        // Log lines have the span of their request.
        let login =
            said.lines().find(|line| line.contains("login failed")).expect("a failed login is logged");
        assert!(login.contains("POST /login") && login.contains("127.0.0.1"), "{login}");
        serving.signal("TERM");
        assert_eq!(serving.code(), Some(0));
        let fresh = fresh.rsplit('_').next().expect("a secret");
        for canary in canaries.iter().copied().chain([fresh]) {
            assert!(!serving.output_text().contains(canary), "the log has {canary}");
            for answer in &answers {
                assert!(!answer.contains(canary), "an answer has {canary}: {answer}");
            }
        }
    }
    // Nor if the database does not answer or rejects the password.
    for url in [
        "postgres://app:canary-password@127.0.0.1:1/x".to_owned(),
        world.store.replace("canary-password", "canary-password-2"),
    ] {
        world.store = url;
        let output =
            world.command(&["serve", "-vv"]).env("TENURE_LOG_FILTER", "trace").output().expect("tenure runs");
        assert!(!output.status.success());
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!said.contains("canary-password"), "{said}");
    }
}

#[test]
fn json_logs_are_ndjson_with_the_request_id() {
    let world = World::sqlite();
    let serving = serve(&world, &["--listen", "127.0.0.1:0", "--log-format", "json"]);
    let address = serving.address();
    get(&address, "/healthz", "x-request-id: my-own-id\r\n");
    let log = || std::fs::read_to_string(&serving.err).expect("a log");
    until("it is logged", || log().contains("my-own-id"), log);
    for line in log().lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    }
}
