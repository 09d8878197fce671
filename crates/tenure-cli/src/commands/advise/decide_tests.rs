//! Every row of the decision tables, answered.

use super::decide::{Advice, Case, Rung, decide};
use crate::args::advise::{Have, Load, Need, Order, Place, Two, Wishes};

fn advised(wishes: Wishes) -> Advice {
    decide(&Case::of(&wishes, &[]).0)
}

fn many(need: Need, have: &[Have]) -> Wishes {
    Wishes { need: Some(need), place: Some(Place::Many), have: have.to_vec(), ..Wishes::default() }
}

/// The ladder: single node, strong lock, soft leader, registry, Raft, external coordinator.
#[test]
fn one_of_many_is_found_on_the_right_rung() {
    let at = |place| advised(Wishes { place: Some(place), ..Wishes::default() }).backend;
    assert_eq!(at(Place::Process), Rung::Memory, "a named process is enough");
    assert_eq!(at(Place::Machine), Rung::Sqlite);
    assert_eq!(at(Place::Many), Rung::Raft, "with nothing there");
    assert_eq!(
        advised(many(Need::Leader, &[Have::Postgres])).backend,
        Rung::Postgres,
        "good enough, and there"
    );
    assert_eq!(advised(many(Need::Leader, &[Have::Etcd])).backend, Rung::Etcd, "existing infrastructure");
    assert_eq!(advised(many(Need::Leader, &[Have::Kubernetes, Have::Etcd])).backend, Rung::Kubernetes);
    let soft = Wishes { two: Some(Two::Tolerable), ..many(Need::Leader, &[]) };
    let soft = advised(soft);
    assert_eq!((soft.backend, soft.mode), (Rung::Gossip, "soft leader"));
    assert!(soft.mind[0].contains("idempotent"), "{soft:?}");
    let state = Wishes { state: true, ..many(Need::Leader, &[Have::Kubernetes]) };
    assert_eq!(advised(state).backend, Rung::Raft, "leader and replicated state");
    let writes =
        Wishes { writes_to_postgres: true, ..many(Need::Leader, &[Have::Postgres, Have::Kubernetes]) };
    assert_eq!(advised(writes).backend, Rung::Postgres, "one transaction checks both");
    let names = |two| advised(Wishes { two: Some(two), ..many(Need::Names, &[Have::Etcd]) });
    assert_eq!((names(Two::Never).backend, names(Two::Never).mode), (Rung::Etcd, "strict registry"));
    assert_eq!((names(Two::Tolerable).backend, names(Two::Tolerable).mode), (Rung::Gossip, "soft registry"));
}

/// Control by one, throughput by many.
#[test]
fn one_brain_decides_and_many_hands_share() {
    assert_eq!(advised(many(Need::Leader, &[Have::Postgres])).mode, "leader");
    assert!(advised(many(Need::Schedule, &[Have::Postgres])).mode.starts_with("leader"));
    let events = advised(many(Need::Events, &[Have::Postgres]));
    assert!(events.backend == Rung::Postgres && events.mode.starts_with("slots"), "{events:?}");
    let heavy = advised(Wishes { load: Some(Load::Heavy), ..many(Need::Leader, &[Have::Postgres]) });
    assert!(heavy.mind.iter().any(|line| line.contains("many share")), "{heavy:?}");
    // Periodic work needs no leader of one's own.
    let leader = advised(many(Need::Leader, &[Have::Postgres]));
    assert!(leader.mind.iter().any(|line| line.contains("--need schedule")), "{leader:?}");
}

/// Exclusive and distributed, and how many replicas.
#[test]
fn strict_order_is_exclusive_and_all_else_is_distributed() {
    let tasks = |order, load| {
        advised(Wishes { order: Some(order), load: Some(load), ..many(Need::Tasks, &[Have::Postgres]) })
    };
    let replicas = |advice: &Advice, n: u32| {
        advice.configuration.iter().any(|line| line.ends_with(&format!("# {n} of it")))
    };
    let light = tasks(Order::Any, Load::Light);
    assert!(light.mode == "distributed" && replicas(&light, 1), "{light:?}");
    let available = tasks(Order::Any, Load::Available);
    assert!(available.mode == "distributed" && replicas(&available, 3), "{available:?}");
    let heavy = tasks(Order::Any, Load::Heavy);
    assert!(heavy.mode == "distributed" && heavy.mind.iter().any(|line| line.contains("split")), "{heavy:?}");
    for load in [Load::Light, Load::Available, Load::Contended, Load::Heavy] {
        assert_eq!(tasks(Order::Strict, load).mode, "exclusive");
    }
}

/// Claims of hosts: a leader where many want the same, and not where few do.
#[test]
fn contended_resources_are_handed_out_by_a_leader() {
    let hosts = |order, load| {
        let have = [Have::Kubernetes, Have::Postgres];
        advised(Wishes { order: Some(order), load: Some(load), ..many(Need::Resources, &have) })
    };
    assert_eq!(hosts(Order::Any, Load::Contended).mode, "exclusive");
    assert_eq!(hosts(Order::Strict, Load::Light).mode, "exclusive", "deterministic order");
    assert_eq!(hosts(Order::Any, Load::Light).mode, "distributed");
    let paired = hosts(Order::Any, Load::Available);
    assert!(paired.mind.iter().any(|line| line.contains("--elect")), "{paired:?}");
}

