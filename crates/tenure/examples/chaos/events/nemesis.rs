//! What is broken while events flow: members and writers; and an operator pauses the group.

use std::time::Duration;

use tenure::port::{GroupKey, Pause};
use tenure_core::SplitMix;
use tokio::runtime::Handle;

use super::books::{GROUP, topic};
use super::plan::{Plan, Role};
use crate::Failed;
use crate::crew::Crew;
use crate::faults::{Blow, Fault, Hold, LEASE_MS, Mischief};
use crate::process::{Heard, open};
use crate::servers::LEASE;

/// Who is hit.
#[derive(Clone, Copy)]
pub(super) enum Whom {
    Reader,
    Writer,
}

/// What the operator does.
#[derive(Clone, Copy)]
pub(super) enum Own {
    Pause,
}

/// Who pauses the group.
pub(super) struct Operator<'a> {
    pub(super) url: &'a str,
    pub(super) runtime: &'a Handle,
}

impl Mischief for Operator<'_> {
    type Job = Plan;
    type Whom = Whom;
    type Own = Own;

    const PROCESS: &'static str = "member";
    const TEST: Fault<Whom, Own> = Fault::Hit(Blow::Stop, Whom::Reader);

    fn kinds(&self) -> Vec<Fault<Whom, Own>> {
        vec![
            Fault::Hit(Blow::Kill, Whom::Reader),
            Fault::Hit(Blow::Stop, Whom::Reader),
            Fault::Hit(Blow::End, Whom::Reader),
            Fault::Hit(Blow::Kill, Whom::Reader),
            Fault::Hit(Blow::Stop, Whom::Reader),
            Fault::Hit(Blow::End, Whom::Reader),
            Fault::Hit(Blow::Kill, Whom::Writer),
            Fault::Hit(Blow::Stop, Whom::Writer),
            Fault::Own(Own::Pause),
        ]
    }

    fn hits(whom: Whom) -> [&'static str; 3] {
        match whom {
            Whom::Reader => ["kill -9 member", "SIGSTOP member", "SIGTERM member"],
            Whom::Writer => ["kill -9 writers", "SIGSTOP writers", "SIGTERM writers"],
        }
    }

    fn name(own: Own) -> &'static str {
        match own {
            Own::Pause => "operator: pause",
        }
    }

    fn hold(fault: Fault<Whom, Own>) -> Hold {
        match fault {
            Fault::Hit(Blow::Stop, Whom::Writer) => (LEASE_MS / 3, LEASE_MS * 3 / 2),
            Fault::Own(Own::Pause) => (200, 600),
            other => other.hold(),
        }
    }

    fn find(&self, whom: Whom, crew: &Crew<Plan>, entropy: &mut SplitMix) -> Result<usize, Failed> {
        let reads = matches!(whom, Whom::Reader);
        Ok(crew.someone(entropy, |plan| (plan.role == Role::Reads) == reads))
    }

    fn begin(&mut self, own: Own, _: &mut SplitMix) -> Result<(), Failed> {
        match own {
            Own::Pause => self.pause(true),
        }
    }

    fn end(&mut self, own: Own) -> Result<(), Failed> {
        match own {
            Own::Pause => self.pause(false),
        }
    }

    fn is_tested(&self, crew: &Crew<Plan>) -> Result<bool, Failed> {
        Ok(Heard::of(crew)?.refused > 0)
    }
}

impl Operator<'_> {
    /// As often as it takes: others write, too.
    fn pause(&self, pause: bool) -> Result<(), Failed> {
        let group = GroupKey::new(topic()?, GROUP.parse()?);
        let why = Pause { by: "chaos".into(), reason: String::new(), at_ms: tenure::runtime::wall_ms() };
        self.runtime.block_on(async {
            let tenure = open(self.url, "operator", LEASE * 4).await;
            let mut tries = 0;
            let done = loop {
                tries += 1;
                match tenure.store().set_group_paused(&group, pause.then_some(&why)).await {
                    Err(_) if tries < 20 => tokio::time::sleep(Duration::from_millis(100)).await,
                    done => break done,
                }
            };
            let _ = tenure.close().await;
            Ok(done.map(drop)?)
        })
    }
}
