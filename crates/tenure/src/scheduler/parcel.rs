//! What is fired in one call: as much as is good for the store, and for our memory.
//!
//! A look may find ten thousand schedules, each with ten thousand missed ticks, each with a payload of a mebibyte. So ticks are
//! planned as they are packed, and a parcel is closed when it is full, by ticks or by bytes; what did not fit stays due, and is
//! planned later from what is stored then. How much is full is learnt, from little on: a parcel that took long is followed by a smaller
//! one, and one that was quick by a larger. Long is what comes near a beat: where a store has one writer, as SQLite has, a leader that
//! fires for longer than it is trusted would lose its lease by its own firing, and so would the next.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_core::Token;
use tenure_core::port::{DUE_MAX, DueLook, DueSchedule, Firing};
use tenure_core::schedule::{plan_some, put_off};

/// The most bytes of one parcel, unless one tick alone has more.
const PARCEL_BYTES: usize = 16 << 20;

/// How much a tick weighs beside its payload, about.
const TICK_BYTES: usize = 512;

/// The most bytes that one look should bring.
const LOOK_BYTES: usize = 64 << 20;

/// How many schedules the first look asks for.
const FIRST_LOOK: u32 = 1_000;

/// How many ticks are fired first.
const FIRST_TICKS: usize = 250;

/// How many parcels go one after the other where several go abreast.
const WAVES: usize = 3;

/// The longest text about a trouble.
const TROUBLE_MAX: usize = 1_000;

/// Schedules that were due, and what is to become of them: in the same order.
pub(super) struct Parcel {
    pub(super) due: Vec<DueSchedule>,
    pub(super) firings: Vec<Firing>,
    /// Nothing fires: it is only said that these could not, and when they are tried again.
    pub(super) puts_off: bool,
}

impl Parcel {
    fn new(puts_off: bool) -> Parcel {
        Parcel { due: Vec::new(), firings: Vec::new(), puts_off }
    }

    /// Those that could not fire, and why.
    pub(super) fn put_off(refused: Vec<(DueSchedule, String)>, now_ms: i64) -> Parcel {
        let mut parcel = Parcel::new(true);
        for (due, why) in refused {
            parcel.firings.push(put_off(&due, &bounded(&why), now_ms));
            parcel.due.push(due);
        }
        parcel
    }

    pub(super) fn len(&self) -> usize {
        self.firings.len()
    }

    /// How many ticks it has; a firing without any is work, too.
    pub(super) fn ticks(&self) -> usize {
        self.firings.iter().map(|firing| firing.ticks.len().max(1)).sum()
    }

    /// Its two halves.
    pub(super) fn halves(mut self) -> [Parcel; 2] {
        let at = self.len() / 2;
        let rest = Parcel {
            due: self.due.split_off(at),
            firings: self.firings.split_off(at),
            puts_off: self.puts_off,
        };
        [self, rest]
    }
}

/// How much is looked at, and how much is fired, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Measure {
    sight: u32,
    ticks: usize,
}

impl Measure {
    pub(super) fn new() -> Measure {
        Measure { sight: FIRST_LOOK, ticks: FIRST_TICKS }
    }

    /// A tick at a time.
    pub(super) fn least() -> Measure {
        Measure { ticks: 1, ..Measure::new() }
    }

    /// How many schedules to look at.
    pub(super) fn sight(&self) -> u32 {
        self.sight
    }

    /// A look brought this: the next one brings more, if there is more and it is light, or less, if it is heavy.
    pub(super) fn looked(&mut self, look: &DueLook) {
        let bytes: usize =
            look.schedules.iter().map(|due| TICK_BYTES + due.definition.payload.as_str().len()).sum();
        if bytes > LOOK_BYTES {
            self.sight = (self.sight / 4).max(1);
        } else if look.more && bytes <= LOOK_BYTES / 4 {
            self.sight = self.sight.saturating_mul(4).min(DUE_MAX);
        }
    }

