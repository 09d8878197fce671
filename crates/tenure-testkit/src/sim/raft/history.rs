//! Linearizability check of written and read values.
//!
//! Each value is written at most once, so the write that a read saw is known. A value is *visible* from the end of the
//! first operation on it until the start of the last one. If its operations are so close together that this interval is
//! empty, the value may have been visible for only an instant in between. A valid order of all operations exists if and
//! only if no two values are visible at the same time, no value that was visible for only an instant lies completely
//! inside the interval of another, and no value is read before it was written (Gibbons and Korach, 1997).

use std::collections::BTreeMap;

/// A completed or attempted operation on a key.
#[derive(Clone, Debug)]
pub(super) struct HistoryOp {
    pub(super) who: String,
    pub(super) key: String,
    /// The value; `None` if the key had none.
    pub(super) value: Option<String>,
    pub(super) is_write: bool,
    pub(super) begun: u64,
    /// End of the operation; `None` if its outcome is unknown.
    pub(super) done: Option<u64>,
}

/// The interval in which a value was visible.
struct ValueInterval {
    /// End of the first operation on it.
    first_done: u64,
    /// Start of the last operation on it.
    last_begun: u64,
    written: Option<(u64, Option<u64>)>,
    reads: u64,
}

/// Checks the operations on one key.
pub(super) fn check(ops: &[HistoryOp]) -> Result<(), String> {
    let mut keys: BTreeMap<&str, Vec<&HistoryOp>> = BTreeMap::new();
    for op in ops {
        keys.entry(&op.key).or_default().push(op);
    }
    keys.into_iter().try_for_each(|(key, ops)| check_key(&ops).map_err(|what| format!("{key}: {what}")))
}

fn check_key(ops: &[&HistoryOp]) -> Result<(), String> {
    let mut lives: BTreeMap<Option<&str>, ValueInterval> = BTreeMap::new();
    // Initially the key has no value.
    lives.insert(None, ValueInterval { first_done: 0, last_begun: 0, written: Some((0, Some(0))), reads: 0 });
    for op in ops {
        if !op.is_write && op.done.is_none() {
            continue;
        }
        let life = lives.entry(op.value.as_deref()).or_insert(ValueInterval {
            first_done: u64::MAX,
            last_begun: 0,
            written: None,
            reads: 0,
        });
        life.first_done = life.first_done.min(op.done.unwrap_or(u64::MAX));
        life.last_begun = life.last_begun.max(op.begun);
        match op.is_write {
            true => life.written = Some((op.begun, op.done)),
            false => life.reads += 1,
        }
    }
    for (value, life) in &lives {
        let Some((begun, _)) = life.written else {
            return Err(format!("{value:?} was read but never written"));
        };
        if life.first_done < begun {
            return Err(format!("{value:?} was read before it was written"));
        }
    }
    // A value that was never read and whose write has an unknown outcome may not have been written.
    lives.retain(|_, life| life.reads > 0 || life.written.is_some_and(|(_, done)| done.is_some()));
    let (long, short): (Vec<_>, Vec<_>) =
        lives.iter().partition(|(_, life)| life.first_done < life.last_begun);
    let mut long: Vec<(u64, u64, &Option<&str>)> =
        long.iter().map(|(value, life)| (life.first_done, life.last_begun, *value)).collect();
    long.sort_unstable();
    for two in long.windows(2) {
        if two[1].0 < two[0].1 {
            return Err(reported("were visible at the same time", two[0].2, two[1].2, ops));
        }
    }
    for (value, life) in short {
        let within =
            |other: &&(u64, u64, &Option<&str>)| other.0 < life.last_begun && life.first_done < other.1;
        if let Some(other) = long.iter().find(within) {
            return Err(reported("was visible only while the second one was", value, other.2, ops));
        }
    }
    Ok(())
}

fn reported(what: &str, a: &Option<&str>, b: &Option<&str>, ops: &[&HistoryOp]) -> String {
    let about = ops.iter().filter(|op| [*a, *b].contains(&op.value.as_deref()));
    let about: Vec<String> = about
        .map(|op| {
            let HistoryOp { who, value, is_write, begun, done, .. } = op;
            let ms = |at: u64| at / 1_000_000;
            let verb = if *is_write { "writes" } else { "reads" };
            format!("{who} {verb} {value:?} from {} to {:?} ms", ms(*begun), done.map(ms))
        })
        .collect();
    format!("{a:?} and {b:?}: the first one {what}: {}", about.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(value: &str, begun: u64, done: impl Into<Option<u64>>) -> HistoryOp {
        op(Some(value), true, begun, done.into())
    }

    fn read(value: impl Into<Option<&'static str>>, begun: u64, done: u64) -> HistoryOp {
        op(value.into(), false, begun, Some(done))
    }

    fn op(value: Option<&str>, is_write: bool, begun: u64, done: Option<u64>) -> HistoryOp {
        HistoryOp { who: "x".into(), key: "k".into(), value: value.map(Into::into), is_write, begun, done }
    }

    #[test]
    fn linearizable_histories_are_accepted() {
        for ops in [
            vec![],
            vec![read(None, 1, 2), write("a", 3, 4), read("a", 5, 6), write("b", 7, 8), read("b", 9, 10)],
            // Concurrent writes may be applied in either order.
            vec![write("a", 1, 10), write("b", 2, 9), read("a", 11, 12)],
            vec![write("a", 1, 10), write("b", 2, 9), read("b", 11, 12)],
            vec![write("a", 1, 10), read(None, 2, 3), read("a", 4, 5)],
            // A write with an unknown outcome may not be applied, or may be applied later.
            vec![write("a", 1, None), write("b", 2, 3), read("b", 4, 5)],
            vec![write("a", 1, None), write("b", 2, 3), read("b", 4, 5), read("a", 6, 7)],
        ] {
            assert_eq!(check(&ops), Ok(()), "{ops:?}");
        }
    }

    #[test]
    fn lost_writes_and_stale_reads_are_found() {
        for ops in [
            // A confirmed write is lost.
            vec![write("a", 1, 2), read(None, 3, 4)],
            vec![write("a", 1, 2), write("b", 3, 4), read("a", 5, 6)],
            // A value was visible and then disappears.
            vec![write("a", 1, 2), write("b", 3, None), read("b", 4, 5), read("a", 6, 7)],
            // An overwritten value returns.
            vec![write("a", 1, 2), write("b", 3, 4), read("b", 5, 6), read("a", 7, 8)],
            vec![write("a", 1, None), write("b", 2, 3), read("a", 4, 5), read("b", 6, 7)],
            // A value is written and confirmed inside the interval in which another value is visible.
            vec![write("a", 1, 2), write("b", 4, 5), read("a", 7, 8)],
            vec![read("a", 1, 2), write("a", 3, 4)],
            vec![read("never", 1, 2)],
        ] {
            assert!(check(&ops).is_err(), "{ops:?}");
        }
    }
}
