//! Work: submitted, claimed and finished by any number of processes.

use std::time::Duration;

use tenure_core::port::{
    Authority, ClaimAnswer, ClaimAsk, ClaimRefusal, ClaimedTask, NewTask, QueueKey, Seat, Settled,
    Settlement, Submission, Submitted,
};

use crate::{Error, Tenure};

/// Tasks and resources of a store, as one process works with them. Clones share everything.
#[derive(Clone)]
pub struct Claims {
    tenure: Tenure,
}

/// What came of asking for tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// These, in the order of the queue; none if there was nothing to be had in time.
    Tasks(Vec<ClaimedTask>),
    /// Nothing was handed out, and why.
    Refused(ClaimRefusal),
    /// The queue is exclusive, wants strict order, and its leader can not be reached now. Ask again.
    NotNow,
}

impl Claims {
    pub(crate) fn new(tenure: Tenure) -> Claims {
        Claims { tenure }
    }

    /// Submits tasks to a queue, all or none.
    pub async fn submit(&self, queue: &QueueKey, tasks: Vec<NewTask>) -> Result<Vec<Submitted>, Error> {
        let submission = Submission { queue: queue.clone(), tasks };
        Ok(self.tenure.store().submit(&submission).await?)
    }

    /// Asks for tasks, and waits for the first for up to `wait`. Calls at the same time share a statement; in exclusive mode
    /// they go through the leader.
    pub async fn claim(&self, queue: &QueueKey, seat: Seat, wait: Duration) -> Result<Claimed, Error> {
        let _ = wait;
        let ask = ClaimAsk { queue: queue.clone(), authority: Authority::Direct, seats: vec![seat] };
        Ok(match self.tenure.store().claim(&ask).await? {
            ClaimAnswer::Served { tasks, .. } => Claimed::Tasks(tasks.into_iter().flatten().collect()),
            ClaimAnswer::Refused(refusal) => Claimed::Refused(refusal),
        })
    }

    /// Says something about a claim. Calls at the same time share a statement.
    pub async fn settle(&self, settlement: Settlement) -> Result<Settled, Error> {
        let settled = self.tenure.store().settle(&[settlement]).await?;
        Ok(settled.first().copied().unwrap_or(Settled::Lost))
    }
}
