//! How many objects of each kind a namespace may have through servers.
//!
//! Objects are made by naming them, so a tenant could make as many as it can think of names, and each costs every server
//! memory and every scrape a line. The count is that of the server's last look at the store, together with what was made
//! through this server since; other replicas, and programs that use the store itself, may add a few meanwhile.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tenure::port::{GroupKey, PoolKey, QueueKey, ScheduleKey, TopicKey};
use tenure::{ElectionKey, Moment, Name};

use crate::App;
use crate::problem::Problem;

/// For how long an object that was made here is counted, though no look has shown it.
const RECENT: Duration = Duration::from_secs(30);

/// How many objects of each kind one namespace may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas([usize; Kind::ALL.len()]);

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Elections, names and singletons included.
    Elections,
    /// Queues.
    Queues,
    /// Topics.
    Topics,
    /// Consumer groups, of all topics.
    Groups,
    /// Schedules.
    Schedules,
    /// Pools.
    Pools,
}

impl Kind {
    /// All of them.
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
    /// How many of a kind.
    pub fn of(&self, kind: Kind) -> usize {
        self.0[kind as usize]
    }

    /// Sets how many of a kind.
    pub fn set(&mut self, Quota { kind, most }: Quota) {
        self.0[kind as usize] = most;
    }
}

/// A quota of one kind, as it is written: `queues=2000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Of what.
    pub kind: Kind,
    /// How many in one namespace.
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
                    "{text:?} is no quota; write KIND=NUMBER with one of {kinds}, such as queues=2000"
                ))
            }
        }
    }
}

/// An object that is about to be made, or to be changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Object<'a> {
    Election(&'a ElectionKey),
    Queue(&'a QueueKey),
    Topic(&'a TopicKey),
    Group(&'a GroupKey),
    Schedule(&'a ScheduleKey),
    Pool(&'a PoolKey),
}

/// What was made through this server lately.
#[derive(Debug, Default)]
pub(crate) struct Made(Mutex<HashMap<(Kind, Name), HashMap<String, Moment>>>);

impl Made {
    /// Counts one more object of a namespace that has so many; whether it may have it.
    fn admit(
        &self,
        (kind, namespace): (Kind, &Name),
        name: String,
        (known, most): (usize, usize),
        is_known: impl Fn(&str) -> bool,
        now: Moment,
    ) -> bool {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|_, names| {
            names.retain(|_, at| now.since(*at) < RECENT);
            !names.is_empty()
        });
        let names = made.entry((kind, namespace.clone())).or_default();
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

/// Refuses an object that is not there yet to a namespace that has as many as it may have.
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
        let admitted = app.made.admit((kind, namespace), name.to_owned(), (known, most), is_known, now);
        if admitted { Ok(()) } else { Err(exceeded(kind, namespace, most)) }
    };
    let named = |name: &str| name.parse::<Name>().ok();
    match object {
        Object::Election(key) => {
            let seen = app.board.seen();
            if seen.elections.contains_key(key) {
                return Ok(());
            }
            let known = seen.elections.keys().filter(|known| known.namespace == *namespace).count();
            admit(key.name.as_str(), known, &|name| {
                named(name).is_some_and(|name| {
                    seen.elections.contains_key(&ElectionKey::new(namespace.clone(), name))
                })
            })
        }
        Object::Queue(key) => {
            let seen = app.floor.seen();
            if seen.queues.contains_key(key) {
                return Ok(());
            }
            let known = seen.queues.keys().filter(|known| known.namespace == *namespace).count();
            admit(key.name.as_str(), known, &|name| {
                named(name)
                    .is_some_and(|name| seen.queues.contains_key(&QueueKey::new(namespace.clone(), name)))
            })
        }
        Object::Topic(key) => {
            let seen = app.gauge.seen();
            if seen.topics.contains_key(key) {
                return Ok(());
            }
            let known = seen.topics.keys().filter(|known| known.namespace == *namespace).count();
            admit(key.name.as_str(), known, &|name| {
                named(name)
                    .is_some_and(|name| seen.topics.contains_key(&TopicKey::new(namespace.clone(), name)))
            })
        }
        Object::Group(key) => {
            let seen = app.gauge.seen();
            if seen.groups.contains_key(key) {
                return Ok(());
            }
            let of_namespace = || seen.groups.keys().filter(|known| known.topic.namespace == *namespace);
            let label = |key: &GroupKey| format!("{}/{}", key.topic.name, key.name);
            admit(&label(key), of_namespace().count(), &|name| of_namespace().any(|key| label(key) == name))
        }
        Object::Schedule(key) => {
            // What cannot be counted is not refused: the store itself will say what is wrong.
            let Ok(stats) = app.agenda.stats().await else { return Ok(()) };
            let known = stats.iter().find(|stats| stats.namespace == *namespace);
            let known = known.map_or(0, |stats| usize::try_from(stats.schedules).unwrap_or(usize::MAX));
            let admitted = admit(key.name.as_str(), known, &|_| false);
            if admitted.is_err() && app.store.schedule(key).await?.is_some() {
                return Ok(());
            }
            admitted
        }
        Object::Pool(key) => {
            let Ok(pools) = app.floor.pools().await else { return Ok(()) };
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
    let detail = format!("the namespace {namespace} has {most} {kind}, as many as it may have");
    Problem::new(StatusCode::CONFLICT, "quota-exceeded", detail).field(kind.field()).remedy(format!(
        "use one that is there, delete some, or start the servers with a higher --quota {kind}=NUMBER"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn quotas_are_read_and_nonsense_names_itself() {
        let mut quotas = Quotas::default();
        quotas.set("queues=7".parse().expect("a quota"));
        assert_eq!((quotas.of(Kind::Queues), quotas.of(Kind::Topics)), (7, 1_000));
        for text in ["", "queues", "queues=", "queues=x", "cats=1", "queues=-1"] {
            assert!(text.parse::<Quota>().expect_err(text).contains(text), "{text}");
        }
    }

    #[test]
    fn what_was_made_since_the_last_look_counts() {
        let (made, namespace) = (Made::default(), Name::default_namespace());
        let admit = |name: &str, known, seen: &'static [&'static str], now| {
            let of = (Kind::Queues, &namespace);
            made.admit(of, name.to_owned(), (known, 3), |name| seen.contains(&name), now)
        };
        assert!(admit("a", 1, &[], at(0)) && admit("b", 1, &[], at(0)));
        assert!(!admit("c", 1, &[], at(0)), "one was there, and two were made");
        assert!(admit("a", 1, &[], at(0)), "one of these is no new one");
        assert!(!admit("c", 3, &["a", "b"], at(1)), "they were seen meanwhile");
        assert!(admit("c", 1, &[], at(40)), "they were never seen: nobody made them after all");
    }
}
