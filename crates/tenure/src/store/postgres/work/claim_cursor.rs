//! Where claims continue in the index of ready tasks.
//!
//! Claimed tasks leave dead entries at the start of the index, and vacuum cannot remove them while an old transaction is
//! open: each claim would scan all entries of tasks that were claimed since. So a process stores, for each set of
//! requirements, the position of the last task that it claimed, and scans from there first. Tasks before that position
//! (of a higher priority, returned to the queue, or committed late) are found by a full scan. It follows at once if the
//! first scan did not find enough tasks, and otherwise after [`FULL_SCAN_INTERVAL`] or ten times the duration of the last
//! full scan, whichever is longer. In the same way a process stores the time up to which scheduled tasks were made ready.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::BootInstant;
use tenure_core::port::QueueKey;

use super::super::listen::locked;

/// Shortest interval between full scans: how long a task before the cursor may be missed.
const FULL_SCAN_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of cursors of a queue. Beyond it all cursors are dropped.
const CURSORS_MAX: usize = 500;

/// Position of a task in the index of ready tasks: effective time in ms, and id.
pub(super) type ReadyKey = (i64, i64);

/// The cursors of all queues.
#[derive(Default)]
pub(in super::super) struct ClaimCursors(Mutex<HashMap<QueueKey, QueueCursor>>);

#[derive(Default)]
struct QueueCursor {
    /// By the id of the requirements.
    cursors: HashMap<i32, ClaimCursor>,
    /// The time up to which scheduled tasks were made ready.
    due_at_ms: Option<i64>,
    last_full_scan: Option<BootInstant>,
    scan_time: Duration,
}

struct ClaimCursor {
    kind: Arc<str>,
    key: ReadyKey,
}

/// Cursor arguments of one claim statement.
pub(super) struct ClaimStart {
    /// `{"requirements id": [ms, id], "due": ms}`.
    pub(super) cursors: String,
    /// The kinds of these requirements, which the response omits.
    pub(super) kinds: HashMap<i32, Arc<str>>,
    /// Scan from the beginning.
    pub(super) full_scan: bool,
}

impl ClaimCursors {
    /// The cursor arguments of the next claim. Decides whether that claim makes a full scan.
    pub(super) fn start(&self, queue: &QueueKey, now: BootInstant) -> ClaimStart {
        let mut queues = locked(&self.0);
        let Some(queue) = queues.get_mut(queue) else {
            return ClaimStart { cursors: "{}".into(), kinds: HashMap::new(), full_scan: true };
        };
        let full_scan = queue
            .last_full_scan
            .is_none_or(|last| now.since(last) >= FULL_SCAN_INTERVAL.max(queue.scan_time.saturating_mul(10)));
        if full_scan {
            // Set at the start of the scan, so that concurrent claims do not scan as well.
            queue.last_full_scan = Some(now);
        }
        let cursors: Vec<String> = queue
            .cursors
            .iter()
            .map(|(id, ClaimCursor { key: (at, task), .. })| format!("\"{id}\":[{at},{task}]"))
            .chain(queue.due_at_ms.map(|due| format!("\"due\":{due}")))
            .collect();
        ClaimStart {
            cursors: format!("{{{}}}", cursors.join(",")),
            kinds: queue.cursors.iter().map(|(id, cursor)| (*id, cursor.kind.clone())).collect(),
            full_scan,
        }
    }

    /// Store the last task that a claim got for each set of requirements, and the time up to which it made scheduled
    /// tasks ready. `full_scan`: the duration of the full scan, if the claim made one.
    pub(super) fn end(
        &self,
        queue: &QueueKey,
        last: HashMap<i32, (Arc<str>, ReadyKey)>,
        due_at_ms: Option<i64>,
        full_scan: Option<Duration>,
        now: BootInstant,
    ) {
        if last.is_empty() && full_scan.is_none() && due_at_ms.is_none() {
            return;
        }
        let mut queues = locked(&self.0);
        let queue = queues.entry(queue.clone()).or_default();
        if let Some(scan_time) = full_scan {
            (queue.last_full_scan, queue.scan_time) = (Some(now), scan_time);
        }
        queue.due_at_ms = due_at_ms.or(queue.due_at_ms);
        if queue.cursors.len() + last.len() > CURSORS_MAX {
            queue.cursors.clear();
        }
        for (id, (kind, key)) in last {
            let cursor = queue.cursors.entry(id).or_insert(ClaimCursor { kind, key });
            // A full scan may have found tasks before the cursor: continue from there.
            cursor.key = if full_scan.is_some() { key } else { cursor.key.max(key) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::Name;

    fn at(ms: u64) -> BootInstant {
        BootInstant::ZERO + Duration::from_millis(ms)
    }

    fn last(key: ReadyKey) -> HashMap<i32, (Arc<str>, ReadyKey)> {
        HashMap::from([(7, ("kind".into(), key))])
    }

    #[test]
    fn full_scans_are_regular_and_rarer_if_they_are_slow() {
        let (cursors, queue) =
            (ClaimCursors::default(), QueueKey::new(Name::default_namespace(), "q".parse().unwrap()));
        assert!(cursors.start(&queue, at(0)).full_scan);
        cursors.end(&queue, last((100, 1)), None, Some(Duration::from_millis(1)), at(0));
        let start = cursors.start(&queue, at(49));
        assert_eq!((start.cursors.as_str(), start.full_scan), (r#"{"7":[100,1]}"#, false));
        assert!(cursors.start(&queue, at(50)).full_scan);
        assert!(!cursors.start(&queue, at(51)).full_scan, "one full scan suffices");
        cursors.end(&queue, last((100, 1)), None, Some(Duration::from_millis(20)), at(60));
        assert!(!cursors.start(&queue, at(259)).full_scan, "the last full scan was slow");
        assert!(cursors.start(&queue, at(260)).full_scan);
    }

    #[test]
    fn a_cursor_moves_back_only_after_a_full_scan() {
        let (cursors, queue) =
            (ClaimCursors::default(), QueueKey::new(Name::default_namespace(), "q".parse().unwrap()));
        let text = |cursors: &ClaimCursors| cursors.start(&queue, at(1)).cursors;
        cursors.end(&queue, last((100, 5)), None, Some(Duration::ZERO), at(0));
        cursors.end(&queue, last((100, 3)), None, None, at(0));
        assert_eq!(text(&cursors), r#"{"7":[100,5]}"#);
        cursors.end(&queue, last((90, 9)), None, Some(Duration::ZERO), at(0));
        assert_eq!(text(&cursors), r#"{"7":[90,9]}"#);
        assert_eq!(&*cursors.start(&queue, at(1)).kinds[&7], "kind");
        cursors.end(&queue, HashMap::new(), Some(77), None, at(2));
        assert_eq!(text(&cursors), r#"{"7":[90,9],"due":77}"#);
    }
}
