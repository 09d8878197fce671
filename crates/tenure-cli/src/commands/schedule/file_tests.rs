//! What a file says, and what is wrong with it.

use super::*;

fn told(text: &str) -> String {
    let wrongs = parse("schedules.toml", text, PathBuf::new()).expect_err("something is wrong");
    refused("schedules.toml", wrongs).message().to_owned()
}

const GOOD: &str = r#"
source = "billing"

[defaults]
zone = "Europe/Berlin"
overlap = "skip"
jitter = "5m"

[[schedule]]
name = "nightly"
when = "30 2 * * MON-FRI"
misfire = "within(2h)"
start = 2027-01-01
end = 2028-01-01T00:00:00Z
jitter = "0s"
dst = { gap = "skip", overlap = "both" }
payload = { full = true, at = 2027-01-01, ratio = 0.5, list = [1, 0xff] }
task = { queue = "reports", kind = "nightly", max_run = "1h", priority = -3, requires = ["gpu"], concurrency = "tenant:2" }

[[schedule]]
name = "beat"
when = "every 30s"
zone = "UTC"
event = { topic = "beats", key = "one" }
"#;

#[test]
fn a_file_is_read_as_it_says() {
    let file = parsed("schedules.toml", GOOD);
    assert_eq!((file.source.as_deref(), file.drafts.len()), (Some("billing"), 2));
    let [nightly, beat] = &file.drafts[..] else { panic!() };
    let definition = &nightly.definition;
    assert_eq!(definition.zone.as_str(), "Europe/Berlin");
    assert_eq!(definition.zone.shown(definition.start_ms.unwrap()), "2027-01-01T00:00:00+01:00");
    assert_eq!(definition.zone.shown(definition.end_ms.unwrap()), "2028-01-01T01:00:00+01:00");
    assert_eq!((definition.jitter_ms, definition.overlap), (0, Overlap::Skip));
    assert_eq!(definition.payload.as_str(), r#"{"at":"2027-01-01","full":true,"list":[1,255],"ratio":0.5}"#);
    let Target::Task { queue, task } = &definition.target else { panic!() };
    assert_eq!(
        (queue.as_str(), task.kind.as_str(), task.max_run_ms),
        ("reports", "nightly", Some(3_600_000))
    );
    assert_eq!(
        (task.priority, task.concurrency_key.as_deref(), task.concurrency_limit),
        (-3, Some("tenant"), 2)
    );
    // An event has no end to wait for, whatever is usual; the jitter is.
    assert_eq!((beat.definition.overlap, beat.definition.jitter_ms), (Overlap::Allow, 300_000));
    assert_eq!((beat.definition.zone.as_str(), beat.place.line), ("UTC", 20));
}

#[test]
fn every_mistake_is_told_with_its_line_its_schedule_and_its_field() {
    let text = r#"
[[schedule]]
name = "nightly"
when = "0 25 * * *"
zone = "Europe/Belrin"
task = { queue = "reports", kid = "x" }

[[schedule]]
name = "beat"
when = "every 0s"
every = 3
event = { topic = "two words" }

[[schedule]]
when = "every 1s"
"#;
    let told = told(text);
    for line in [
        "schedules.toml:4:8: nightly: when: cron expression \"0 25 * * *\", at position 3: the hour 25 does not exist",
        "schedules.toml:5:8: nightly: zone: there is no time zone \"Europe/Belrin\"; did you mean Europe/Berlin?",
        "schedules.toml:6:29: nightly: task.kid: there is no such field; there are queue, kind,",
        "schedules.toml:10:8: beat: when: interval \"every 0s\", at position 7: an interval of nothing never gets on",
        "schedules.toml:11:1: beat: every: there is no such field; there are name, when,",
        "schedules.toml:12:19: beat: event.topic: ",
        "schedules.toml:14:1: a schedule without a name: name: it is missing",
        "schedules.toml:14:1: a schedule without a name: what does a tick do?",
        "Nothing was changed",
    ] {
        assert!(told.contains(line), "{line:?} in\n{told}");
    }
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 9, "{told}");
}

