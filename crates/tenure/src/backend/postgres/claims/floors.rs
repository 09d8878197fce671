//! How far queues have been claimed.
//!
//! What was claimed leaves dead entries at the head of the index of ready tasks, and while some transaction is held open
//! nobody may remove them: each claim would walk over all that were claimed since. So a process remembers, for each demand,
//! the place of the last task that it got, and looks behind that first. What may stand before (a task of higher
//! priority, one that came back, one whose submission took its time) is found by a look from the beginning, which
//! follows at once if the first did not find enough, and otherwise after a while: [`LOOK_EVERY`], or ten times what the last
//! one cost, whichever is longer. In the same way it remembers up to when scheduled tasks have been let go.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::Moment;
use tenure_core::port::QueueKey;

use super::super::listen::locked;

/// How long a task may be overlooked for standing before what was claimed last.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How many demands of a queue are remembered. Whoever has more has other worries.
const DEMANDS_MAX: usize = 500;

/// A place in the order of a queue.
pub(super) type Place = (i64, i64);

/// The places, of all queues.
#[derive(Default)]
pub(in super::super) struct Floors(Mutex<HashMap<QueueKey, Queue>>);

#[derive(Default)]
struct Queue {
    demands: HashMap<i32, Demand>,
    /// Up to when what was scheduled has been let go, in ms since 1970.
    due: Option<i64>,
    looked: Option<Moment>,
    cost: Duration,
}

struct Demand {
    kind: Arc<str>,
    place: Place,
}

/// What a claim begins with.
pub(super) struct Start {
    /// `{"demand": [ms, id], "due": ms}`.
    pub(super) floors: String,
    /// The kinds of these demands, which the answer leaves out.
    pub(super) kinds: HashMap<i32, Arc<str>>,
    /// Look from the beginning.
    pub(super) whole: bool,
}

impl Floors {
    /// Where to begin.
    pub(super) fn start(&self, queue: &QueueKey, now: Moment) -> Start {
        let mut queues = locked(&self.0);
        let Some(queue) = queues.get_mut(queue) else {
            return Start { floors: "{}".into(), kinds: HashMap::new(), whole: true };
        };
        let due = queue
            .looked
            .is_none_or(|looked| now.since(looked) >= LOOK_EVERY.max(queue.cost.saturating_mul(10)));
        if due {
            // Others need not look as well.
            queue.looked = Some(now);
        }
        let places: Vec<String> = queue
            .demands
            .iter()
            .map(|(id, Demand { place: (at, task), .. })| format!("\"{id}\":[{at},{task}]"))
            .chain(queue.due.map(|due| format!("\"due\":{due}")))
            .collect();
        Start {
            floors: format!("{{{}}}", places.join(",")),
            kinds: queue.demands.iter().map(|(id, demand)| (*id, demand.kind.clone())).collect(),
            whole: due,
        }
    }

    /// What a claim got last of each demand, and up to when it let go what was scheduled. `looked`: it looked from the beginning, and
    /// what that cost.
    pub(super) fn end(
        &self,
        queue: &QueueKey,
        last: HashMap<i32, (Arc<str>, Place)>,
        due: Option<i64>,
        looked: Option<Duration>,
        now: Moment,
    ) {
        if last.is_empty() && looked.is_none() && due.is_none() {
            return;
        }
        let mut queues = locked(&self.0);
        let queue = queues.entry(queue.clone()).or_default();
        if let Some(cost) = looked {
            (queue.looked, queue.cost) = (Some(now), cost);
        }
        queue.due = due.or(queue.due);
        if queue.demands.len() + last.len() > DEMANDS_MAX {
            queue.demands.clear();
        }
        for (id, (kind, place)) in last {
            let demand = queue.demands.entry(id).or_insert(Demand { kind, place });
            // A look from the beginning may have found what was passed over: go on from there.
            demand.place = if looked.is_some() { place } else { demand.place.max(place) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::Name;

    fn at(ms: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(ms)
    }

    fn last(place: Place) -> HashMap<i32, (Arc<str>, Place)> {
        HashMap::from([(7, ("kind".into(), place))])
    }

    #[test]
    fn a_look_from_the_beginning_comes_in_time_and_not_too_often() {
        let (floors, queue) =
            (Floors::default(), QueueKey::new(Name::default_namespace(), "q".parse().unwrap()));
        assert!(floors.start(&queue, at(0)).whole);
        floors.end(&queue, last((100, 1)), None, Some(Duration::from_millis(1)), at(0));
        let start = floors.start(&queue, at(49));
        assert_eq!((start.floors.as_str(), start.whole), (r#"{"7":[100,1]}"#, false));
        assert!(floors.start(&queue, at(50)).whole);
        assert!(!floors.start(&queue, at(51)).whole, "one look suffices");
        floors.end(&queue, last((100, 1)), None, Some(Duration::from_millis(20)), at(60));
        assert!(!floors.start(&queue, at(259)).whole, "it cost much");
        assert!(floors.start(&queue, at(260)).whole);
    }

    #[test]
    fn a_place_moves_on_and_goes_back_only_after_a_whole_look() {
        let (floors, queue) =
            (Floors::default(), QueueKey::new(Name::default_namespace(), "q".parse().unwrap()));
        let place = |floors: &Floors| floors.start(&queue, at(1)).floors;
        floors.end(&queue, last((100, 5)), None, Some(Duration::ZERO), at(0));
        floors.end(&queue, last((100, 3)), None, None, at(0));
        assert_eq!(place(&floors), r#"{"7":[100,5]}"#);
        floors.end(&queue, last((90, 9)), None, Some(Duration::ZERO), at(0));
        assert_eq!(place(&floors), r#"{"7":[90,9]}"#);
        assert_eq!(&*floors.start(&queue, at(1)).kinds[&7], "kind");
        floors.end(&queue, HashMap::new(), Some(77), None, at(2));
        assert_eq!(place(&floors), r#"{"7":[90,9],"due":77}"#);
    }
}