    /// A parcel arrived, after this long.
    pub(super) fn arrived(&mut self, parcel: &Parcel, took: Duration, beat: Duration) {
        if took > beat / 2 {
            self.ticks = (parcel.ticks() / 4).max(1);
        } else if took < beat / 8 && parcel.ticks() >= self.ticks / 2 {
            self.ticks = self.ticks.saturating_mul(4).min(DUE_MAX as usize);
        }
    }

    /// One did not: it may have been too large.
    pub(super) fn was_too_large(&mut self, parcel: &Parcel) {
        self.ticks = (parcel.ticks() / 10).max(1);
    }

    /// The same, where so many parcels are under way at once: so that what is due is shared out among them, unless that is little, and
    /// the first is under way while most is yet to be planned.
    pub(super) fn share(&self, due: usize, abreast: usize) -> Measure {
        if abreast < 2 {
            return *self;
        }
        let each = due.div_ceil(abreast * WAVES).max(FIRST_TICKS);
        Measure { ticks: self.ticks.min(each), ..*self }
    }

    /// Plans for the next parcel, and takes what it plans for out of what is due.
    pub(super) fn pack(&self, due: &mut VecDeque<DueSchedule>, token: Token, now_ms: i64) -> Parcel {
        let mut parcel = Parcel::new(false);
        let (mut ticks, mut bytes) = (0, 0);
        while ticks < self.ticks
            && bytes < PARCEL_BYTES
            && let Some(next) = due.pop_front()
        {
            let each = TICK_BYTES + next.definition.payload.as_str().len();
            let most = (self.ticks - ticks).min((PARCEL_BYTES - bytes) / each).max(1);
            let firing = plan_some(&next, token, now_ms, most);
            // One that has nothing to fire is work, too.
            ticks += firing.ticks.len().max(1);
            bytes += each * firing.ticks.len().max(1);
            parcel.firings.push(firing);
            parcel.due.push(next);
        }
        parcel
    }
}

