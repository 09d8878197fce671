//! Raft clusters: faults that they must survive, and operations that they must reject.

#![cfg(feature = "raft")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tenure::Token;
use tenure::port::{ElectionAdmin, ElectionStore, ErrorKind};
use tenure::store::StoreOptions;
use tenure::store::raft::RaftStore;
use tenure_testkit::conformance::{TestSession, election};
use tenure_testkit::rig::free_port;

/// Entries per snapshot: far fewer than the default, so that the log is truncated.
const SNAPSHOT: u64 = 100;

/// Members in this process, each with a directory of its own.
struct Cluster {
    directory: TempDir,
    peers: String,
    members: BTreeMap<u64, RaftStore>,
    /// Content of the secret file of the next member to start.
    secrets: String,
}

impl Cluster {
    async fn of(count: u64) -> Cluster {
        let addresses: Vec<String> =
            (1..=count).map(|node| format!("{node}@127.0.0.1:{}", free_port().unwrap())).collect();
        let mut cluster = Cluster {
            directory: tempfile::tempdir().unwrap(),
            peers: addresses.join(","),
            members: BTreeMap::new(),
            secrets: "the first secret".into(),
        };
        for node in 1..=count {
            cluster.start(node).await;
        }
        let member = cluster.any();
        retry(async || member.sessions(None).await).await;
        cluster
    }

    fn directory(&self, node: u64) -> PathBuf {
        self.directory.path().join(node.to_string())
    }

    /// All lines of a member's log.
    fn log(&self, node: u64) -> String {
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(self.directory(node)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.file_name().unwrap().to_str().unwrap().starts_with("log-"));
        files.sort();
        files.iter().map(|file| std::fs::read_to_string(file).unwrap_or_default()).collect()
    }

    async fn try_start(&mut self, node: u64) -> Result<(), tenure::port::StoreError> {
        let url = format!(
            "raft:{}?node={node}&peers={}&snapshot={SNAPSHOT}",
            self.directory(node).display(),
            self.peers
        );
        let member = self.connect(url, &self.secrets).await?;
        self.members.insert(node, member);
        Ok(())
    }

