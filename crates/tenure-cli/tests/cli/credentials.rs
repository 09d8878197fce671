//! `tenure credentials`, on SQLite and PostgreSQL and through a server.

use std::process::Output;

use serde_json::Value;

use super::World;

fn listed(world: &World) -> Vec<Value> {
    world.json(&["credentials", "list", "-o", "json"]).as_array().expect("a list").clone()
}

fn create(world: &World, extra: &[&str]) -> String {
    let created = world.ok(&[&["credentials", "create"], extra].concat());
    assert_eq!(created.lines().count(), 1, "only the access token: {created:?}");
    created.trim().to_owned()
}

/// `tenure_<id>_<secret>`.
fn parts(token: &str) -> (&str, &str) {
    let parts = token.strip_prefix("tenure_").and_then(|rest| rest.split_once('_'));
    let (id, secret) = parts.unwrap_or_else(|| panic!("{token:?} is not an access token"));
    assert_eq!((id.len(), secret.len()), (16, 64));
    (id, secret)
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

pub fn credentials_are_created_listed_rotated_and_revoked(world: World) {
    assert!(
        world.ok(&["credentials", "list"]).contains("tenure credentials create"),
        "an empty list shows an example"
    );
    let token = create(&world, &["--name", "ci", "--grant", "prod:read,lead", "--grant", "test:admin"]);
    let (id, _) = parts(&token);
    let list = listed(&world);
    let made = &list[0];
    assert_eq!(
        (made["id"].as_str(), made["name"].as_str(), made["state"].as_str()),
        (Some(id), Some("ci"), Some("valid"))
    );
    assert_eq!(made["grants"][0], serde_json::json!({"namespace": "prod", "permissions": ["read", "lead"]}));
    let life = made["expires_at_ms"].as_i64().unwrap() - made["created_at_ms"].as_i64().unwrap();
    assert_eq!(life, 90 * 86_400_000);
    let table = world.ok(&["credentials", "list"]);
    assert!(
        table.contains(id) && table.contains("prod:read,lead test:admin") && table.contains("valid"),
        "{table}"
    );

    let rotated = world.json(&["credentials", "rotate", "ci", "--grace-period", "1h", "-o", "json"]);
    let new = rotated["access_token"].as_str().expect("the token");
    assert_ne!(parts(new), parts(&token));
    let list = listed(&world);
    assert_eq!(list[0]["id"], parts(new).0);
    assert_eq!((&list[0]["grants"], &list[1]["id"]), (&list[1]["grants"], &Value::from(id)));
    assert_eq!(list[0]["expires_at_ms"].as_i64().unwrap() - list[0]["created_at_ms"].as_i64().unwrap(), life);
    let left = list[1]["expires_at_ms"].as_i64().unwrap() - list[0]["created_at_ms"].as_i64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&left), "an hour, less what the commands took: {left}");
    // Without a grace period the old access tokens expire at once.
    world.ok(&["credentials", "rotate", "ci", "--grace-period", "0s", "--no-expiry"]);
    let states: Vec<_> = listed(&world).iter().map(|it| it["state"].as_str().unwrap().to_owned()).collect();
    assert_eq!(states, ["valid", "expired", "expired"]);
    assert_eq!(listed(&world)[0]["expires_at_ms"], Value::Null);

    world.ok(&["credentials", "revoke", id]);
    let revoked: Vec<_> = listed(&world).iter().map(|it| it["state"] == "revoked").collect();
    assert_eq!(revoked, [false, false, true], "only the credential with this id");
    world.ok(&["credentials", "revoke", "ci"]);
    assert!(listed(&world).iter().all(|it| it["state"] == "revoked"), "all credentials of that name");
    let again = world.run(&["credentials", "revoke", "ci"]);
    assert!(again.status.success() && output_text(&again).contains("already"));
}

