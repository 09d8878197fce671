//! Quotas of objects per namespace.
//!
//! A request that names a new object creates it, so a client could create any number. Each object costs
//! memory on every server and a line in every scrape. Objects are counted in the snapshot, plus those created
//! through this server since; other replicas and direct clients of the store may add some meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tenure::port::{GroupKey, PoolKey, QueueKey, ScheduleKey, TopicKey};
use tenure::{BootInstant, ElectionKey, Name};

use crate::App;
use crate::problem::Problem;

/// How long an object created here is counted although no snapshot contains it.
const RECENT: Duration = Duration::from_secs(30);

/// Maximum number of objects of each kind per namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas([usize; Kind::ALL.len()]);

/// Kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Elections, including registered names and singletons.
    Elections,
    /// Queues.
    Queues,
    /// Topics.
    Topics,
    /// Consumer groups of all topics.
    Groups,
    /// Schedules.
    Schedules,
    /// Pools.
    Pools,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] =
        [Kind::Elections, Kind::Queues, Kind::Topics, Kind::Groups, Kind::Schedules, Kind::Pools];

    fn plural(self) -> &'static str {
        match self {
            Kind::Elections => "elections",
            Kind::Queues => "queues",
            Kind::Topics => "topics",
            Kind::Groups => "groups",
            Kind::Schedules => "schedules",
            Kind::Pools => "pools",
        }
    }

    fn field(self) -> &'static str {
        self.plural().trim_end_matches('s')
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.plural())
    }
}

impl Default for Quotas {
    fn default() -> Quotas {
        Quotas(Kind::ALL.map(|kind| match kind {
            Kind::Elections | Kind::Schedules => 10_000,
            Kind::Queues | Kind::Topics | Kind::Groups | Kind::Pools => 1_000,
        }))
    }
}

impl Quotas {
    /// Quota of a kind.
    pub fn of(&self, kind: Kind) -> usize {
        self.0[kind as usize]
    }

    /// Set the quota of a kind.
    pub fn set(&mut self, Quota { kind, most }: Quota) {
        self.0[kind as usize] = most;
    }
}

/// Quota of one kind, written `queues=2000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Kind.
    pub kind: Kind,
    /// Maximum number per namespace.
    pub most: usize,
}

impl FromStr for Quota {
    type Err = String;
    fn from_str(text: &str) -> Result<Quota, String> {
        let (kind, most) = text.split_once('=').unwrap_or((text, ""));
        let kind = Kind::ALL.into_iter().find(|known| known.plural() == kind);
        match (kind, most.parse()) {
            (Some(kind), Ok(most)) => Ok(Quota { kind, most }),
            _ => {
                let kinds = Kind::ALL.map(Kind::plural).join(", ");
                Err(format!(
                    "{text:?} is not a quota; use KIND=NUMBER with one of {kinds}, such as queues=2000"
                ))
            }
        }
    }
}

