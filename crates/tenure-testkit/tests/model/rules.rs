//! Parameters of a model run: the injected bug, the clocks and the bounds.

/// A lease, in units of a local clock.
pub(crate) const LEASE: u8 = 18;
/// Two thirds of a lease: how long a heartbeat is trusted, counted from before it was sent.
pub(crate) const TRUST: u8 = 12;
/// Units by which the slowest clock advances in one tick of real time.
pub(crate) const SLOW: u8 = 5;
/// Units by which the fastest clock advances in one tick: 1.2 times the slowest.
pub(crate) const FAST: u8 = 6;
/// The epoch is stored above this bit of a token (bit 40 in the real store).
pub(crate) const EPOCH_BIT: u8 = 4;

/// A known bug of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Trust is counted from when the response to the heartbeat arrived.
    ClockReadAfterResponse,
    /// The whole lease is trusted, not two thirds of it.
    TrustTheWholeLease,
    /// Leadership is a flag and is not compared with a clock.
    TrustIsAFlag,
    /// A grant extends trust by itself, although it is no heartbeat.
    TakeExtendsTrust,
    /// The takeover compares neither the heartbeat nor the lease.
    TakeWithoutCas,
    /// The takeover compares the lease, and expires its session whatever its heartbeat is.
    ExpireWithoutHeartbeatCas,
    /// An unchanged heartbeat is counted from when the first read was sent.
    ExpiryCountedFromBeforeRead,
    /// A heartbeat makes an expired session live again.
    HeartbeatRevivesExpired,
    /// All replicas use the same session id.
    SameIdentityEverywhere,
    /// A candidate that finds its own session in the lease continues with the token it finds.
    AdoptsOwnLeaseAsFound,
    /// The guard reads the lease and takes no lock.
    GuardTakesNoLock,
    /// The lease is released while the work still runs.
    ReleaseBeforeWorkEnded,
    /// The protected row accepts any token.
    NoFence,
    /// Tokens are counted in the process and restart with it.
    TokenFromMemoryOnly,
    /// Tokens do not contain the epoch.
    TokenForgetsEpoch,
    /// A heartbeat confirmed in another epoch renews leases of the old one.
    HeartbeatIgnoresEpoch,
}

/// How local clocks relate to real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clocks {
    /// Every deadline is measured by the slowest clock, every wait by the fastest.
    Worst,
    /// At each tick, each node's clock advances at either limit of the allowed range.
    AnyRate,
    /// As `Worst`, with clocks that differ by a factor of 2 instead of 1.2.
    OutsideTheEnvelope,
}

/// The kinds of requests that may take time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slow {
    pub(crate) beats: bool,
    pub(crate) reads: bool,
    pub(crate) takes: bool,
}

/// One run: its parts and its bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) bug: Option<Bug>,
    pub(crate) clocks: Clocks,
    /// 2 or 3.
    pub(crate) nodes: usize,
    /// Requests that take time on the wire. The others are answered, or lost, in the step that sends them.
    pub(crate) slow: Slow,
    /// Number of grants.
    pub(crate) grants: u8,
    /// Number of restarts, crashes and graceful ones together.
    pub(crate) restarts: u8,
    /// Whether leaders have work that takes time.
    pub(crate) work: bool,
    /// Whether leaders make guarded writes in transactions.
    pub(crate) guarded: bool,
    /// Whether leaders make fenced writes to another database.
    pub(crate) fenced: bool,
    /// Whether an asynchronous standby may be promoted, once.
    pub(crate) promotion: bool,
    /// A stronger rule than the implemented one: after a promotion, the first grant waits for a lease.
    pub(crate) promotion_waited_out: bool,
}

impl Rules {
    /// The smallest model: two nodes and a lease.
    pub(crate) const fn new() -> Self {
        Self {
            bug: None,
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

    pub(crate) fn with(self, bug: Bug) -> Self {
        Self { bug: Some(bug), ..self }
    }

    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// How long a heartbeat is trusted.
    pub(crate) fn trust(&self) -> u8 {
        if self.has_bug(Bug::TrustTheWholeLease) { LEASE } else { TRUST }
    }

    /// Units by which a deadline's clock and a wait's clock advance in a tick, for a node with this rate.
    pub(crate) fn advance(&self, rate: u8) -> (u8, u8) {
        match self.clocks {
            Clocks::Worst => (SLOW, FAST),
            Clocks::AnyRate => (rate, rate),
            Clocks::OutsideTheEnvelope => (FAST / 2, FAST),
        }
    }
}
