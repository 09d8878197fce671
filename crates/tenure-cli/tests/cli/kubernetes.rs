//! Kubernetes Lease options, and the shipped role.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tenure_testkit::rig::KubeApi;

use crate::support::{Candidate, World, until};

fn api(world: &World) -> &KubeApi {
    world.api.as_ref().expect("an API server")
}

/// The Lease object while the command ran.
fn lease_during(world: &World, args: &[&str]) -> serde_json::Value {
    let mut all = vec!["run", "nightly"];
    all.extend(args);
    all.extend(["--", "sh", "-c", "touch \"$MARK\"; while [ -e \"$MARK\" ]; do sleep 0.02; done"]);
    let mark = world.path("mark");
    let mut child = world.command(&all).env("MARK", &mark).spawn().expect("tenure runs");
    until("the command runs", || mark.exists(), String::new);
    let lease = api(world).lease("prod", "nightly").expect("a Lease");
    std::fs::remove_file(&mark).expect("the mark");
    assert!(child.wait().expect("it ends").success());
    lease
}

#[test]
fn the_durations_have_the_names_and_defaults_of_client_go() {
    let mut world = World::kubernetes_of_the_rig();
    let lease =
        lease_during(&world, &["--lease-duration", "6s", "--renew-deadline", "4s", "--retry-period", "1s"]);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 6);
    world.store += "&timing=client-go";
    assert_eq!(lease_during(&world, &[])["spec"]["leaseDurationSeconds"], 15);
    assert_eq!(
        lease_during(&world, &["--lease", "9s"])["spec"]["leaseDurationSeconds"],
        9,
        "an option overrides the URL"
    );
    for (args, lease) in [
        (&["--lease-duration", "6s", "--renew-deadline", "2s"][..], "3s"),
        (&["--renew-deadline", "8s"], "12s"),
    ] {
        let refused =
            world.command(&["run", "nightly"]).args(args).args(["--", "true"]).output().expect("tenure runs");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(&format!("--lease-duration {lease}")), "{said}");
    }
}

/// The role has every needed verb and no other.
#[test]
fn the_shipped_role_has_exactly_the_needed_verbs() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/rbac.yaml");
    let text = std::fs::read_to_string(path).expect("the role");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("verbs: [")).expect("verbs");
    let granted: Vec<&str> = line.trim_end_matches(']').split(',').map(str::trim).collect();
    let world = World::kubernetes_of_the_rig();
    for verb in ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"] {
        if !granted.contains(&verb) {
            api(&world).deny(verb, "leases");
        }
    }
    let first = lease_during(&world, &[]);
    assert_eq!(first["spec"]["leaseTransitions"], 0);
    assert_eq!(lease_during(&world, &[])["spec"]["leaseTransitions"], 1);
    let asked = api(&world).requests();
    for verb in granted {
        assert!(asked.iter().any(|(asked, _)| asked == verb), "{verb} is granted but not needed");
    }
    assert!(world.ok(&["doctor", "--rounds", "1"]).contains("may update leases"));
    api(&world).deny("watch", "leases");
    let found = world.run(&["doctor", "--rounds", "1"]);
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(said.contains("grant the verb `watch`"), "{said}");
}