/// Object to create or change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Object<'a> {
    Election(&'a ElectionKey),
    Queue(&'a QueueKey),
    Topic(&'a TopicKey),
    Group(&'a GroupKey),
    Schedule(&'a ScheduleKey),
    Pool(&'a PoolKey),
}

/// Objects recently created through this server.
#[derive(Debug, Default)]
pub(crate) struct RecentlyCreated(Mutex<HashMap<(Kind, Name), HashMap<String, BootInstant>>>);

impl RecentlyCreated {
    /// Count a new object of a namespace; false if it exceeds the quota. `known` objects are in the snapshot,
    /// `most` is the quota, and `is_known` tells whether the snapshot contains a name.
    fn admit(
        &self,
        (kind, namespace): (Kind, &Name),
        name: String,
        (known, most): (usize, usize),
        is_known: impl Fn(&str) -> bool,
        now: BootInstant,
    ) -> bool {
        let mut created = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        created.retain(|_, names| {
            names.retain(|_, at| now.since(*at) < RECENT);
            !names.is_empty()
        });
        let names = created.entry((kind, namespace.clone())).or_default();
        names.retain(|name, _| !is_known(name));
        if names.contains_key(&name) {
            return true;
        }
        let free = known + names.len() < most;
        if free {
            names.insert(name, now);
        }
        free
    }
}

/// Reject a new object if its namespace has reached the quota.
pub(crate) async fn check(app: &App, object: Object<'_>) -> Result<(), Problem> {
    let (kind, namespace) = match object {
        Object::Election(key) => (Kind::Elections, &key.namespace),
        Object::Queue(key) => (Kind::Queues, &key.namespace),
        Object::Topic(key) => (Kind::Topics, &key.namespace),
        Object::Group(key) => (Kind::Groups, &key.topic.namespace),
        Object::Schedule(key) => (Kind::Schedules, &key.namespace),
        Object::Pool(key) => (Kind::Pools, &key.namespace),
    };
    let most = app.quotas.of(kind);
    let admit = |name: &str, known: usize, is_known: &dyn Fn(&str) -> bool| {
        let now = app.runtime.now();
        let admitted =
            app.recently_created.admit((kind, namespace), name.to_owned(), (known, most), is_known, now);
        if admitted { Ok(()) } else { Err(exceeded(kind, namespace, most)) }
    };
    let named = |name: &str| name.parse::<Name>().ok();
    match object {
        Object::Election(key) => {
            let snapshot = app.elections.snapshot();
            if snapshot.elections.contains_key(key) {
                return Ok(());
            }
            let known = snapshot.elections.keys().filter(|known| known.namespace == *namespace).count();
            admit(key.name.as_str(), known, &|name| {
                named(name).is_some_and(|name| {
                    snapshot.elections.contains_key(&ElectionKey::new(namespace.clone(), name))
                })
            })
        }
        Object::Queue(key) => {
            let snapshot = app.queues.snapshot();
            if snapshot.queues.contains_key(key) {
                return Ok(());
            }
            let known = snapshot.queues.keys().filter(|known| known.namespace == *namespace).count();
            admit(key.name.as_str(), known, &|name| {
                named(name)
                    .is_some_and(|name| snapshot.queues.contains_key(&QueueKey::new(namespace.clone(), name)))
            })
        }
        Object::Topic(key) => {
            let snapshot = app.events.snapshot();
            if snapshot.topics.contains_key(key) {
                return Ok(());
            }
            let known = snapshot.topics.keys().filter(|known| known.namespace == *namespace).count();
            admit(key.name.as_str(), known, &|name| {
                named(name)
                    .is_some_and(|name| snapshot.topics.contains_key(&TopicKey::new(namespace.clone(), name)))
            })
        }
        Object::Group(key) => {
            let snapshot = app.events.snapshot();
            if snapshot.groups.contains_key(key) {
                return Ok(());
            }
            let of_namespace = || snapshot.groups.keys().filter(|known| known.topic.namespace == *namespace);
            let label = |key: &GroupKey| format!("{}/{}", key.topic.name, key.name);
            admit(&label(key), of_namespace().count(), &|name| of_namespace().any(|key| label(key) == name))
        }
        Object::Schedule(key) => {
            // If the count is unknown, the request passes: the store reports its own error.
            let Ok(stats) = app.schedules.stats().await else { return Ok(()) };
            let known = stats.iter().find(|stats| stats.namespace == *namespace);
            let known = known.map_or(0, |stats| usize::try_from(stats.schedule_count).unwrap_or(usize::MAX));
            let admitted = admit(key.name.as_str(), known, &|_| false);
            if admitted.is_err() && app.store.schedule(key).await?.is_some() {
                return Ok(());
            }
            admitted
        }
        Object::Pool(key) => {
            let Ok(pools) = app.queues.pools().await else { return Ok(()) };
            let of_namespace = || pools.iter().filter(|pool| pool.key.namespace == *namespace);
            if of_namespace().any(|pool| pool.key == *key) {
                return Ok(());
            }
            admit(key.name.as_str(), of_namespace().count(), &|name| {
                of_namespace().any(|pool| pool.key.name.as_str() == name)
            })
        }
    }
}

fn exceeded(kind: Kind, namespace: &Name, most: usize) -> Problem {
    let detail = format!("namespace {namespace} has {most} {kind}, the maximum");
    Problem::new(StatusCode::CONFLICT, "quota-exceeded", detail).field(kind.field()).remedy(format!(
        "use an existing one, delete some, or start the servers with a higher --quota {kind}=NUMBER"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn quotas_are_parsed_and_errors_contain_the_text() {
        let mut quotas = Quotas::default();
        quotas.set("queues=7".parse().expect("a quota"));
        assert_eq!((quotas.of(Kind::Queues), quotas.of(Kind::Topics)), (7, 1_000));
        for text in ["", "queues", "queues=", "queues=x", "cats=1", "queues=-1"] {
            assert!(text.parse::<Quota>().expect_err(text).contains(text), "{text}");
        }
    }

    #[test]
    fn objects_created_since_the_last_snapshot_count() {
        let (created, namespace) = (RecentlyCreated::default(), Name::default_namespace());
        let admit = |name: &str, known, snapshot: &'static [&'static str], now| {
            let of = (Kind::Queues, &namespace);
            created.admit(of, name.to_owned(), (known, 3), |name| snapshot.contains(&name), now)
        };
        assert!(admit("a", 1, &[], at(0)) && admit("b", 1, &[], at(0)));
        assert!(!admit("c", 1, &[], at(0)), "one existed, and two were created");
        assert!(admit("a", 1, &[], at(0)), "it exists already");
        assert!(!admit("c", 3, &["a", "b"], at(1)), "the snapshot contains them now");
        assert!(admit("c", 1, &[], at(40)), "they never appeared in a snapshot, so they were not created");
    }
}
