//! `tenure advise`, and what `tenure doctor` holds a store against.

use clap::{Args, ValueEnum};
use serde::Serialize;

pub(crate) const EXAMPLES: &str = "\
On a terminal and without flags it asks. What is not said is assumed, and told.

Examples:
  tenure advise
  tenure advise --need leader --where many --have kubernetes
  tenure advise --need tasks --where many --have postgres --order strict -o json
  tenure advise --need leader --where many --two tolerable
  tenure doctor --where many --have etcd            is the store that is used the one to use?";

#[derive(Args, Debug)]
pub(crate) struct AdviseArgs {
    #[command(flatten)]
    pub(crate) wishes: Wishes,
}

/// What somebody needs and has. What is not said is `None`.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Wishes {
    /// What is it for?
    #[arg(long, value_name = "WHAT")]
    pub(crate) need: Option<Need>,

    /// Where does it run?
    #[arg(long = "where", value_name = "PLACE")]
    pub(crate) place: Option<Place>,

    /// May two do it at once, for a moment, when the network is cut?
    #[arg(long, value_name = "HARM")]
    pub(crate) two: Option<Two>,

    /// What is there already (repeatable)
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM")]
    pub(crate) have: Vec<Have>,

    /// What the leader writes is in that PostgreSQL
    #[arg(long)]
    pub(crate) writes_to_postgres: bool,

    /// A little state must be agreed on too, and there is no database for it
    #[arg(long)]
    pub(crate) state: bool,

    /// In which order is work handed out?
    #[arg(long, value_name = "ORDER")]
    pub(crate) order: Option<Order>,

    /// How much is there to do?
    #[arg(long, value_name = "LOAD")]
    pub(crate) load: Option<Load>,
}

impl Wishes {
    /// Whether anything was said.
    pub(crate) fn are_told(&self) -> bool {
        let Wishes { need, place, two, have, writes_to_postgres, state, order, load } = self;
        need.is_some()
            || place.is_some()
            || two.is_some()
            || !have.is_empty()
            || *writes_to_postgres
            || *state
            || order.is_some()
            || load.is_some()
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Need {
    /// One process of many does something: it decides, it controls
    Leader,
    /// Something happens at its times, each time once
    Schedule,
    /// Many hear about something, in order
    Events,
    /// Many take pieces of work from a queue
    Tasks,
    /// Many want hosts, devices or licences of which there are few
    Resources,
    /// Processes have names that are unique in the cluster
    Names,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    /// In one process
    Process,
    /// In several processes of one machine
    Machine,
    /// On several machines
    Many,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Two {
    /// Never: money is paid, a disk is written, somebody is called
    Never,
    /// It does no harm: a cache is warmed, figures are added up, doing it twice is the same as once
    Tolerable,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Have {
    /// A PostgreSQL server
    Postgres,
    /// A Kubernetes cluster in which it runs
    Kubernetes,
    /// An etcd cluster
    Etcd,
    /// None of these
    Nothing,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Order {
    /// Nearly in order, and as fast as can be
    Any,
    /// Strictly in order, one decision at a time
    Strict,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Load {
    /// One replica could do it
    Light,
    /// It must go on when a machine dies
    Available,
    /// Many want the same things at once
    Contended,
    /// More than one database can take
    Heavy,
}

impl Have {
    /// What the environment shows to be there: the configured store, and Kubernetes where this runs in a pod.
    pub(crate) fn configured(store: Option<&str>, in_pod: bool) -> Vec<Have> {
        let scheme = store.and_then(|address| address.split_once(':')).map(|(scheme, _)| scheme);
        let store = match scheme {
            Some("postgres" | "postgresql") => Some(Have::Postgres),
            Some("etcd" | "etcds") => Some(Have::Etcd),
            Some("k8s") => Some(Have::Kubernetes),
            _ => None,
        };
        let pod = in_pod.then_some(Have::Kubernetes).filter(|pod| store != Some(*pod));
        store.into_iter().chain(pod).collect()
    }

    /// How to say so on the command line, and where it is known from.
    pub(crate) fn assumed(self) -> &'static str {
        match self {
            Have::Postgres => "--have postgres, from the configured store",
            Have::Kubernetes => "--have kubernetes, since this runs there or the store is there",
            Have::Etcd => "--have etcd, from the configured store",
            Have::Nothing => "--have nothing",
        }
    }
}
