//! Tests of every row of the decision tables.

use super::rules::{Advice, AdviseCase, RecommendedStore, decide};
use crate::args::advise::{
    AdviseAnswers, AdviseNeed, DeploymentScope, DuplicatePolicy, Infrastructure, LoadLevel, OrderingNeed,
};

fn advised(answers: AdviseAnswers) -> Advice {
    decide(&AdviseCase::of(&answers, &[]).0)
}

fn many(need: AdviseNeed, have: &[Infrastructure]) -> AdviseAnswers {
    AdviseAnswers {
        use_case: Some(need),
        topology: Some(DeploymentScope::Cluster),
        available: have.to_vec(),
        ..AdviseAnswers::default()
    }
}

/// Single node, database, soft leader, registry, Raft, external coordinator.
#[test]
fn each_topology_gets_its_store() {
    let at = |place| advised(AdviseAnswers { topology: Some(place), ..AdviseAnswers::default() }).store;
    assert_eq!(at(DeploymentScope::Process), RecommendedStore::Memory, "one process");
    assert_eq!(at(DeploymentScope::Machine), RecommendedStore::Sqlite);
    assert_eq!(at(DeploymentScope::Cluster), RecommendedStore::Raft, "without an available system");
    assert_eq!(
        advised(many(AdviseNeed::Leader, &[Infrastructure::Postgres])).store,
        RecommendedStore::Postgres,
        "available"
    );
    assert_eq!(
        advised(many(AdviseNeed::Leader, &[Infrastructure::Etcd])).store,
        RecommendedStore::Etcd,
        "available"
    );
    assert_eq!(
        advised(many(AdviseNeed::Leader, &[Infrastructure::Kubernetes, Infrastructure::Etcd])).store,
        RecommendedStore::Kubernetes
    );
    let soft =
        AdviseAnswers { split_brain: Some(DuplicatePolicy::Tolerable), ..many(AdviseNeed::Leader, &[]) };
    let soft = advised(soft);
    assert_eq!((soft.store, soft.mode), (RecommendedStore::Gossip, "soft leader"));
    assert!(soft.notes[0].contains("idempotent"), "{soft:?}");
    let state =
        AdviseAnswers { replicated_state: true, ..many(AdviseNeed::Leader, &[Infrastructure::Kubernetes]) };
    assert_eq!(advised(state).store, RecommendedStore::Raft, "leader and replicated state");
    let writes = AdviseAnswers {
        writes_to_postgres: true,
        ..many(AdviseNeed::Leader, &[Infrastructure::Postgres, Infrastructure::Kubernetes])
    };
    assert_eq!(advised(writes).store, RecommendedStore::Postgres, "one transaction checks both");
    let names = |two| {
        advised(AdviseAnswers { split_brain: Some(two), ..many(AdviseNeed::Names, &[Infrastructure::Etcd]) })
    };
    assert_eq!(
        (names(DuplicatePolicy::Never).store, names(DuplicatePolicy::Never).mode),
        (RecommendedStore::Etcd, "strict registry")
    );
    assert_eq!(
        (names(DuplicatePolicy::Tolerable).store, names(DuplicatePolicy::Tolerable).mode),
        (RecommendedStore::Gossip, "soft registry")
    );
}

/// A leader for control, claims and partitions for throughput.
#[test]
fn leaders_are_for_control_and_claims_for_throughput() {
    assert_eq!(advised(many(AdviseNeed::Leader, &[Infrastructure::Postgres])).mode, "leader");
    assert!(advised(many(AdviseNeed::Schedule, &[Infrastructure::Postgres])).mode.starts_with("leader"));
    let events = advised(many(AdviseNeed::Events, &[Infrastructure::Postgres]));
    assert!(
        events.store == RecommendedStore::Postgres && events.mode.starts_with("partitions"),
        "{events:?}"
    );
    let heavy = advised(AdviseAnswers {
        load: Some(LoadLevel::Heavy),
        ..many(AdviseNeed::Leader, &[Infrastructure::Postgres])
    });
    assert!(heavy.notes.iter().any(|line| line.contains("many workers")), "{heavy:?}");
    // Periodic work needs a schedule, not a leader.
    let leader = advised(many(AdviseNeed::Leader, &[Infrastructure::Postgres]));
    assert!(leader.notes.iter().any(|line| line.contains("--use-case schedule")), "{leader:?}");
}

