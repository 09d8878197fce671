//! Raft: what a cluster survives, and what it must not.

#![cfg(feature = "raft")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tenure::Token;
use tenure::backend::StoreOptions;
use tenure::backend::raft::Raft;
use tenure::port::{Directory, Store, Trouble};
use tenure_testkit::conformance::{Actor, election};
use tenure_testkit::rig::free_port;

/// After how many entries the log is cut: far fewer than else, so that it is.
const SNAPSHOT: u64 = 100;

/// Members in this process, each in a folder of its own.
struct Cluster {
    folder: TempDir,
    peers: String,
    members: BTreeMap<u64, Raft>,
    /// What the next member to start finds in its file of secrets.
    secrets: String,
}

impl Cluster {
    async fn of(count: u64) -> Cluster {
        let places: Vec<String> =
            (1..=count).map(|node| format!("{node}@127.0.0.1:{}", free_port().unwrap())).collect();
        let mut cluster = Cluster {
            folder: tempfile::tempdir().unwrap(),
            peers: places.join(","),
            members: BTreeMap::new(),
            secrets: "the first secret".into(),
        };
        for node in 1..=count {
            cluster.start(node).await;
        }
        let member = cluster.any();
        patiently(async || member.sessions(None).await).await;
        cluster
    }

    fn folder(&self, node: u64) -> PathBuf {
        self.folder.path().join(node.to_string())
    }

    /// All lines of a member's log.
    fn log(&self, node: u64) -> String {
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(self.folder(node)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.file_name().unwrap().to_str().unwrap().starts_with("log-"));
        files.sort();
        files.iter().map(|file| std::fs::read_to_string(file).unwrap_or_default()).collect()
    }

    async fn try_start(&mut self, node: u64) -> Result<(), tenure::port::StoreError> {
        let url = format!(
            "raft:{}?node={node}&peers={}&snapshot={SNAPSHOT}",
            self.folder(node).display(),
            self.peers
        );
        let member = self.connect(url, &self.secrets).await?;
        self.members.insert(node, member);
        Ok(())
    }

