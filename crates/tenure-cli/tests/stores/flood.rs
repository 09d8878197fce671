//! Members of a Raft cluster under a flood of silent connections, and members whose Raft has stopped.

use std::collections::VecDeque;
use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tenure::store::StoreOptions;
use tenure::store::raft::RaftStore;
use tenure_testkit::rig::free_port;

use super::support::{Candidate, World, until};

/// Limit of open files of a member, far below the number of connections in the flood.
const FILES: u32 = 256;

/// Connections of the flood per member: 1,500 in total.
const CONNECTIONS: usize = 500;

/// Three members, each with a candidate and a directory.
struct Members {
    world: World,
    ports: Vec<u16>,
    nodes: Vec<Candidate>,
}

impl Members {
    fn start() -> Members {
        let mut world = World::sqlite();
        let ports: Vec<u16> = (0..3).map(|_| free_port().expect("a port")).collect();
        let places = ports.iter().zip(1..).map(|(port, node)| format!("{node}@127.0.0.1:{port}"));
        let peers = places.collect::<Vec<_>>().join(",");
        let nodes = (1..=3).map(|node| {
            let folder = world.path(&format!("member{node}"));
            let store = format!("raft:{}?node={node}&peers={peers}&snapshot=10", folder.display());
            run(&world, node, &store)
        });
        let nodes = nodes.collect();
        world.store = format!("raft:?peers={peers}");
        Members { world, ports, nodes }
    }

    /// The snapshot file of a member.
    fn snapshot(&self, node: usize) -> Vec<u8> {
        std::fs::read(self.folder(node).join("snapshot.json")).unwrap_or_default()
    }

    /// Largest number of open files of a member.
    fn most_open_files(&self) -> usize {
        let count = |node: &Candidate| {
            let files = std::fs::read_dir(format!("/proc/{}/fd", node.process.id()));
            files.map_or(0, |files| files.count())
        };
        self.nodes.iter().map(count).max().unwrap_or(0)
    }

    fn folder(&self, node: usize) -> PathBuf {
        self.world.path(&format!("member{node}"))
    }

    /// A thread that writes to the cluster through its own client until `stop`. Ignores failed writes.
    fn writing(&self, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
        let (url, stop) = (self.world.store.clone(), stop.clone());
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut client = None;
                while !stop.load(Ordering::Relaxed) {
                    if client.is_none() {
                        let options = StoreOptions { url: url.clone(), ..StoreOptions::default() };
                        client = RaftStore::connect(&options).await.ok();
                    }
                    if let Some(client) = &client {
                        let _ = client.put("k", Some("v"), None).await;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        })
    }
}

/// `tenure run` as a member with a low limit of open files, and a child that writes signs while it lives.
fn run(world: &World, node: u32, store: &str) -> Candidate {
    let name = format!("node{node}");
    let script = "while :; do echo \"$TENURE_TOKEN $$ $EPOCHREALTIME\" >> \"$SIGNS\"; sleep 0.02; done";
    let limited = format!("ulimit -n {FILES}; exec \"$0\" \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_tenure"), "run", "nightly", "--name", &name, "-v"]);
    command.args(["--store", store, "--kill-after", "300ms", "--", "bash", "-c", script]);
    for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("TENURE_")) {
        command.env_remove(variable);
    }
    let log = File::create(world.path(&format!("{name}.log"))).expect("a log");
    command.env("SIGNS", world.path("signs")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Candidate { process: command.spawn().expect("bash runs"), name }
}

/// Threads that hold silent connections to each member and keep opening new ones. Stops when dropped.
struct Flood {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    fn start(ports: &[u16]) -> Flood {
        let (stop, opened): (Arc<AtomicBool>, Arc<AtomicUsize>) = Default::default();
        let threads = ports.iter().map(|port| {
            let (stop, opened, port) = (stop.clone(), opened.clone(), *port);
            std::thread::spawn(move || {
                let mut silent = VecDeque::new();
                while !stop.load(Ordering::Relaxed) {
                    let address = ([127, 0, 0, 1], port).into();
                    silent.extend(TcpStream::connect_timeout(&address, Duration::from_millis(100)));
                    opened.fetch_add(1, Ordering::Relaxed);
                    if silent.len() > CONNECTIONS {
                        silent.pop_front();
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            })
        });
        Flood { threads: threads.collect(), stop, opened }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// Regression: silent connections used up all file descriptors of the members, the next snapshot failed, and the
/// cluster stayed down after the flood.
#[test]
fn a_flood_of_silent_connections_neither_deposes_the_leader_nor_stops_a_member() {
    assert!(tenure::open_files::raise_limit() >= 4_096, "this test needs `ulimit -Hn` of 4096");
    let members = Members::start();
    let world = &members.world;
    let token = world.until_token_after(0);
    let flood = Flood::start(&members.ports);
    let all = || flood.opened.load(Ordering::Relaxed) >= 3 * CONNECTIONS;
    until("all connections of the flood were opened", all, || world.logs());
    let stop: Arc<AtomicBool> = Arc::default();
    let writing = members.writing(&stop);
    let mut most = 0;
    for _ in 0..3 {
        let before: Vec<Vec<u8>> = (1..=3).map(|node| members.snapshot(node)).collect();
        let anew = || {
            most = members.most_open_files().max(most);
            (1..=3).all(|node| members.snapshot(node) != before[node - 1])
        };
        until("every member has written a snapshot during the flood", anew, || world.logs());
    }
    drop(flood);
    // Without a limit on connections, a member would use all of them.
    assert!(most < FILES as usize * 3 / 4, "a member had {most} files open");
    stop.store(true, Ordering::Relaxed);
    writing.join().expect("the writer ends");
    let signs = world.signs().len();
    until("the child of the leader continues", || world.signs().len() > signs + 2, || world.logs());
    assert!(world.signs().iter().all(|sign| sign.token == token), "another led meanwhile\n{}", world.logs());
    assert!(world.leader().is_some(), "{}", world.logs());
    world.assert_never_two();
}

/// Regression: a member whose Raft had stopped kept running and reported a leader that was gone.
#[test]
fn a_member_whose_raft_has_stopped_exits_with_the_reason_and_the_others_continue() {
    let mut members = Members::start();
    let token = members.world.until_token_after(0);
    let leader = members.world.leader().expect("a leader");
    let node = leader.strip_prefix("node").and_then(|node| node.parse::<usize>().ok()).expect("a node");
    // A directory blocks the path of its next snapshot.
    let place = members.folder(node).join("snapshot.new");
    until("its disk is spoiled", || std::fs::create_dir(&place).is_ok(), || members.world.logs());
    let stop: Arc<AtomicBool> = Arc::default();
    let writing = members.writing(&stop);
    assert_eq!(members.nodes[node - 1].wait(), Some(69), "{}", members.world.logs());
    let log = std::fs::read_to_string(members.world.path(&format!("{leader}.log"))).expect("its log");
    assert!(log.contains("restart its process"), "{log}");
    members.world.until_token_after(token);
    stop.store(true, Ordering::Relaxed);
    writing.join().expect("the writer ends");
    members.world.assert_never_two();
}