pub fn a_secret_is_printed_once_and_stored_nowhere(world: World) {
    let output = world.run(&["credentials", "create", "--name", "ci", "--grant", "*:admin", "-vv"]);
    let token = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let (id, secret) = parts(&token);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains(id) && errors.contains("*:admin") && errors.contains("not shown again"),
        "{errors}"
    );
    assert!(!errors.contains(secret), "{errors}");
    for args in [
        &["credentials", "list", "-vv"][..],
        &["credentials", "list", "-o", "json"],
        &["credentials", "revoke", &token, "-vv"],
    ] {
        let shown = output_text(&world.run(args));
        assert!(!shown.contains(secret) && !shown.contains("digest"), "{args:?}: {shown}");
    }
    assert_eq!(listed(&world)[0]["state"], "revoked", "an access token identifies its credential");
    let kept = world.contents();
    assert!(kept.contains(id) && !kept.contains(secret), "the store has only a digest");
    for action in ["credential.create", "credential.revoke"] {
        assert!(kept.contains(action), "the audit has {action}");
    }
}

pub fn certificates_are_identified_by_their_subject(world: World) {
    let subject = "CN=worker-1,O=acme";
    let args = [
        "credentials",
        "create",
        "--name",
        "worker-1",
        "--grant",
        "prod:lead",
        "--certificate-subject",
        subject,
    ];
    assert_eq!(world.ok(&args), "", "there is no secret to print");
    let list = listed(&world);
    assert_eq!(
        (&list[0]["kind"], &list[0]["certificate_subject"]),
        (&Value::from("certificate"), &Value::from(subject))
    );
    assert!(world.ok(&["credentials", "list"]).contains(subject));
    let rotated = world.run(&["credentials", "rotate", "worker-1"]);
    assert_eq!(rotated.status.code(), Some(64), "a certificate cannot be rotated");
}

pub fn invalid_credentials_are_rejected_with_advice(world: World) {
    create(&world, &["--name", "two", "--grant", "prod:read"]);
    create(&world, &["--name", "two", "--grant", "prod:lead"]);
    let create = |extra: &[&'static str]| [&["credentials", "create", "--name", "x"], extra].concat();
    let cases: &[(Vec<&str>, &[&str])] = &[
        (create(&["--grant", "prod"]), &["\"prod\"", "NAMESPACE:PERMISSION"]),
        (create(&["--grant", "prod:fly"]), &["\"fly\"", "read, lead, publish, claim or admin"]),
        (create(&["--grant", "pr od:read"]), &["namespace in a grant", "' '"]),
        (create(&[]), &["--grant"]),
        (create(&["--grant", "prod:read", "--expires-in", "soon"]), &["soon", "90d"]),
        (create(&["--grant", "prod:read", "--expires-in", "0s"]), &["--expires-in", "90d"]),
        (create(&["--grant", "prod:read", "--expires-in", "99999d"]), &["100 years", "--no-expiry"]),
        (create(&["--grant", "prod:read", "--expires-in", "1d", "--no-expiry"]), &["cannot be used with"]),
        (
            create(&["--grant", "prod:read", "--certificate-subject", "worker"]),
            &["worker", "CN=worker-1,O=acme"],
        ),
        (vec!["credentials", "create", "--name", "a b", "--grant", "prod:read"], &["--name", "' '"]),
        (
            vec!["credentials", "create", "--name", "local", "--grant", "prod:read"],
            &["local", "choose another"],
        ),
        (vec!["credentials", "revoke", "missing"], &["missing", "tenure credentials list"]),
        (vec!["credentials", "rotate", "missing"], &["missing", "tenure credentials list"]),
        (vec!["credentials", "rotate", "two"], &["different grants", "tenure credentials create"]),
    ];
    for (args, words) in cases {
        let output = world.run(args);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {text}");
        for word in *words {
            // clap wraps lines.
            let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(word), "{args:?} does not mention {word:?}: {text}");
        }
    }
    assert_eq!(listed(&world).len(), 2, "nothing was created");
}

#[test]
fn roles_are_printed_for_postgres_only() {
    let world = World::sqlite();
    let script = world.ok(&["migrate", "sql", "--roles", "--store", "postgres:"]);
    for role in ["tenure_owner", "tenure_server", "tenure_runtime", "tenure_publisher", "tenure_reader"] {
        assert!(script.contains(role), "{script}");
    }
    let refused = world.run(&["migrate", "sql", "--roles"]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(output_text(&refused).contains("--store postgres:"), "{}", output_text(&refused));
}
