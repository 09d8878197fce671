//! `tenure events consume` and `dead-letters`, with real commands.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Candidate, World, lives, until};
use crate::{group, lines, output_text, publish, refused};

/// A lease that does not expire on a busy machine.
const PATIENT: &str = "30s";

/// A member in the background.
fn member(world: &World, name: &str, args: &[&str], script: &str) -> Candidate {
    member_with(world, name, name, PATIENT, args, script)
}

/// Starts another process of the member `m` with its own log. The member gets its partitions back without waiting.
fn life(world: &World, life: &str, args: &[&str], script: &str) -> Candidate {
    member_with(world, life, "m", PATIENT, args, script)
}

fn member_with(world: &World, log: &str, name: &str, lease: &str, args: &[&str], script: &str) -> Candidate {
    let log = File::create(world.path(&format!("{log}.log"))).expect("a log");
    let mut command = world.command(&["events", "consume", "orders", "--group", "mailer", "--name", name]);
    command.args(["--lease", lease, "--kill-after", "300ms"]).args(args);
    command.args(["--", "bash", "-c", script]).env("PLACE", world.folder.path());
    command.stdout(Stdio::null()).stderr(log);
    Candidate { process: command.spawn().expect("tenure runs"), name: name.to_owned() }
}

fn file(world: &World, name: &str) -> String {
    std::fs::read_to_string(world.path(name)).unwrap_or_default()
}

fn until_file(world: &World, name: &str, wanted: impl Fn(&str) -> bool) {
    let log = || format!("{}\n{}", file(world, name), world.logs());
    until(&format!("{name} is as it should be"), || wanted(&file(world, name)), log);
}

fn until_read(world: &World) {
    let unread = || {
        let view = group(world, "orders", "mailer");
        view["partitions"]
            .as_array()
            .expect("partitions")
            .iter()
            .filter_map(|it| it["lag_events"].as_u64())
            .sum::<u64>()
    };
    until("all events are read", || unread() == 0, || world.logs());
}

fn topic(world: &World, partitions: &str) {
    world.ok(&["events", "topics", "create", "orders", "--partitions", partitions]);
}

pub fn a_command_runs_for_each_event_in_the_order_of_its_key(world: &World) {
    topic(world, "4");
    let mut wanted: Vec<Vec<u64>> = vec![Vec::new(); 3];
    for n in 0..12_u64 {
        publish(
            world,
            &[
                "orders",
                "--type",
                "made",
                "--key",
                &format!("k{}", n % 3),
                "--payload",
                &format!("{{\"n\": {n}}}"),
            ],
        );
        wanted[(n % 3) as usize].push(n);
    }
    let id = publish(world, &["orders", "--type", "odd", "--header", "trace=ab"]);
    let script = r#"printf '{"payload":%s,"id":%s,"type":"%s","key":"%s","topic":"%s","group":"%s","partition":%s,"offset":%s,"attempt":%s,"headers":%s,"token":%s,"namespace":"%s","member":"%s"}\n' \
        "$(cat)" "$TENURE_EVENT_ID" "$TENURE_EVENT_TYPE" "${TENURE_EVENT_KEY-none}" "$TENURE_EVENT_TOPIC" "$TENURE_EVENT_GROUP" \
        "$TENURE_EVENT_PARTITION" "$TENURE_EVENT_OFFSET" "$TENURE_EVENT_ATTEMPT" "$TENURE_EVENT_HEADERS" "$TENURE_TOKEN" \
        "$TENURE_NAMESPACE" "$TENURE_NAME""#;
    let run = [
        "events",
        "consume",
        "orders",
        "--group",
        "mailer",
        "--name",
        "m",
        "--exit-when-idle",
        "--",
        "bash",
        "-c",
        script,
    ];
    let told = lines(&world.ok(&run));
    assert_eq!(told.len(), 13);
    let of = |key: &str| told.iter().filter(|event| event["key"] == key).collect::<Vec<_>>();
    for (key, numbers) in wanted.iter().enumerate() {
        let seen: Vec<_> =
            of(&format!("k{key}")).iter().map(|event| event["payload"]["n"].as_u64().expect("n")).collect();
        assert_eq!(&seen, numbers, "the order of the key");
    }
    let odd = of("none")[0];
    for (field, value) in [
        ("payload", json!({})),
        ("id", json!(id.parse::<u64>().expect("a number"))),
        ("type", json!("odd")),
        ("topic", json!("orders")),
        ("group", json!("mailer")),
        ("attempt", json!(1)),
        ("headers", json!({"trace": "ab"})),
        ("namespace", json!("default")),
        ("member", json!("m")),
    ] {
        assert_eq!(odd[field], value, "{field} of {odd}");
    }
    assert!(odd["token"].as_u64().is_some_and(|token| token > 0), "{odd}");
    // All events are read, so no command runs again. Another group gets all events.
    assert_eq!(world.ok(&run), "");
    let other = world.run(&[
        "events",
        "consume",
        "orders",
        "-g",
        "audit",
        "--exit-when-idle",
        "-o",
        "json",
        "--",
        "cat",
    ]);
    let outcomes = lines(&String::from_utf8_lossy(&other.stdout));
    assert_eq!(
        outcomes.iter().filter(|line| line["outcome"] == "processed").count(),
        13,
        "{}",
        output_text(&other)
    );
    // A command that does not exist fails no event.
    publish(world, &["orders", "--type", "made"]);
    refused(
        world,
        &["events", "consume", "orders", "-g", "audit", "--", "/no/such/command"],
        127,
        &["/no/such/command"],
    );
    let left = group(world, "orders", "audit");
    assert_eq!((&left["parked_event_count"], &left["dead_letter_count"]), (&json!(0), &json!(0)), "{left}");
}

