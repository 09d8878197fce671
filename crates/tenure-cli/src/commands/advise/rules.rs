//! Decision tables of `tenure advise`: recommend a store and a mode. No side effects.
//!
//! | question | answered by |
//! |---|---|
//! | topology, tolerance of two leaders, replicated state, available systems | [`recommended_store`] |
//! | control by one process, or throughput by many | [`mode`]: a leader for control and schedules, partitions and claims for throughput |
//! | strict order, availability, contention, load | [`mode`]: exclusive or distributed, and the number of replicas |

use serde::Serialize;
use tenure::port::StoreGuarantees;
use tenure::store::{etcd, http, kubernetes, memory, postgres, raft, sqlite};

use crate::args::advise::{
    AdviseAnswers, AdviseNeed, DeploymentScope, DuplicatePolicy, Infrastructure, LoadLevel, OrderingNeed,
};

/// All answers, with defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct AdviseCase {
    pub(crate) use_case: AdviseNeed,
    pub(crate) topology: DeploymentScope,
    pub(crate) split_brain: DuplicatePolicy,
    pub(crate) available: Vec<Infrastructure>,
    pub(crate) writes_to_postgres: bool,
    pub(crate) replicated_state: bool,
    pub(crate) order: OrderingNeed,
    pub(crate) load: LoadLevel,
}

impl AdviseCase {
    /// Fills in safe defaults for unanswered questions. Returns the case and the assumed flags.
    ///
    /// `configured` lists the systems known from the environment; it is used if the answers name none.
    pub(crate) fn of(
        answers: &AdviseAnswers,
        configured: &[Infrastructure],
    ) -> (AdviseCase, Vec<&'static str>) {
        let mut assumed = Vec::new();
        let have = if answers.available.is_empty() { configured } else { &answers.available };
        let case = AdviseCase {
            use_case: or(answers.use_case, AdviseNeed::Leader, "--use-case leader", &mut assumed),
            topology: or(answers.topology, DeploymentScope::Cluster, "--topology cluster", &mut assumed),
            split_brain: or(answers.split_brain, DuplicatePolicy::Never, "--split-brain never", &mut assumed),
            available: have.iter().copied().filter(|have| *have != Infrastructure::None).collect(),
            writes_to_postgres: answers.writes_to_postgres && have.contains(&Infrastructure::Postgres),
            replicated_state: answers.replicated_state,
            order: or(answers.order, OrderingNeed::Any, "--order any", &mut assumed),
            load: or(answers.load, LoadLevel::Available, "--load available", &mut assumed),
        };
        if answers.available.is_empty() && case.topology == DeploymentScope::Cluster {
            assumed.extend(match case.available.first() {
                None => vec!["--available none"],
                Some(_) => case.available.iter().map(|have| have.assumed()).collect(),
            });
        }
        (case, assumed)
    }

    fn has(&self, what: Infrastructure) -> bool {
        self.available.contains(&what)
    }

    fn is_work(&self) -> bool {
        matches!(
            self.use_case,
            AdviseNeed::Schedule | AdviseNeed::Events | AdviseNeed::Tasks | AdviseNeed::Resources
        )
    }
}

/// The answer, or the default, whose flag is added to `assumed`.
fn or<T>(answer: Option<T>, default: T, flag: &'static str, assumed: &mut Vec<&'static str>) -> T {
    answer.unwrap_or_else(|| {
        assumed.push(flag);
        default
    })
}

/// A recommended store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecommendedStore {
    Memory,
    Sqlite,
    Postgres,
    Kubernetes,
    Etcd,
    Raft,
    Gossip,
    Server,
}

