//! Which store, and which mode: the decision tables, as a pure function.
//!
//! The tables, and where their rows are:
//!
//! | question | answered by |
//! |---|---|
//! | one process, one machine, or a cluster? may there be two? is there state besides? is there a coordinator already? | [`rung`] |
//! | a single brain that decides, or many hands that share? | [`mode`]: a leader for control and schedules, slots and claims for throughput |
//! | strict order, availability, contention, load? | [`mode`]: exclusive or distributed, and how many replicas |

use serde::Serialize;
use tenure::backend::{etcd, http, kubernetes, memory, postgres, raft, sqlite};
use tenure::port::Promises;

use crate::args::advise::{Have, Load, Need, Order, Place, Two, Wishes};

/// What is needed, nothing left open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Case {
    pub(crate) need: Need,
    #[serde(rename = "where")]
    pub(crate) place: Place,
    pub(crate) two: Two,
    pub(crate) have: Vec<Have>,
    pub(crate) writes_to_postgres: bool,
    pub(crate) state: bool,
    pub(crate) order: Order,
    pub(crate) load: Load,
}

impl Case {
    /// What was said, and for the rest what is safe to assume. And which parts were assumed.
    ///
    /// `configured` is what the environment shows to be there; it counts where nobody said what there is.
    pub(crate) fn of(wishes: &Wishes, configured: &[Have]) -> (Case, Vec<&'static str>) {
        let mut assumed = Vec::new();
        let have = if wishes.have.is_empty() { configured } else { &wishes.have };
        let case = Case {
            need: or(wishes.need, Need::Leader, "--need leader", &mut assumed),
            place: or(wishes.place, Place::Many, "--where many", &mut assumed),
            two: or(wishes.two, Two::Never, "--two never", &mut assumed),
            have: have.iter().copied().filter(|have| *have != Have::Nothing).collect(),
            writes_to_postgres: wishes.writes_to_postgres && have.contains(&Have::Postgres),
            state: wishes.state,
            order: or(wishes.order, Order::Any, "--order any", &mut assumed),
            load: or(wishes.load, Load::Available, "--load available", &mut assumed),
        };
        if wishes.have.is_empty() && case.place == Place::Many {
            assumed.extend(match case.have.first() {
                None => vec!["--have nothing"],
                Some(_) => case.have.iter().map(|have| have.assumed()).collect(),
            });
        }
        (case, assumed)
    }

    fn has(&self, what: Have) -> bool {
        self.have.contains(&what)
    }

    fn is_work(&self) -> bool {
        matches!(self.need, Need::Schedule | Need::Events | Need::Tasks | Need::Resources)
    }
}

fn or<T>(said: Option<T>, otherwise: T, word: &'static str, assumed: &mut Vec<&'static str>) -> T {
    said.unwrap_or_else(|| {
        assumed.push(word);
        otherwise
    })
}

/// A rung of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Rung {
    Memory,
    Sqlite,
    Postgres,
    Kubernetes,
    Etcd,
    Raft,
    Gossip,
    Server,
}

impl Rung {
    /// What `--store` begins with.
    pub(crate) fn store(self) -> &'static str {
        match self {
            Rung::Memory => "memory:",
            Rung::Sqlite => "sqlite:/var/lib/tenure/tenure.db",
            Rung::Postgres => "postgres://app@db/app",
            Rung::Kubernetes => "k8s:prod",
            Rung::Etcd => "etcd://a:2379,b:2379,c:2379",
            Rung::Raft => "raft:?peers=1@10.0.0.1:8369,2@10.0.0.2:8369,3@10.0.0.3:8369",
            Rung::Gossip => "gossip:0.0.0.0:8370?seed=10.0.0.1:8370&cluster=prod",
            Rung::Server => "https://tenure.internal:8368",
        }
    }

    /// What it promises, in the store's own words. What is soft has no token, and promises less.
    pub(crate) fn promises(self) -> Promises {
        match self {
            Rung::Memory => memory::PROMISES,
            Rung::Sqlite => sqlite::PROMISES,
            Rung::Postgres => postgres::PROMISES,
            Rung::Etcd => etcd::PROMISES,
            Rung::Raft => raft::PROMISES,
            Rung::Kubernetes => kubernetes::PROMISES,
            Rung::Gossip => Promises {
                backend: "gossip",
                at_most_one: "no: a soft leader, with no token",
                netsplit: "each side has one, and after it heals one of them stops",
                after_crash: "as soon as the others notice, and a hold-down",
            },
            Rung::Server => http::PROMISES,
        }
    }

    /// What its tokens are.
    pub(crate) fn token(self) -> &'static str {
        match self {
            Rung::Memory | Rung::Sqlite | Rung::Postgres | Rung::Server => "counts the grants",
            Rung::Etcd => "the revision of the grant",
            Rung::Kubernetes => "the Lease's transitions",
            Rung::Raft => "the index of the grant in the log",
            Rung::Gossip => "none: nothing can be fenced",
        }
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Advice {
    pub(crate) backend: Rung,
    pub(crate) store: &'static str,
    /// How the work is handed out, where there is work.
    pub(crate) mode: &'static str,
    /// Why this one.
    pub(crate) why: Vec<&'static str>,
    /// What to paste.
    pub(crate) configuration: Vec<String>,
    /// What it costs, and what else there is.
    pub(crate) mind: Vec<&'static str>,
}