pub fn commands_for_different_keys_run_concurrently(world: &World) {
    topic(world, "4");
    for key in ["a", "b", "c"] {
        publish(world, &["orders", "--type", "made", "--key", key]);
    }
    // Each command waits for the others, so they must run concurrently.
    let script = r#"echo "$TENURE_EVENT_KEY" >> "$PLACE/here"; until [ "$(sort -u "$PLACE/here" | wc -l)" = 3 ]; do sleep 0.02; done"#;
    // --exit-when-idle reports a paused group.
    world.ok(&["events", "groups", "set", "orders", "mailer"]);
    world.ok(&["events", "groups", "pause", "orders", "mailer", "--reason", "moving"]);
    let mut member = member(world, "m", &["-n", "3", "--exit-when-idle"], script);
    until_file(world, "m.log", |log| log.contains("is paused by") && log.contains("moving"));
    world.ok(&["events", "groups", "resume", "orders", "mailer"]);
    assert_eq!(member.wait(), Some(0), "{}", world.logs());
}

pub fn a_failing_key_is_parked_while_others_continue_and_a_replay_restores_its_order(world: &World) {
    topic(world, "1");
    world.ok(&[
        "events",
        "groups",
        "set",
        "orders",
        "mailer",
        "--max-attempts",
        "2",
        "--initial-backoff",
        "1ms",
        "--max-backoff",
        "1ms",
    ]);
    let poison = publish(world, &["orders", "--type", "bad", "--key", "k", "--payload", "1"]);
    for n in [2, 3] {
        publish(world, &["orders", "--type", "good", "--key", "k", "--payload", &n.to_string()]);
    }
    publish(world, &["orders", "--type", "good", "--key", "other", "--payload", "4"]);
    // The command fails until the file exists.
    let script = r#"n=$(cat); [ "$TENURE_EVENT_TYPE" = bad ] && [ ! -e "$PLACE/mended" ] && { echo "no route" >&2; exit 3; }; echo "$n" >> "$PLACE/done""#;
    let mut first = member(world, "m", &["--exit-when-idle"], script);
    assert_eq!(first.wait(), Some(0), "{}", world.logs());
    assert_eq!(file(world, "done"), "4\n", "the other key continued; {}", world.logs());
    let dead = world.json(&["events", "dead-letters", "list", "orders", "mailer", "-o", "json"]);
    assert_eq!(dead.as_array().map(Vec::len), Some(1));
    for (field, value) in [
        ("id", json!(poison.parse::<u64>().expect("a number"))),
        ("attempts", json!(2)),
        ("last_error", json!("exit code 3: no route")),
        ("waiting_behind_count", json!(2)),
    ] {
        assert_eq!(dead[0][field], value, "{field} of {dead}");
    }
    let all = world.ok(&["events", "dead-letters", "list", "orders", "mailer", "--all"]);
    assert_eq!(all.matches("  waiting  ").count(), 2, "{all}");
    assert!(world.ok(&["events", "dead-letters", "show", "orders", "mailer", &poison]).contains("no route"));
    refused(world, &["events", "groups", "delete", "orders", "mailer"], 64, &["3 events", "--force"]);
    std::fs::write(world.path("mended"), "").expect("a file");
    world.ok(&["events", "dead-letters", "replay", "orders", "mailer", &poison]);
    refused(world, &["events", "dead-letters", "replay", "orders", "mailer", &poison], 64, &["not dead"]);
    let mut second = member(world, "m", &["--exit-when-idle"], script);
    assert_eq!(second.wait(), Some(0), "{}", world.logs());
    assert_eq!(file(world, "done"), "4\n1\n2\n3\n", "in order; {}", world.logs());
    // After a drop, the events behind it continue.
    std::fs::remove_file(world.path("mended")).expect("it was there");
    publish(world, &["orders", "--type", "bad", "--key", "k", "--payload", "5"]);
    publish(world, &["orders", "--type", "good", "--key", "k", "--payload", "6"]);
    assert_eq!(member(world, "m", &["--exit-when-idle"], script).wait(), Some(0), "{}", world.logs());
    world.ok(&["events", "dead-letters", "drop", "orders", "mailer", "--key", "k"]);
    assert_eq!(member(world, "m", &["--exit-when-idle"], script).wait(), Some(0), "{}", world.logs());
    assert_eq!(file(world, "done"), "4\n1\n2\n3\n6\n");
    let view = group(world, "orders", "mailer");
    assert_eq!((&view["parked_event_count"], &view["dead_letter_count"]), (&json!(0), &json!(0)), "{view}");
}