impl RecommendedStore {
    /// Example for `--store`.
    pub(crate) fn example_url(self) -> &'static str {
        match self {
            RecommendedStore::Memory => "memory:",
            RecommendedStore::Sqlite => "sqlite:/var/lib/tenure/tenure.db",
            RecommendedStore::Postgres => "postgres://app@db/app",
            RecommendedStore::Kubernetes => "k8s:prod",
            RecommendedStore::Etcd => "etcd://a:2379,b:2379,c:2379",
            RecommendedStore::Raft => "raft:?peers=1@10.0.0.1:8369,2@10.0.0.2:8369,3@10.0.0.3:8369",
            RecommendedStore::Gossip => "gossip:0.0.0.0:8370?seed=10.0.0.1:8370&cluster=prod",
            RecommendedStore::Server => "https://tenure.internal:8368",
        }
    }

    /// Guarantees of the store. A soft leader has no token and fewer guarantees.
    pub(crate) fn guarantees(self) -> StoreGuarantees {
        match self {
            RecommendedStore::Memory => memory::GUARANTEES,
            RecommendedStore::Sqlite => sqlite::GUARANTEES,
            RecommendedStore::Postgres => postgres::GUARANTEES,
            RecommendedStore::Etcd => etcd::GUARANTEES,
            RecommendedStore::Raft => raft::GUARANTEES,
            RecommendedStore::Kubernetes => kubernetes::GUARANTEES,
            RecommendedStore::Gossip => StoreGuarantees {
                backend: "gossip",
                at_most_one: "no: a soft leader without a token",
                netsplit: "each side has a leader; after the split heals, one of them stops",
                after_crash: "failure detection plus hold-down",
            },
            RecommendedStore::Server => http::GUARANTEES,
        }
    }

    /// Origin of the tokens.
    pub(crate) fn token(self) -> &'static str {
        match self {
            RecommendedStore::Memory
            | RecommendedStore::Sqlite
            | RecommendedStore::Postgres
            | RecommendedStore::Server => "count of grants",
            RecommendedStore::Etcd => "revision of the grant",
            RecommendedStore::Kubernetes => "transitions of the Lease object",
            RecommendedStore::Raft => "log index of the grant",
            RecommendedStore::Gossip => "none: no fencing",
        }
    }
}

/// The recommendation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Advice {
    pub(crate) store: RecommendedStore,
    /// Example for `--store`.
    pub(crate) store_url: &'static str,
    /// Mode: leader, registry, or assignment of work.
    pub(crate) mode: &'static str,
    /// Reasons.
    pub(crate) reasons: Vec<&'static str>,
    /// Commands to run.
    pub(crate) configuration: Vec<String>,
    /// Limits and alternatives.
    pub(crate) notes: Vec<&'static str>,
}

pub(crate) fn decide(case: &AdviseCase) -> Advice {
    let (store, store_reasons) = recommended_store(case);
    let (mode, mode_reasons) = mode(case, store);
    let reasons = store_reasons.into_iter().chain(mode_reasons).collect();
    Advice {
        store,
        store_url: store.example_url(),
        mode,
        reasons,
        configuration: configuration(case, store, mode),
        notes: notes(case, store),
    }
}

