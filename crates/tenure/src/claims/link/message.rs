//! What an asker and the leader say to each other.

use serde::{Deserialize, Serialize};
use tenure_core::port::{ClaimRefusal, ClaimedTask, PoolKey, QueueKey, Seat, StoreError, Trouble};
use tenure_core::{Name, Token};

/// The longest message to the leader: a seat with all its tags.
pub(super) const REQUEST_MAX: usize = 1 << 20;

/// The longest message from the leader: one task with the outputs of all its parents, or many small ones.
pub(super) const ANSWER_MAX: usize = 160 << 20;

/// Answers are cut into messages of about this many bytes.
pub(super) const ANSWER_ABOUT: usize = 4 << 20;

/// From an asker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) op: Op,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Op {
    /// The first word: it proves that the asker has read the post.
    Hello {
        name: String,
    },
    Claim {
        queue: QueueKey,
        seat: Seat,
        wait_ms: u64,
    },
    /// Hand out what is free of this pool.
    Match {
        pool: PoolKey,
    },
    /// Nobody waits for this request any more. Answered with [`Answer::Cancelled`].
    Cancel,
    Ping,
}

/// From the leader.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub(super) id: u64,
    pub(super) answer: Answer,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Answer {
    /// The first word: it proves that the leader wrote the post.
    Hello {
        token: Token,
    },
    /// Some of the tasks; more follow.
    Part {
        namespace: Name,
        tasks: Vec<ClaimedTask>,
        age_us: u64,
    },
    /// The tasks, or the rest of them, and how long ago, at most, they were claimed.
    Tasks {
        namespace: Name,
        tasks: Vec<ClaimedTask>,
        age_us: u64,
    },
    Refused(ClaimRefusal),
    /// Handed out what there was.
    Matched,
    Error {
        kind: Trouble,
        message: String,
    },
    /// Nothing is under way any more for a request that was called off: whatever was claimed for it was sent before this.
    Cancelled,
    Pong,
}

impl From<StoreError> for Answer {
    fn from(error: StoreError) -> Answer {
        Answer::Error { kind: error.kind, message: error.message }
    }
}