pub fn a_first_signal_drains_and_a_second_one_releases_the_event(world: &World) {
    topic(world, "1");
    publish(world, &["orders", "--type", "made", "--key", "a"]);
    publish(world, &["orders", "--type", "made", "--key", "b"]);
    let script = r#"echo "$TENURE_EVENT_KEY" >> "$PLACE/begun"; until [ -e "$PLACE/go" ]; do sleep 0.02; done; echo "$TENURE_EVENT_KEY" >> "$PLACE/ended""#;
    let mut first = life(world, "first", &[], script);
    until_file(world, "begun", |text| text == "a\n");
    first.signal("TERM");
    until(
        "it reports that it drains",
        || world.logs().contains("waiting for running commands"),
        || world.logs(),
    );
    std::fs::write(world.path("go"), "").expect("a file");
    assert_eq!(first.wait(), Some(0), "{}", world.logs());
    assert_eq!(
        (file(world, "begun").as_str(), file(world, "ended").as_str()),
        ("a\n", "a\n"),
        "one command finished, none started"
    );
    std::fs::remove_file(world.path("go")).expect("it was there");
    let mut second = life(world, "second", &[], script);
    until_file(world, "begun", |text| text == "a\nb\n");
    second.signal("TERM");
    until(
        "it reports that it drains",
        || world.logs().matches("waiting for running commands").count() == 2,
        || world.logs(),
    );
    second.signal("TERM");
    assert_eq!(second.wait(), Some(0), "{}", world.logs());
    assert_eq!(file(world, "ended"), "a\n", "the command was stopped");
    std::fs::write(world.path("go"), "").expect("a file");
    let mut third = life(world, "third", &["--exit-when-idle"], script);
    assert_eq!(third.wait(), Some(0), "{}", world.logs());
    assert_eq!(file(world, "ended"), "a\nb\n", "no event is lost, and no attempt counts as failed");
    assert_eq!(group(world, "orders", "mailer")["dead_letter_count"], json!(0));
}

