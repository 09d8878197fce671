//! What may vary between runs: the mistake that is put in, how clocks run, and how far a run goes.

/// A lease, in units of a local clock.
pub(crate) const LEASE: u8 = 18;
/// Two thirds of a lease: how long a beat is trusted, counted from before it was sent.
pub(crate) const TRUST: u8 = 12;
/// Units by which the slowest clock advances in one tick of true time.
pub(crate) const SLOW: u8 = 5;
/// Units by which the fastest clock advances in one tick: 1.2 times the slowest.
pub(crate) const FAST: u8 = 6;
/// The epoch is kept above this bit of a token (bit 40 in the real store).
pub(crate) const EPOCH_BIT: u8 = 4;

/// One known way to get the protocol wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The deadline is counted from when the beat's answer came.
    ClockReadAfterAnswer,
    /// The whole lease is trusted, not two thirds of it.
    TrustTheWholeLease,
    /// Leadership is remembered as a flag and not compared with a clock.
    TrustIsAFlag,
    /// A grant extends trust by itself, although it moves no beat.
    TakeExtendsTrust,
    /// The take-over compares neither the beat nor the lease.
    TakeWithoutCas,
    /// The take-over compares the lease, and expires its session whatever the beat is.
    ExpireWithoutBeatCas,
    /// Beats seen unchanged are counted from when the first read was sent.
    ExpiryCountedFromBeforeRead,
    /// A beat makes an expired session live again.
    BeatRevivesExpired,
    /// All replicas use the same session id.
    SameIdentityEverywhere,
    /// A candidate that finds its own session in the lease goes on with the token it finds.
    AdoptsOwnLeaseAsFound,
    /// The guard looks at the lease and takes no lock.
    GuardTakesNoLock,
    /// The lease is released while the work still runs.
    ReleaseBeforeWorkEnded,
    /// The protected row accepts any token.
    NoFence,
    /// Tokens are counted in the process and begin anew with it.
    TokenFromMemoryOnly,
    /// Tokens do not contain the epoch.
    TokenForgetsEpoch,
    /// A beat answered in another epoch renews what was granted on the old one.
    BeatIgnoresEpoch,
}

/// How local clocks run against true time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// Every deadline is measured by the slowest clock, every wait by the fastest.
    Worst,
    /// At each tick, each node's clock advances at either end of the envelope.
    AnyRate,
    /// As `Worst`, with clocks that differ by 2 rather than 1.2.
    OutsideTheEnvelope,
}

/// The kinds of requests that time may pass between sending, serving and answering of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slow {
    pub(crate) beats: bool,
    pub(crate) reads: bool,
    pub(crate) takes: bool,
}

/// One run: which parts of the world exist, and where it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) mistake: Option<Mistake>,
    pub(crate) clocks: Clocks,
    /// 2 or 3.
    pub(crate) nodes: usize,
    /// Which requests take time on the wire. The others are answered, or lost, in the step that sends them.
    pub(crate) slow: Slow,
    /// Grants in the whole run.
    pub(crate) grants: u8,
    /// Restarts in the whole run, crashes and graceful ones together.
    pub(crate) restarts: u8,
    /// Whether leaders have work that runs for some time.
    pub(crate) work: bool,
    /// Whether leaders write under the guard, in transactions.
    pub(crate) guarded: bool,
    /// Whether leaders write to another database, under the fence.
    pub(crate) fenced: bool,
    /// Whether an asynchronous standby may be promoted, once.
    pub(crate) promotion: bool,
    /// A stronger rule than the design's: after a promotion, the first grant waits out a lease.
    pub(crate) promotion_waited_out: bool,
}

impl Rules {
    /// The smallest world: two nodes and a lease.
    pub(crate) const fn new() -> Self {
        Self {
            mistake: None,
            clocks: Clocks::Worst,
            nodes: 2,
            slow: Slow { beats: false, reads: false, takes: false },
            grants: 3,
            restarts: 1,
            work: false,
            guarded: false,
            fenced: false,
            promotion: false,
            promotion_waited_out: false,
        }
    }

    pub(crate) fn with(self, mistake: Mistake) -> Self {
        Self { mistake: Some(mistake), ..self }
    }

    pub(crate) fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// How long a beat is trusted.
    pub(crate) fn trust(&self) -> u8 {
        if self.makes(Mistake::TrustTheWholeLease) { LEASE } else { TRUST }
    }

    /// What a deadline's clock and a wait's clock advance by in a tick, for a node with this rate.
    pub(crate) fn advance(&self, rate: u8) -> (u8, u8) {
        match self.clocks {
            Clocks::Worst => (SLOW, FAST),
            Clocks::AnyRate => (rate, rate),
            Clocks::OutsideTheEnvelope => (FAST / 2, FAST),
        }
    }
}