pub(crate) fn decide(case: &Case) -> Advice {
    let (backend, why) = rung(case);
    let (mode, of_mode) = mode(case, backend);
    let why = why.into_iter().chain(of_mode).collect();
    Advice {
        backend,
        store: backend.store(),
        mode,
        why,
        configuration: configuration(case, backend, mode),
        mind: mind(case, backend),
    }
}

/// Which rung of the ladder, and why.
fn rung(case: &Case) -> (Rung, Vec<&'static str>) {
    match case.place {
        Place::Process => {
            return (
                Rung::Memory,
                vec!["within one process a name is enough, and nothing has to be agreed on"],
            );
        }
        Place::Machine => {
            return (
                Rung::Sqlite,
                vec!["one machine has one kernel, which knows at once who is dead; a file is enough"],
            );
        }
        Place::Many => {}
    }
    if case.is_work() {
        return match (case.has(Have::Postgres), case.load) {
            (true, _) => {
                (Rung::Postgres, vec!["work is kept where it can be changed together with your own data"])
            }
            (false, Load::Light) => (
                Rung::Server,
                vec![
                    "work needs a database; without PostgreSQL, one server keeps it in a file, and the others ask it",
                ],
            ),
            (false, _) => (
                Rung::Postgres,
                vec![
                    "work needs a database, and a file on one machine stops when that machine does: \
                     set up PostgreSQL, best with a standby or as a managed service",
                ],
            ),
        };
    }
    if case.two == Two::Tolerable {
        return (
            Rung::Gossip,
            vec![
                "two for a moment do no harm, so each side of a cut may go on: availability before consistency",
            ],
        );
    }
    if case.writes_to_postgres {
        return (
            Rung::Postgres,
            vec!["what is written and who may write it are in one database, so one transaction checks both"],
        );
    }
    if case.state && !case.has(Have::Postgres) {
        return (
            Rung::Raft,
            vec!["leader and a little state are agreed on together, by the processes themselves"],
        );
    }
    let there = [
        (
            Have::Kubernetes,
            Rung::Kubernetes,
            "it runs in Kubernetes, whose Leases are there already, for Go controllers too",
        ),
        (Have::Etcd, Rung::Etcd, "an external coordinator is there already, and speaks to every language"),
        (
            Have::Postgres,
            Rung::Postgres,
            "a database that is there already, and looked after, is enough for elections",
        ),
    ];
    match there.into_iter().find(|(have, ..)| case.has(*have)) {
        Some((_, rung, why)) => (rung, vec![why]),
        None => (Rung::Raft, vec!["nothing is there to decide, so three processes agree with each other"]),
    }
}

/// How work is handed out, and why.
fn mode(case: &Case, rung: Rung) -> (&'static str, Vec<&'static str>) {
    let exclusive =
        case.order == Order::Strict || case.need == Need::Resources && case.load == Load::Contended;
    match case.need {
        Need::Leader if rung == Rung::Gossip => {
            ("soft leader", vec!["a leader as an optimization, not for correctness"])
        }
        Need::Leader => {
            ("leader", vec!["a single brain that decides, where volume is small and doubling is dear"])
        }
        Need::Names if rung == Rung::Gossip => {
            ("soft registry", vec!["names are settled by your rule when a cut has healed"])
        }
        Need::Names => ("strict registry", vec!["a name is an election: never two under one"]),
        Need::Schedule => (
            "leader, in one transaction with what it fires",
            vec!["one looks and fires; a tick is fired once, whoever dies"],
        ),
        Need::Events => (
            "slots, shared by the members of a group",
            vec!["a key stays in its slot, and as many slots as members go on at once"],
        ),
        Need::Tasks | Need::Resources if exclusive => (
            "exclusive",
            vec!["one leader hands out, strictly in order; conflicts and retry storms are impossible"],
        ),
        Need::Tasks | Need::Resources => (
            "distributed",
            vec![
                "everybody takes for themselves, nearly in order: ten times as fast where order does not matter",
            ],
        ),
    }
}

