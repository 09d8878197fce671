//! `tenure token`, on both stores.

use std::process::Output;

use serde_json::Value;

use super::World;

fn listed(world: &World) -> Vec<Value> {
    world.json(&["token", "list", "-o", "json"]).as_array().expect("a list").clone()
}

fn create(world: &World, extra: &[&str]) -> String {
    let created = world.ok(&[&["token", "create"], extra].concat());
    assert_eq!(created.lines().count(), 1, "the token, and nothing else: {created:?}");
    created.trim().to_owned()
}

/// `tenure_<id>_<secret>`.
fn parts(token: &str) -> (&str, &str) {
    let parts = token.strip_prefix("tenure_").and_then(|rest| rest.split_once('_'));
    let (id, secret) = parts.unwrap_or_else(|| panic!("{token:?} is no token"));
    assert_eq!((id.len(), secret.len()), (16, 64));
    (id, secret)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

pub fn tokens_are_made_listed_rotated_and_revoked(world: World) {
    assert!(world.ok(&["token", "list"]).contains("tenure token create"), "an empty list teaches");
    let token = create(&world, &["--name", "ci", "--grant", "prod:read,lead", "--grant", "test:admin"]);
    let (id, _) = parts(&token);
    let list = listed(&world);
    let made = &list[0];
    assert_eq!(
        (made["id"].as_str(), made["name"].as_str(), made["state"].as_str()),
        (Some(id), Some("ci"), Some("valid"))
    );
    assert_eq!(made["grants"][0], serde_json::json!({"namespace": "prod", "verbs": ["read", "lead"]}));
    let life = made["expires_at_ms"].as_i64().unwrap() - made["created_at_ms"].as_i64().unwrap();
    assert_eq!(life, 90 * 86_400_000);
    let table = world.ok(&["token", "list"]);
    assert!(
        table.contains(id) && table.contains("prod:read,lead test:admin") && table.contains("valid"),
        "{table}"
    );

    let rotated = world.json(&["token", "rotate", "ci", "--overlap", "1h", "-o", "json"]);
    let new = rotated["token"].as_str().expect("the token");
    assert_ne!(parts(new), parts(&token));
    let list = listed(&world);
    assert_eq!(list[0]["id"], parts(new).0);
    assert_eq!((&list[0]["grants"], &list[1]["id"]), (&list[1]["grants"], &Value::from(id)));
    assert_eq!(list[0]["expires_at_ms"].as_i64().unwrap() - list[0]["created_at_ms"].as_i64().unwrap(), life);
    let left = list[1]["expires_at_ms"].as_i64().unwrap() - list[0]["created_at_ms"].as_i64().unwrap();
    assert!((3_500_000..=3_600_000).contains(&left), "an hour, less what the commands took: {left}");
    // At once: the old ones are worth nothing any more.
    world.ok(&["token", "rotate", "ci", "--overlap", "0s", "--never-expires"]);
    let states: Vec<_> = listed(&world).iter().map(|it| it["state"].as_str().unwrap().to_owned()).collect();
    assert_eq!(states, ["valid", "expired", "expired"]);
    assert_eq!(listed(&world)[0]["expires_at_ms"], Value::Null);

    world.ok(&["token", "revoke", id]);
    let revoked: Vec<_> = listed(&world).iter().map(|it| it["state"] == "revoked").collect();
    assert_eq!(revoked, [false, false, true], "only the one that was named by its id");
    world.ok(&["token", "revoke", "ci"]);
    assert!(listed(&world).iter().all(|it| it["state"] == "revoked"), "all of that name");
    let again = world.run(&["token", "revoke", "ci"]);
    assert!(again.status.success() && said(&again).contains("already"));
}

pub fn a_secret_is_shown_once_and_kept_nowhere(world: World) {
    let output = world.run(&["token", "create", "--name", "ci", "--grant", "*:admin", "-vv"]);
    let token = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    let (id, secret) = parts(&token);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains(id) && errors.contains("*:admin") && errors.contains("this once"), "{errors}");
    assert!(!errors.contains(secret), "{errors}");
    for args in
        [&["token", "list", "-vv"][..], &["token", "list", "-o", "json"], &["token", "revoke", &token, "-vv"]]
    {
        let shown = said(&world.run(args));
        assert!(!shown.contains(secret) && !shown.contains("digest"), "{args:?}: {shown}");
    }
    assert_eq!(listed(&world)[0]["state"], "revoked", "whoever has nothing but the token can revoke it");
    let kept = world.contents();
    assert!(kept.contains(id) && !kept.contains(secret), "the store has a digest only");
    for action in ["token.create", "token.revoke"] {
        assert!(kept.contains(action), "the audit has {action}");
    }
}

pub fn certificates_are_known_by_their_subject(world: World) {
    let subject = "CN=worker-1,O=acme";
    let args =
        ["token", "create", "--name", "worker-1", "--grant", "prod:lead", "--certificate-subject", subject];
    assert_eq!(world.ok(&args), "", "there is no secret to print");
    let list = listed(&world);
    assert_eq!((&list[0]["kind"], &list[0]["subject"]), (&Value::from("certificate"), &Value::from(subject)));
    assert!(world.ok(&["token", "list"]).contains(subject));
    let rotated = world.run(&["token", "rotate", "worker-1"]);
    assert_eq!(rotated.status.code(), Some(64), "a certificate is not ours to rotate");
}

pub fn bad_tokens_name_themselves_and_the_remedy(world: World) {
    create(&world, &["--name", "two", "--grant", "prod:read"]);
    create(&world, &["--name", "two", "--grant", "prod:lead"]);
    let create = |extra: &[&'static str]| [&["token", "create", "--name", "x"], extra].concat();
    let cases: &[(Vec<&str>, &[&str])] = &[
        (create(&["--grant", "prod"]), &["\"prod\"", "NAMESPACE:VERB"]),
        (create(&["--grant", "prod:fly"]), &["\"fly\"", "read, lead, publish, claim and admin"]),
        (create(&["--grant", "pr od:read"]), &["namespace of a grant", "' '"]),
        (create(&[]), &["--grant"]),
        (create(&["--grant", "prod:read", "--expires", "soon"]), &["soon", "90d"]),
        (create(&["--grant", "prod:read", "--expires", "0s"]), &["--expires", "90d"]),
        (create(&["--grant", "prod:read", "--expires", "99999d"]), &["100 years", "--never-expires"]),
        (create(&["--grant", "prod:read", "--expires", "1d", "--never-expires"]), &["cannot be used with"]),
        (
            create(&["--grant", "prod:read", "--certificate-subject", "worker"]),
            &["worker", "CN=worker-1,O=acme"],
        ),
        (vec!["token", "create", "--name", "a b", "--grant", "prod:read"], &["--name", "' '"]),
        (vec!["token", "create", "--name", "local", "--grant", "prod:read"], &["local", "choose another"]),
        (vec!["token", "revoke", "nobody"], &["nobody", "tenure token list"]),
        (vec!["token", "rotate", "nobody"], &["nobody", "tenure token list"]),
        (vec!["token", "rotate", "two"], &["same grants", "tenure token create"]),
    ];
    for (args, words) in cases {
        let output = world.run(args);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {text}");
        for word in *words {
            // Lines are wrapped by the parser of arguments.
            let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(word), "{args:?} does not mention {word:?}: {text}");
        }
    }
    assert_eq!(listed(&world).len(), 2, "nothing was made");
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
    assert!(said(&refused).contains("--store postgres:"), "{}", said(&refused));
}
