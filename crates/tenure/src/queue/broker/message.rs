//! Messages between a client and the broker.

use serde::{Deserialize, Serialize};
use tenure_core::port::{ClaimRefusal, ClaimRequest, ClaimedTask, ErrorKind, PoolKey, QueueKey, StoreError};
use tenure_core::{Name, Token};

/// Maximum length of a message to the broker: a claim request with all its tags.
pub(super) const REQUEST_MAX: usize = 1 << 20;

/// Maximum length of a message from the broker: one task with the results of all its parents, or many small
/// tasks.
pub(super) const ANSWER_MAX: usize = 160 << 20;

/// Approximate length at which replies are split into several messages.
pub(super) const ANSWER_BYTES: usize = 4 << 20;

/// Message from a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BrokerRequest {
    pub(super) id: u64,
    pub(super) op: BrokerOp,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum BrokerOp {
    /// The first message: it proves that the client has read the broker endpoint.
    Hello {
        name: String,
    },
    Claim {
        queue: QueueKey,
        request: ClaimRequest,
        wait_ms: u64,
    },
    /// Match the requests of this pool.
    Match {
        pool: PoolKey,
    },
    /// No caller waits for this request any more. The reply is [`BrokerAnswer::Cancelled`].
    Cancel,
    Ping,
}

/// Message from the broker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BrokerMessage {
    pub(super) id: u64,
    pub(super) answer: BrokerAnswer,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum BrokerAnswer {
    /// The first message: it proves that the broker published the endpoint.
    Hello {
        token: Token,
    },
    /// Some of the tasks; more follow.
    Part {
        namespace: Name,
        tasks: Vec<ClaimedTask>,
        age_us: u64,
    },
    /// The tasks, or the last of them, and an upper bound of the time since they were claimed.
    Tasks {
        namespace: Name,
        tasks: Vec<ClaimedTask>,
        age_us: u64,
    },
    Refused(ClaimRefusal),
    /// The pool requests were matched.
    Matched,
    Error {
        kind: ErrorKind,
        message: String,
    },
    /// A cancelled request is finished: all tasks claimed for it were sent before this message.
    Cancelled,
    Pong,
}

impl From<StoreError> for BrokerAnswer {
    fn from(error: StoreError) -> BrokerAnswer {
        BrokerAnswer::Error { kind: error.kind, message: error.message }
    }
}
