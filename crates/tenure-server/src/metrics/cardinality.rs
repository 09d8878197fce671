//! Limit on the number of series.
//!
//! Some metrics have a series per queue, topic, group, election or schedule. Clients create these objects,
//! and a series exists as long as the process, or until it was not updated for a day. So each metric has at
//! most [`SERIES_MAX`] of them; all other objects share one more series, whose object is `other` and whose
//! namespace is empty.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit};
use tenure::BootInstant;
use tenure::runtime::{Runtime as _, SystemRuntime};

/// Maximum number of series per metric that name an object.
pub(super) const SERIES_MAX: usize = 500;
/// How long a series without updates is kept.
pub(super) const IDLE: Duration = Duration::from_secs(24 * 3600);
/// Labels that name objects.
const OBJECTS: [&str; 7] = ["election", "queue", "topic", "group", "schedule", "member", "namespace"];
/// Object of the shared series.
pub(super) const OTHER: &str = "other";

/// Recorder that limits the series of another one.
#[derive(Debug)]
pub(super) struct Bounded<R> {
    inner: R,
    /// Last update of each series, by metric.
    known: Mutex<HashMap<KeyName, HashMap<Key, BootInstant>>>,
}

impl<R> Bounded<R> {
    pub(super) fn new(inner: R) -> Bounded<R> {
        Bounded { inner, known: Mutex::default() }
    }

    /// Series to update.
    fn series(&self, key: &Key, now: BootInstant) -> Option<Key> {
        if !key.labels().any(|label| OBJECTS.contains(&label.key())) {
            return None;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let series = known.entry(key.name_shared()).or_default();
        if let Some(used) = series.get_mut(key) {
            *used = now;
            return None;
        }
        if series.len() >= SERIES_MAX {
            // The recorder has dropped them too.
            series.retain(|_, used| now.since(*used) < IDLE);
        }
        if series.len() < SERIES_MAX {
            series.insert(key.clone(), now);
            return None;
        }
        let other = key.labels().map(|label| match label.key() {
            "namespace" => Label::new("namespace", ""),
            name if OBJECTS.contains(&name) => Label::new(name.to_owned(), OTHER),
            _ => label.clone(),
        });
        Some(Key::from_parts(key.name_shared(), other.collect::<Vec<_>>()))
    }

    fn within<T>(&self, key: &Key, register: impl FnOnce(&R, &Key) -> T) -> T {
        match self.series(key, SystemRuntime.now()) {
            Some(other) => register(&self.inner, &other),
            None => register(&self.inner, key),
        }
    }
}

impl<R: Recorder> Recorder for Bounded<R> {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_counter(key, unit, description);
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_gauge(key, unit, description);
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.inner.describe_histogram(key, unit, description);
    }
    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.within(key, |inner, key| inner.register_counter(key, metadata))
    }
    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.within(key, |inner, key| inner.register_gauge(key, metadata))
    }
    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.within(key, |inner, key| inner.register_histogram(key, metadata))
    }
}

/// How values of several objects are combined.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fold {
    Sum,
    Max,
    Min,
}

/// Objects of one kind: the most active ones, which have their own series, and the others.
pub(super) struct Ranked<T> {
    each: Vec<T>,
    others: Vec<T>,
}

impl<T> Ranked<T> {
    /// Rank objects by activity.
    pub(super) fn new<A: PartialOrd>(all: impl Iterator<Item = T>, activity: impl Fn(&T) -> A) -> Ranked<T> {
        let mut each: Vec<T> = all.collect();
        let mut others = Vec::new();
        if each.len() > SERIES_MAX {
            each.sort_by(|a, b| activity(b).partial_cmp(&activity(a)).unwrap_or(std::cmp::Ordering::Equal));
            others = each.split_off(SERIES_MAX);
        }
        Ranked { each, others }
    }

    /// Value of each active object with its labels, and one value for all others.
    pub(super) fn figures(
        &self,
        labels: impl Fn(&T) -> String,
        other: &str,
        fold: Fold,
        figure: impl Fn(&T) -> f64,
    ) -> Vec<(String, f64)> {
        let mut figures: Vec<_> = self.each.iter().map(|one| (labels(one), figure(one))).collect();
        let rest = self.others.iter().map(figure);
        let rest = match fold {
            Fold::Sum => rest.reduce(|a, b| a + b),
            Fold::Max => rest.reduce(f64::max),
            Fold::Min => rest.reduce(f64::min),
        };
        figures.extend(rest.map(|rest| (other.to_owned(), rest)));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> Key {
        let labels = vec![Label::new("namespace", "default"), Label::new("queue", format!("q{n}"))];
        Key::from_parts("tenure_claim_requests_total", labels)
    }

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_nanos(seconds * 1_000_000_000)
    }

    /// Regression: Every queue that was ever used kept its series forever.
    #[test]
    fn objects_beyond_the_limit_share_one_series() {
        let bounded = Bounded::new(());
        for n in 0..SERIES_MAX {
            assert!(bounded.series(&key(n), at(0)).is_none(), "a series of its own");
        }
        let other = bounded.series(&key(SERIES_MAX), at(1)).expect("no series of its own");
        let labels: Vec<_> = other.labels().map(|label| (label.key(), label.value())).collect();
        assert_eq!(labels, [("namespace", ""), ("queue", OTHER)]);
        assert!(bounded.series(&key(7), at(2)).is_none(), "it has one");
        assert!(bounded.series(&Key::from_name("tenure_session_heartbeats_total"), at(2)).is_none());
        // After a day, unused series are dropped and used ones stay.
        let later = at(IDLE.as_secs() + 1);
        assert!(bounded.series(&key(SERIES_MAX), later).is_none());
        assert_eq!(bounded.known.lock().expect("sound")["tenure_claim_requests_total"].len(), 2);
    }

    #[test]
    fn the_most_active_objects_have_their_own_series() {
        let all: Vec<usize> = (0..SERIES_MAX + 10).collect();
        let ranked = Ranked::new(all.iter(), |n| **n);
        let figures =
            |fold| ranked.figures(|n| format!("{{n=\"{n}\"}}"), "{n=\"other\"}", fold, |n| **n as f64);
        let summed = figures(Fold::Sum);
        assert_eq!(summed.len(), SERIES_MAX + 1);
        assert_eq!(summed[0].0, format!("{{n=\"{}\"}}", SERIES_MAX + 9));
        assert_eq!(summed[SERIES_MAX], ("{n=\"other\"}".to_owned(), 45.0));
        assert_eq!(figures(Fold::Max)[SERIES_MAX].1, 9.0);
        assert_eq!(figures(Fold::Min)[SERIES_MAX].1, 0.0);
    }
}
