//! Each part of the rig, used once for real.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tenure_testkit::rig::{
    FakeClock, NetworkNamespace, NetworkSwitch, PgBouncer, PgCluster, PgStandby, SmallDisk, fresh_database,
    prepared_database, true_boottime_ns,
};

/// Returns from the test with a message if a requirement is not available.
macro_rules! need {
    ($available:expr) => {
        if let Err(why) = $available {
            println!("skipped: {why}");
            return;
        }
    };
}

fn psql(url: &str, sql: &str) -> Command {
    let mut command = Command::new("psql");
    command.args(["-X", "-q", "-A", "-t", "-d", url, "-c", sql]).stdin(Stdio::null());
    command
}

fn answer(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Polls until a condition holds. The timeout of the test runner ends a failed wait.
fn eventually(mut holds: impl FnMut() -> bool) {
    while !holds() {
        thread::sleep(Duration::from_millis(20));
    }
}

/// This binary again, running one of the ignored tests below as a separate process.
fn role(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]).env("TENURE_RIG_ROLE", name);
    command
}

fn plays(name: &str) -> bool {
    env::var("TENURE_RIG_ROLE").is_ok_and(|role| role == name)
}

/// A client in the middle of a statement, and its backend.
fn sleeping_client(cluster: &PgCluster) -> (Child, u32) {
    let client = psql(&cluster.url(), "SELECT pg_sleep(600)").stdout(Stdio::null()).spawn().unwrap();
    let find =
        "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()";
    let mut pid = String::new();
    eventually(|| {
        pid = cluster.psql("postgres", find).unwrap();
        !pid.is_empty()
    });
    (client, pid.parse().unwrap())
}

#[test]
fn committed_rows_survive_kill9_stop_and_restart() {
    let cluster = PgCluster::start().unwrap();
    let url = cluster.create_database("kept").unwrap();
    cluster.psql("kept", "CREATE TABLE t (n int); INSERT INTO t VALUES (1)").unwrap();
    let first = cluster.pid().unwrap();

    cluster.kill9().unwrap();
    assert_eq!(cluster.pid(), None);
    assert!(answer(&mut psql(&url, "SELECT 1")).is_err());
    cluster.start_again().unwrap();
    assert_ne!(cluster.pid(), Some(first));
    cluster.restart().unwrap();
    assert_eq!(answer(&mut psql(&url, "SELECT n FROM t")).unwrap(), "1");
    cluster.stop().unwrap();
    assert!(cluster.psql("kept", "SELECT 1").is_err());
}

#[test]
fn a_dropped_cluster_leaves_no_directory() {
    let cluster = PgCluster::start().unwrap();
    let folder = cluster.socket_folder().to_owned();
    assert!(folder.exists());
    drop(cluster);
    assert!(!folder.exists());
}

#[test]
fn backends_are_stopped_and_terminated_one_by_one() {
    let cluster = PgCluster::start().unwrap();
    let (mut client, backend) = sleeping_client(&cluster);
    cluster.sigstop_backend(backend).unwrap();
    let state = std::fs::read_to_string(format!("/proc/{backend}/stat")).unwrap();
    assert!(state.contains(") T "), "{state}");
    cluster.sigcont_backend(backend).unwrap();
    assert!(cluster.sigstop_backend(std::process::id()).is_err(), "does not belong to the cluster");

    assert_eq!(cluster.terminate_backends("postgres").unwrap(), 1);
    assert!(!client.wait().unwrap().success());
}

#[test]
fn a_frozen_cluster_answers_only_when_thawed() {
    let cluster = PgCluster::start().unwrap();
    cluster.freeze().unwrap();
    let mut client = psql(&cluster.url(), "SELECT 1").stdout(Stdio::null()).spawn().unwrap();
    assert!(client.try_wait().unwrap().is_none());
    cluster.thaw().unwrap();
    assert!(client.wait().unwrap().success());
}