#[test]
fn a_missing_kubeconfig_is_reported_with_advice() {
    let mut world = World::kubernetes_of_the_rig();
    world.store = "k8s:prod?kubeconfig=/nowhere".into();
    let output = world.run(&["elections", "list"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("/nowhere") && said.contains("service account"), "{said}");
}

/// The shipped role on a real API server, with the leader election example of client-go. Its lease lasts a minute, so a
/// faster change is a handover.
#[test]
#[ignore = "needs a real API server and client-go: scripts/kubernetes"]
fn client_go_and_tenure_hand_over_one_lease() {
    let mut world = World::kubernetes();
    let (of, kubeconfig) = world.store.split_once("?kubeconfig=").expect("a kubeconfig");
    let (namespace, kubeconfig) = (of.trim_start_matches("k8s:").to_owned(), kubeconfig.to_owned());
    let kubectl = |args: &[&str]| {
        let given = ["--kubeconfig", &kubeconfig, "--namespace", &namespace];
        let output = Command::new("kubectl").args(given).args(args).output().expect("kubectl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let spec = || {
        let lease = kubectl(&["get", "lease", "shared", "-o", "json"]);
        serde_json::from_str::<serde_json::Value>(&lease).expect("JSON")["spec"].clone()
    };
    // Tenure uses the shipped service account.
    let shipped = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/rbac.yaml");
    kubectl(&["apply", "-f", &shipped.display().to_string()]);
    let config = std::fs::read_to_string(&kubeconfig).expect("a kubeconfig");
    let account = format!("user: {{as: \"system:serviceaccount:{namespace}:tenure\", ");
    std::fs::write(world.path("config"), config.replace("user: {", &account)).expect("a kubeconfig");
    world.store = format!("k8s:{namespace}?kubeconfig={}", world.path("config").display());

    let said = |name: &str| std::fs::read_to_string(world.path(&format!("{name}.log"))).unwrap_or_default();
    let go = |name: &str| {
        let log = File::create(world.path(&format!("{name}.log"))).expect("a log");
        let mut command = Command::new(std::env::var_os("CLIENT_GO").expect("$CLIENT_GO"));
        command.args(["-kubeconfig", &kubeconfig, "-id", name]);
        command.args(["-lease-lock-namespace", &namespace, "-lease-lock-name", "shared"]);
        let process = command.stderr(log).stdout(Stdio::null()).spawn().expect("client-go");
        Candidate { process, name: name.to_owned() }
    };
    let go_leads = |name: &str| {
        until(&format!("{name} leads"), || said(name).contains("Controller loop"), || world.logs());
    };
    let ours = world.path("ours");
    let tenure = |name: &str| {
        let script =
            r#"trap 'rm "$OURS"; exit 0' TERM; echo "$TENURE_TOKEN" >"$OURS"; while :; do sleep 0.05; done"#;
        let log = File::create(world.path(&format!("{name}.log"))).expect("a log");
        let mut command = world.command(&["run", "shared", "--name", name, "--", "bash", "-c", script]);
        let process = command.env("OURS", &ours).stderr(log).stdout(Stdio::null()).spawn().expect("tenure");
        Candidate { process, name: name.to_owned() }
    };
    let we_lead = || until("ours leads", || ours.exists(), || world.logs());

    let mut first = go("go-1");
    go_leads("go-1");
    let mut second = tenure("ours-1");
    until("ours-1 sees the leader", || said("ours-1").contains("go-1"), || world.logs());
    assert!(!ours.exists() && spec()["holderIdentity"] == "go-1");
    // client-go releases its lease on exit; older versions only if no other candidate changed the Lease since the last
    // renewal.
    let renewed = || {
        let before = spec()["renewTime"].clone();
        until("client-go renews", || spec()["renewTime"] != before, || world.logs());
    };
    renewed();
    first.signal("TERM");
    we_lead();
    first.wait();
    let term = spec();
    assert_eq!(term["leaseTransitions"], 1);
    let holder = term["holderIdentity"].as_str().expect("a holder");
    // Tenure releases it too, after its command has stopped.
    let mut third = go("go-2");
    until("go-2 sees the leader", || said("go-2").contains(holder), || world.logs());
    second.signal("TERM");
    go_leads("go-2");
    assert!(!ours.exists(), "the command of ours had ended by then");
    second.wait();
    assert_eq!(spec()["leaseTransitions"], 2);
    let _fourth = tenure("ours-2");
    until("ours-2 sees the leader", || said("ours-2").contains("go-2"), || world.logs());
    renewed();
    third.signal("TERM");
    we_lead();
    third.wait();
    assert_eq!(std::fs::read_to_string(&ours).expect("a token").trim(), "4", "{}", spec());
}
