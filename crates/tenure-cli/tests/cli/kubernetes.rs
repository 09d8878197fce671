//! What is said on the command line about Leases, and what is shipped for them.

use std::path::PathBuf;

use tenure_testkit::rig::KubeApi;

use crate::support::World;

fn api(world: &World) -> &KubeApi {
    world.api.as_ref().expect("an API server")
}

/// What the Lease said while the command ran.
fn lease_during(world: &World, args: &[&str]) -> serde_json::Value {
    let mut all = vec!["run", "nightly"];
    all.extend(args);
    all.extend(["--", "sh", "-c", "touch \"$MARK\"; while [ -e \"$MARK\" ]; do sleep 0.02; done"]);
    let mark = world.path("mark");
    let mut child = world.command(&all).env("MARK", &mark).spawn().expect("tenure runs");
    crate::support::until("the command runs", || mark.exists(), String::new);
    let lease = api(world).lease("prod", "nightly").expect("a Lease");
    std::fs::remove_file(&mark).expect("the mark");
    assert!(child.wait().expect("it ends").success());
    lease
}

#[test]
fn the_times_have_client_gos_names_and_defaults() {
    let mut world = World::kubernetes();
    let lease =
        lease_during(&world, &["--lease-duration", "6s", "--renew-deadline", "4s", "--retry-period", "1s"]);
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 6);
    world.store += "&pace=client-go";
    assert_eq!(lease_during(&world, &[])["spec"]["leaseDurationSeconds"], 15);
    assert_eq!(
        lease_during(&world, &["--lease", "9s"])["spec"]["leaseDurationSeconds"],
        9,
        "what is said goes first"
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

/// No verb is missing from it, and none is too many.
#[test]
fn the_role_that_is_shipped_is_what_is_needed() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/rbac.yaml");
    let text = std::fs::read_to_string(path).expect("the role");
    let line = text.lines().find_map(|line| line.trim().strip_prefix("verbs: [")).expect("verbs");
    let granted: Vec<&str> = line.trim_end_matches(']').split(',').map(str::trim).collect();
    let world = World::kubernetes();
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
        assert!(asked.iter().any(|(asked, _)| asked == verb), "{verb} is granted, and was not needed");
    }
    assert!(world.ok(&["doctor", "--rounds", "1"]).contains("may update leases"));
    api(&world).deny("watch", "leases");
    let found = world.run(&["doctor", "--rounds", "1"]);
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    assert!(said.contains("grant the verb `watch`"), "{said}");
}

#[test]
fn a_way_that_leads_nowhere_is_named_with_the_remedy() {
    let mut world = World::kubernetes();
    world.store = "k8s:prod?kubeconfig=/nowhere".into();
    let output = world.run(&["leader", "list"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("/nowhere") && said.contains("service account"), "{said}");
}
