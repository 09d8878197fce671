//! Negative controls for gossip: configuration mistakes that the oracle must report, and a run without each.
//!
//! Each control is a short script with real members in networks of their own; all run concurrently.

use std::thread::ScopedJoinHandle;
use std::time::Duration;

use tenure_testkit::rig::true_boottime_ns;

use super::member::MemberPlan;
use super::oracle::{NetworkFault, count};
use super::{bound, gather, leading};
use crate::Failed;
use crate::control_runner::Control;
use crate::evaluation::terms;
use crate::report::Progress;
use crate::script::until;
use crate::worker_processes::WorkerProcesses;

type ControlScript = fn(bool) -> Result<bool, Failed>;

const CONTROLS: [(&str, ControlScript); 2] = [
    ("a leader with a longer silence limit than others", longer_silence_limit),
    ("a secret changed on one side of a network split", changed_secret_on_one_side),
];

/// Run all controls.
pub(super) fn run(progress: &mut Progress) -> Result<Vec<Control>, Failed> {
    progress.scenario("controls", 20.0);
    std::thread::scope(|scope| {
        let started = CONTROLS.map(|(bug, script)| {
            (bug, scope.spawn(move || script(true)), scope.spawn(move || script(false)))
        });
        let mut controls = Vec::new();
        for (bug, with, without) in started {
            controls.push(Control { bug, caught: end(with)?, silent_without: !end(without)? });
        }
        Ok(controls)
    })
}

fn end(script: ScopedJoinHandle<'_, Result<bool, Failed>>) -> Result<bool, Failed> {
    script.join().map_err(|_| "a control panicked")?
}

/// The leader is stopped, and another member leads. With the bug, the leader has a longer silence limit than the
/// others, so its command still runs when the next leader starts.
fn longer_silence_limit(buggy: bool) -> Result<bool, Failed> {
    let mut workers = gather(2)?;
    if buggy {
        workers.slots[0].plan.silence_limit = Duration::from_secs(30);
    }
    first_then_second(&mut workers)?;
    workers.stop(0);
    until(|| Ok(leading(&workers)?.contains(&1)))?;
    // Leave time for the command of the stopped leader to log that it still runs.
    std::thread::sleep(Duration::from_millis(300));
    (0..2).for_each(|member| workers.kill(member));
    let (_, violations) = count(&terms(&workers)?, &[]);
    Ok(!violations.is_empty())
}

/// A member restarts during a split. With the bug, it restarts with another secret and never reaches the others again.
fn changed_secret_on_one_side(buggy: bool) -> Result<bool, Failed> {
    let mut workers = gather(2)?;
    first_then_second(&mut workers)?;
    let from_ns = true_boottime_ns();
    let switch = |workers: &WorkerProcesses<MemberPlan>, cut: bool| -> Result<(), Failed> {
        let switch = workers.switch.as_ref().ok_or("this scenario has no network switch")?;
        if cut {
            switch.isolate(1)?
        } else {
            switch.heal()?
        }
        Ok(())
    };
    switch(&workers, true)?;
    workers.end(1);
    if buggy {
        let changed = workers.directory.path().join("changed");
        std::fs::write(&changed, "another secret on one side")?;
        workers.slots[1].plan.secret = changed;
    }
    workers.start(1)?;
    until(|| Ok(leading(&workers)?.len() == 2))?;
    let healing_ns = true_boottime_ns();
    switch(&workers, false)?;
    let to_ns = true_boottime_ns();
    std::thread::sleep(bound() + Duration::from_millis(500));
    (0..2).for_each(|member| workers.kill(member));
    let cut =
        NetworkFault { name: "network split", here: vec![1], both_ways: true, from_ns, healing_ns, to_ns };
    let (_, violations) = count(&terms(&workers)?, &[cut]);
    Ok(!violations.is_empty())
}

/// Start the first member, which leads, and then the second.
fn first_then_second(workers: &mut WorkerProcesses<MemberPlan>) -> Result<(), Failed> {
    workers.start(0)?;
    until(|| Ok(leading(workers)? == [0]))?;
    workers.start(1)?;
    // The second member prints the name of the leader once it has received the state of the first.
    let stderr = workers.slots[1].plan.stderr_path();
    until(|| Ok(std::fs::read_to_string(&stderr).unwrap_or_default().contains("leads warm; waiting")))
}
