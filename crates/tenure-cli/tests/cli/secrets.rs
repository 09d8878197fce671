//! Secrets of tenure are hidden from its commands and from other users of the machine.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use tenure_testkit::rig::PgCluster;

use crate::support::{World, output_text};

/// Every variable that holds a secret, with a value.
const SECRETS: [(&str, &str); 6] = [
    ("DATABASE_URL", "postgres://app:canary@127.0.0.1:1/app"),
    ("TENURE_DIRECT_URL", "postgres://app:canary@127.0.0.1:1/app"),
    ("TENURE_ACCESS_TOKEN", "tenure_x_canary"),
    ("TENURE_RAFT_SECRET", "canary"),
    ("TENURE_GOSSIP_SECRET", "canary"),
    ("TENURE_ETCD_USER", "root:canary"),
];

fn with_secrets(world: &World, args: &[&str]) -> Command {
    let mut command = world.command(args);
    command.envs(SECRETS);
    command
}

/// Regression: the commands of `tenure run`, `work` and `events consume` got access tokens, cluster secrets and URLs
/// with passwords.
#[test]
fn commands_do_not_get_the_secrets_of_tenure() {
    let world = World::sqlite();
    world.ok(&["tasks", "submit", "mail"]);
    world.ok(&["events", "topics", "create", "orders"]);
    world.ok(&["events", "publish", "orders", "--type", "t"]);
    let print = "env > \"$OUT\"; echo '{}'";
    let commands: [&[&str]; 3] = [
        &["run", "nightly", "--", "sh", "-c", print],
        &["work", "mail", "--exit-when-idle", "--", "sh", "-c", print],
        &["events", "consume", "orders", "--group", "g", "--exit-when-idle", "--", "sh", "-c", print],
    ];
    for args in commands {
        let out = world.path("environment");
        let output = with_secrets(&world, args).env("OUT", &out).output().expect("tenure runs");
        assert!(output.status.success(), "{args:?}: {}", output_text(&output));
        let seen = std::fs::read_to_string(&out).expect("the command ran");
        std::fs::remove_file(&out).expect("it was written");
        assert!(!seen.contains("canary"), "{args:?}: {seen}");
        assert!(
            seen.contains(&format!("TENURE_STORE={}\n", world.store)),
            "a URL without a password: {seen}"
        );
    }
}

#[test]
fn pass_env_passes_a_withheld_variable() {
    let world = World::sqlite();
    let args = ["run", "nightly", "--pass-env", "DATABASE_URL", "--", "sh", "-c", "env"];
    let output = with_secrets(&world, &args).output().expect("tenure runs");
    let seen = String::from_utf8_lossy(&output.stdout);
    assert!(seen.contains("DATABASE_URL=postgres://app:canary@"), "{seen}");
    assert!(!seen.contains("tenure_x_canary"), "{seen}");
}

/// Waits until `tenure campaign` leads. Returns its arguments as `ps` shows them, and its stderr.
fn arguments_while_it_leads(mut command: Command) -> (String, String) {
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tenure runs");
    let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
    let leads = lines.map_while(Result::ok).any(|line| line.contains("leading"));
    let arguments = std::fs::read(format!("/proc/{}/cmdline", process.id())).expect("it runs");
    process.kill().expect("it runs");
    let errors = process.wait_with_output().expect("it ends").stderr;
    let errors = String::from_utf8_lossy(&errors).into_owned();
    assert!(leads, "{errors}");
    (String::from_utf8_lossy(&arguments).replace('\0', " "), errors)
}

/// Regression: `ps` showed a password in `--store` while the command ran.
#[test]
fn a_password_is_hidden_from_the_process_list() {
    let cluster = PgCluster::builder().password("canary").start().expect("a server");
    let store = cluster.create_database("app").expect("a database");
    assert!(store.contains(":canary@"), "{store}");
    let world = World::at(store.clone());
    world.ok(&["migrate", "up"]);
    let elect = |election: &str, args: &[&str]| {
        let mut command = world.command(&["campaign", election]);
        command.args(args).env_remove("TENURE_STORE");
        command
    };
    let (arguments, errors) = arguments_while_it_leads(elect("nightly", &["--store", &store]));
    assert!(!arguments.contains("canary") && arguments.contains("******@"), "{arguments}");
    assert!(errors.contains("--store-file"), "a warning is printed: {errors}");

    let file = world.path("store");
    std::fs::write(&file, format!("{store}\n")).expect("a file");
    let (arguments, errors) =
        arguments_while_it_leads(elect("other", &["--store-file", file.to_str().expect("text")]));
    assert!(!arguments.contains("canary") && !errors.contains("password"), "{arguments} {errors}");

    let mut list = world.command(&["elections", "list", "--store-file", "-"]);
    list.env_remove("TENURE_STORE").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut list = list.spawn().expect("tenure runs");
    list.stdin.take().expect("its input").write_all(store.as_bytes()).expect("it reads");
    let output = list.wait_with_output().expect("it ends");
    assert!(String::from_utf8_lossy(&output.stdout).contains("nightly"), "{}", output_text(&output));
}
