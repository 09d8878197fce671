//! What is broken the same way everywhere, processes and servers; and who breaks one thing after the other while work goes on.

use tenure_core::SplitMix;
use tenure_testkit::rig::{PgCluster, true_boottime_ns};

use crate::Failed;
use crate::crew::{Crew, Job};
use crate::deck::{Deck, MORE, between, wait};
use crate::oracles::Injected;
use crate::report::Progress;
use crate::servers::LEASE;
use crate::site::Site;

/// For how many milliseconds a fault lasts, at least and at most.
pub(crate) type Hold = (u64, u64);

/// The lease, by which it goes how long faults last.
pub(crate) const LEASE_MS: u64 = LEASE.as_millis() as u64;

/// What is done to a process. Wherever each has a name, the names are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// `kill -9`.
    Kill,
    /// SIGSTOP.
    Stop,
    /// SIGTERM.
    End,
}

impl Blow {
    /// Hits a process, of a crew whose members are called `who`.
    pub(crate) fn hit<J>(self, crew: &mut Crew<J>, hand: usize, who: &str, progress: &mut Progress) {
        match self {
            Blow::Kill => crew.kill(hand),
            Blow::Stop => crew.stop(hand),
            Blow::End => {
                if !crew.end(hand) {
                    progress.note(&format!("a {who} did not end within 5 s of SIGTERM"));
                }
            }
        }
    }
}

/// What is done to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outage {
    Restart,
    Kill,
    Freeze,
    EndConnections,
}

impl Outage {
    pub(crate) const ALL: [Outage; 4] =
        [Outage::Restart, Outage::Kill, Outage::Freeze, Outage::EndConnections];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Outage::Restart => "restart server",
            Outage::Kill => "kill -9 server",
            Outage::Freeze => "freeze server",
            Outage::EndConnections => "end connections",
        }
    }

    pub(crate) fn begin(self, cluster: &PgCluster) -> Result<(), Failed> {
        match self {
            Outage::Restart => cluster.restart()?,
            Outage::Kill => cluster.kill9()?,
            Outage::Freeze => cluster.freeze()?,
            Outage::EndConnections => drop(cluster.terminate_backends("postgres")?),
        }
        Ok(())
    }

    pub(crate) fn end(self, cluster: &PgCluster) -> Result<(), Failed> {
        match self {
            Outage::Kill => cluster.start_again()?,
            Outage::Freeze => cluster.thaw()?,
            Outage::Restart | Outage::EndConnections => {}
        }
        Ok(())
    }

    pub(crate) fn hold(self) -> Hold {
        match self {
            Outage::Freeze => (LEASE_MS / 3, LEASE_MS * 3 / 2),
            _ => (50, 300),
        }
    }
}

/// A way to break something while work goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault<W, O> {
    /// A process of this sort is hit.
    Hit(Blow, W),
    Server(Outage),
    /// One that only this stage knows.
    Own(O),
}

impl<W, O> Fault<W, O> {
    /// How long it lasts, unless the stage knows better.
    pub(crate) fn hold(&self) -> Hold {
        match self {
            Fault::Hit(Blow::Stop, _) => (LEASE_MS * 6 / 5, LEASE_MS * 2),
            Fault::Hit(Blow::Kill | Blow::End, _) => (100, LEASE_MS),
            Fault::Server(outage) => outage.hold(),
            Fault::Own(_) => (50, 300),
        }
    }
}

/// What a stage knows itself of what is broken in it.
pub(crate) trait Mischief {
    type Job: Job;
    /// Sorts of processes.
    type Whom: Copy;
    /// Faults of its own.
    type Own: Copy;

    /// What a process is called.
    const PROCESS: &'static str;
    /// How long nothing is broken between two faults, in milliseconds.
    const PAUSE: Hold = (150, 750);
    /// What strikes somebody in the midst of something. It is done when the time is over, until the stage has put to the test what it is about.
    const TEST: Fault<Self::Whom, Self::Own>;

    /// What is in a deck, besides what a server adds.
    fn kinds(&self) -> Vec<Fault<Self::Whom, Self::Own>>;