/// Exclusive or distributed, and the number of replicas.
#[test]
fn strict_order_is_exclusive_and_other_orders_are_distributed() {
    let tasks = |order, load| {
        advised(AdviseAnswers {
            order: Some(order),
            load: Some(load),
            ..many(AdviseNeed::Tasks, &[Infrastructure::Postgres])
        })
    };
    let replicas = |advice: &Advice, n: u32| {
        advice.configuration.iter().any(|line| line.ends_with(&format!("# {n} replicas")))
    };
    let light = tasks(OrderingNeed::Any, LoadLevel::Light);
    assert!(light.mode == "distributed" && replicas(&light, 1), "{light:?}");
    let available = tasks(OrderingNeed::Any, LoadLevel::Available);
    assert!(available.mode == "distributed" && replicas(&available, 3), "{available:?}");
    let heavy = tasks(OrderingNeed::Any, LoadLevel::Heavy);
    assert!(
        heavy.mode == "distributed" && heavy.notes.iter().any(|line| line.contains("split")),
        "{heavy:?}"
    );
    for load in [LoadLevel::Light, LoadLevel::Available, LoadLevel::Contended, LoadLevel::Heavy] {
        assert_eq!(tasks(OrderingNeed::Strict, load).mode, "exclusive");
    }
}

/// Contended resources need a broker; others do not.
#[test]
fn contended_resources_need_a_broker() {
    let hosts = |order, load| {
        let have = [Infrastructure::Kubernetes, Infrastructure::Postgres];
        advised(AdviseAnswers { order: Some(order), load: Some(load), ..many(AdviseNeed::Resources, &have) })
    };
    assert_eq!(hosts(OrderingNeed::Any, LoadLevel::Contended).mode, "exclusive");
    assert_eq!(hosts(OrderingNeed::Strict, LoadLevel::Light).mode, "exclusive", "deterministic order");
    assert_eq!(hosts(OrderingNeed::Any, LoadLevel::Light).mode, "distributed");
    let paired = hosts(OrderingNeed::Any, LoadLevel::Available);
    assert!(paired.notes.iter().any(|line| line.contains("--election-store")), "{paired:?}");
}

/// Regression: one SQLite server was recommended for work that must survive the loss of a machine.
#[test]
fn a_sqlite_server_is_recommended_only_for_light_load() {
    let tasks = |load| {
        advised(AdviseAnswers { load: Some(load), ..many(AdviseNeed::Tasks, &[Infrastructure::Etcd]) })
    };
    let light = tasks(LoadLevel::Light);
    assert_eq!(light.store, RecommendedStore::Server, "etcd only elects");
    assert!(light.configuration[0].starts_with("tenure serve --store sqlite:"), "{light:?}");
    for load in [LoadLevel::Available, LoadLevel::Contended, LoadLevel::Heavy] {
        assert_eq!(tasks(load).store, RecommendedStore::Postgres);
    }
}

/// Regression: without a terminal, Raft was recommended although PostgreSQL was configured.
#[test]
fn configured_systems_are_available() {
    let configured = |store: &str, pod| Infrastructure::configured(Some(store), pod);
    assert_eq!(configured("postgres://app@db/app", false), [Infrastructure::Postgres]);
    assert_eq!(configured("k8s:prod", true), [Infrastructure::Kubernetes]);
    assert_eq!(configured("sqlite:tenure.db", true), [Infrastructure::Kubernetes]);
    assert!(Infrastructure::configured(None, false).is_empty());
    let (case, assumed) = AdviseCase::of(&AdviseAnswers::default(), &[Infrastructure::Postgres]);
    assert_eq!(decide(&case).store, RecommendedStore::Postgres);
    assert!(assumed.iter().any(|assumed| assumed.contains("--available postgres")), "{assumed:?}");
    // An answer overrides the environment.
    let answers = AdviseAnswers { available: vec![Infrastructure::None], ..AdviseAnswers::default() };
    assert_eq!(
        decide(&AdviseCase::of(&answers, &[Infrastructure::Postgres]).0).store,
        RecommendedStore::Raft
    );
}

