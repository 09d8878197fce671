//! Tests of schedule files.

use super::*;

fn error_of(text: &str) -> String {
    let errors = parse("schedules.toml", text, PathBuf::new()).expect_err("an invalid file");
    file_errors("schedules.toml", errors).message().to_owned()
}

const GOOD: &str = r#"
source = "billing"

[defaults]
time_zone = "Europe/Berlin"
overlap_policy = "skip"
jitter = "5m"

[[schedule]]
name = "nightly"
expression = "30 2 * * MON-FRI"
misfire_policy = "within(2h)"
start_at = 2027-01-01
end_at = 2028-01-01T00:00:00Z
jitter = "0s"
dst = { gap = "skip", overlap = "both" }
payload = { full = true, at = 2027-01-01, ratio = 0.5, list = [1, 0xff] }
task = { queue = "reports", kind = "nightly", max_run = "1h", priority = -3, required_tags = ["gpu"], concurrency_key = "tenant:2" }

[[schedule]]
name = "beat"
expression = "every 30s"
time_zone = "UTC"
event = { topic = "beats", key = "one" }
"#;

#[test]
fn a_valid_file_is_parsed() {
    let file = parsed("schedules.toml", GOOD);
    assert_eq!((file.source.as_deref(), file.entries.len()), (Some("billing"), 2));
    let [nightly, beat] = &file.entries[..] else { panic!() };
    let definition = &nightly.definition;
    assert_eq!(definition.time_zone.as_str(), "Europe/Berlin");
    assert_eq!(
        definition.time_zone.format_local(definition.start_at_ms.unwrap()),
        "2027-01-01T00:00:00+01:00"
    );
    assert_eq!(definition.time_zone.format_local(definition.end_at_ms.unwrap()), "2028-01-01T01:00:00+01:00");
    assert_eq!((definition.jitter_ms, definition.overlap_policy), (0, OverlapPolicy::Skip));
    assert_eq!(definition.payload.as_str(), r#"{"at":"2027-01-01","full":true,"list":[1,255],"ratio":0.5}"#);
    let ScheduleTarget::Task { queue, task } = &definition.target else { panic!() };
    assert_eq!(
        (queue.as_str(), task.kind.as_str(), task.max_run_ms),
        ("reports", "nightly", Some(3_600_000))
    );
    assert_eq!(
        (task.priority, task.concurrency_key.as_deref(), task.concurrency_limit),
        (-3, Some("tenant"), 2)
    );
    // The default overlap policy does not apply to an event; the default jitter does.
    assert_eq!((beat.definition.overlap_policy, beat.definition.jitter_ms), (OverlapPolicy::Allow, 300_000));
    assert_eq!((beat.definition.time_zone.as_str(), beat.place.line), ("UTC", 20));
}

#[test]
fn every_error_names_its_line_schedule_and_field() {
    let text = r#"
[[schedule]]
name = "nightly"
expression = "0 25 * * *"
time_zone = "Europe/Belrin"
task = { queue = "reports", kid = "x" }

[[schedule]]
name = "beat"
expression = "every 0s"
every = 3
event = { topic = "two words" }

[[schedule]]
expression = "every 1s"
"#;
    let message = error_of(text);
    for line in [
        "schedules.toml:4:14: nightly: expression: cron expression \"0 25 * * *\", at position 3: ",
        "schedules.toml:5:13: nightly: time_zone: ",
        "schedules.toml:6:29: nightly: task.kid: unknown field; use one of queue, kind,",
        "schedules.toml:10:14: beat: expression: interval \"every 0s\", at position 7: ",
        "schedules.toml:11:1: beat: every: unknown field; use one of name, expression,",
        "schedules.toml:12:19: beat: event.topic: ",
        "schedules.toml:14:1: unnamed schedule: name: the field is missing",
        "schedules.toml:14:1: unnamed schedule: no target",
        "nothing was changed",
    ] {
        assert!(message.contains(line), "{line:?} in\n{message}");
    }
    let lines: Vec<_> = message.lines().collect();
    assert_eq!(lines.len(), 9, "{message}");
}

#[test]
fn an_error_of_several_fields_is_reported_at_one_of_them() {
    let with =
        |lines: &str| error_of(&format!("[[schedule]]\nname = \"a\"\nexpression = \"every 1s\"\n{lines}\n"));
    let task = "task = { queue = \"q\" }";
    for (lines, wanted) in [
        (
            format!("start_at = 2027-01-01\nend_at = 2026-01-01\n{task}"),
            ":5:10: a: end_at: it must be after `start_at`",
        ),
        (format!("start_at = 12\n{task}"), ":4:12: a: start_at: expected an instant, such as"),
        (format!("start_at = \"2h\"\n{task}"), ":4:12: a: start_at: expected a fixed instant"),
        (format!("jitter = \"2d\"\n{task}"), ":4:10: a: jitter: "),
        (format!("misfire_policy = \"fire_all(0)\"\n{task}"), ":4:18: a: misfire_policy: "),
        (format!("payload = {{ a = nan }}\n{task}"), ":4:17: a: payload: JSON"),
        (format!("dst = {{ gap = \"no\" }}\n{task}"), ":4:15: a: dst.gap: invalid DST gap policy \"no\""),
        (format!("dst = {{ gap = \"no\" }}\n{task}"), "shift or skip"),
        ("overlap_policy = \"skip\"\nevent = { topic = \"t\" }".into(), ":4:18: a: overlap_policy: "),
        ("webhook = { url = \"ftp://x\" }".into(), ":4:11: a: webhook.url: "),
        (
            "webhook = { url = \"http://x\", secret_file = \"/no/such\" }".into(),
            ":4:45: a: webhook.secret_file: ",
        ),
        (
            "task = { queue = \"q\", max_run = \"soon\" }".into(),
            ":4:33: a: task.max_run: invalid duration \"soon\"",
        ),
        (
            "task = { queue = \"q\", max_attempts = -1 }".into(),
            ":4:38: a: task.max_attempts: expected a whole number",
        ),
        (
            "task = { queue = \"q\", required_tags = \"gpu\" }".into(),
            ":4:39: a: task.required_tags: expected a list",
        ),
        (
            format!("event = {{ topic = \"t\" }}\n{task}"),
            ":5:8: a: task: a schedule has one target; remove this one or event",
        ),
        (
            format!("{task}\n[[schedule]]\nname = \"a\"\nexpression = \"every 1s\"\n{task}"),
            ":5:1: a: name: duplicate name: line 1",
        ),
        ("task = { queue = \"q\"".into(), "schedules.toml:"),
    ] {
        let message = with(&lines);
        assert!(message.contains(wanted), "{wanted:?} in\n{message}");
    }
    assert!(
        error_of("schedule = 1")
            .contains("schedules.toml:1:12: schedule: write each schedule as [[schedule]]")
    );
    assert!(
        error_of("[schedules]").contains("schedules: unknown field; use one of source, defaults, schedule")
    );
    assert!(error_of("[defaults]\nname = \"a\"").contains(":2:1: name: unknown field"));
}

#[test]
fn a_file_with_a_thousand_errors_reports_some() {
    let message = error_of(&"[[schedule]]\nname = \"a\"\n".repeat(1_000));
    assert!(message.lines().count() < 30, "{message}");
    assert!(message.contains("more"));
}

#[test]
fn the_examples_of_the_documentation_are_valid() {
    let page = include_str!("../../../../../docs/SCHEDULES.md");
    let (_, rest) = page.split_once("```toml\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let file = parsed("SCHEDULES.md", &example.replace(", secret_file = \"payday.secret\"", ""));
    assert_eq!(file.entries.len(), 3);
    let help = crate::args::schedules::APPLY_EXAMPLES;
    let (_, rest) = help.split_once(":\n\n").expect("an example");
    let (example, _) = rest.split_once("\nThe whole file").expect("its end");
    let file = parsed("--help", &example.replace(", secret_file = \"payday.secret\"", ""));
    assert_eq!((file.entries.len(), file.source.as_deref()), (3, Some("billing")));
}

proptest::proptest! {
    #[test]
    fn no_file_panics(text in r#"(\[\[schedule\]\]\n|name = "[a-z]{0,3}"\n|expression = ".{0,9}"\n|task = \{ queue = "q" \}\n|.{0,12}\n){0,9}"#) {
        let _ = parse("f", &text, PathBuf::new());
    }
}
