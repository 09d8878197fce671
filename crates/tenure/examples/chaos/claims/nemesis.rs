//! What is broken while work goes on: workers, submitters, the leader; and what an operator does meanwhile.

use tenure::port::Order;
use tenure_core::SplitMix;

use super::notes;
use super::operator::Operator;
use super::oracles::holdings;
use super::plan::{MIXED, Plan, Role};
use crate::Failed;
use crate::crew::Crew;
use crate::deck::undo;
use crate::faults::{Blow, Fault, Hold, Mischief};
use crate::verdict::logs;

/// Who is hit.
#[derive(Clone, Copy)]
pub(crate) enum Whom {
    Worker,
    Leader,
    Submitter,
}

/// What the operator does.
#[derive(Clone, Copy)]
pub(crate) enum Own {
    Flip,
    Pause,
    Cancel,
    Retry,
    Resign,
}

impl Mischief for Operator {
    type Job = Plan;
    type Whom = Whom;
    type Own = Own;

    const PROCESS: &'static str = "worker";
    const TEST: Fault<Whom, Own> = Fault::Hit(Blow::Kill, Whom::Worker);

    fn kinds(&self) -> Vec<Fault<Whom, Own>> {
        vec![
            Fault::Own(Own::Flip),
            Fault::Hit(Blow::Kill, Whom::Worker),
            Fault::Hit(Blow::Stop, Whom::Worker),
            Fault::Own(Own::Flip),
            Fault::Hit(Blow::End, Whom::Worker),
            Fault::Hit(Blow::Kill, Whom::Leader),
            Fault::Hit(Blow::Stop, Whom::Leader),
            Fault::Own(Own::Flip),
            Fault::Hit(Blow::Kill, Whom::Submitter),
            Fault::Own(Own::Pause),
            Fault::Own(Own::Cancel),
            Fault::Own(Own::Cancel),
            Fault::Own(Own::Retry),
            Fault::Own(Own::Resign),
        ]
    }

    fn hits(whom: Whom) -> [&'static str; 3] {
        match whom {
            Whom::Worker => ["kill -9 worker", "SIGSTOP worker", "SIGTERM worker"],
            Whom::Leader => ["kill -9 leader", "SIGSTOP leader", "SIGTERM leader"],
            Whom::Submitter => ["kill -9 submitter", "SIGSTOP submitter", "SIGTERM submitter"],
        }
    }

    fn name(own: Own) -> &'static str {
        match own {
            Own::Flip => "operator: other mode",
            Own::Pause => "operator: pause",
            Own::Cancel => "operator: cancel",
            Own::Retry => "operator: retry",
            Own::Resign => "operator: resign",
        }
    }

    fn hold(fault: Fault<Whom, Own>) -> Hold {
        match fault {
            // Long enough that there are turns to be judged.
            Fault::Own(Own::Flip) => (600, 1500),
            Fault::Own(Own::Pause) => (200, 600),
            other => other.hold(),
        }
    }

    fn find(&self, whom: Whom, crew: &Crew<Plan>, entropy: &mut SplitMix) -> Result<usize, Failed> {
        match whom {
            Whom::Worker => Ok(crew.someone(entropy, |plan| plan.role == Role::Works)),
            Whom::Submitter => Ok(crew.someone(entropy, |plan| plan.role == Role::Submits)),
            Whom::Leader => {
                let name = self.leader()?;
                Ok(name.rsplit('-').next().and_then(|n| n.parse().ok()).ok_or("who is that?")?)
            }
        }
    }

    fn begin(&mut self, own: Own, entropy: &mut SplitMix) -> Result<(), Failed> {
        match own {
            Own::Flip => self.flip(),
            Own::Pause => self.pause(MIXED, true),
            Own::Cancel => self.order(Order::Cancel, entropy),
            Own::Retry => self.order(Order::Retry, entropy),
            Own::Resign => self.resign(),
        }
    }

    fn end(&mut self, own: Own) -> Result<(), Failed> {
        match own {
            Own::Pause => undo(|| self.pause(MIXED, false)),
            _ => Ok(()),
        }
    }

    /// Whether a process has died in the midst of a run.
    fn is_tested(&self, crew: &Crew<Plan>) -> Result<bool, Failed> {
        for (hand, log) in logs(crew)? {
            let is_over = crew.hands[hand].plan.log != log;
            if is_over && holdings(hand, &notes::read(&log)?).iter().any(|it| !it.ended) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