    async fn connect(&self, url: String, secrets: &str) -> Result<Raft, tenure::port::StoreError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, secrets).unwrap();
        let cluster_secret_file = Some(file.path().into());
        Raft::connect(&StoreOptions { url, cluster_secret_file, ..StoreOptions::default() }).await
    }

    /// Somebody who uses it.
    async fn client(&self, secrets: &str) -> Result<Raft, tenure::port::StoreError> {
        self.connect(format!("raft:?peers={}", self.peers), secrets).await
    }

    async fn start(&mut self, node: u64) {
        // A member that has just gone lets go of its port and its folder in a moment.
        for _ in 0..200 {
            if self.try_start(node).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.try_start(node).await.unwrap();
    }

    /// Ends a member: when its folder is free, nothing of it is left.
    async fn stop(&mut self, node: u64) {
        self.members.remove(&node);
        let lock = std::fs::File::open(self.folder(node).join("lock")).unwrap();
        while lock.try_lock().is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn leader(&self) -> u64 {
        loop {
            for member in self.members.values() {
                let status = member.status().await.unwrap();
                if let Some(leader) = status.leader.filter(|leader| self.members.contains_key(leader)) {
                    return leader;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn any(&self) -> Raft {
        self.members.values().next().unwrap().clone()
    }
}

async fn actor(store: Raft, name: &str) -> Actor {
    Actor::open(std::sync::Arc::new(store), name).await
}

/// Asks until the cluster has a leader again.
async fn patiently<T>(ask: impl AsyncFn() -> Result<T, tenure::port::StoreError>) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert_eq!(error.kind, Trouble::Unavailable, "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_the_leader_loses_nothing_that_was_told() {
    let mut cluster = Cluster::of(3).await;
    let a = actor(cluster.any(), "a").await;
    let key = election("e");
    a.stand(&key).await;
    let token = a.take(&key, 0).await;
    let leader = cluster.leader().await;
    drop(a.store);
    cluster.stop(leader).await;
    let next = cluster.any();
    let view = patiently(|| next.election(&key)).await.unwrap();
    assert_eq!(
        (view.leases[0].token, view.leases[0].holder.as_ref().unwrap().id.clone()),
        (token, a.id.clone())
    );
    let beat = patiently(|| next.beat(&a.id)).await;
    assert!(matches!(beat, tenure::port::Pulse::Alive { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_answers_nothing() {
    let mut cluster = Cluster::of(3).await;
    let a = actor(cluster.any(), "a").await;
    let key = election("e");
    a.stand(&key).await;
    drop(a.store);
    cluster.stop(1).await;
    cluster.stop(2).await;
    let left = cluster.any();
    assert_eq!(left.beat(&a.id).await.unwrap_err().kind, Trouble::Unavailable);
    // Not even what it knows: it may have changed since.
    assert_eq!(left.election(&key).await.unwrap_err().kind, Trouble::Unavailable);
    cluster.start(1).await;
    assert!(patiently(|| left.election(&key)).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_there_after_all_have_ended() {
    let mut cluster = Cluster::of(3).await;
    let a = actor(cluster.any(), "a").await;
    let key = election("e");
    a.stand(&key).await;
    let token = a.take(&key, 0).await;
    drop(a.store);
    let member = cluster.any();
    member.put("colour", Some("green"), Some((&key, 0, token))).await.unwrap();
    drop(member);
    for node in 1..=3 {
        cluster.stop(node).await;
    }
    for node in 1..=3 {
        cluster.start(node).await;
    }
    let member = cluster.any();
    assert_eq!(patiently(|| member.get("colour")).await.as_deref(), Some("green"));
    assert_eq!(patiently(|| member.election(&key)).await.unwrap().leases[0].token, token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_is_written_only_under_the_lease_that_is_held() {
    let cluster = Cluster::of(1).await;
    let store = cluster.any();
    let a = actor(store.clone(), "a").await;
    let key = election("e");
    a.stand(&key).await;
    let token = a.take(&key, 0).await;
    store.put("k", Some("1"), Some((&key, 0, token))).await.unwrap();
    let old = Token::from_u64(token.as_u64() - 1);
    let refused = store.put("k", Some("2"), Some((&key, 0, old))).await.unwrap_err();
    assert!(refused.kind == Trouble::Request && refused.message.contains("nothing was written"), "{refused}");
    a.store.end(&a.id).await.unwrap();
    assert!(store.put("k", Some("3"), Some((&key, 0, token))).await.is_err());
    assert_eq!(store.get("k").await.unwrap().as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lost_its_disk_takes_no_part_any_more() {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let lost = (1..=3).find(|node| *node != leader).unwrap();
    let other = (1..=3).find(|node| ![leader, lost].contains(node)).unwrap();
    // All have said which folder is theirs.
    for node in 1..=3 {
        while cluster.log(node).matches("register").count() < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    cluster.stop(lost).await;
    std::fs::remove_dir_all(cluster.folder(lost)).unwrap();
    cluster.start(lost).await;
    // Without it, one that remembers is a minority: it may not vote to make it a majority.
    cluster.stop(other).await;
    let left = cluster.members[&leader].clone();
    let asked = async || left.sessions(None).await;
    while asked().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..3 {
        assert_eq!(asked().await.unwrap_err().kind, Trouble::Unavailable);
    }
    cluster.start(other).await;
    patiently(asked).await;
}

/// Copies a folder as it is.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// A member's folder is put back as it once was; then the only other one that remembers is left alone with it.
async fn an_old_copy_takes_no_part(is_of_this_run: bool) {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let old = (1..=3).find(|node| *node != leader).unwrap();
    let other = (1..=3).find(|node| ![leader, old].contains(node)).unwrap();
    let store = cluster.members[&leader].clone();
    store.put("colour", Some("green"), None).await.unwrap();
    let backup = cluster.folder.path().join("backup");
    if !is_of_this_run {
        cluster.stop(old).await;
    }
    copy(&cluster.folder(old), &backup);
    if !is_of_this_run {
        cluster.start(old).await;
        // It has said that it was started once more.
        while !cluster
            .log(leader)
            .lines()
            .any(|line| line.contains(&format!("\"register\":[{old},")) && line.contains("\"started\":2"))
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // Without the other one, what is written now is written because the old one says that it has it.
    cluster.stop(other).await;
    patiently(|| store.put("colour", Some("red"), None)).await;
    cluster.stop(old).await;
    std::fs::remove_dir_all(cluster.folder(old)).unwrap();
    copy(&backup, &cluster.folder(old));
    cluster.start(old).await;
    // Who remembers is a minority now: the other one is not there, and the old one must not vote.
    let asked = async || store.get("colour").await;
    while asked().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..2 {
        assert_eq!(asked().await.unwrap_err().kind, Trouble::Unavailable);
    }
    cluster.start(other).await;
    assert_eq!(patiently(asked).await.as_deref(), Some("red"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_former_run_takes_no_part() {
    an_old_copy_takes_no_part(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_the_same_run_takes_no_part_while_somebody_remembers() {
    an_old_copy_takes_no_part(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_log_is_cut_and_who_was_away_for_long_catches_up() {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let away = (1..=3).find(|node| *node != leader).unwrap();
    let store = cluster.members[&leader].clone();
    cluster.stop(away).await;
    for round in 0..12 {
        let puts = (0..50).map(|n| {
            let store = store.clone();
            let (key, value) = (format!("k{n}"), round.to_string());
            async move { patiently(|| store.put(&key, Some(&value), None)).await }
        });
        futures_util::future::join_all(puts).await;
    }
    for node in (1..=3).filter(|node| *node != away) {
        // A segment goes when all of it is covered: what is kept is bounded by that, not by what was written.
        while cluster.log(node).lines().count() > 500 {
            patiently(|| store.put("more", Some("of it"), None)).await;
        }
    }
    cluster.start(away).await;
    // The beginning is gone, so it is sent the state; without the third, what is asked needs its word.
    let third = (1..=3).find(|node| ![leader, away].contains(node)).unwrap();
    let caught_up = cluster.folder(away).join("snapshot.json");
    while !caught_up.exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.stop(third).await;
    assert_eq!(patiently(|| store.get("k49")).await.as_deref(), Some("11"));
    drop(store);
    for node in [leader, away] {
        cluster.stop(node).await;
    }
    for node in 1..=3 {
        cluster.start(node).await;
    }
    let member = cluster.any();
    for n in 0..50 {
        let key = format!("k{n}");
        assert_eq!(patiently(|| member.get(&key)).await.as_deref(), Some("11"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go() {
    let mut cluster = Cluster::of(3).await;
    let first = cluster.any();
    patiently(|| first.sessions(None)).await;
    let place = format!("127.0.0.1:{}", free_port().unwrap());
    let peers = format!("{},4@{place}", cluster.peers);
    let folder = cluster.folder(4);
    let url = format!("raft:{}?node=4&peers={peers}", folder.display());
    let fourth = cluster.connect(url, &cluster.secrets).await.unwrap();
    first.admit(4, &place).await.unwrap();
    let voters = |status: tenure::backend::raft::Status| -> Vec<u64> {
        status.members.iter().filter(|member| member.votes).map(|member| member.node).collect()
    };
    assert_eq!(voters(first.status().await.unwrap()), [1, 2, 3, 4]);
    let leader = cluster.leader().await;
    let gone = (2..=3).find(|node| *node != leader).unwrap();
    first.dismiss(gone).await.unwrap();
    cluster.stop(gone).await;
    let left: Vec<u64> = [1, 2, 3, 4].into_iter().filter(|node| *node != gone).collect();
    assert_eq!(voters(cluster.members[&leader].status().await.unwrap()), left);
    patiently(|| fourth.sessions(None)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_has_one_member_and_a_damaged_log_none() {
    let mut cluster = Cluster::of(1).await;
    patiently(async || cluster.any().sessions(None).await).await;
    let twice = cluster.try_start(1).await.unwrap_err();
    assert!(twice.kind == Trouble::Unfit && twice.message.contains("another process"), "{twice}");
    let log = cluster.folder(1).join("log-00000001");
    cluster.stop(1).await;
    let whole = std::fs::read(&log).unwrap();
    // What a crash cut off was never told of.
    std::fs::write(&log, &whole[..whole.len() - 3]).unwrap();
    cluster.start(1).await;
    patiently(async || cluster.any().sessions(None).await).await;
    cluster.stop(1).await;
    let mut damaged = std::fs::read(&log).unwrap();
    damaged[20] ^= 1;
    std::fs::write(&log, damaged).unwrap();
    // It lets go of its folder in a moment.
    loop {
        let error = cluster.try_start(1).await.unwrap_err();
        if !error.message.contains("another process") && !error.message.contains("listen") {
            assert!(error.kind == Trouble::Unfit && error.message.contains("damaged in line 1"), "{error}");
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_know_the_secret_is_not_heard() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let cluster = Cluster::of(1).await;
    let place = cluster.peers.split_once('@').unwrap().1;
    let mut stream = tokio::net::TcpStream::connect(place).await.unwrap();
    stream.write_all(&[7; 32]).await.unwrap();
    stream.write_all(&[0, 0, 0, 40]).await.unwrap();
    stream.write_all(&[9; 40]).await.unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await.unwrap_or_default();
    assert_eq!(heard.len(), 32, "its own number, and nothing more");
    patiently(async || cluster.any().sessions(None).await).await;
}

/// Has the next snapshot of a member fail: where it is written, there is a folder.
fn spoil_snapshots(folder: &std::path::Path) {
    // The file is there for a moment, while a snapshot is being written.
    while let Err(error) = std::fs::create_dir(folder.join("snapshot.new")) {
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A member whose Raft had stopped went on answering: it told who had led, and asked itself for everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_raft_has_stopped_says_so_to_every_call_and_the_others_go_on() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let stopped = cluster.members[&leader].clone();
    let others: Vec<Raft> = cluster
        .members
        .iter()
        .filter(|(node, _)| **node != leader)
        .map(|(_, member)| member.clone())
        .collect();
    spoil_snapshots(&cluster.folder(leader));
    let writing = async {
        for number in 0_u64.. {
            let _ = others[0].put("k", Some(&number.to_string()), None).await;
        }
    };
    let why = tokio::select! {
        why = stopped.failed() => why,
        () = writing => unreachable!(),
    };
    assert!(why.kind == Trouble::Unavailable && why.message.contains("restarted"), "{why}");
    assert_eq!(stopped.get("k").await.unwrap_err().message, why.message);
    assert_eq!(stopped.status().await.unwrap().leader, None);
    patiently(async || others[0].put("k", Some("the others go on"), None).await).await;
    // Who asks the one that has stopped is told nothing there, and asks the next.
    let client = cluster.client(&cluster.secrets).await.unwrap();
    assert_eq!(patiently(|| client.get("k")).await.as_deref(), Some("the others go on"));
    assert_ne!(client.status().await.unwrap().leader, Some(leader));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_replaced_by_restarting_one_member_after_the_other() {
    let (old, new) = ("the first secret", "the second secret");
    let mut cluster = Cluster::of(3).await;
    assert!(cluster.client(new).await.is_err(), "nobody accepts it yet");
    for secrets in [format!("{old}\n{new}\n"), format!("{new}\n{old}\n"), format!("{new}\n")] {
        cluster.secrets = secrets;
        for node in 1..=3 {
            cluster.stop(node).await;
            cluster.start(node).await;
            // Each takes part: it leads, or is led by one that it reaches.
            for member in cluster.members.values() {
                patiently(async || member.put("k", Some(&cluster.secrets), None).await).await;
            }
        }
        // A client that is not restarted yet, and one that is.
        let goes_on = [old, new].map(|secret| cluster.secrets.contains(secret));
        for (secret, goes_on) in [old, new].into_iter().zip(goes_on) {
            assert_eq!(cluster.client(secret).await.is_ok(), goes_on, "{secret}");
        }
    }
}