#[test]
fn passwords_and_certificates_are_checked() {
    let cluster = PgCluster::builder().password("it's 100% secret").tls().start().unwrap();
    let url = cluster.url();
    let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(answer(&mut psql(&url, encrypted)).unwrap(), "t");
    let wrong_password = url.replace("it%27s", "wrong");
    assert!(
        answer(&mut psql(&wrong_password, encrypted)).unwrap_err().contains("password authentication failed")
    );
    let plain = url.replace("verify-full", "disable");
    assert!(answer(&mut psql(&plain, encrypted)).unwrap_err().contains("no encryption"));
    // 127.0.0.1 under a name that the certificate does not contain.
    let stranger = cluster.url_at("elsewhere.invalid", "postgres") + "&hostaddr=127.0.0.1";
    assert!(answer(&mut psql(&stranger, encrypted)).unwrap_err().contains("does not match host name"));
}

#[test]
fn prepared_databases_are_copies_of_one_template() {
    let token = std::process::id().to_string();
    let script = format!("CREATE TABLE made AS SELECT {token} AS by; CREATE TABLE own (n int);");
    // All at once, before the template exists.
    let copies: Vec<_> = thread::scope(|scope| {
        let makers: Vec<_> = (0..4).map(|_| scope.spawn(|| prepared_database(&script).unwrap())).collect();
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    for (n, copy) in copies.iter().enumerate() {
        assert_eq!(copy.psql("SELECT by FROM made").unwrap(), token);
        copy.psql(&format!("INSERT INTO own VALUES ({n})")).unwrap();
    }
    for (n, copy) in copies.iter().enumerate() {
        assert_eq!(copy.psql("SELECT n FROM own").unwrap(), n.to_string());
    }
    drop(copies);
    let last = prepared_database(&script).unwrap();
    assert_eq!(last.psql("SELECT count(*) FROM own").unwrap(), "0", "it is as it was created");
    assert!(prepared_database("SELECT no sense").is_err());
}

#[test]
fn fresh_databases_do_not_see_one_another() {
    let (one, other) = (fresh_database().unwrap(), fresh_database().unwrap());
    assert_ne!(one.name(), other.name());
    one.psql("CREATE TABLE mine ()").unwrap();
    assert_eq!(other.psql("SELECT to_regclass('mine') IS NULL").unwrap(), "t");
    assert_eq!(answer(&mut psql(one.url(), "SELECT current_database()")).unwrap(), one.name());
}

#[test]
fn a_promoted_asynchronous_standby_has_lost_unreceived_commits() {
    let primary = PgCluster::start().unwrap();
    primary.psql("postgres", "CREATE TABLE t (n int); INSERT INTO t VALUES (1)").unwrap();
    let standby = PgStandby::of(&primary).unwrap();
    standby.disconnect().unwrap();
    standby.reconnect().unwrap();
    primary.psql("postgres", "INSERT INTO t VALUES (2)").unwrap();
    standby.wait_caught_up().unwrap();

    standby.disconnect().unwrap();
    primary.psql("postgres", "INSERT INTO t VALUES (3)").unwrap();
    primary.kill9().unwrap();
    standby.promote().unwrap();
    assert_eq!(answer(&mut psql(&standby.url(), "SELECT max(n) FROM t")).unwrap(), "2");
    let timeline = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)";
    assert_eq!(standby.cluster().psql("postgres", timeline).unwrap(), "00000002");
}

#[test]
fn a_commit_waits_for_a_synchronous_standby() {
    let primary = PgCluster::start().unwrap();
    let standby = PgStandby::synchronous_of(&primary).unwrap();
    standby.disconnect().unwrap();
    let mut client = psql(&primary.url(), "CREATE TABLE t ()").spawn().unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    eventually(|| primary.psql("postgres", waiting).unwrap() == "1");
    standby.reconnect().unwrap();
    assert!(client.wait().unwrap().success());
}

#[test]
fn pgbouncer_pools_transactions() {
    let cluster = PgCluster::start().unwrap();
    cluster.create_database("pooled").unwrap();
    let bouncer = PgBouncer::in_front_of(&cluster).unwrap();
    assert_eq!(answer(&mut psql(&bouncer.url("pooled"), "SELECT current_database()")).unwrap(), "pooled");
    let pools = answer(&mut psql(&bouncer.url("pgbouncer"), "SHOW POOLS")).unwrap();
    assert!(
        pools.lines().any(|pool| pool.starts_with("pooled|") && pool.contains("|transaction")),
        "{pools}"
    );
}

#[test]
fn a_one_way_cut_lets_requests_through_and_loses_the_answers() {
    need!(NetworkNamespace::available());
    let namespace = NetworkNamespace::new().unwrap();
    let host = namespace.host_address();
    let cluster = PgCluster::builder().listen_on(host).start().unwrap();
    cluster.psql("postgres", "CREATE TABLE t (n int)").unwrap();
    let url = cluster.url_at(&host.to_string(), "postgres");
    let inside = |sql: &str| {
        let mut command = namespace.command("psql");
        command
            .args(["-X", "-q", "-A", "-t", "-d", &url])
            .args(sql.split('\n').flat_map(|line| ["-c", line]));
        command
    };
    assert_eq!(answer(&mut inside("SELECT inet_client_addr()")).unwrap(), namespace.address().to_string());

    // The client connects, is cut off, and only then sends its request.
    let is_connected = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'ready'";
    let wait_then_insert = "SET application_name = 'ready'\n\\! until test -e \"$GO\"; do sleep 0.02; done\nINSERT INTO t VALUES (1)";
    let go = cluster.socket_folder().join("go");
    let mut client = inside(wait_then_insert).env("GO", &go).stdout(Stdio::null()).spawn().unwrap();
    eventually(|| !cluster.psql("postgres", is_connected).unwrap().is_empty());
    namespace.cut_one_way().unwrap();
    std::fs::write(&go, "").unwrap();
    eventually(|| cluster.psql("postgres", "SELECT count(*) FROM t").unwrap() == "1");
    assert!(client.try_wait().unwrap().is_none(), "the row exists, and the client does not know it");
    namespace.heal().unwrap();
    assert!(client.wait().unwrap().success());
}

#[test]
fn a_switch_cuts_each_direction_separately() {
    need!(NetworkSwitch::available());
    let switch = NetworkSwitch::of(3).unwrap();
    let mut listeners = [0, 1].map(|node| {
        let role = role("helper_receives_datagrams");
        let mut command = switch.command(node, role.get_program());
        command
            .args(role.get_args())
            .env("TENURE_RIG_ROLE", "helper_receives_datagrams")
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "listening"));
        (child, lines)
    });
    let say = |from: usize, to: usize, word: &str| {
        let line = format!("echo {word} > /dev/udp/{}/7777", switch.address(to));
        // The sender may get an error.
        let _ = switch.command(from, "bash").args(["-c", &line]).stderr(Stdio::null()).status().unwrap();
    };
    let mut heard_by = |node: usize| listeners[node].1.next().unwrap();
    say(0, 1, "first");
    assert_eq!(heard_by(1), "heard first");
    switch.mute(0).unwrap();
    say(0, 1, "lost");
    say(2, 1, "second");
    assert_eq!(heard_by(1), "heard second", "no process receives from a muted one");
    say(1, 0, "third");
    assert_eq!(heard_by(0), "heard third", "but it receives");
    switch.heal().unwrap();
    switch.deafen(0).unwrap();
    say(1, 0, "lost");
    say(0, 1, "fourth");
    assert_eq!(heard_by(1), "heard fourth");
    switch.heal().unwrap();
    say(1, 0, "fifth");
    assert_eq!(heard_by(0), "heard fifth", "an isolated process receives nothing");
    for (child, _) in &mut listeners {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
#[ignore = "helper process of another test"]
fn helper_receives_datagrams() {
    if !plays("helper_receives_datagrams") {
        return;
    }
    let socket = std::net::UdpSocket::bind("0.0.0.0:7777").unwrap();
    println!("\nlistening");
    let mut bytes = [0; 100];
    loop {
        let (length, _) = socket.recv_from(&mut bytes).unwrap();
        println!("heard {}", String::from_utf8_lossy(&bytes[..length]).trim());
    }
}

#[test]
fn a_full_disk_refuses_until_it_is_freed() {
    need!(SmallDisk::available());
    let disk = SmallDisk::new(1 << 20).unwrap();
    disk.fill().unwrap();
    let file = disk.path().join("file");
    let full = std::fs::write(&file, [1; 8192]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    disk.free().unwrap();
    std::fs::write(&file, [1; 8192]).unwrap();
    let path = disk.path().to_owned();
    drop(disk);
    assert!(!path.exists());
}

#[test]
fn a_fast_clock_runs_fast_for_boottime_and_for_tokio() {
    need!(FakeClock::available());
    let mut command = role("helper_reads_its_clocks");
    FakeClock::true_time().rate(3.0).offset_s(-100).apply(&mut command).unwrap();
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "helper process of another test"]
#[allow(unsafe_code)]
fn helper_reads_its_clocks() {
    if !plays("helper_reads_its_clocks") {
        return;
    }
    let believed = || {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: libc writes one timespec to a variable of that type that we own.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) }, 0);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    };
    let truth = || true_boottime_ns() as f64 / 1e9;
    // True readings outside and inside of the faked ones bound the elapsed time, however busy the machine is.
    let (outer, from, inner) = (truth(), believed(), truth());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::sleep(Duration::from_millis(900)).await });
    let (inner, passed, outer) = (truth() - inner, believed() - from, truth() - outer);
    println!("true {inner} to {outer}, faked {passed}");
    assert!(passed >= inner * 2.99 && passed <= outer * 3.01);
    assert!(passed >= 0.9, "tokio slept as long as its clock says");
}

