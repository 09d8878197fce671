use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use openraft::{CommittedLeaderId, EntryPayload};
use proptest::prelude::*;

use super::super::disk::DataDirectory;
use super::*;
use crate::runtime::SystemRuntime;

fn id(term: u64, index: u64) -> LogId<NodeId> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

fn entries(term: u64, indexes: std::ops::Range<u64>) -> Vec<Record> {
    let entry = |index| Entry { log_id: id(term, index), payload: EntryPayload::Blank };
    indexes.map(|index| Record::Append(Box::new(entry(index)))).collect()
}

fn open(directory: &Path) -> Result<Log, StoreError> {
    Log::open(Arc::new(DataDirectory::lock(directory)?), watch::channel(Some(u64::MAX)).1, &SystemRuntime)
}

fn files(directory: &Path) -> BTreeSet<PathBuf> {
    let all = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("log-")).collect()
}

/// State that must survive a restart: entries, vote, purge mark and directory id.
type DurableLog = (Vec<LogId<NodeId>>, Option<Vote<NodeId>>, Option<LogId<NodeId>>, String);

fn durable_state(log: &Log) -> DurableLog {
    let Inner { contents, .. } = &*log.locked();
    (
        contents.entries.values().map(|entry| entry.log_id).collect(),
        contents.vote,
        contents.purged,
        contents.directory_id.clone(),
    )
}

#[test]
fn a_purge_removes_covered_segments_without_rewriting_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path()).unwrap();
    log.locked().append(entries(1, 0..1000)).unwrap();
    log.locked().append(vec![Record::Vote(Vote::new(7, 3))]).unwrap();
    log.locked().purge(id(1, 900)).unwrap();
    let first = files(directory.path());
    assert_eq!(first.len(), 2, "the new segment and the one with the last hundred entries: {first:?}");
    let kept = first.first().unwrap();
    let (inode, length) = (inode(kept), std::fs::metadata(kept).unwrap().len());
    log.locked().append(entries(1, 1000..1500)).unwrap();
    assert_eq!((self::inode(kept), std::fs::metadata(kept).unwrap().len()), (inode, length));
    log.locked().purge(id(1, 1400)).unwrap();
    let second = files(directory.path());
    assert!(second.len() == 2 && !second.contains(kept), "{second:?}");
    // A purge writes a few lines, regardless of the length of the log.
    assert!(std::fs::metadata(second.last().unwrap()).unwrap().len() < 600);
    let before = durable_state(&log);
    drop(log);
    let again = open(directory.path()).unwrap();
    assert_eq!(durable_state(&again), before);
    assert_eq!((again.started(), again.last_position()), (2, (7, 1499)));
}

fn inode(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap())
}

#[test]
fn a_missing_or_damaged_segment_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path()).unwrap();
    for round in 0..3 {
        log.locked().append(entries(1, round * 500..(round + 1) * 500)).unwrap();
        log.locked().purge(id(1, round * 100 + 50)).unwrap();
    }
    drop(log);
    let all: Vec<PathBuf> = files(directory.path()).into_iter().collect();
    assert_eq!(all.len(), 4);
    let refused = |what: &str| {
        let error = open(directory.path()).err().expect(what);
        assert!(error.kind == ErrorKind::Misconfigured, "{error}");
    };
    let middle = std::fs::read(&all[1]).unwrap();
    std::fs::write(&all[1], &middle[..middle.len() - 3]).unwrap();
    refused("truncated in the middle");
    std::fs::remove_file(&all[1]).unwrap();
    refused("missing segment");
    std::fs::write(&all[1], middle).unwrap();
    let first = std::fs::read(&all[0]).unwrap();
    std::fs::remove_file(&all[0]).unwrap();
    refused("missing first segment");
    std::fs::write(&all[0], first).unwrap();
    open(directory.path()).unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Append(u64),
    Vote(u64),
    Truncate(u64),
    Purge(u64),
    /// The process ends, and its last write is truncated at this length.
    Crash(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..400u64).prop_map(Step::Append),
        1 => (1..100u64).prop_map(Step::Vote),
        1 => (0..100u64).prop_map(Step::Truncate),
        2 => (0..300u64).prop_map(Step::Purge),
        2 => (0..30usize).prop_map(Step::Crash),
    ];
    proptest::collection::vec(step, 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A reopened log equals the log before the crash, except for an incomplete write.
    #[test]
    fn acknowledged_records_survive_a_crash(steps in steps()) {
        let directory = tempfile::tempdir().unwrap();
        let mut log = open(directory.path()).unwrap();
        let (mut next, mut term) = (0, 1);
        for step in steps {
            let first = log.locked().contents.purged.map_or(0, |upto| upto.index + 1);
            match step {
                Step::Append(count) => {
                    log.locked().append(entries(term, next..next + count)).unwrap();
                    next += count;
                }
                Step::Vote(number) => log.locked().append(vec![Record::Vote(Vote::new(number, 2))]).unwrap(),
                Step::Truncate(back) => {
                    next = next.saturating_sub(back).max(first);
                    term += 1;
                    log.locked().append(vec![Record::Truncate(next)]).unwrap();
                }
                Step::Purge(count) if first < next => {
                    let upto = (first + count).min(next - 1);
                    let term = log.locked().contents.entries[&upto].log_id.leader_id.term;
                    log.locked().purge(id(term, upto)).unwrap();
                }
                Step::Purge(_) => {}
                Step::Crash(cut) => {
                    let before = durable_state(&log);
                    drop(log);
                    let last = files(directory.path()).pop_last().unwrap();
                    let mut bytes = std::fs::read(&last).unwrap();
                    // An incomplete record.
                    let begun = b"0123456789abcdef {\"vote\":{\"leader_";
                    bytes.extend_from_slice(&begun[..cut.min(begun.len())]);
                    std::fs::write(&last, bytes).unwrap();
                    log = open(directory.path()).unwrap();
                    prop_assert_eq!(durable_state(&log), before);
                }
            }
        }
    }
}

/// Regression test: a leader that read a range with a purged start sent the remainder, and the follower had a gap.
#[tokio::test]
async fn a_range_with_a_purged_start_is_not_served_in_part() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = open(directory.path()).unwrap();
    log.locked().append(entries(1, 0..20)).unwrap();
    log.purge(id(1, 9)).await.unwrap();
    assert_eq!(log.try_get_log_entries(10..15).await.unwrap().len(), 5);
    assert!(log.try_get_log_entries(8..15).await.unwrap().is_empty());
}

/// Regression test: a crash left a purged log without the snapshot that covers it.
#[tokio::test]
async fn the_log_is_purged_only_after_its_snapshot_is_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let (written, covered) = watch::channel(Some(5));
    let mut log =
        Log::open(Arc::new(DataDirectory::lock(directory.path()).unwrap()), covered, &SystemRuntime).unwrap();
    log.locked().append(entries(1, 0..20)).unwrap();
    log.purge(id(1, 4)).await.unwrap();
    let mut cut = log.clone();
    let cutting = tokio::spawn(async move { cut.purge(id(1, 9)).await });
    tokio::task::yield_now().await;
    assert!(!cutting.is_finished() && log.locked().contents.purged == Some(id(1, 4)));
    written.send_replace(Some(10));
    cutting.await.unwrap().unwrap();
    assert_eq!(log.locked().contents.purged, Some(id(1, 9)));
    written.send_replace(None);
    log.purge(id(1, 12)).await.unwrap_err();
}
