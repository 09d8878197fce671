//! What the processes of this stage are told, and what the tasks are that they do.

use serde::{Deserialize, Serialize};
use tenure::port::{Backoff, Json, NewTask, Parent};
use tenure_core::{Entropy, SplitMix};

use crate::process;

/// The queue whose order is judged: plain tasks of different priority, in a mode that changes.
pub(crate) const ORDERS: &str = "orders";
/// The queue of everything else: graphs, keys, tags, failures.
pub(crate) const MIXED: &str = "mixed";

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Submits,
    Works,
}

impl process::Role for Role {
    const WORD: &'static str = "claims-process";
}

/// What a process is told to do.
pub(crate) type Plan = process::Plan<Role>;

/// What a task asks of its handler.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Errand {
    pub(crate) does: Does,
    pub(crate) takes_ms: u64,
    /// Its concurrency key.
    pub(crate) key: Option<String>,
    /// How many parents' outputs it needs.
    pub(crate) inputs: usize,
}

/// How it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Does {
    /// Well.
    Well,
    /// It fails every time, and is dead in the end.
    Badly,
    /// It panics the first time.
    Panics,
}

/// What a process leaves as the output of a task: under which token it was done.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) token: u64,
}

/// Tasks to be submitted together to [`ORDERS`].
pub(crate) fn orders(entropy: &mut SplitMix) -> Vec<NewTask> {
    let count = 1 + entropy.next_u64() % 12;
    (0..count)
        .map(|_| {
            let priority = i32::try_from(entropy.next_u64() % 7).unwrap_or(0) - 3;
            NewTask { priority, ..task(Does::Well, entropy.next_u64() % 12, None, &[]) }
        })
        .collect()
}

/// Tasks to be submitted together to [`MIXED`].
pub(crate) fn mixed(entropy: &mut SplitMix) -> Vec<NewTask> {
    let takes_ms = entropy.next_u64() % 30;
    match entropy.next_u64() % 10 {
        // Two roots, two in the middle, one at the end.
        0 => vec![
            task(Does::Well, takes_ms, None, &[1, 2]),
            task(Does::Well, takes_ms, None, &[3]),
            task(Does::Well, takes_ms, None, &[3, 4]),
            task(Does::Well, takes_ms, None, &[]),
            task(Does::Well, 5, None, &[]),
        ],
        // A graph that dies of its root.
        1 => vec![task(Does::Badly, 5, None, &[]), task(Does::Well, takes_ms, None, &[0])],
        2 => vec![task(Does::Panics, takes_ms, None, &[])],
        3 => vec![task(Does::Well, 400 + takes_ms * 20, None, &[])],
        4..6 => {
            let key = format!("key-{}", entropy.next_u64() % 12);
            vec![task(Does::Well, takes_ms, Some(&key), &[]), task(Does::Well, takes_ms, Some(&key), &[])]
        }
        6 => vec![NewTask { requires: vec!["even".into()], ..task(Does::Well, takes_ms, None, &[]) }],
        7 => {
            let run_at_ms = tenure::runtime::wall_ms() + 300;
            vec![NewTask { run_at_ms: Some(run_at_ms), ..task(Does::Well, takes_ms, None, &[]) }]
        }
        _ => vec![task(Does::Well, takes_ms, None, &[])],
    }
}

fn task(does: Does, takes_ms: u64, key: Option<&str>, parents: &[u32]) -> NewTask {
    let errand = Errand { does, takes_ms, key: key.map(str::to_owned), inputs: parents.len() };
    NewTask {
        payload: Json::of(&errand).unwrap_or_default(),
        max_attempts: if does == Does::Badly { 2 } else { 20 },
        backoff: Backoff { first_ms: 20, most_ms: 200 },
        parents: parents.iter().copied().map(Parent::Index).collect(),
        concurrency_key: key.map(str::to_owned),
        concurrency_limit: 1,
        ..NewTask::default()
    }
}
