//! What the claims about work are said with: a queue as one client works on it, and who leads.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::port::{
    Authority, Backend, ClaimAnswer, ClaimAsk, ClaimRefusal, ClaimedTask, NewTask, Outcome, Pause, Profile,
    QueueKey, QueueSettings, QueueView, Seat, Settled, Settlement, Submission, TaskId, TaskState, TaskView,
    Tend, Tended, Trouble, Wake, Wakes, claims_election,
};
use tenure_core::{Name, Token};

use super::{Actor, Subject};

/// An hour, in milliseconds: longer than any test.
pub const HOUR_MS: u64 = 3_600_000;

/// A queue, as one client works on it.
#[derive(Clone)]
pub struct Floor {
    /// The client.
    pub store: Arc<dyn Backend>,
    /// The queue.
    pub key: QueueKey,
}

impl Floor {
    /// The queue `q` of the default namespace, through a new client.
    pub async fn of(subject: &Subject) -> Floor {
        Floor { store: subject.client().await, key: queue("q") }
    }

    /// Another queue, through the same client.
    pub fn beside(&self, key: QueueKey) -> Floor {
        Floor { store: self.store.clone(), key }
    }

    /// The same queue, through a new client.
    pub async fn again(&self, subject: &Subject) -> Floor {
        Floor { store: subject.client().await, key: self.key.clone() }
    }

    /// Submits, and tells the numbers in the order of the tasks.
    pub async fn submit(&self, tasks: Vec<NewTask>) -> Vec<TaskId> {
        let submission = Submission { queue: self.key.clone(), tasks };
        let submitted = self.store.submit(&submission).await.expect("submit");
        submitted.into_iter().map(|submitted| submitted.id).collect()
    }

    /// Submits one.
    pub async fn submit_one(&self, task: NewTask) -> TaskId {
        self.submit(vec![task]).await[0]
    }

    /// Submits what must be refused, and tells what was said.
    pub async fn refused(&self, tasks: Vec<NewTask>) -> String {
        let submission = Submission { queue: self.key.clone(), tasks };
        let error = self.store.submit(&submission).await.expect_err("it is refused");
        assert_eq!(error.kind, Trouble::Request, "{error}");
        error.message
    }

    /// Asks for tasks in somebody's name.
    pub async fn ask(&self, authority: Authority, seats: Vec<Seat>) -> ClaimAnswer {
        let ask = ClaimAsk { queue: self.key.clone(), authority, seats };
        self.store.claim(&ask).await.expect("claim")
    }

    /// Asks directly, for one seat.
    pub async fn claim(&self, seat: Seat) -> Vec<ClaimedTask> {
        one_seat(self.ask(Authority::Direct, vec![seat]).await)
    }

    /// Asks directly, for one seat, what must be refused.
    pub async fn claim_refused(&self, seat: Seat) -> ClaimRefusal {
        refusal(self.ask(Authority::Direct, vec![seat]).await)
    }

    /// Claims the one task that there is.
    pub async fn claim_one(&self) -> ClaimedTask {
        let tasks = self.claim(seat("w", 100)).await;
        assert_eq!(tasks.len(), 1, "one task is to be had: {tasks:?}");
        tasks.into_iter().next().expect("one")
    }

    /// Claims all that a plain worker can have, and tells the numbers.
    pub async fn claim_all(&self) -> Vec<TaskId> {
        ids(&self.claim(seat("w", 100)).await)
    }

    /// Says something about a claim.
    pub async fn settle(&self, task: &ClaimedTask, outcome: Outcome) -> Settled {
        self.settle_as(task.id, task.token, outcome).await
    }

    /// Says something about a claim, under any token.
    pub async fn settle_as(&self, task: TaskId, token: Token, outcome: Outcome) -> Settled {
        let settlement = self.settlement(task, token, outcome);
        let settled = self.store.settle(&[settlement]).await.expect("settle");
        assert_eq!(settled.len(), 1);
        settled[0]
    }

    /// What would be said about a claim.
    pub fn settlement(&self, task: TaskId, token: Token, outcome: Outcome) -> Settlement {
        Settlement { namespace: self.key.namespace.clone(), task, token, outcome }
    }

    /// Completes a claim.
    pub async fn complete(&self, task: &ClaimedTask) {
        let settled = self.settle(task, Outcome::Complete(None)).await;
        assert_eq!(settled, Settled::Now(TaskState::Completed));
    }

    /// Lets a claim fail for good.
    pub async fn kill(&self, task: &ClaimedTask) {
        assert_eq!(self.settle(task, failure(false, Duration::ZERO)).await, Settled::Now(TaskState::Dead));
    }

    /// A task, as this client sees it.
    pub async fn task(&self, id: TaskId) -> TaskView {
        self.store.task(&self.key.namespace, id).await.expect("task").expect("there is such a task")
    }

    /// Where a task stands.
    pub async fn state(&self, id: TaskId) -> TaskState {
        self.task(id).await.state
    }

    /// Where tasks stand.
    pub async fn states(&self, ids: &[TaskId]) -> Vec<TaskState> {
        let mut states = Vec::new();
        for id in ids {
            states.push(self.state(*id).await);
        }
        states
    }

    /// The queue, as this client sees it.
    pub async fn view(&self) -> QueueView {
        self.store.queue(&self.key).await.expect("queue").expect("there is such a queue")
    }

    /// Sets the queue.
    pub async fn set(&self, settings: QueueSettings) {
        self.store.set_queue(&self.key, &settings).await.expect("set_queue");
    }