#[test]
fn what_takes_several_fields_is_told_at_one_of_them() {
    let with = |lines: &str| told(&format!("[[schedule]]\nname = \"a\"\nwhen = \"every 1s\"\n{lines}\n"));
    let task = "task = { queue = \"q\" }";
    for (lines, wanted) in [
        (format!("start = 2027-01-01\nend = 2026-01-01\n{task}"), ":5:7: a: end: it is not after `start`"),
        (format!("start = 12\n{task}"), ":4:9: a: start: a moment, such as"),
        (format!("start = \"2h\"\n{task}"), ":4:9: a: start: a moment that stays the same"),
        (format!("jitter = \"2d\"\n{task}"), ":4:10: a: jitter: `jitter` is 172800000"),
        (format!("misfire = \"fire_all(0)\"\n{task}"), ":4:11: a: misfire: fire_all(0) is out of range"),
        (format!("payload = {{ a = nan }}\n{task}"), ":4:17: a: payload: JSON"),
        (format!("dst = {{ gap = \"no\" }}\n{task}"), ":4:15: a: dst.gap: \"no\" is no policy"),
        (format!("dst = {{ gap = \"no\" }}\n{task}"), "shift or skip"),
        (
            "overlap = \"skip\"\nevent = { topic = \"t\" }".into(),
            ":4:11: a: overlap: `overlap` can not be given",
        ),
        ("call = { url = \"ftp://x\" }".into(), ":4:8: a: call.url: `call.url` \"ftp://x\" does not begin"),
        ("call = { url = \"http://x\", secret_file = \"/no/such\" }".into(), ":4:42: a: call.secret_file: "),
        (
            "task = { queue = \"q\", max_run = \"soon\" }".into(),
            ":4:33: a: task.max_run: \"soon\" is not a time",
        ),
        ("task = { queue = \"q\", max_attempts = -1 }".into(), ":4:38: a: task.max_attempts: a whole number"),
        ("task = { queue = \"q\", requires = \"gpu\" }".into(), ":4:34: a: task.requires: a list"),
        (
            format!("event = {{ topic = \"t\" }}\n{task}"),
            ":5:8: a: task: a tick does one thing; there is event",
        ),
        (
            format!("{task}\n[[schedule]]\nname = \"a\"\nwhen = \"every 1s\"\n{task}"),
            ":5:1: a: name: a schedule of this name stands in line 1",
        ),
        ("task = { queue = \"q\"".into(), "schedules.toml:"),
    ] {
        let told = with(&lines);
        assert!(told.contains(wanted), "{wanted:?} in\n{told}");
    }
    assert!(told("schedule = 1").contains("schedules.toml:1:12: schedule: write each as [[schedule]]"));
    assert!(
        told("[schedules]")
            .contains("schedules: there is no such field; there are source, defaults, schedule")
    );
    assert!(told("[defaults]\nname = \"a\"").contains(":2:1: name: there is no such field"));
}

#[test]
fn a_file_with_a_thousand_mistakes_tells_some() {
    let told = told(&"[[schedule]]\nname = \"a\"\n".repeat(1_000));
    assert!(told.lines().count() < 30, "{told}");
    assert!(told.contains("more"));
}

#[test]
fn the_examples_of_the_documentation_are_good() {
    let page = include_str!("../../../../../docs/SCHEDULES.md");
    let (_, rest) = page.split_once("```toml\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let file = parsed("SCHEDULES.md", &example.replace(", secret_file = \"payday.secret\"", ""));
    assert_eq!(file.drafts.len(), 3);
    let help = crate::args::schedules::APPLY_EXAMPLES;
    let (_, rest) = help.split_once(":\n\n").expect("an example");
    let (example, _) = rest.split_once("\nAll of the file").expect("its end");
    let file = parsed("--help", &example.replace(", secret_file = \"payday.secret\"", ""));
    assert_eq!((file.drafts.len(), file.source.as_deref()), (3, Some("billing")));
}

proptest::proptest! {
    #[test]
    fn no_file_is_too_much(text in r#"(\[\[schedule\]\]\n|name = "[a-z]{0,3}"\n|when = ".{0,9}"\n|task = \{ queue = "q" \}\n|.{0,12}\n){0,9}"#) {
        let _ = parse("f", &text, PathBuf::new());
    }
}
