//! What one member of a soft cluster has to start, stop and wait for.
//!
//! Nobody decides for all: each member asks this of what it sees, and does its part. Members who see the same agree; those who do
//! not, since they are cut off from each other or one is behind, may run a singleton twice until they have met again. That is what
//! a soft footing does not promise.

use std::collections::{BTreeMap, BTreeSet};

use super::owner;

/// A member that lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub id: String,
    /// Its name, by which it is weighed: after a restart it gets back what it had.
    pub name: String,
    /// How much it counts for.
    pub capacity: u32,
    /// The singletons that it can run.
    pub offers: Vec<String>,
}

/// Who says that it runs a singleton.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Which.
    pub singleton: String,
    /// Which member, by its identity.
    pub member: String,
}

/// What a member has to do. Each list is in the order of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duties {
    /// What is its own, and nobody runs.
    pub start: Vec<String>,
    /// What it runs, and is another's.
    pub stop: Vec<String>,
    /// What is its own, while another still runs it and is to stop.
    pub awaited: Vec<String>,
}

/// What the member `me` has to do, given those that live, itself included, and what they say that they run.
///
/// ```
/// use tenure_core::cluster::{Member, Running, duties};
///
/// let member = |id: &str| Member { id: id.into(), name: "node".into(), capacity: 1, offers: vec!["billing".into()] };
/// let alone = duties("1", &[member("1")], &[]);
/// assert_eq!(alone.start, ["billing"]);
/// let runs = [Running { singleton: "billing".into(), member: "1".into() }];
/// assert_eq!(duties("1", &[member("1")], &runs), Default::default(), "it runs: nothing to do");
/// ```
pub fn duties(me: &str, members: &[Member], running: &[Running]) -> Duties {
    let mut offers: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
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
    let mut duties = Duties::default();
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

/// Whose a singleton is: the owner by name, and where names are double, the lower of those.
fn heaviest<'m>(singleton: &str, able: &[&'m Member]) -> Option<&'m str> {
    let name = owner(singleton, able.iter().map(|member| (member.name.as_str(), member.capacity)))?;
    able.iter().filter(|member| member.name == name).map(|member| member.id.as_str()).min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn members(names: &[String], singletons: &[String]) -> Vec<Member> {
        let member = |name: &String| Member {
            id: name.clone(),
            name: name.clone(),
            capacity: 1,
            offers: singletons.to_vec(),
        };
        names.iter().map(member).collect()
    }

    fn act(names: &[String], all: &[Member], running: &mut Vec<Running>) -> bool {
        let mut acted = false;
        for name in names {
            let duties = duties(name, all, running);
            acted |= !duties.start.is_empty() || !duties.stop.is_empty();
            running.retain(|run| run.member != *name || !duties.stop.contains(&run.singleton));
            running.extend(
                duties.start.into_iter().map(|singleton| Running { singleton, member: name.clone() }),
            );
        }
        acted
    }

    proptest! {
        #[test]
        fn members_who_see_the_same_run_each_once_and_then_rest(
            count in 1usize..6,
            singletons in 1usize..12,
            begun in proptest::collection::vec((0usize..12, 0usize..8), 0..12),
        ) {
            let names: Vec<String> = (0..count).map(|n| format!("node-{n}")).collect();
            let singletons: Vec<String> = (0..singletons).map(|n| format!("job-{n}")).collect();
            let all = members(&names, &singletons);
            // Whatever ran before: twice after a netsplit, or at members that are gone.
            let mut running: Vec<Running> = begun
                .into_iter()
                .map(|(job, node)| Running {
                    singleton: singletons[job % singletons.len()].clone(),
                    member: format!("node-{node}"),
                })
                .collect();
            for _ in 0..3 {
                act(&names, &all, &mut running);
            }
            prop_assert!(!act(&names, &all, &mut running), "it comes to rest");
            for singleton in &singletons {
                let runs = running.iter().filter(|run| run.singleton == *singleton && names.contains(&run.member));
                let who: std::collections::BTreeSet<_> = runs.map(|run| &run.member).collect();
                prop_assert_eq!(who.len(), 1, "{} runs once", singleton);
            }
        }

        #[test]
        fn nothing_starts_while_another_that_lives_runs_it(count in 2usize..6, jobs in 1usize..12, at in 0usize..6) {
            let names: Vec<String> = (0..count).map(|n| format!("node-{n}")).collect();
            let singletons: Vec<String> = (0..jobs).map(|n| format!("job-{n}")).collect();
            let all = members(&names, &singletons);
            let running: Vec<Running> = singletons
                .iter()
                .map(|singleton| Running { singleton: singleton.clone(), member: names[at % count].clone() })
                .collect();
            for name in &names {
                prop_assert!(duties(name, &all, &running).start.is_empty());
            }
        }
    }
}
