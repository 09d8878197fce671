//! Negative controls: mistakes that people make with gossip, each of which the oracle must report, and not without them.
//!
//! Each is a short play of real members in a network of their own, and all are played at once.

use std::thread::ScopedJoinHandle;
use std::time::Duration;

use tenure_testkit::rig::true_boottime_ns;

use super::member::MemberPlan;
use super::oracle::{Cut, count};
use super::{bound, gather, leading};
use crate::Failed;
use crate::crew::Crew;
use crate::report::Progress;
use crate::script::until;
use crate::theatre::Control;
use crate::verdict::terms;

type Play = fn(bool) -> Result<bool, Failed>;

const PLAYS: [(&str, Play); 2] = [
    ("a leader more patient with itself than others", patient_with_itself),
    ("a secret changed on one side of a netsplit", secret_of_one_side),
];

/// Plays them all.
pub(super) fn run(progress: &mut Progress) -> Result<Vec<Control>, Failed> {
    progress.stage("controls", 20.0);
    std::thread::scope(|scope| {
        let played = PLAYS.map(|(mistake, play)| {
            (mistake, scope.spawn(move || play(true)), scope.spawn(move || play(false)))
        });
        let mut controls = Vec::new();
        for (mistake, with, without) in played {
            controls.push(Control { mistake, caught: end(with)?, silent_without: !end(without)? });
        }
        Ok(controls)
    })
}

fn end(play: ScopedJoinHandle<'_, Result<bool, Failed>>) -> Result<bool, Failed> {
    play.join().map_err(|_| "a control panicked")?
}

/// Its trust outlasts the others' patience: stopped, it is followed while its command goes on.
fn patient_with_itself(sabotaged: bool) -> Result<bool, Failed> {
    let mut crew = gather(2)?;
    if sabotaged {
        crew.hands[0].plan.patience = Duration::from_secs(30);
    }
    first_then_second(&mut crew)?;
    crew.stop(0);
    until(|| Ok(leading(&crew)?.contains(&1)))?;
    // For as long as a stopped one may be found to live on.
    std::thread::sleep(Duration::from_millis(300));
    (0..2).for_each(|member| crew.kill(member));
    let (_, amiss) = count(&terms(&crew)?, &[]);
    Ok(!amiss.is_empty())
}

/// Members that are restarted with another secret while the network is cut never hear of the others again.
fn secret_of_one_side(sabotaged: bool) -> Result<bool, Failed> {
    let mut crew = gather(2)?;
    first_then_second(&mut crew)?;
    let from_ns = true_boottime_ns();
    let switch = |crew: &Crew<MemberPlan>, cut: bool| -> Result<(), Failed> {
        let switch = crew.switch.as_ref().ok_or("there is no switch")?;
        if cut {
            switch.isolate(1)?
        } else {
            switch.heal()?
        }
        Ok(())
    };
    switch(&crew, true)?;
    crew.end(1);
    if sabotaged {
        let changed = crew.workplace.path().join("changed");
        std::fs::write(&changed, "another one, on one side only")?;
        crew.hands[1].plan.secret = changed;
    }
    crew.start(1)?;
    until(|| Ok(leading(&crew)?.len() == 2))?;
    let mending_ns = true_boottime_ns();
    switch(&crew, false)?;
    let to_ns = true_boottime_ns();
    std::thread::sleep(bound() + Duration::from_millis(500));
    (0..2).for_each(|member| crew.kill(member));
    let cut = Cut { name: "netsplit", here: vec![1], both_ways: true, from_ns, mending_ns, to_ns };
    let (_, amiss) = count(&terms(&crew)?, &[cut]);
    Ok(!amiss.is_empty())
}

/// Starts the first, which leads, and then the other.
fn first_then_second(crew: &mut Crew<MemberPlan>) -> Result<(), Failed> {
    crew.start(0)?;
    until(|| Ok(leading(crew)? == [0]))?;
    crew.start(1)?;
    // It says whom it waits for when it has heard of it.
    let said = crew.hands[1].plan.said();
    until(|| Ok(std::fs::read_to_string(&said).unwrap_or_default().contains("leads warm; waiting")))
}
