//! The child of `tenure run`, with real processes: one test per guarantee of `src/child/mod.rs`.

#[allow(dead_code)] // the binary uses the rest
#[path = "../src/child/mod.rs"]
mod child;
#[path = "child/rig.rs"]
mod rig;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use child::{ChildExit, SpawnError, Streams, boottime_ns};
use rig::{SECOND_NS, TestDirectory, ending, kill, last_stamp_ns, lives, spawn, stop, until};

/// Shell function that writes the boot time to a file while it runs, and ignores SIGTERM.
const STAMPS: &str = r#"stamps() { trap "" TERM; while :; do read -r up idle </proc/uptime; echo "$up" >>$1; sleep 0.005; done; }"#;

#[test]
fn supervisor_role() {
    rig::play_supervisor();
}

// Deadlines.

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_sigterm_well_before_the_deadline() {
    let place = TestDirectory::new();
    let script = "trap 'touch asked; exit 0' TERM; touch ready; while :; do sleep 0.01; done";
    let (child, deadline_ns) = place.run_until_ready(script, Duration::from_secs(1)).await;
    assert_eq!(ending(&child).await, ChildExit::EndedForTrust);
    assert!(boottime_ns() < deadline_ns);
    assert!(place.has("asked"));
    assert!(!lives(child.pid()) && !lives(child.watchdog_pid()));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_process_of_a_program_that_ignores_sigterm_survives_the_deadline() {
    let place = TestDirectory::new();
    let script = format!(
        "{STAMPS}; stamps group & (setsid sh -c '{STAMPS}; stamps escaped' &)
         until test -s group && test -s escaped; do sleep 0.01; done; echo 0.00 >main; touch ready; stamps main"
    );
    let (child, deadline_ns) = place.run_until_ready(&script, Duration::from_secs(1)).await;
    assert_eq!(ending(&child).await, ChildExit::EndedForTrust);
    for name in ["main", "group", "escaped"] {
        assert!(last_stamp_ns(&place.text(name)) < deadline_ns, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_after_sigterm_has_no_effect() {
    let place = TestDirectory::new();
    let script = "trap 'touch asked' TERM; touch ready; while :; do sleep 0.01; done";
    let (child, _) = place.run_until_ready(script, Duration::from_secs(1)).await;
    until("SIGTERM", || place.has("asked"));
    child.extend(boottime_ns() + 3600 * SECOND_NS);
    assert_eq!(ending(&child).await, ChildExit::EndedForTrust);
}

#[tokio::test(flavor = "multi_thread")]
async fn later_deadlines_keep_the_program_running() {
    let place = TestDirectory::new();
    let child = place.run("until test -e enough; do sleep 0.01; done; exit 3", 4, 30).await;
    let first_deadline_ns = boottime_ns() + 4 * SECOND_NS;
    while boottime_ns() < first_deadline_ns + SECOND_NS {
        child.extend(boottime_ns() + 4 * SECOND_NS);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(lives(child.pid()));
    place.mark("enough");
    assert_eq!(ending(&child).await, ChildExit::Exited(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_deadline_no_program_is_started() {
    let place = TestDirectory::new();
    let mut spec = place.spec("touch ran", Duration::ZERO, Duration::from_secs(1));
    spec.deadline_ns = boottime_ns() - 1;
    assert!(matches!(spawn(spec).await, Err(SpawnError::TrustEnded)));
    assert!(!place.has("ran"));
}

// Supervisor and watchdog stopped or killed.

#[test]
fn a_stopped_supervisor_loses_its_program_before_the_deadline() {
    let place = TestDirectory::new();
    let tree = place.supervised("trap 'touch asked; exit 0' TERM; while :; do sleep 0.01; done", 4, 1);
    stop(tree.supervisor.id());
    until("the program has ended", || !lives(tree.main) && !lives(tree.watchdog));
    assert!(boottime_ns() < place.line("deadline").parse::<u64>().unwrap());
    assert!(place.has("asked"));
    kill("CONT", tree.supervisor.id());
    assert_eq!(place.line("ending"), "EndedForTrust");
}

#[test]
fn a_killed_supervisor_leaves_no_orphan_and_the_lock_is_released_last() {
    let place = TestDirectory::new();
    let script = "trap 'touch asked; until test -e go; do sleep 0.01; done; exit 0' TERM
        (setsid sh -c 'trap \"\" TERM; echo $$ >escaped; while :; do sleep 0.01; done' &)
        sh -c 'trap \"\" TERM; echo $$ >member; while :; do sleep 0.01; done' &
        while :; do sleep 0.01; done";
    let mut tree = place.supervised(script, 60, 2);
    let pids = [tree.main, place.pid("escaped"), place.pid("member")];
    let lock = File::open(place.path("lock")).unwrap();
    tree.supervisor.kill().unwrap();
    tree.supervisor.wait().unwrap();
    until("SIGTERM", || place.has("asked"));
    assert!(lock.try_lock().is_err(), "the program still runs");
    place.mark("go");
    until("the lock is free", || lock.try_lock().is_ok());
    assert!(pids.iter().all(|pid| !lives(*pid)));
    until("the watchdog has gone", || !lives(tree.watchdog));
}

#[test]
fn a_killed_watchdog_leaves_no_process() {
    let place = TestDirectory::new();
    let script = "(setsid sh -c 'echo $$ >escaped; sleep 1000; :' &)
        sh -c 'echo $$ >member; sleep 1000; :' & sleep 1000; :";
    let tree = place.supervised(script, 60, 30);
    let pids = [tree.main, place.pid("escaped"), place.pid("member")];
    kill("KILL", tree.watchdog);
    assert_eq!(place.line("ending"), "WatchdogDied");
    assert!(pids.iter().all(|pid| !lives(*pid)));
}

#[test]
fn if_both_are_killed_surviving_descendants_hold_the_lock() {
    let place = TestDirectory::new();
    let mut tree =
        place.supervised("(setsid sh -c 'echo $$ >escaped; exec sleep 1000' &) ; sleep 1000; :", 60, 30);
    let escaped = place.pid("escaped");
    let lock = File::open(place.path("lock")).unwrap();
    stop(tree.supervisor.id());
    kill("KILL", tree.watchdog);
    until("the kernel kills the main process", || !lives(tree.main));
    tree.supervisor.kill().unwrap();
    tree.supervisor.wait().unwrap();
    assert!(lives(escaped) && lock.try_lock().is_err());
    kill("KILL", escaped);
    // A child of the main process may have survived as an orphan in its process group.
    Command::new("pkill").args(["-KILL", "-g", &tree.main.to_string()]).status().unwrap();
    until("the lock is free", || lock.try_lock().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_supervisor_kills_the_program_of_a_stopped_watchdog_at_the_deadline() {
    let place = TestDirectory::new();
    let child = place.run("(setsid sh -c 'echo $$ >escaped; exec sleep 1000' &) ; sleep 1000; :", 3, 1).await;
    let escaped = place.pid("escaped");
    stop(child.watchdog_pid());
    assert_eq!(ending(&child).await, ChildExit::EndedForTrust);
    assert!(!lives(child.pid()) && !lives(escaped) && !lives(child.watchdog_pid()));
}

#[test]
fn a_watchdog_frozen_past_the_deadline_kills_when_it_resumes() {
    let place = TestDirectory::new();
    let tree = place.supervised("trap 'touch asked' TERM; while :; do sleep 0.01; done", 3, 1);
    stop(tree.supervisor.id());
    stop(tree.watchdog);
    let deadline_ns: u64 = place.line("deadline").parse().unwrap();
    until("the deadline has passed", || boottime_ns() > deadline_ns);
    assert!(lives(tree.main), "no process was awake to stop it");
    kill("CONT", tree.watchdog);
    until("the program has ended", || !lives(tree.main) && !lives(tree.watchdog));
    assert!(!place.has("asked"), "there was no time to ask");
}

// Signals and exits.

#[tokio::test(flavor = "multi_thread")]
async fn signals_reach_the_whole_group() {
    let place = TestDirectory::new();
    let listen =
        |name: &str| format!("trap 'echo >>{name}' WINCH; touch {name}.ready; while :; do sleep 0.01; done");
    let child = place.run(&format!("{{ {}; }} | {{ {}; }}", listen("one"), listen("two")), 60, 1).await;
    until("both listen", || place.has("one.ready") && place.has("two.ready"));
    child.signal(libc::SIGWINCH);
    until("both have heard", || place.has("one") && place.has("two"));
    assert_eq!(child.end().await, ChildExit::Signalled(libc::SIGTERM));

    for (name, signal) in [
        ("USR1", libc::SIGUSR1),
        ("USR2", libc::SIGUSR2),
        ("HUP", libc::SIGHUP),
        ("QUIT", libc::SIGQUIT),
        ("INT", libc::SIGINT),
    ] {
        let place = TestDirectory::new();
        let child = place
            .run(
                &format!("trap 'touch got; exit 9' {name}; touch ready; while :; do sleep 0.01; done"),
                60,
                1,
            )
            .await;
        until("ready", || place.has("ready"));
        child.signal(signal);
        assert_eq!(ending(&child).await, ChildExit::Exited(9), "{name}");
        assert!(place.has("got"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_graceful_and_completes_every_wait() {
    let place = TestDirectory::new();
    let child = place.run("trap 'exit 5' TERM; touch ready; while :; do sleep 0.01; done", 60, 30).await;
    until("ready", || place.has("ready"));
    // A dropped wait or end has no effect.
    assert!(tokio::time::timeout(Duration::from_millis(1), child.wait()).await.is_err());
    let (ended, waited) = tokio::join!(child.end(), child.wait());
    assert_eq!((ended, waited), (ChildExit::Exited(5), ChildExit::Exited(5)));
    assert_eq!(child.wait().await.exit_code(), 5);
    assert!(!lives(child.watchdog_pid()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_waits_for_the_group_and_not_only_for_its_leader() {
    let place = TestDirectory::new();
    let script = "trap 'exit 0' TERM
        sh -c 'trap \"sleep 0.5; touch tidy; exit 0\" TERM; touch ready; while :; do sleep 0.01; done' &
        while :; do sleep 0.01; done";
    let child = place.run(script, 60, 30).await;
    until("ready", || place.has("ready"));
    assert_eq!(child.end().await, ChildExit::Exited(0));
    assert!(place.has("tidy"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_kills_processes_that_ignore_sigterm_and_continues_stopped_ones() {
    let place = TestDirectory::new();
    let deaf = place.run("trap '' TERM; touch ready; while :; do sleep 0.01; done", 60, 30).await;
    until("ready", || place.has("ready"));
    assert_eq!(deaf.end_within(Duration::from_millis(50)).await, ChildExit::Signalled(libc::SIGKILL));
    assert_eq!(deaf.wait().await.exit_code(), 137);

    let stopped = place.run("trap 'exit 4' TERM; kill -STOP $$; while :; do sleep 0.01; done", 60, 30).await;
    until("stopped", || {
        fs::read_to_string(format!("/proc/{}/stat", stopped.pid())).unwrap().contains(") T ")
    });
    assert_eq!(stopped.end().await, ChildExit::Exited(4), "it is continued, so that it can answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_of_the_main_process_stops_its_descendants() {
    let place = TestDirectory::new();
    let script = "for name in member escaped; do
            run=$(test $name = escaped && echo setsid)
            ($run sh -c 'trap \"touch $0.asked; exit 0\" TERM; echo $$ >$0; while :; do sleep 0.01; done' $name &)
        done
        until test -s member && test -s escaped; do sleep 0.01; done; exit 7";
    let child = place.run(script, 60, 30).await;
    assert_eq!(ending(&child).await, ChildExit::Exited(7));
    for name in ["member", "escaped"] {
        assert!(!lives(place.pid(name)) && place.has(&format!("{name}.asked")), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_child_is_stopped() {
    let place = TestDirectory::new();
    let child =
        place.run("trap 'touch asked; exit 0' TERM; touch ready; while :; do sleep 0.01; done", 60, 30).await;
    until("ready", || place.has("ready"));
    let (main, watchdog) = (child.pid(), child.watchdog_pid());
    drop(child);
    until("all gone", || !lives(main) && !lives(watchdog));
    assert!(place.has("asked"));
    until("reaped", || !fs::exists(format!("/proc/{watchdog}")).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_spawn_is_stopped() {
    let place = TestDirectory::new();
    let mut spec = place.spec("echo $$ >pid; sleep 1000; :", Duration::from_secs(60), Duration::from_secs(1));
    let lock = place.lock(&mut spec);
    let mut spawning = Box::pin(spawn(spec));
    let early = tokio::time::timeout(Duration::ZERO, &mut spawning).await;
    assert!(lock.try_lock().is_err(), "the watchdog has it");
    drop((early, spawning));
    until("all gone", || lock.try_lock().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_keeps_starting_sessions_is_killed() {
    let place = TestDirectory::new();
    let breed =
        "trap '' TERM; while :; do (setsid sh -c 'setsid sleep 1000 & sleep 1000' &) ; sleep 0.005; done";
    let script =
        format!("trap '' TERM; {{ {breed}; }} & (setsid sh -c \"{breed}\" &) ; touch ready; {breed}");
    let mut spec = place.spec(&script, Duration::from_secs(60), Duration::from_millis(300));
    let lock = place.lock(&mut spec);
    let child = spawn(spec).await.unwrap();
    until("ready", || place.has("ready"));
    assert_eq!(child.end().await, ChildExit::Signalled(libc::SIGKILL));
    // Every descendant had inherited the lock.
    assert!(lock.try_lock().is_ok());
}

// Environment and descriptors of the program.

#[tokio::test(flavor = "multi_thread")]
async fn exec_errors_have_the_exit_codes_of_a_shell() {
    let place = TestDirectory::new();
    fs::write(place.path("plain"), "not a program").unwrap();
    for (program, code, text) in [
        ("/nowhere/at/all", 127, "No such file"),
        ("no-such-program-anywhere", 127, "No such file"),
        (place.path("plain").to_str().unwrap(), 126, "Permission denied"),
        ("/", 126, "Permission denied"),
        ("", 127, "No such file"),
    ] {
        let mut spec = place.spec("", Duration::from_secs(60), Duration::from_secs(1));
        spec.argv = vec![program.into()];
        let error = spawn(spec).await.unwrap_err();
        assert_eq!(error.exit_code(), code, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let mut spec = place.spec("", Duration::from_secs(60), Duration::from_secs(1));
    spec.argv.clear();
    assert_eq!(spawn(spec).await.unwrap_err().exit_code(), 126);
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_are_set_for_the_program_only() {
    let place = TestDirectory::new();
    let mut spec = place.spec(
        "echo \"$TENURE_TOKEN\" >token; until test -e go; do sleep 0.01; done",
        Duration::from_secs(60),
        Duration::from_secs(1),
    );
    spec.env = vec![("TENURE_TOKEN".into(), "seventeen=17".into())];
    let child = spawn(spec).await.unwrap();
    assert_eq!(place.line("token"), "seventeen=17");
    let theirs = fs::read(format!("/proc/{}/environ", child.watchdog_pid())).unwrap();
    assert!(!String::from_utf8_lossy(&theirs).contains("seventeen"));
    place.mark("go");
    assert_eq!(ending(&child).await, ChildExit::Exited(0));
}

#[test]
fn the_program_gets_the_lock_and_no_other_descriptor_and_no_ignored_or_blocked_signal() {
    let place = TestDirectory::new();
    let script = "grep -E 'Sig(Blk|Ign)' /proc/self/status >signals; exec ls -l /proc/self/fd >fds";
    // A caller with an inheritable descriptor and ignored signals.
    let supervisor = place.supervisor(script, 60, 1);
    let mut careless = Command::new("sh");
    careless.args(["-c", "exec 9</dev/zero; trap '' HUP USR1; exec \"$@\"", "sh"]);
    careless.arg(supervisor.get_program()).args(supervisor.get_args());
    careless.envs(supervisor.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert!(careless.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap().success());
    assert_eq!(place.line("ending"), "Exited(0)");

    let fds = place.text("fds");
    let beyond = fds.lines().filter_map(|line| line.split_once(" -> ")).filter(|(entry, target)| {
        let standard = ["0", "1", "2"].iter().any(|fd| entry.ends_with(&format!(" {fd}")));
        !standard && !target.starts_with("/proc/") // the directory that is being listed
    });
    assert_eq!(
        beyond.map(|(_, target)| PathBuf::from(target)).collect::<Vec<_>>(),
        [place.path("lock")],
        "{fds}"
    );
    for line in place.text("signals").lines() {
        let set = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        let libcs_own = 0b11 << 31; // signals 32 and 33, which libc reserves
        assert_eq!(set & !libcs_own, 0, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pipes_end_with_the_program_and_not_with_the_watchdog() {
    let place = TestDirectory::new();
    let ((input, mut feed), (mut stdout, output)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let (mut stderr, errors) = std::io::pipe().unwrap();
    // A descendant keeps the watchdog running, but not the streams open.
    let script = "trap '' TERM; sleep 1000 <&- >&- 2>&- & cat; echo oops >&2";
    let mut spec = place.spec(script, Duration::from_secs(60), Duration::from_secs(30));
    spec.streams =
        Streams { input: Some(input.into()), output: Some(output.into()), errors: Some(errors.into()) };
    let child = spawn(spec).await.unwrap();
    feed.write_all(b"a payload").unwrap();
    drop(feed);
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    assert_eq!(text, "a payload");
    assert!(lives(child.watchdog_pid()), "it stops the remaining descendant");
    assert_eq!(child.end_within(Duration::ZERO).await, ChildExit::Exited(0));
    let mut text = String::new();
    stderr.read_to_string(&mut text).unwrap();
    assert_eq!(text, "oops\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_descriptors_keep_their_numbers() {
    let place = TestDirectory::new();
    let mut spec =
        place.spec("exec ls -l /proc/self/fd >fds", Duration::from_secs(60), Duration::from_secs(1));
    let kept = File::create(place.path("kept")).unwrap();
    let entry = format!(" {} -> {}", kept.as_raw_fd(), place.path("kept").display());
    spec.keep = vec![OwnedFd::from(kept)];
    assert_eq!(ending(&spawn(spec).await.unwrap()).await, ChildExit::Exited(0));
    let fds = place.text("fds");
    assert!(fds.contains(&entry), "{fds}");
    assert!(!fds.lines().any(|line| line.contains("anon_inode")), "{fds}");
}

#[test]
fn the_program_uses_the_terminal_and_keys_reach_the_supervisor_only() {
    let place = TestDirectory::new();
    let script = "trap 'echo INT >>got' INT; trap 'echo TERM >>got; exit 0' TERM
        test -t 0 && test -t 1 && test -t 2 && read -r line && echo \"$line\" >read
        while :; do sleep 0.01; done";
    // A long grace period: on a busy machine the program may take some time to stop.
    let supervisor = place.supervisor(script, 60, 50);
    let words = supervisor.get_args().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ");
    let line = format!("exec {} {words}", supervisor.get_program().to_str().unwrap());
    let mut terminal = Command::new("script");
    terminal.args(["-q", "-e", "-c", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::null());
    terminal.envs(supervisor.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut terminal = terminal.spawn().unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    keys.write_all(b"hello there\n").unwrap();
    assert_eq!(place.line("read"), "hello there");
    let (watchdog, main) = (place.pid("watchdog"), place.pid("main"));
    keys.write_all(b"\x03").unwrap();
    assert_eq!(
        place.line("got"),
        "TERM",
        "Ctrl-C killed the supervisor, and the watchdog asked the program to stop"
    );
    until("all gone", || !lives(watchdog) && !lives(main));
    drop(keys);
    terminal.wait().unwrap();
}