/// A text that any store takes.
fn bounded(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TROUBLE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use tenure_core::Name;
    use tenure_core::port::{Json, ScheduleKey};
    use tenure_core::schedule::{Definition, Load, Misfire, Progress, When};

    use super::*;

    const NOW_MS: i64 = 1_000_000_000;
    const BEAT: Duration = Duration::from_secs(2);

    /// What is learnt where all is quick.
    fn grown() -> Measure {
        Measure { ticks: DUE_MAX as usize, ..Measure::new() }
    }

    fn due(name: &str, missed: i64, payload: usize) -> DueSchedule {
        let target = serde_json::from_str(r#"{"task":{"queue":"q"}}"#).unwrap();
        let name: Name = name.parse().unwrap();
        let mut definition = Definition::new(name.clone(), "every 1s".parse::<When>().unwrap(), target);
        definition.misfire = Misfire::FireAll { cap: 10_000 };
        definition.payload = Json::of(&"x".repeat(payload)).unwrap();
        DueSchedule {
            key: ScheduleKey::new(Name::default_namespace(), name),
            version: 1,
            definition,
            progress: Progress { next_at_ms: NOW_MS - (missed - 1) * 1_000, last_at_ms: None },
            load: Load::default(),
            strikes: 0,
        }
    }

    fn pack_all(measure: Measure, mut due: VecDeque<DueSchedule>) -> Vec<(usize, usize)> {
        let mut parcels = Vec::new();
        while !due.is_empty() {
            let parcel = measure.pack(&mut due, Token::from_u64(1), NOW_MS);
            parcels.push((parcel.len(), parcel.firings.iter().map(|firing| firing.ticks.len()).sum()));
        }
        parcels
    }

    #[test]
    fn many_schedules_with_a_tick_each_are_one_parcel() {
        let due = (0..10_000).map(|n| due(&format!("s{n}"), 1, 10)).collect();
        assert_eq!(pack_all(grown(), due), [(10_000, 10_000)]);
    }

    #[test]
    fn many_are_shared_out_among_parcels_that_go_at_once_and_few_are_not() {
        let due: VecDeque<_> = (0..10_000).map(|n| due(&format!("s{n}"), 1, 10)).collect();
        let sizes = |measure: Measure, some: usize| -> Vec<usize> {
            let due: VecDeque<_> = due.iter().take(some).cloned().collect();
            pack_all(measure.share(some, 4), due).into_iter().map(|(firings, _)| firings).collect()
        };
        assert_eq!(sizes(grown(), 9_600), [800; 12]);
        assert_eq!(sizes(grown(), 300), [250, 50]);
        assert_eq!(sizes(Measure::new(), 10_000), [250; 40], "what is not known to be quick stays small");
    }

    #[test]
    fn many_missed_ticks_do_not_make_a_parcel_larger() {
        let due = (0..3).map(|n| due(&format!("s{n}"), 8_000, 10)).collect();
        let parcels = pack_all(grown(), due);
        assert_eq!(parcels, [(2, 10_000), (1, 8_000)]);
    }

    #[test]
    fn heavy_payloads_make_parcels_of_few_ticks_and_never_of_none() {
        let due = [due("a", 1_000, 1 << 20), due("b", 1, 1 << 20)].into();
        let parcels = pack_all(grown(), due);
        // Fifteen fit, and whatever the last one weighs.
        assert_eq!(parcels, [(2, 16)]);
        let due = [self::due("a", 5, 32 << 20), self::due("b", 5, 0)].into();
        assert_eq!(pack_all(Measure::least(), due), [(1, 1), (1, 1)]);
    }

    fn parcel(measure: &Measure) -> Parcel {
        let mut due = (0..=measure.ticks).map(|n| due(&format!("s{n}"), 1, 0)).collect();
        measure.pack(&mut due, Token::from_u64(1), NOW_MS)
    }

    #[test]
    fn a_parcel_that_is_not_answered_shrinks_to_one_and_grows_again() {
        let mut measure = grown();
        for most in [1_000, 100, 10, 1, 1] {
            measure.was_too_large(&parcel(&measure));
            assert_eq!(measure.ticks, most);
        }
        for _ in 0..7 {
            measure.arrived(&parcel(&measure), Duration::ZERO, BEAT);
        }
        assert_eq!(measure.ticks, DUE_MAX as usize);
    }

    #[test]
    fn a_parcel_that_comes_near_a_beat_is_followed_by_a_smaller_one() {
        let mut measure = grown();
        measure.arrived(&parcel(&measure), BEAT, BEAT);
        assert_eq!(measure.ticks, 2_500);
        measure.arrived(&parcel(&measure), BEAT / 4, BEAT);
        assert_eq!(measure.ticks, 2_500);
        // One that was not full proves nothing.
        measure.arrived(&Parcel::new(false), Duration::ZERO, BEAT);
        assert_eq!(measure.ticks, 2_500);
    }

    #[test]
    fn a_heavy_look_makes_the_next_one_smaller_and_a_light_one_with_more_larger() {
        let mut measure = Measure::new();
        let look = |payload: usize, more| DueLook {
            schedules: (0..100).map(|n| due(&format!("s{n}"), 1, payload)).collect(),
            more,
            ..DueLook::default()
        };
        measure.looked(&look(10, false));
        assert_eq!(measure.sight(), FIRST_LOOK);
        measure.looked(&look(10, true));
        assert_eq!(measure.sight(), FIRST_LOOK * 4);
        let heavy = look(1 << 20, true);
        measure.looked(&heavy);
        assert_eq!(measure.sight(), FIRST_LOOK);
        (0..9).for_each(|_| measure.looked(&heavy));
        assert_eq!(measure.sight(), 1);
    }

    #[test]
    fn a_text_about_a_trouble_is_one_that_any_store_takes() {
        assert_eq!(bounded("a\u{0}b\nc"), "a b c");
        assert_eq!(bounded(&"é".repeat(5_000)).chars().count(), TROUBLE_MAX);
    }
}