fn configuration(case: &Case, rung: Rung, mode: &str) -> Vec<String> {
    let store = rung.store();
    let mut lines = Vec::new();
    match rung {
        Rung::Memory => {
            return vec![
                "let tenure = Tenure::open(\"memory:\").await?;   // in Rust; clones share it".into(),
            ];
        }
        Rung::Postgres => lines.push(format!("tenure migrate up --store {store}")),
        Rung::Raft => {
            for node in 1..=3 {
                lines.push(format!("TENURE_RAFT_SECRET=… tenure serve --store 'raft:/var/lib/tenure?node={node}&peers=1@10.0.0.1:8369,2@10.0.0.2:8369,3@10.0.0.3:8369'   # on 10.0.0.{node}"));
            }
        }
        Rung::Server => {
            lines.push("tenure serve --store sqlite:/var/lib/tenure/tenure.db --listen 0.0.0.0:8368 --auth --tls-cert cert.pem --tls-key key.pem".into());
        }
        Rung::Kubernetes => lines.push("kubectl apply -f deploy/kubernetes/".into()),
        Rung::Gossip => lines.push("export TENURE_GOSSIP_SECRET=…   # the same on every machine".into()),
        Rung::Sqlite | Rung::Etcd => {}
    }
    lines.push(format!("export TENURE_STORE='{store}'"));
    let replicas = if case.load == Load::Light { 1 } else { 3 };
    lines.extend(match case.need {
        Need::Leader if rung == Rung::Gossip => {
            vec!["tenure run nightly --soft -- ./job.sh   # on every machine".to_owned()]
        }
        Need::Leader => vec!["tenure run nightly -- ./job.sh   # on every machine".to_owned()],
        Need::Names => vec!["tenure names register scheduler-eu".to_owned()],
        Need::Schedule => vec![
            "tenure schedule create nightly '30 2 * * *' --task reports".to_owned(),
            format!("tenure serve   # {replicas} of it"),
        ],
        Need::Events => vec![
            "tenure events topics create orders".to_owned(),
            format!("tenure events consume orders --group mailer -- ./send.sh   # {replicas} of it"),
        ],
        Need::Tasks => vec![
            format!("tenure queue mode mail {mode}"),
            format!("tenure work mail -- ./send.sh   # {replicas} of it"),
        ],
        Need::Resources => {
            vec![
                format!("tenure pool set hosts --mode {mode}"),
                "tenure pool add hosts node-1 node-2".to_owned(),
            ]
        }
    });
    lines
}

fn mind(case: &Case, rung: Rung) -> Vec<&'static str> {
    let mut mind = Vec::new();
    match rung {
        Rung::Gossip => mind.push(
            "work of a soft leader may be done twice: make it idempotent, and never use it where money moves",
        ),
        Rung::Raft => mind.push("three survive the loss of one, five of two; an even number gains nothing"),
        Rung::Server => mind.push(
            "nothing goes on while the server's machine is down: with PostgreSQL, any number of servers do it",
        ),
        Rung::Etcd => mind.push("every beat is a revision: start etcd with --auto-compaction-retention=1h"),
        Rung::Kubernetes => mind.push(
            "its own database is not fenced by a Lease: give --elect k8s:… --store postgres://…, and it is",
        ),
        Rung::Memory => mind.push("everything is gone with the process"),
        Rung::Sqlite | Rung::Postgres => {}
    }
    if case.is_work() && rung == Rung::Postgres && (case.has(Have::Kubernetes) || case.has(Have::Etcd)) {
        mind.push("elections may live elsewhere: --elect k8s:… or etcd://… beside --store postgres://… fences the database by its tokens");
    }
    if case.need == Need::Leader && case.load == Load::Heavy {
        mind.push("one leader is one machine: for throughput let many share, by events or tasks, and let the leader only decide");
    }
    if case.is_work() && case.load == Load::Heavy {
        mind.push("beyond one database, split by namespace over several");
    }
    if case.load == Load::Light && case.place == Place::Many {
        mind.push(
            "with one replica nothing is lost when its machine dies, and nothing goes on until it is back",
        );
    }
    if matches!(case.need, Need::Leader) && case.two == Two::Never && rung != Rung::Gossip {
        mind.push("if it is only about doing something now and then, a schedule does it once with no code: --need schedule");
    }
    mind
}
