//! Files in `deploy/` use metrics, flags and variables that exist.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::{World, until};

fn shipped(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A server on a free port, killed when dropped.
struct Served(Child, String);

impl Served {
    fn start(mut command: Command) -> Served {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("tenure runs");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let line = lines.map_while(Result::ok).find(|line| line.contains("http://"));
        let line = line.expect("it says where it listens");
        let address = line.split("http://").nth(1).and_then(|rest| rest.split(['"', '/', ' ']).next());
        Served(child, address.expect("an address").to_owned())
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.1).expect("it listens");
        let (host, length) = (&self.1, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Words in a text that start with a prefix.
fn words(text: &str, prefix: &str, allowed: impl Fn(char) -> bool) -> BTreeSet<String> {
    let rests = text.match_indices(prefix).map(|(at, _)| &text[at..]);
    rests.map(|rest| rest.chars().take_while(|&c| allowed(c)).collect()).collect()
}

#[test]
fn every_metric_of_the_dashboard_and_the_alerts_exists() {
    let metric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    // A histogram has several names.
    let whole = |name: String| {
        let part = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        part.map_or(name.clone(), str::to_owned)
    };
    let texts = [shipped("grafana/tenure.json"), shipped("prometheus/alerts.yaml")].concat();
    let named: BTreeSet<_> = words(&texts, "tenure_", metric).into_iter().map(whole).collect();
    assert!(named.len() > 15, "{named:?}");

    let world = World::sqlite();
    let served =
        Served::start(world.command(&["serve", "--listen", "127.0.0.1:0", "--allow-private-webhooks"]));
    let campaign = r#"{"name":"a","lease_ms":10000,"wait_ms":2000}"#;
    let answer = served.ask("POST", "/v1/elections/nightly/campaign", campaign);
    assert!(answer.contains("\"leading\":true"), "{answer}");
    // A task from its submission to its end.
    served.ask("POST", "/v1/queues/mail/tasks", "{}");
    let claimed = served.ask("POST", "/v1/queues/mail/claim", r#"{"worker":"w"}"#);
    let number = |field: &str| -> String {
        let (_, rest) = claimed.split_once(&format!("\"{field}\":")).expect("a task was claimed");
        rest.chars().take_while(char::is_ascii_digit).collect()
    };
    let complete = format!(r#"{{"token":{}}}"#, number("token"));
    let done = served.ask("POST", &format!("/v1/tasks/{}/complete", number("id")), &complete);
    assert!(done.contains("\"state\":\"completed\""), "{done}");
    // An event that is published and sent to a webhook without a listener.
    served.ask("PUT", "/v1/topics/orders", "{}");
    served.ask("PUT", "/v1/topics/orders/groups/hook", "{}");
    let webhook = r#"{"url":"http://127.0.0.1:9/hook"}"#;
    let webhook = served.ask("PUT", "/v1/topics/orders/groups/hook/webhook", webhook);
    assert!(webhook.contains("whsec_"), "{webhook}");
    served.ask("POST", "/v1/topics/orders/events", r#"{"type":"order.paid"}"#);
    // A schedule that fires and sends a webhook without a listener.
    let often = r#"{"expression":"every 1s","target":{"webhook":{"url":"http://127.0.0.1:9/hook"}}}"#;
    let often = served.ask("PUT", "/v1/schedules/often", often);
    assert!(often.contains("\"outcome\":\"created\""), "{often}");
    // A term of the coordinator ends: the server resigns and is elected again.
    until(
        "the server is the coordinator",
        || {
            served
                .ask("POST", "/v1/elections/coordinator/resign?namespace=tenure", "{}")
                .starts_with("HTTP/1.1 2")
        },
        || served.ask("GET", "/v1/elections/coordinator?namespace=tenure", ""),
    );
    let scraped = || {
        let text = served.ask("GET", "/metrics", "");
        let names = text.lines().filter(|line| line.starts_with("tenure_"));
        names.map(|line| whole(line.chars().take_while(|&c| metric(c)).collect())).collect::<BTreeSet<_>>()
    };
    let missing = || named.difference(&scraped()).cloned().collect::<Vec<_>>();
    until("every metric is there", || missing().is_empty(), || format!("missing: {:?}", missing()));
}

#[test]
fn every_flag_and_variable_of_the_deployments_exists() {
    let world = World::sqlite();
    let help = ["serve", "credentials create", "migrate up"].map(|command| {
        let mut args: Vec<_> = command.split(' ').collect();
        args.push("--help");
        world.ok(&args)
    });
    let help = help.concat();
    let texts = [shipped("compose.yaml"), shipped("tenure.service")].concat();
    let ours = texts.lines().filter(|line| {
        ["serve", "--listen", "--auth", "--tls", "--grant", "TENURE_"].iter().any(|word| line.contains(word))
    });
    for line in ours.filter(|line| !line.contains("docker") && !line.contains("curl")) {
        for flag in words(line, "--", |c| c.is_ascii_lowercase() || c == '-') {
            assert!(help.contains(&flag), "{flag} of {line:?}");
        }
    }
    for variable in words(&texts, "TENURE_", |c| c.is_ascii_uppercase() || c == '_') {
        // The variable of the unit for flags, and those of the password script.
        let own = variable == "TENURE_SERVE" || variable.ends_with("_PASSWORD");
        assert!(own || help.contains(&variable), "{variable}");
    }
}

#[test]
fn the_systemd_unit_is_valid() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: there is no systemd-analyze here");
        return;
    }
    let world = World::sqlite();
    let unit = shipped("tenure.service")
        .replace("/usr/local/bin/tenure", env!("CARGO_BIN_EXE_tenure"))
        .replace("Documentation=man:tenure(1)\n", "");
    let path = world.path("tenure.service");
    std::fs::write(&path, unit).expect("a file");
    let output = Command::new("systemd-analyze").arg("verify").arg(&path).output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !printed.contains("tenure.service"), "{printed}");
}

#[test]
fn the_shipped_roles_match_migrate_sql_roles() {
    let printed = World::sqlite().ok(&["migrate", "sql", "--roles", "--store", "postgres:"]);
    assert!(
        shipped("postgres/10-roles.sql") == printed,
        "tenure migrate sql --roles > deploy/postgres/10-roles.sql"
    );
}