/// Regression: a server on SQLite was described with the guarantees of a local SQLite file.
#[test]
fn the_printed_guarantees_are_those_of_the_recommended_store() {
    for (store, guarantees) in [
        (RecommendedStore::Server, tenure::store::http::GUARANTEES),
        (RecommendedStore::Kubernetes, tenure::store::kubernetes::GUARANTEES),
        (RecommendedStore::Postgres, tenure::store::postgres::GUARANTEES),
    ] {
        assert_eq!(store.guarantees(), guarantees);
    }
    let soft = advised(AdviseAnswers {
        split_brain: Some(DuplicatePolicy::Tolerable),
        ..many(AdviseNeed::Leader, &[])
    });
    assert!(soft.configuration[0].contains("TENURE_GOSSIP_SECRET"), "members without a secret do not start");
}

#[test]
fn unanswered_questions_assume_the_safe_case_and_are_listed() {
    let (case, assumed) = AdviseCase::of(&AdviseAnswers::default(), &[]);
    assert_eq!((case.topology, case.split_brain), (DeploymentScope::Cluster, DuplicatePolicy::Never));
    assert!(assumed.contains(&"--split-brain never") && assumed.contains(&"--available none"), "{assumed:?}");
    let answers = AdviseAnswers { split_brain: Some(DuplicatePolicy::Never), ..AdviseAnswers::default() };
    assert!(!AdviseCase::of(&answers, &[]).1.contains(&"--split-brain never"));
}

/// Every recommendation for `--split-brain never` guarantees one leader with a token.
#[test]
fn gossip_is_never_recommended_where_two_leaders_are_unacceptable() {
    use clap::ValueEnum;
    for need in AdviseNeed::value_variants() {
        for place in DeploymentScope::value_variants() {
            for bits in 0..64 {
                let bit = |n: u32| bits >> n & 1 == 1;
                let have = [Infrastructure::Postgres, Infrastructure::Kubernetes, Infrastructure::Etcd]
                    .into_iter()
                    .zip(0..);
                let have = have.filter(|(_, n)| bit(*n)).map(|(have, _)| have).collect();
                let answers = AdviseAnswers {
                    use_case: Some(*need),
                    topology: Some(*place),
                    split_brain: Some(DuplicatePolicy::Never),
                    available: have,
                    writes_to_postgres: bit(3),
                    replicated_state: bit(4),
                    order: Some(if bit(5) { OrderingNeed::Strict } else { OrderingNeed::Any }),
                    load: Some(LoadLevel::Contended),
                };
                let advice = advised(answers);
                assert_ne!(advice.store, RecommendedStore::Gossip);
                assert!(!advice.store.guarantees().at_most_one.starts_with("no"), "{advice:?}");
                assert!(!advice.configuration.is_empty() && !advice.reasons.is_empty(), "{advice:?}");
                let local = matches!(advice.store, RecommendedStore::Memory | RecommendedStore::Sqlite);
                assert!(!(local && *place == DeploymentScope::Cluster), "{advice:?}");
            }
        }
    }
}

#[test]
fn every_printed_command_is_valid() {
    use crate::args::Cli;
    use clap::{Parser, ValueEnum};
    for need in AdviseNeed::value_variants() {
        for have in
            [&[][..], &[Infrastructure::Postgres], &[Infrastructure::Kubernetes], &[Infrastructure::Etcd]]
        {
            for (place, two) in [
                (DeploymentScope::Machine, DuplicatePolicy::Never),
                (DeploymentScope::Cluster, DuplicatePolicy::Never),
                (DeploymentScope::Cluster, DuplicatePolicy::Tolerable),
            ] {
                let answers =
                    AdviseAnswers { topology: Some(place), split_brain: Some(two), ..many(*need, have) };
                for line in advised(answers).configuration {
                    let Some(at) = line.find("tenure ").filter(|_| !line.starts_with("export ")) else {
                        continue;
                    };
                    let words = words(line[at..].split("   #").next().unwrap_or_default());
                    if let Err(error) = Cli::try_parse_from(&words) {
                        panic!("{line}: {error}");
                    }
                }
            }
        }
    }
}

/// Splits a command line into words, as a shell does.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (n, part) in line.split('\'').enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}