    async fn connect(&self, url: String, secrets: &str) -> Result<RaftStore, tenure::port::StoreError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, secrets).unwrap();
        let cluster_secret_file = Some(file.path().into());
        RaftStore::connect(&StoreOptions { url, cluster_secret_file, ..StoreOptions::default() }).await
    }

    /// Connect as a client.
    async fn client(&self, secrets: &str) -> Result<RaftStore, tenure::port::StoreError> {
        self.connect(format!("raft:?peers={}", self.peers), secrets).await
    }

    async fn start(&mut self, node: u64) {
        // A stopped member needs a moment to release its port and its directory.
        for _ in 0..200 {
            if self.try_start(node).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.try_start(node).await.unwrap();
    }

    /// Stop a member and wait until its directory is unlocked.
    async fn stop(&mut self, node: u64) {
        self.members.remove(&node);
        let lock = std::fs::File::open(self.directory(node).join("lock")).unwrap();
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

    fn any(&self) -> RaftStore {
        self.members.values().next().unwrap().clone()
    }
}

async fn actor(store: RaftStore, name: &str) -> TestSession {
    TestSession::open(std::sync::Arc::new(store), name).await
}

/// Retry until the cluster has a leader again.
async fn retry<T>(ask: impl AsyncFn() -> Result<T, tenure::port::StoreError>) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert_eq!(error.kind, ErrorKind::Unavailable, "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_the_leader_loses_no_acknowledged_write() {
    let mut cluster = Cluster::of(3).await;
    let a = actor(cluster.any(), "a").await;
    let key = election("e");
    a.join(&key).await;
    let token = a.take(&key, 0).await;
    let leader = cluster.leader().await;
    drop(a.store);
    cluster.stop(leader).await;
    let next = cluster.any();
    let view = retry(|| next.election(&key)).await.unwrap();
    assert_eq!(
        (view.leases[0].token, view.leases[0].holder.as_ref().unwrap().id.clone()),
        (token, a.id.clone())
    );
    let beat = retry(|| next.heartbeat(&a.id)).await;
    assert!(matches!(beat, tenure::port::HeartbeatResponse::Live { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_rejects_reads_and_writes() {
    let mut cluster = Cluster::of(3).await;
    let a = actor(cluster.any(), "a").await;
    let key = election("e");
    a.join(&key).await;
    drop(a.store);
    cluster.stop(1).await;
    cluster.stop(2).await;
    let left = cluster.any();
    assert_eq!(left.heartbeat(&a.id).await.unwrap_err().kind, ErrorKind::Unavailable);
    // The member does not answer from its own state either, because that may be outdated.
    assert_eq!(left.election(&key).await.unwrap_err().kind, ErrorKind::Unavailable);
    cluster.start(1).await;
    assert!(retry(|| left.election(&key)).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_state_survives_a_restart_of_all_members() {
    let mut cluster = Cluster::of(3).await;
    let a = actor(cluster.any(), "a").await;
    let key = election("e");
    a.join(&key).await;
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
    assert_eq!(retry(|| member.get("colour")).await.as_deref(), Some("green"));
    assert_eq!(retry(|| member.election(&key)).await.unwrap().leases[0].token, token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_is_written_only_under_the_current_token() {
    let cluster = Cluster::of(1).await;
    let store = cluster.any();
    let a = actor(store.clone(), "a").await;
    let key = election("e");
    a.join(&key).await;
    let token = a.take(&key, 0).await;
    store.put("k", Some("1"), Some((&key, 0, token))).await.unwrap();
    let old = Token::from_u64(token.as_u64() - 1);
    let refused = store.put("k", Some("2"), Some((&key, 0, old))).await.unwrap_err();
    assert!(
        refused.kind == ErrorKind::Request && refused.message.contains("nothing was written"),
        "{refused}"
    );
    a.store.end_session(&a.id).await.unwrap();
    assert!(store.put("k", Some("3"), Some((&key, 0, token))).await.is_err());
    assert_eq!(store.get("k").await.unwrap().as_deref(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lost_its_disk_no_longer_takes_part() {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let lost = (1..=3).find(|node| *node != leader).unwrap();
    let other = (1..=3).find(|node| ![leader, lost].contains(node)).unwrap();
    // Wait until all members have registered their directories.
    for node in 1..=3 {
        while cluster.log(node).matches("register").count() < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    cluster.stop(lost).await;
    std::fs::remove_dir_all(cluster.directory(lost)).unwrap();
    cluster.start(lost).await;
    // The remaining member is a minority; the member without a disk must not vote.
    cluster.stop(other).await;
    let left = cluster.members[&leader].clone();
    let read = async || left.sessions(None).await;
    while read().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..3 {
        assert_eq!(read().await.unwrap_err().kind, ErrorKind::Unavailable);
    }
    cluster.start(other).await;
    retry(read).await;
}

/// Copy a directory.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Restore a member's directory from a copy, and leave only one other member running.
async fn restored_member_does_not_take_part(is_of_this_run: bool) {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let old = (1..=3).find(|node| *node != leader).unwrap();
    let other = (1..=3).find(|node| ![leader, old].contains(node)).unwrap();
    let store = cluster.members[&leader].clone();
    store.put("colour", Some("green"), None).await.unwrap();
    let backup = cluster.directory.path().join("backup");
    if !is_of_this_run {
        cluster.stop(old).await;
    }
    copy(&cluster.directory(old), &backup);
    if !is_of_this_run {
        cluster.start(old).await;
        // Wait until its second start is registered.
        while !cluster
            .log(leader)
            .lines()
            .any(|line| line.contains(&format!("\"register\":[{old},")) && line.contains("\"started\":2"))
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    // Without the third member, this write is committed by the acknowledgement of the old one.
    cluster.stop(other).await;
    retry(|| store.put("colour", Some("red"), None)).await;
    cluster.stop(old).await;
    std::fs::remove_dir_all(cluster.directory(old)).unwrap();
    copy(&backup, &cluster.directory(old));
    cluster.start(old).await;
    // The remaining member is a minority now; the restored one must not vote.
    let read = async || store.get("colour").await;
    while read().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..2 {
        assert_eq!(read().await.unwrap_err().kind, ErrorKind::Unavailable);
    }
    cluster.start(other).await;
    assert_eq!(retry(read).await.as_deref(), Some("red"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_restored_from_an_earlier_run_does_not_take_part() {
    restored_member_does_not_take_part(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_restored_from_the_same_run_does_not_take_part_while_a_leader_remembers() {
    restored_member_does_not_take_part(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_log_is_truncated_and_an_absent_member_catches_up() {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let away = (1..=3).find(|node| *node != leader).unwrap();
    let store = cluster.members[&leader].clone();
    cluster.stop(away).await;
    for round in 0..12 {
        let puts = (0..50).map(|n| {
            let store = store.clone();
            let (key, value) = (format!("k{n}"), round.to_string());
            async move { retry(|| store.put(&key, Some(&value), None)).await }
        });
        futures_util::future::join_all(puts).await;
    }
    for node in (1..=3).filter(|node| *node != away) {
        // A segment is removed when all its entries are covered, so the size of the log is bounded.
        while cluster.log(node).lines().count() > 500 {
            retry(|| store.put("more", Some("data"), None)).await;
        }
    }
    cluster.start(away).await;
    // The start of the log is purged, so the member receives a snapshot; without the third member, reads need its
    // confirmation.
    let third = (1..=3).find(|node| ![leader, away].contains(node)).unwrap();
    let caught_up = cluster.directory(away).join("snapshot.json");
    while !caught_up.exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cluster.stop(third).await;
    assert_eq!(retry(|| store.get("k49")).await.as_deref(), Some("11"));
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
        assert_eq!(retry(|| member.get(&key)).await.as_deref(), Some("11"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_added_and_removed() {
    let mut cluster = Cluster::of(3).await;
    let first = cluster.any();
    retry(|| first.sessions(None)).await;
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let peers = format!("{},4@{address}", cluster.peers);
    let directory = cluster.directory(4);
    let url = format!("raft:{}?node=4&peers={peers}", directory.display());
    let fourth = cluster.connect(url, &cluster.secrets).await.unwrap();
    first.add_member(4, &address).await.unwrap();
    let voters = |status: tenure::store::raft::RaftStatus| -> Vec<u64> {
        status.members.iter().filter(|member| member.voter).map(|member| member.node_id).collect()
    };
    assert_eq!(voters(first.status().await.unwrap()), [1, 2, 3, 4]);
    let leader = cluster.leader().await;
    let gone = (2..=3).find(|node| *node != leader).unwrap();
    first.remove_member(gone).await.unwrap();
    cluster.stop(gone).await;
    let left: Vec<u64> = [1, 2, 3, 4].into_iter().filter(|node| *node != gone).collect();
    assert_eq!(voters(cluster.members[&leader].status().await.unwrap()), left);
    retry(|| fourth.sessions(None)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_used_by_one_member_and_a_damaged_log_is_rejected() {
    let mut cluster = Cluster::of(1).await;
    retry(async || cluster.any().sessions(None).await).await;
    let twice = cluster.try_start(1).await.unwrap_err();
    assert!(twice.kind == ErrorKind::Misconfigured && twice.message.contains("another process"), "{twice}");
    let log = cluster.directory(1).join("log-00000001");
    cluster.stop(1).await;
    let intact = std::fs::read(&log).unwrap();
    // A truncated last line was never acknowledged.
    std::fs::write(&log, &intact[..intact.len() - 3]).unwrap();
    cluster.start(1).await;
    retry(async || cluster.any().sessions(None).await).await;
    cluster.stop(1).await;
    let mut damaged = std::fs::read(&log).unwrap();
    damaged[20] ^= 1;
    std::fs::write(&log, damaged).unwrap();
    // The directory is unlocked after a moment.
    loop {
        let error = cluster.try_start(1).await.unwrap_err();
        if !error.message.contains("another process") && !error.message.contains("listen") {
            assert!(
                error.kind == ErrorKind::Misconfigured && error.message.contains("damaged in line 1"),
                "{error}"
            );
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_the_secret_is_rejected() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let cluster = Cluster::of(1).await;
    let address = cluster.peers.split_once('@').unwrap().1;
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(&[7; 32]).await.unwrap();
    stream.write_all(&[0, 0, 0, 40]).await.unwrap();
    stream.write_all(&[9; 40]).await.unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap_or_default();
    assert_eq!(received.len(), 32, "only the handshake value");
    retry(async || cluster.any().sessions(None).await).await;
}

/// Make the next snapshot of a member fail: a directory occupies its file name.
fn break_snapshots(directory: &std::path::Path) {
    // The file exists for a moment while a snapshot is being written.
    while let Err(error) = std::fs::create_dir(directory.join("snapshot.new")) {
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Regression: a member whose Raft core had stopped continued to answer. It reported the former leader and sent
/// requests to itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_member_fails_every_call_and_the_others_continue() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let stopped = cluster.members[&leader].clone();
    let others: Vec<RaftStore> = cluster
        .members
        .iter()
        .filter(|(node, _)| **node != leader)
        .map(|(_, member)| member.clone())
        .collect();
    break_snapshots(&cluster.directory(leader));
    let writing = async {
        for number in 0_u64.. {
            let _ = others[0].put("k", Some(&number.to_string()), None).await;
        }
    };
    let why = tokio::select! {
        why = stopped.failed() => why,
        () = writing => unreachable!(),
    };
    assert!(why.kind == ErrorKind::Unavailable && why.message.contains("restart its process"), "{why}");
    assert_eq!(stopped.get("k").await.unwrap_err().message, why.message);
    assert_eq!(stopped.status().await.unwrap().leader, None);
    retry(async || others[0].put("k", Some("the others go on"), None).await).await;
    // A client of the stopped member gets no reply and uses the next member.
    let client = cluster.client(&cluster.secrets).await.unwrap();
    assert_eq!(retry(|| client.get("k")).await.as_deref(), Some("the others go on"));
    assert_ne!(client.status().await.unwrap().leader, Some(leader));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_rotated_by_restarting_members_one_by_one() {
    let (old, new) = ("the first secret", "the second secret");
    let mut cluster = Cluster::of(3).await;
    assert!(cluster.client(new).await.is_err(), "no member accepts the new secret yet");
    for secrets in [format!("{old}\n{new}\n"), format!("{new}\n{old}\n"), format!("{new}\n")] {
        cluster.secrets = secrets;
        for node in 1..=3 {
            cluster.stop(node).await;
            cluster.start(node).await;
            // Each member takes part: it leads, or reaches the leader.
            for member in cluster.members.values() {
                retry(async || member.put("k", Some(&cluster.secrets), None).await).await;
            }
        }
        // A client with the old secret, and one with the new secret.
        let is_accepted = [old, new].map(|secret| cluster.secrets.contains(secret));
        for (secret, is_accepted) in [old, new].into_iter().zip(is_accepted) {
            assert_eq!(cluster.client(secret).await.is_ok(), is_accepted, "{secret}");
        }
    }
}