pub fn a_killed_member_leaves_no_orphan_and_its_event_is_processed_again(world: &World) {
    topic(world, "1");
    let id = publish(world, &["orders", "--type", "made", "--key", "a"]);
    let script = r#"echo "$TENURE_EVENT_ID $$ $TENURE_TOKEN" >> "$PLACE/begun"; until [ -e "$PLACE/go" ]; do sleep 0.02; done"#;
    let mut victim = member_with(world, "victim", "m", "5s", &[], script);
    until_file(world, "begun", |text| text.ends_with('\n'));
    let begun = |line: usize| -> Vec<u64> {
        let text = file(world, "begun");
        let line = text.lines().nth(line).unwrap_or_else(|| panic!("{text}"));
        line.split(' ').map(|word| word.parse().expect("a number")).collect()
    };
    victim.process.kill().expect("it can be killed");
    victim.process.wait().expect("it is gone");
    let pid = u32::try_from(begun(0)[1]).expect("a process");
    until("the command is gone", || !lives(pid), || world.logs());
    std::fs::write(world.path("go"), "").expect("a file");
    let mut heir = life(world, "heir", &["--exit-when-idle"], script);
    assert_eq!(heir.wait(), Some(0), "{}", world.logs());
    assert_eq!(begun(1)[0].to_string(), id, "at least once");
    assert!(begun(1)[2] > begun(0)[2], "under a greater token: {}", file(world, "begun"));
}

pub fn two_members_divide_the_partitions(world: &World) {
    topic(world, "8");
    let holders = || {
        let view = group(world, "orders", "mailer");
        let names: std::collections::BTreeMap<String, String> = view["members"]
            .as_array()
            .expect("members")
            .iter()
            .map(|member| {
                (member["session"].to_string(), member["name"].as_str().unwrap_or_default().to_owned())
            })
            .collect();
        let name =
            |partition: &Value| names.get(&partition["holder"].to_string()).cloned().unwrap_or_default();
        view["partitions"].as_array().expect("partitions").iter().map(name).collect::<Vec<_>>()
    };
    let count = |holders: &[String], name: &str| holders.iter().filter(|holder| *holder == name).count();
    let script = r#"cat > /dev/null; echo "$TENURE_NAME $TENURE_EVENT_ID" >> "$PLACE/done""#;
    world.ok(&["events", "groups", "set", "orders", "mailer"]);
    let mut one = member(world, "one", &[], script);
    until("one has all", || count(&holders(), "one") == 8, || world.logs());
    let mut two = member(world, "two", &[], script);
    let even = || (count(&holders(), "one"), count(&holders(), "two")) == (4, 4);
    until("they have half each", even, || format!("{:?}\n{}", holders(), world.logs()));
    for n in 0..24 {
        publish(world, &["orders", "--type", "made", "--key", &format!("key-{n}")]);
    }
    until_read(world);
    let shown = world.ok(&["events", "groups", "show", "orders", "mailer"]);
    assert!(shown.contains("2 members") && shown.matches(" two\n").count() == 4, "{shown}");
    two.signal("TERM");
    assert_eq!(two.wait(), Some(0), "{}", world.logs());
    until("one has all again", || count(&holders(), "one") == 8, || world.logs());
    one.signal("TERM");
    assert_eq!(one.wait(), Some(0), "{}", world.logs());
    let done = file(world, "done");
    let ids: BTreeSet<&str> = done.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!((ids.len(), done.lines().count()), (24, 24), "each once: no member died\n{done}");
    assert!(done.contains("one ") && done.contains("two "), "both processed events\n{done}");
}