    /// Cancels or retries one task, and tells on which ones it had an effect, by number.
    pub async fn order(&self, task: TaskId, order: tenure_core::port::Order) -> Vec<TaskId> {
        let mut done = self.store.order(&self.key.namespace, &[task], order).await.expect("order");
        done.sort_unstable();
        done
    }
}

/// Who leads the election of claims: keeper and broker.
pub struct Keeper {
    /// Its session and client.
    pub actor: Actor,
    /// Its token.
    pub token: Token,
}

impl Keeper {
    /// Somebody who leads, where nobody did.
    pub async fn of(subject: &Subject) -> Keeper {
        Keeper::by(subject.actor("keeper").await).await
    }

    /// Takes the free lease.
    pub async fn by(actor: Actor) -> Keeper {
        actor.stand(&claims_election()).await;
        let token = actor.take(&claims_election(), 0).await;
        Keeper { actor, token }
    }

    /// Takes the lease over from a keeper whose beat stands still.
    pub async fn after(&self, subject: &Subject) -> Keeper {
        let actor = subject.actor("heir").await;
        actor.stand(&claims_election()).await;
        let bid = actor.overbid(&claims_election(), 0).await;
        let token = actor.store.take(&bid).await.expect("take").expect("its beat stands still");
        Keeper { actor, token }
    }

    /// In its name.
    pub fn authority(&self) -> Authority {
        Authority::Leader { session: self.actor.id.clone(), token: self.token }
    }

    /// What it asks of the store, by whose clock it goes.
    pub fn tending(&self) -> Tend {
        Tend { session: self.actor.id.clone(), token: self.token, clock_ms: Some(i64::MAX), limit: 1000 }
    }

    /// Tends once.
    pub async fn tend(&self) -> Tended {
        let tended = self.actor.store.tend(&self.tending()).await.expect("tend");
        assert!(tended.leads, "it leads");
        tended
    }

    /// Tends until this is so of all that was done together, for as long as it takes: a millisecond must pass, or not even
    /// that.
    pub async fn tend_until(&self, done: impl Fn(&Tended) -> bool) -> Tended {
        let mut sum = Tended::default();
        loop {
            let tended = self.tend().await;
            sum.returned += tended.returned;
            sum.dead += tended.dead;
            sum.due += tended.due;
            sum.forgotten += tended.forgotten;
            sum.freed += tended.freed;
            if done(&sum) {
                return sum;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A queue of the default namespace.
pub fn queue(name: &str) -> QueueKey {
    QueueKey::new(Name::default_namespace(), name.parse().expect("a name"))
}

/// A worker that knows every kind and has no tags.
pub fn profile(name: &str) -> Profile {
    Profile { name: name.into(), ..Profile::default() }
}

/// A worker with tags.
pub fn tagged(name: &str, tags: &[&str]) -> Profile {
    Profile { tags: strings(tags), ..profile(name) }
}

/// A wish of a plain worker; its claims last an hour.
pub fn seat(worker: &str, limit: u32) -> Seat {
    seat_of(profile(worker), limit)
}

/// A wish of a worker; its claims last an hour.
pub fn seat_of(worker: Profile, limit: u32) -> Seat {
    Seat { worker, limit, session: None, hold_ms: Some(HOUR_MS) }
}

/// A wish of a plain worker whose claims live on the beat of a session.
pub fn seat_on(actor: &Actor, limit: u32) -> Seat {
    Seat { session: Some(actor.id.clone()), hold_ms: None, ..seat("w", limit) }
}

/// As many ordinary tasks.
pub fn ordinary(count: usize) -> Vec<NewTask> {
    vec![NewTask::default(); count]
}

/// A failure.
pub fn failure(retry: bool, after: Duration) -> Outcome {
    Outcome::Fail { error: "it broke".into(), retry, after }
}

/// A pause.
pub fn pause() -> Pause {
    Pause { by: "o'ps".into(), reason: "to \"see\"".into(), at_ms: 5 }
}

/// Their numbers.
pub fn ids(tasks: &[ClaimedTask]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.id).collect()
}

/// Owned strings.
pub fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// What each seat got.
pub fn served(answer: ClaimAnswer) -> Vec<Vec<ClaimedTask>> {
    match answer {
        ClaimAnswer::Served { tasks, .. } => tasks,
        ClaimAnswer::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

/// What the only seat got.
pub fn one_seat(answer: ClaimAnswer) -> Vec<ClaimedTask> {
    let seats = served(answer);
    assert_eq!(seats.len(), 1, "one list for each seat");
    seats.into_iter().next().expect("one seat")
}

/// Why nothing was handed out.
pub fn refusal(answer: ClaimAnswer) -> ClaimRefusal {
    match answer {
        ClaimAnswer::Refused(refusal) => refusal,
        ClaimAnswer::Served { tasks, .. } => panic!("served: {tasks:?}"),
    }
}

/// The hints of a client that hears already.
pub async fn listening(actor: &Actor) -> Wakes {
    let key = super::election("listening");
    let mut hints = actor.store.wakes();
    // Some stores need a moment until they listen: speak until something is heard.
    loop {
        actor.stand(&key).await;
        if tokio::time::timeout(Duration::from_millis(50), hints.next()).await.is_ok() {
            return hints;
        }
    }
}

/// Reads hints until this one comes, and tells those before it.
pub async fn hints_until(hints: &mut Wakes, expected: &Wake) -> Vec<Wake> {
    let mut before = Vec::new();
    loop {
        match hints.next().await {
            Some(wake) if wake == *expected => return before,
            Some(wake) => before.push(wake),
            None => panic!("the hints ended before {expected:?}"),
        }
    }
}
