//! Which singletons a member of a soft cluster starts, stops and waits for.
//!
//! There is no coordinator: every member plans from what it observes and does its own part. Members with the same
//! observations agree. Members that are separated or outdated may run a singleton twice until they observe each other
//! again; a soft cluster does not prevent that.

use std::collections::{BTreeMap, BTreeSet};

use super::owner;

/// A live member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingletonHost {
    /// Member id.
    pub id: String,
    /// Name, which determines its weight: after a restart the member gets the same singletons.
    pub name: String,
    /// Capacity of the member.
    pub capacity: u32,
    /// Singletons that it can run.
    pub offers: Vec<String>,
}

/// A singleton and the member that reports running it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningSingleton {
    /// The singleton.
    pub singleton: String,
    /// Id of the member.
    pub member: String,
}

/// What a member must do. Each list is ordered by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SingletonPlan {
    /// Singletons that it owns and that no member runs.
    pub start: Vec<String>,
    /// Singletons that it runs and another member owns.
    pub stop: Vec<String>,
    /// Singletons that it owns while another member still runs them.
    pub awaited: Vec<String>,
}

/// What the member `me` must do, given the live members including itself and the singletons they report as running.
///
/// ```
/// use tenure_core::rules::cluster::{RunningSingleton, SingletonHost, plan_singletons};
///
/// let member = |id: &str| SingletonHost { id: id.into(), name: "node".into(), capacity: 1, offers: vec!["billing".into()] };
/// let alone = plan_singletons("1", &[member("1")], &[]);
/// assert_eq!(alone.start, ["billing"]);
/// let runs = [RunningSingleton { singleton: "billing".into(), member: "1".into() }];
/// assert_eq!(plan_singletons("1", &[member("1")], &runs), Default::default(), "it already runs");
/// ```
pub fn plan_singletons(me: &str, members: &[SingletonHost], running: &[RunningSingleton]) -> SingletonPlan {
    let mut offers: BTreeMap<&str, Vec<&SingletonHost>> = BTreeMap::new();
    for member in members {
        for singleton in &member.offers {
            offers.entry(singleton).or_default().push(member);
        }
    }
    let lives = |id: &str| members.iter().any(|member| member.id == id);
    let mut runners: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for run in running.iter().filter(|run| lives(&run.member)) {
        runners.entry(&run.singleton).or_default().push(&run.member);
    }
    let mut duties = SingletonPlan::default();
    let all: BTreeSet<&str> = offers.keys().chain(runners.keys()).copied().collect();
    for singleton in all {
        let mine = offers.get(singleton).and_then(|able| heaviest(singleton, able)) == Some(me);
        let runs = runners.get(singleton).map_or(&[][..], Vec::as_slice);
        let (i_run, others_run) = (runs.contains(&me), runs.iter().any(|member| *member != me));
        match (mine, i_run, others_run) {
            (true, false, false) => duties.start.push(singleton.to_owned()),
            (true, false, true) => duties.awaited.push(singleton.to_owned()),
            (false, true, _) => duties.stop.push(singleton.to_owned()),
            _ => {}
        }
    }
    duties
}

/// The owner of a singleton by weight. If two members have the same name, the one with the lower id.
fn heaviest<'m>(singleton: &str, able: &[&'m SingletonHost]) -> Option<&'m str> {
    let name = owner(singleton, able.iter().map(|member| (member.name.as_str(), member.capacity)))?;
    able.iter().filter(|member| member.name == name).map(|member| member.id.as_str()).min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn members(names: &[String], singletons: &[String]) -> Vec<SingletonHost> {
        let member = |name: &String| SingletonHost {
            id: name.clone(),
            name: name.clone(),
            capacity: 1,
            offers: singletons.to_vec(),
        };
        names.iter().map(member).collect()
    }

    fn act(names: &[String], all: &[SingletonHost], running: &mut Vec<RunningSingleton>) -> bool {
        let mut acted = false;
        for name in names {
            let duties = plan_singletons(name, all, running);
            acted |= !duties.start.is_empty() || !duties.stop.is_empty();
            running.retain(|run| run.member != *name || !duties.stop.contains(&run.singleton));
            running.extend(
                duties
                    .start
                    .into_iter()
                    .map(|singleton| RunningSingleton { singleton, member: name.clone() }),
            );
        }
        acted
    }

    proptest! {
        #[test]
        fn members_with_the_same_observations_run_each_singleton_once(
            count in 1usize..6,
            singletons in 1usize..12,
            begun in proptest::collection::vec((0usize..12, 0usize..8), 0..12),
        ) {
            let names: Vec<String> = (0..count).map(|n| format!("node-{n}")).collect();
            let singletons: Vec<String> = (0..singletons).map(|n| format!("job-{n}")).collect();
            let all = members(&names, &singletons);
            // Start from any state: a singleton may run twice after a network split, or at a member that has left.
            let mut running: Vec<RunningSingleton> = begun
                .into_iter()
                .map(|(job, node)| RunningSingleton {
                    singleton: singletons[job % singletons.len()].clone(),
                    member: format!("node-{node}"),
                })
                .collect();
            for _ in 0..3 {
                act(&names, &all, &mut running);
            }
            prop_assert!(!act(&names, &all, &mut running), "the plan becomes stable");
            for singleton in &singletons {
                let runs = running.iter().filter(|run| run.singleton == *singleton && names.contains(&run.member));
                let who: std::collections::BTreeSet<_> = runs.map(|run| &run.member).collect();
                prop_assert_eq!(who.len(), 1, "{} runs once", singleton);
            }
        }

        #[test]
        fn a_singleton_does_not_start_while_another_member_runs_it(count in 2usize..6, jobs in 1usize..12, at in 0usize..6) {
            let names: Vec<String> = (0..count).map(|n| format!("node-{n}")).collect();
            let singletons: Vec<String> = (0..jobs).map(|n| format!("job-{n}")).collect();
            let all = members(&names, &singletons);
            let running: Vec<RunningSingleton> = singletons
                .iter()
                .map(|singleton| RunningSingleton { singleton: singleton.clone(), member: names[at % count].clone() })
                .collect();
            for name in &names {
                prop_assert!(plan_singletons(name, &all, &running).start.is_empty());
            }
        }
    }
}