    /// What the blows to such a process are called.
    fn hits(whom: Self::Whom) -> [&'static str; 3];

    fn name(own: Self::Own) -> &'static str;

    fn hold(fault: Fault<Self::Whom, Self::Own>) -> Hold;

    /// A process of this sort.
    fn find(&self, whom: Self::Whom, crew: &Crew<Self::Job>, entropy: &mut SplitMix)
    -> Result<usize, Failed>;

    fn begin(&mut self, own: Self::Own, entropy: &mut SplitMix) -> Result<(), Failed>;

    fn end(&mut self, own: Self::Own) -> Result<(), Failed>;

    /// Whether it was put to the test what becomes of what the struck had begun.
    fn is_tested(&self, crew: &Crew<Self::Job>) -> Result<bool, Failed>;
}

/// The one who breaks things while work goes on: one fault at a time, drawn from a seeded deck, each healed again.
pub(crate) struct Nemesis<'a, 's, M: Mischief> {
    pub(crate) site: &'a mut Site<'s>,
    pub(crate) crew: &'a mut Crew<M::Job>,
    pub(crate) mischief: &'a mut M,
}

impl<M: Mischief> Nemesis<'_, '_, M> {
    /// Breaks and heals for as long as the stage lasts, and tells what was broken when.
    pub(crate) fn rage(mut self) -> Result<Vec<Injected>, Failed> {
        let until_ns = true_boottime_ns() + (self.site.seconds * 1e9) as u64;
        let mut kinds = self.mischief.kinds();
        kinds.extend(self.site.cluster.iter().flat_map(|_| Outage::ALL.map(Fault::Server)));
        let mut deck = Deck::new(kinds);
        let mut injected = Vec::new();
        wait(self.site.progress, LEASE.mul_f64(1.5));
        while true_boottime_ns() < until_ns {
            if let Some(fault) = deck.draw(self.site.entropy, |_| true) {
                injected.extend(self.break_and_heal(fault)?);
            }
            self.wait_between(M::PAUSE);
        }
        for _ in 0..MORE {
            if self.mischief.is_tested(self.crew)? {
                break;
            }
            injected.extend(self.break_and_heal(M::TEST)?);
            self.wait_between(M::PAUSE);
        }
        Ok(injected)
    }

    /// What could not be broken (the server was still down, nobody led) is not counted.
    fn break_and_heal(&mut self, fault: Fault<M::Whom, M::Own>) -> Result<Option<Injected>, Failed> {
        let name = match fault {
            Fault::Hit(blow, whom) => M::hits(whom)[blow as usize],
            Fault::Server(outage) => outage.name(),
            Fault::Own(own) => M::name(own),
        };
        self.site.progress.doing(name);
        let from_ns = true_boottime_ns();
        let worker = match self.begin(fault) {
            Ok(worker) => worker,
            Err(why) => {
                self.site.progress.note(&format!("could not inject {name}: {why}"));
                return Ok(None);
            }
        };
        self.wait_between(M::hold(fault));
        self.end(fault, worker)?;
        Ok(Some(Injected { name, worker, from_ns, to_ns: true_boottime_ns() }))
    }

    /// Does it, and tells whom it hit.
    fn begin(&mut self, fault: Fault<M::Whom, M::Own>) -> Result<Option<usize>, Failed> {
        match fault {
            Fault::Hit(blow, whom) => {
                let hand = self.mischief.find(whom, self.crew, self.site.entropy)?;
                blow.hit(self.crew, hand, M::PROCESS, self.site.progress);
                return Ok(Some(hand));
            }
            Fault::Server(outage) => outage.begin(self.site.cluster.ok_or("there is no server here")?)?,
            Fault::Own(own) => self.mischief.begin(own, self.site.entropy)?,
        }
        Ok(None)
    }

    fn end(&mut self, fault: Fault<M::Whom, M::Own>, hit: Option<usize>) -> Result<(), Failed> {
        hit.map_or(Ok(()), |hand| self.crew.bring_back(hand))?;
        match fault {
            Fault::Hit(..) => Ok(()),
            Fault::Server(outage) => self.site.cluster.map_or(Ok(()), |cluster| outage.end(cluster)),
            Fault::Own(own) => self.mischief.end(own),
        }
    }

    fn wait_between(&mut self, bounds: Hold) {
        let time = between(self.site.entropy, bounds);
        wait(self.site.progress, time);
    }
}
