use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use openraft::{CommittedLeaderId, EntryPayload};
use proptest::prelude::*;

use super::super::disk::Folder;
use super::*;
use crate::runtime::System;

fn id(term: u64, index: u64) -> LogId<NodeId> {
    LogId::new(CommittedLeaderId::new(term, 1), index)
}

fn entries(term: u64, indexes: std::ops::Range<u64>) -> Vec<Record> {
    let entry = |index| Entry { log_id: id(term, index), payload: EntryPayload::Blank };
    indexes.map(|index| Record::Append(Box::new(entry(index)))).collect()
}

fn open(folder: &Path) -> Result<Log, StoreError> {
    Log::open(Arc::new(Folder::lock(folder)?), &System)
}

fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("log-")).collect()
}

/// All that must survive: entries, vote, what was purged, and whose folder it is.
type Said = (Vec<LogId<NodeId>>, Option<Vote<NodeId>>, Option<LogId<NodeId>>, String);

fn said(log: &Log) -> Said {
    let Inner { said, .. } = &*log.locked();
    (said.entries.values().map(|entry| entry.log_id).collect(), said.vote, said.purged, said.made.clone())
}

#[test]
fn what_is_covered_goes_and_what_stays_is_not_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).unwrap();
    log.locked().append(entries(1, 0..1000)).unwrap();
    log.locked().append(vec![Record::Vote(Vote::new(7, 3))]).unwrap();
    log.locked().purge(id(1, 900)).unwrap();
    let first = files(folder.path());
    assert_eq!(first.len(), 2, "the new segment, and the one that has the last hundred: {first:?}");
    let kept = first.first().unwrap();
    let (inode, length) = (inode(kept), std::fs::metadata(kept).unwrap().len());
    log.locked().append(entries(1, 1000..1500)).unwrap();
    assert_eq!((self::inode(kept), std::fs::metadata(kept).unwrap().len()), (inode, length));
    log.locked().purge(id(1, 1400)).unwrap();
    let second = files(folder.path());
    assert!(second.len() == 2 && !second.contains(kept), "{second:?}");
    // A purge writes a few lines, however long the log is.
    assert!(std::fs::metadata(second.last().unwrap()).unwrap().len() < 600);
    let before = said(&log);
    drop(log);
    let again = open(folder.path()).unwrap();
    assert_eq!(said(&again), before);
    assert_eq!((again.started(), again.reach()), (2, (7, 1499)));
}

fn inode(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap())
}

#[test]
fn a_segment_that_is_missing_or_damaged_is_no_crash() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path()).unwrap();
    for round in 0..3 {
        log.locked().append(entries(1, round * 500..(round + 1) * 500)).unwrap();
        log.locked().purge(id(1, round * 100 + 50)).unwrap();
    }
    drop(log);
    let all: Vec<PathBuf> = files(folder.path()).into_iter().collect();
    assert_eq!(all.len(), 4);
    let refused = |what: &str| {
        let error = open(folder.path()).err().expect(what);
        assert!(error.kind == Trouble::Unfit, "{error}");
    };
    let middle = std::fs::read(&all[1]).unwrap();
    std::fs::write(&all[1], &middle[..middle.len() - 3]).unwrap();
    refused("cut off, but not at the end of all");
    std::fs::remove_file(&all[1]).unwrap();
    refused("missing in between");
    std::fs::write(&all[1], middle).unwrap();
    let first = std::fs::read(&all[0]).unwrap();
    std::fs::remove_file(&all[0]).unwrap();
    refused("without its beginning");
    std::fs::write(&all[0], first).unwrap();
    open(folder.path()).unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Append(u64),
    Vote(u64),
    Truncate(u64),
    Purge(u64),
    /// It ends, and what it was writing is cut off there.
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

    /// A log that is opened again is the log that it was, but for what was being written.
    #[test]
    fn nothing_that_was_told_is_forgotten(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let mut log = open(folder.path()).unwrap();
        let (mut next, mut term) = (0, 1);
        for step in steps {
            let first = log.locked().said.purged.map_or(0, |upto| upto.index + 1);
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
                    let term = log.locked().said.entries[&upto].log_id.leader_id.term;
                    log.locked().purge(id(term, upto)).unwrap();
                }
                Step::Purge(_) => {}
                Step::Crash(cut) => {
                    let before = said(&log);
                    drop(log);
                    let last = files(folder.path()).pop_last().unwrap();
                    let mut bytes = std::fs::read(&last).unwrap();
                    // Something was begun, and is not whole.
                    let begun = b"0123456789abcdef {\"vote\":{\"leader_";
                    bytes.extend_from_slice(&begun[..cut.min(begun.len())]);
                    std::fs::write(&last, bytes).unwrap();
                    log = open(folder.path()).unwrap();
                    prop_assert_eq!(said(&log), before);
                }
            }
        }
    }
}