#[test]
fn nothing_outlives_a_killed_test_process() {
    let mut owner =
        role("helper_owns_a_cluster").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let folder =
        lines.map(Result::unwrap).find_map(|line| line.strip_prefix("folder ").map(str::to_owned)).unwrap();
    assert!(!working_in(&folder).is_empty());
    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually(|| working_in(&folder).is_empty() && !Path::new(&folder).exists());
}

#[test]
#[ignore = "helper process of another test"]
fn helper_owns_a_cluster() {
    if !plays("helper_owns_a_cluster") {
        return;
    }
    // Started by a thread that ends: a parent-death signal would fire now.
    let cluster = thread::spawn(|| PgCluster::start().unwrap()).join().unwrap();
    let (_client, backend) = sleeping_client(&cluster);
    cluster.sigstop_backend(backend).unwrap();
    println!("\nfolder {}", cluster.socket_folder().display());
    let _ = std::io::stdin().read(&mut [0]);
}

fn working_in(folder: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| {
            std::fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(folder))
        })
        .map(|process| process.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn a_servers_wall_clock_can_be_set_while_it_runs() {
    need!(FakeClock::available());
    let cluster = PgCluster::builder().settable_clock().start().unwrap();
    let seconds = || -> f64 {
        cluster.psql("postgres", "SELECT extract(epoch FROM clock_timestamp())").unwrap().parse().unwrap()
    };
    let ahead = |from: f64, hours: f64| ((seconds() - from) / 3_600.0 - hours).abs() < 0.5;
    let start = seconds();
    cluster.clock().unwrap().set(3_600).unwrap();
    assert!(ahead(start, 1.0));
    cluster.restart().unwrap();
    assert!(ahead(start, 1.0));
    cluster.clock().unwrap().set(-3_600).unwrap();
    assert!(ahead(start, -1.0));
    assert!(PgCluster::shared().unwrap().clock().is_none());
}
