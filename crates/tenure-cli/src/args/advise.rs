//! Arguments of `tenure advise`; `tenure doctor` compares the store with them.

use clap::{Args, ValueEnum};
use serde::Serialize;

pub(crate) const EXAMPLES: &str = "\
On a terminal without flags it asks questions. Unanswered questions use stated defaults.

Examples:
  tenure advise
  tenure advise --use-case leader --topology cluster --available kubernetes
  tenure advise --use-case tasks --topology cluster --available postgres --order strict -o json
  tenure advise --use-case leader --topology cluster --split-brain tolerable
  tenure doctor --topology cluster --available etcd            compare the store in use with the recommendation";

#[derive(Args, Debug)]
pub(crate) struct AdviseArgs {
    #[command(flatten)]
    pub(crate) answers: AdviseAnswers,
}

/// Answers given on the command line; `None` means unanswered.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct AdviseAnswers {
    /// Use case
    #[arg(long, value_name = "USE_CASE")]
    pub(crate) use_case: Option<AdviseNeed>,

    /// Deployment topology
    #[arg(long, value_name = "TOPOLOGY")]
    pub(crate) topology: Option<DeploymentScope>,

    /// Whether two leaders at once, during a network split, are acceptable
    #[arg(long, value_name = "SPLIT_BRAIN")]
    pub(crate) split_brain: Option<DuplicatePolicy>,

    /// System that is already available (repeatable)
    #[arg(long, value_delimiter = ',', value_name = "SYSTEM")]
    pub(crate) available: Vec<Infrastructure>,

    /// The leader writes to the PostgreSQL server that is available
    #[arg(long)]
    pub(crate) writes_to_postgres: bool,

    /// Replicate a small amount of state without a database
    #[arg(long)]
    pub(crate) replicated_state: bool,

    /// Required order of task assignment
    #[arg(long, value_name = "ORDER")]
    pub(crate) order: Option<OrderingNeed>,

    /// Expected load
    #[arg(long, value_name = "LOAD")]
    pub(crate) load: Option<LoadLevel>,
}

impl AdviseAnswers {
    /// Whether any question is answered.
    pub(crate) fn any_given(&self) -> bool {
        let AdviseAnswers {
            use_case,
            topology,
            split_brain,
            available,
            writes_to_postgres,
            replicated_state,
            order,
            load,
        } = self;
        use_case.is_some()
            || topology.is_some()
            || split_brain.is_some()
            || !available.is_empty()
            || *writes_to_postgres
            || *replicated_state
            || order.is_some()
            || load.is_some()
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AdviseNeed {
    /// One process of several decides or controls something
    Leader,
    /// Work runs at set times, once per tick
    Schedule,
    /// Several consumers receive events in order
    Events,
    /// Several workers claim tasks from a queue
    Tasks,
    /// Several processes need a limited number of hosts, devices or licenses
    Resources,
    /// Processes register names that are unique in the cluster
    Names,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DeploymentScope {
    /// One process
    Process,
    /// Several processes on one machine
    Machine,
    /// Several machines
    Cluster,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DuplicatePolicy {
    /// Never acceptable: payments, disk writes, notifications
    Never,
    /// Harmless: cache warming, statistics, idempotent work
    Tolerable,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Infrastructure {
    /// PostgreSQL server
    Postgres,
    /// Kubernetes cluster that runs the service
    Kubernetes,
    /// etcd cluster
    Etcd,
    /// None of these
    None,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OrderingNeed {
    /// Nearly in order, highest throughput
    Any,
    /// Strict order, one assignment at a time
    Strict,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LoadLevel {
    /// One replica is enough
    Light,
    /// Must survive the loss of a machine
    Available,
    /// Many clients compete for the same items
    Contended,
    /// More load than one database can process
    Heavy,
}

impl Infrastructure {
    /// Systems known from the environment: that of the configured store, and Kubernetes if this process runs in a pod.
    pub(crate) fn configured(store: Option<&str>, in_pod: bool) -> Vec<Infrastructure> {
        let scheme = store.and_then(|address| address.split_once(':')).map(|(scheme, _)| scheme);
        let store = match scheme {
            Some("postgres" | "postgresql") => Some(Infrastructure::Postgres),
            Some("etcd" | "etcds") => Some(Infrastructure::Etcd),
            Some("k8s") => Some(Infrastructure::Kubernetes),
            _ => None,
        };
        let pod = in_pod.then_some(Infrastructure::Kubernetes).filter(|pod| store != Some(*pod));
        store.into_iter().chain(pod).collect()
    }

    /// The equivalent flag, and why it is assumed.
    pub(crate) fn assumed(self) -> &'static str {
        match self {
            Infrastructure::Postgres => "--available postgres, from the configured store",
            Infrastructure::Kubernetes => {
                "--available kubernetes, because this process or the store runs there"
            }
            Infrastructure::Etcd => "--available etcd, from the configured store",
            Infrastructure::None => "--available none",
        }
    }
}