/// Recommends a store, with reasons.
fn recommended_store(case: &AdviseCase) -> (RecommendedStore, Vec<&'static str>) {
    match case.topology {
        DeploymentScope::Process => {
            return (RecommendedStore::Memory, vec!["one process needs no agreement with others"]);
        }
        DeploymentScope::Machine => {
            return (
                RecommendedStore::Sqlite,
                vec!["on one machine a file is enough, and the kernel detects dead processes at once"],
            );
        }
        DeploymentScope::Cluster => {}
    }
    if case.is_work() {
        return match (case.has(Infrastructure::Postgres), case.load) {
            (true, _) => (
                RecommendedStore::Postgres,
                vec!["PostgreSQL stores work in the same transaction as your own data"],
            ),
            (false, LoadLevel::Light) => (
                RecommendedStore::Server,
                vec![
                    "work needs a database; without PostgreSQL, one server stores it in a file for the other machines",
                ],
            ),
            (false, _) => (
                RecommendedStore::Postgres,
                vec![
                    "work needs a database that survives the loss of a machine: set up PostgreSQL with a standby, or as a managed service",
                ],
            ),
        };
    }
    if case.split_brain == DuplicatePolicy::Tolerable {
        return (
            RecommendedStore::Gossip,
            vec![
                "two leaders are tolerable, so each side of a network split may continue: availability before consistency",
            ],
        );
    }
    if case.writes_to_postgres {
        return (
            RecommendedStore::Postgres,
            vec!["the data and the lease are in one database, so one transaction checks both"],
        );
    }
    if case.replicated_state && !case.has(Infrastructure::Postgres) {
        return (
            RecommendedStore::Raft,
            vec!["the processes replicate leadership and a small state by themselves"],
        );
    }
    let available = [
        (
            Infrastructure::Kubernetes,
            RecommendedStore::Kubernetes,
            "the service runs in Kubernetes, which has Lease objects, also used by Go controllers",
        ),
        (
            Infrastructure::Etcd,
            RecommendedStore::Etcd,
            "etcd is available, and has clients for every language",
        ),
        (
            Infrastructure::Postgres,
            RecommendedStore::Postgres,
            "a maintained database is available and sufficient for elections",
        ),
    ];
    match available.into_iter().find(|(have, ..)| case.has(*have)) {
        Some((_, store, reason)) => (store, vec![reason]),
        None => (
            RecommendedStore::Raft,
            vec!["no coordinator is available, so three processes form a Raft cluster"],
        ),
    }
}

/// Recommends a mode, with reasons.
fn mode(case: &AdviseCase, store: RecommendedStore) -> (&'static str, Vec<&'static str>) {
    let exclusive = case.order == OrderingNeed::Strict
        || case.use_case == AdviseNeed::Resources && case.load == LoadLevel::Contended;
    match case.use_case {
        AdviseNeed::Leader if store == RecommendedStore::Gossip => {
            ("soft leader", vec!["a leader as an optimization, not for correctness"])
        }
        AdviseNeed::Leader => {
            ("leader", vec!["one process decides; suitable for low volume where duplicates are expensive"])
        }
        AdviseNeed::Names if store == RecommendedStore::Gossip => {
            ("soft registry", vec!["duplicate names are resolved by your rule after a network split"])
        }
        AdviseNeed::Names => {
            ("strict registry", vec!["a name is an election: one process holds it at a time"])
        }
        AdviseNeed::Schedule => (
            "leader, in one transaction with the target",
            vec!["one scheduler fires; each tick fires once, even if a process dies"],
        ),
        AdviseNeed::Events => (
            "partitions, divided among the members of a group",
            vec!["a key keeps its partition, and members process their partitions in parallel"],
        ),
        AdviseNeed::Tasks | AdviseNeed::Resources if exclusive => {
            ("exclusive", vec!["one broker assigns in strict order, without conflicts and retry storms"])
        }
        AdviseNeed::Tasks | AdviseNeed::Resources => (
            "distributed",
            vec![
                "every process claims directly, in nearly exact order: ten times as fast where order does not matter",
            ],
        ),
    }
}