/// One SQLite server was advised where work must go on when a machine dies.
#[test]
fn work_without_a_database_goes_to_a_server_with_a_file_only_if_it_may_stop_with_its_machine() {
    let tasks = |load| advised(Wishes { load: Some(load), ..many(Need::Tasks, &[Have::Etcd]) });
    let light = tasks(Load::Light);
    assert_eq!(light.backend, Rung::Server, "etcd only elects");
    assert!(light.configuration[0].starts_with("tenure serve --store sqlite:"), "{light:?}");
    for load in [Load::Available, Load::Contended, Load::Heavy] {
        assert_eq!(tasks(load).backend, Rung::Postgres);
    }
}

/// Without a terminal, Raft was advised although PostgreSQL was configured.
#[test]
fn what_is_configured_is_there() {
    let configured = |store: &str, pod| Have::configured(Some(store), pod);
    assert_eq!(configured("postgres://app@db/app", false), [Have::Postgres]);
    assert_eq!(configured("k8s:prod", true), [Have::Kubernetes]);
    assert_eq!(configured("sqlite:tenure.db", true), [Have::Kubernetes]);
    assert!(Have::configured(None, false).is_empty());
    let (case, assumed) = Case::of(&Wishes::default(), &[Have::Postgres]);
    assert_eq!(decide(&case).backend, Rung::Postgres);
    assert!(assumed.iter().any(|assumed| assumed.contains("--have postgres")), "{assumed:?}");
    // What somebody says about it counts for more.
    let said = Wishes { have: vec![Have::Nothing], ..Wishes::default() };
    assert_eq!(decide(&Case::of(&said, &[Have::Postgres]).0).backend, Rung::Raft);
}

/// A server with a file promised what its file promises to the processes of one machine.
#[test]
fn what_is_printed_are_the_promises_of_the_store_that_is_advised() {
    for (rung, promises) in [
        (Rung::Server, tenure::backend::http::PROMISES),
        (Rung::Kubernetes, tenure::backend::kubernetes::PROMISES),
        (Rung::Postgres, tenure::backend::postgres::PROMISES),
    ] {
        assert_eq!(rung.promises(), promises);
    }
    let soft = advised(Wishes { two: Some(Two::Tolerable), ..many(Need::Leader, &[]) });
    assert!(soft.configuration[0].contains("TENURE_GOSSIP_SECRET"), "members without a secret do not start");
}

#[test]
fn what_is_not_said_is_assumed_to_be_the_dangerous_case_and_told() {
    let (case, assumed) = Case::of(&Wishes::default(), &[]);
    assert_eq!((case.place, case.two), (Place::Many, Two::Never));
    assert!(assumed.contains(&"--two never") && assumed.contains(&"--have nothing"), "{assumed:?}");
    let said = Wishes { two: Some(Two::Never), ..Wishes::default() };
    assert!(!Case::of(&said, &[]).1.contains(&"--two never"));
}

/// However the questions are answered, what is advised where two would do harm promises one leader, under a token.
#[test]
fn nothing_soft_is_ever_advised_where_two_would_do_harm() {
    use clap::ValueEnum;
    for need in Need::value_variants() {
        for place in Place::value_variants() {
            for bits in 0..64 {
                let bit = |n: u32| bits >> n & 1 == 1;
                let have = [Have::Postgres, Have::Kubernetes, Have::Etcd].into_iter().zip(0..);
                let have = have.filter(|(_, n)| bit(*n)).map(|(have, _)| have).collect();
                let wishes = Wishes {
                    need: Some(*need),
                    place: Some(*place),
                    two: Some(Two::Never),
                    have,
                    writes_to_postgres: bit(3),
                    state: bit(4),
                    order: Some(if bit(5) { Order::Strict } else { Order::Any }),
                    load: Some(Load::Contended),
                };
                let advice = advised(wishes);
                assert_ne!(advice.backend, Rung::Gossip);
                assert!(!advice.backend.promises().at_most_one.starts_with("no"), "{advice:?}");
                assert!(!advice.configuration.is_empty() && !advice.why.is_empty(), "{advice:?}");
                let local = matches!(advice.backend, Rung::Memory | Rung::Sqlite);
                assert!(!(local && *place == Place::Many), "{advice:?}");
            }
        }
    }
}

/// What is to be pasted can be pasted.
#[test]
fn every_line_to_paste_is_a_command_that_there_is() {
    use crate::args::Cli;
    use clap::{Parser, ValueEnum};
    for need in Need::value_variants() {
        for have in [&[][..], &[Have::Postgres], &[Have::Kubernetes], &[Have::Etcd]] {
            for (place, two) in
                [(Place::Machine, Two::Never), (Place::Many, Two::Never), (Place::Many, Two::Tolerable)]
            {
                let wishes = Wishes { place: Some(place), two: Some(two), ..many(*need, have) };
                for line in advised(wishes).configuration {
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

/// The words of a command, as a shell would have them.
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
