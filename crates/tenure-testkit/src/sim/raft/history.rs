//! Whether values that were written and read can have been so one after the other.
//!
//! Each value is written once at most, so it is known which write a read saw. A value *lives* from the first moment at which somebody has finished to
//! write or read it until the last at which somebody begins to; if those who write and read it are so close together that there is no such time, it may
//! have lived for an instant between the two. There is an order of all if and only if no two values live at once, none that lived for an instant has all of
//! that instant in the life of another, and nobody reads what was not yet written (Gibbons and Korach, 1997).

use std::collections::BTreeMap;

/// What somebody did, or tried to do, with a key.
#[derive(Clone, Debug)]
pub(super) struct Deed {
    pub(super) who: String,
    pub(super) key: String,
    /// `None`: nothing was there.
    pub(super) value: Option<String>,
    pub(super) is_write: bool,
    pub(super) begun: u64,
    /// `None`: nobody knows whether it was done.
    pub(super) done: Option<u64>,
}

/// The time of a value.
struct Life {
    /// When the first was done that wrote or read it.
    first_done: u64,
    /// When the last was begun.
    last_begun: u64,
    written: Option<(u64, Option<u64>)>,
    reads: u64,
}

/// What is wrong with what was done, if anything.
pub(super) fn check(deeds: &[Deed]) -> Result<(), String> {
    let mut keys: BTreeMap<&str, Vec<&Deed>> = BTreeMap::new();
    for deed in deeds {
        keys.entry(&deed.key).or_default().push(deed);
    }
    keys.into_iter().try_for_each(|(key, deeds)| check_key(&deeds).map_err(|what| format!("{key}: {what}")))
}

fn check_key(deeds: &[&Deed]) -> Result<(), String> {
    let mut lives: BTreeMap<Option<&str>, Life> = BTreeMap::new();
    // Before all, nothing was there.
    lives.insert(None, Life { first_done: 0, last_begun: 0, written: Some((0, Some(0))), reads: 0 });
    for deed in deeds {
        if !deed.is_write && deed.done.is_none() {
            continue;
        }
        let life = lives.entry(deed.value.as_deref()).or_insert(Life {
            first_done: u64::MAX,
            last_begun: 0,
            written: None,
            reads: 0,
        });
        life.first_done = life.first_done.min(deed.done.unwrap_or(u64::MAX));
        life.last_begun = life.last_begun.max(deed.begun);
        match deed.is_write {
            true => life.written = Some((deed.begun, deed.done)),
            false => life.reads += 1,
        }
    }
    for (value, life) in &lives {
        let Some((begun, _)) = life.written else {
            return Err(format!("{value:?} was read, and nobody wrote it"));
        };
        if life.first_done < begun {
            return Err(format!("{value:?} was read before it was written"));
        }
    }
    // What nobody read, and of which nobody knows whether it was written, may not have been.
    lives.retain(|_, life| life.reads > 0 || life.written.is_some_and(|(_, done)| done.is_some()));
    let (long, short): (Vec<_>, Vec<_>) =
        lives.iter().partition(|(_, life)| life.first_done < life.last_begun);
    let mut long: Vec<(u64, u64, &Option<&str>)> =
        long.iter().map(|(value, life)| (life.first_done, life.last_begun, *value)).collect();
    long.sort_unstable();
    for two in long.windows(2) {
        if two[1].0 < two[0].1 {
            return Err(told("were there at once", two[0].2, two[1].2, deeds));
        }
    }
    for (value, life) in short {
        let within =
            |other: &&(u64, u64, &Option<&str>)| other.0 < life.last_begun && life.first_done < other.1;
        if let Some(other) = long.iter().find(within) {
            return Err(told("was there while the second one was, and only then", value, other.2, deeds));
        }
    }
    Ok(())
}

fn told(what: &str, a: &Option<&str>, b: &Option<&str>, deeds: &[&Deed]) -> String {
    let about = deeds.iter().filter(|deed| [*a, *b].contains(&deed.value.as_deref()));
    let about: Vec<String> = about
        .map(|deed| {
            let Deed { who, value, is_write, begun, done, .. } = deed;
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

    fn write(value: &str, begun: u64, done: impl Into<Option<u64>>) -> Deed {
        deed(Some(value), true, begun, done.into())
    }

    fn read(value: impl Into<Option<&'static str>>, begun: u64, done: u64) -> Deed {
        deed(value.into(), false, begun, Some(done))
    }

    fn deed(value: Option<&str>, is_write: bool, begun: u64, done: Option<u64>) -> Deed {
        Deed { who: "x".into(), key: "k".into(), value: value.map(Into::into), is_write, begun, done }
    }

    #[test]
    fn what_can_be_put_in_an_order_is_right() {
        for deeds in [
            vec![],
            vec![read(None, 1, 2), write("a", 3, 4), read("a", 5, 6), write("b", 7, 8), read("b", 9, 10)],
            // At once, either order.
            vec![write("a", 1, 10), write("b", 2, 9), read("a", 11, 12)],
            vec![write("a", 1, 10), write("b", 2, 9), read("b", 11, 12)],
            vec![write("a", 1, 10), read(None, 2, 3), read("a", 4, 5)],
            // Nobody knows whether it was written: not, or late.
            vec![write("a", 1, None), write("b", 2, 3), read("b", 4, 5)],
            vec![write("a", 1, None), write("b", 2, 3), read("b", 4, 5), read("a", 6, 7)],
        ] {
            assert_eq!(check(&deeds), Ok(()), "{deeds:?}");
        }
    }

    #[test]
    fn what_was_lost_or_read_stale_is_found() {
        for deeds in [
            // Lost.
            vec![write("a", 1, 2), read(None, 3, 4)],
            vec![write("a", 1, 2), write("b", 3, 4), read("a", 5, 6)],
            // Seen, and then no more.
            vec![write("a", 1, 2), write("b", 3, None), read("b", 4, 5), read("a", 6, 7)],
            // Came back.
            vec![write("a", 1, 2), write("b", 3, 4), read("b", 5, 6), read("a", 7, 8)],
            vec![write("a", 1, None), write("b", 2, 3), read("a", 4, 5), read("b", 6, 7)],
            // A write in the midst of another value's life.
            vec![write("a", 1, 2), write("b", 4, 5), read("a", 7, 8)],
            vec![read("a", 1, 2), write("a", 3, 4)],
            vec![read("never", 1, 2)],
        ] {
            assert!(check(&deeds).is_err(), "{deeds:?}");
        }
    }
}