fn configuration(case: &AdviseCase, store: RecommendedStore, mode: &str) -> Vec<String> {
    let url = store.example_url();
    let mut lines = Vec::new();
    match store {
        RecommendedStore::Memory => {
            return vec![
                "let tenure = Tenure::open(\"memory:\").await?;   // in Rust; clones share the store".into(),
            ];
        }
        RecommendedStore::Postgres => lines.push(format!("tenure migrate up --store {url}")),
        RecommendedStore::Raft => {
            for node in 1..=3 {
                lines.push(format!("TENURE_RAFT_SECRET=… tenure serve --store 'raft:/var/lib/tenure?node={node}&peers=1@10.0.0.1:8369,2@10.0.0.2:8369,3@10.0.0.3:8369'   # on 10.0.0.{node}"));
            }
        }
        RecommendedStore::Server => {
            lines.push("tenure serve --store sqlite:/var/lib/tenure/tenure.db --listen 0.0.0.0:8368 --auth --tls-cert cert.pem --tls-key key.pem".into());
        }
        RecommendedStore::Kubernetes => lines.push("kubectl apply -f deploy/kubernetes/".into()),
        RecommendedStore::Gossip => {
            lines.push("export TENURE_GOSSIP_SECRET=…   # the same on every machine".into())
        }
        RecommendedStore::Sqlite | RecommendedStore::Etcd => {}
    }
    lines.push(format!("export TENURE_STORE='{url}'"));
    let replicas = if case.load == LoadLevel::Light { 1 } else { 3 };
    lines.extend(match case.use_case {
        AdviseNeed::Leader if store == RecommendedStore::Gossip => {
            vec!["tenure run nightly --soft -- ./job.sh   # on every machine".to_owned()]
        }
        AdviseNeed::Leader => vec!["tenure run nightly -- ./job.sh   # on every machine".to_owned()],
        AdviseNeed::Names => vec!["tenure names register scheduler-eu".to_owned()],
        AdviseNeed::Schedule => vec![
            "tenure schedules create nightly '30 2 * * *' --task reports".to_owned(),
            format!("tenure serve   # {replicas} replicas"),
        ],
        AdviseNeed::Events => vec![
            "tenure events topics create orders".to_owned(),
            format!("tenure events consume orders --group mailer -- ./send.sh   # {replicas} replicas"),
        ],
        AdviseNeed::Tasks => vec![
            format!("tenure queues mode mail {mode}"),
            format!("tenure work mail -- ./send.sh   # {replicas} replicas"),
        ],
        AdviseNeed::Resources => {
            vec![
                format!("tenure pools set hosts --mode {mode}"),
                "tenure pools add-resource hosts node-1 node-2".to_owned(),
            ]
        }
    });
    lines
}

fn notes(case: &AdviseCase, store: RecommendedStore) -> Vec<&'static str> {
    let mut notes = Vec::new();
    match store {
        RecommendedStore::Gossip => notes.push(
            "a soft leader may run work twice: make the work idempotent, and never use it for payments",
        ),
        RecommendedStore::Raft => notes.push("three members survive the loss of one, five the loss of two; an even number adds nothing"),
        RecommendedStore::Server => notes.push(
            "no work continues while the machine of the server is down; with PostgreSQL, use several servers",
        ),
        RecommendedStore::Etcd => notes.push("every heartbeat is a revision: start etcd with --auto-compaction-retention=1h"),
        RecommendedStore::Kubernetes => notes.push(
            "a Lease object alone does not fence your database; --election-store k8s:… --store postgres://… does",
        ),
        RecommendedStore::Memory => notes.push("all state is lost when the process exits"),
        RecommendedStore::Sqlite | RecommendedStore::Postgres => {}
    }
    if case.is_work()
        && store == RecommendedStore::Postgres
        && (case.has(Infrastructure::Kubernetes) || case.has(Infrastructure::Etcd))
    {
        notes.push("elections may use another store: --election-store k8s:… or etcd://… with --store postgres://… fences the database by its tokens");
    }
    if case.use_case == AdviseNeed::Leader && case.load == LoadLevel::Heavy {
        notes.push("one leader is one machine: for throughput use events or tasks with many workers, and let the leader only decide");
    }
    if case.is_work() && case.load == LoadLevel::Heavy {
        notes.push("beyond one database, split namespaces over several databases");
    }
    if case.load == LoadLevel::Light && case.topology == DeploymentScope::Cluster {
        notes.push("with one replica, no work continues while its machine is down; no data is lost");
    }
    if matches!(case.use_case, AdviseNeed::Leader)
        && case.split_brain == DuplicatePolicy::Never
        && store != RecommendedStore::Gossip
    {
        notes.push("for periodic work, a schedule fires once per tick without code: --use-case schedule");
    }
    notes
}
