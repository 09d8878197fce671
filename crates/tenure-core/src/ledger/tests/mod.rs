//! The rules of the ledger, one claim per test, on a clock that only tests move.

mod events;
mod families;
mod keeping;
mod limits;
mod lives;
mod modes;
mod people;
mod pools;
mod properties;
mod schedules;
mod waking;

use std::time::Duration;

use super::Ledger;
use crate::book::Book;
use crate::port::{
    Authority, Candidacy, ClaimAnswer, ClaimAsk, ClaimRefusal, ClaimedTask, Json, NewSession, NewTask, Order,
    Outcome, Parent, PoolKey, Profile, QueueKey, QueueSettings, Seat, Settled, Settlement, StoreError,
    Submission, Submitted, Take, TaskId, TaskState, TaskView, Tend, Tended, Wake, claims_election,
};
use crate::{Name, SessionId, SplitMix, Token};

/// A store with one queue, and a clock.
struct Yard {
    ledger: Ledger,
    book: Book,
    now: i64,
    entropy: SplitMix,
    /// Who keeps it, and under which token.
    keeper: (SessionId, Token),
}

/// When all tests begin.
const START: i64 = 1_000_000_000;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn queue() -> QueueKey {
    QueueKey::new(Name::default_namespace(), name("q"))
}

fn pool() -> PoolKey {
    PoolKey::new(Name::default_namespace(), name("p"))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}

fn task() -> NewTask {
    NewTask::new("k")
}

fn after(parents: &[TaskId]) -> NewTask {
    NewTask { parents: parents.iter().map(|id| Parent::Task(*id)).collect(), ..task() }
}

/// A task with a concurrency key, of which so many may be claimed.
fn keyed(key: &str, limit: u32) -> NewTask {
    NewTask { concurrency_key: Some(key.into()), concurrency_limit: limit, ..task() }
}

fn worker(name: &str, tags: &[&str]) -> Profile {
    Profile { name: name.into(), kinds: Vec::new(), tags: words(tags) }
}

fn seat(limit: u32) -> Seat {
    Seat { worker: worker("w", &[]), limit, session: None, hold_ms: Some(60_000) }
}

impl Yard {
    fn new() -> Yard {
        let mut yard = Yard {
            ledger: Ledger::default(),
            book: Book::default(),
            now: START,
            entropy: SplitMix::new(7),
            keeper: (SessionId::from_stored("none"), Token::ZERO),
        };
        yard.elect();
        yard
    }

    /// A session that lives.
    fn session(&mut self) -> SessionId {
        let id = SessionId::generate(&mut self.entropy);
        let (lease, takeover) = (Duration::from_secs(10), Default::default());
        let session = NewSession { id: id.clone(), name: "s".into(), lease, takeover, owner: None };
        self.book.open(&session, self.now);
        id
    }

    /// A new keeper, in place of the old one.
    fn elect(&mut self) {
        let old = self.keeper.clone();
        self.book.end(&old.0, self.now);
        let session = self.session();
        self.book.join(&Candidacy::new(session.clone(), claims_election()), self.now);
        let token = self.book.election(&claims_election()).unwrap().leases[0].token;
        let take = Take {
            session: session.clone(),
            epoch: self.book.epoch(),
            election: claims_election(),
            slot: 0,
            token,
            holder: None,
            expire: None,
        };
        let token = self.book.take(&take, self.now).unwrap();
        self.keeper = (session, token);
    }

    fn leader(&self) -> Authority {
        Authority::Leader { session: self.keeper.0.clone(), token: self.keeper.1 }
    }

    fn try_submit(&mut self, tasks: Vec<NewTask>) -> Result<Vec<Submitted>, StoreError> {
        self.ledger.submit(&Submission { queue: queue(), tasks }, self.now)
    }

    fn submit(&mut self, tasks: Vec<NewTask>) -> Vec<TaskId> {
        self.try_submit(tasks).unwrap().into_iter().map(|it| it.id).collect()
    }

    fn submit_one(&mut self, task: NewTask) -> TaskId {
        self.submit(vec![task])[0]
    }

    fn set(&mut self, settings: QueueSettings) {
        self.ledger.set_queue(&queue(), &settings);
    }

    fn ask(&mut self, authority: Authority, seats: Vec<Seat>) -> ClaimAnswer {
        self.ledger.claim(&ClaimAsk { queue: queue(), authority, seats }, &self.book, self.now)
    }

    fn refusal(&mut self, authority: Authority, seat: Seat) -> Option<ClaimRefusal> {
        match self.ask(authority, vec![seat]) {
            ClaimAnswer::Served { .. } => None,
            ClaimAnswer::Refused(refusal) => Some(refusal),
        }
    }

    /// What one seat gets, and in how long there may be more.
    fn claim_as(&mut self, seat: Seat) -> (Vec<ClaimedTask>, Option<Duration>) {
        match self.ask(Authority::Direct, vec![seat]) {
            ClaimAnswer::Served { mut tasks, next_in } => (tasks.remove(0), next_in),
            ClaimAnswer::Refused(refusal) => panic!("{refusal:?}"),
        }
    }

    fn claim(&mut self, limit: u32) -> Vec<ClaimedTask> {
        self.claim_as(seat(limit)).0
    }

    fn claim_one(&mut self) -> ClaimedTask {
        self.claim(1).pop().expect("there is something to claim")
    }

    fn claimed_ids(&mut self, limit: u32) -> Vec<TaskId> {
        self.claim(limit).iter().map(|it| it.id).collect()
    }

    fn settle(&mut self, claim: &ClaimedTask, outcome: Outcome) -> Settled {
        let namespace = Name::default_namespace();
        let settlement = Settlement { namespace, task: claim.id, token: claim.token, outcome };
        self.ledger.settle(&[settlement], self.now)[0]
    }

    fn complete(&mut self, claim: &ClaimedTask) -> Settled {
        self.settle(claim, Outcome::Complete(None))
    }

    fn fail(&mut self, claim: &ClaimedTask, retry: bool, after_ms: u64) -> Settled {
        let after = Duration::from_millis(after_ms);
        self.settle(claim, Outcome::Fail { error: "boom".into(), retry, after })
    }

    /// Claims the next one and lets it die.
    fn kill_next(&mut self) -> TaskId {
        let claim = self.claim_one();
        assert_eq!(self.fail(&claim, false, 0), Settled::Now(TaskState::Dead));
        claim.id
    }

    fn tend_by(&mut self, clock_ms: Option<i64>, limit: u32) -> Tended {
        let (session, token) = self.keeper.clone();
        self.ledger.tend(&Tend { session, token, clock_ms, limit }, &self.book, self.now)
    }

    fn tend(&mut self) -> Tended {
        self.tend_by(Some(i64::MAX), 1_000)
    }

    fn order(&mut self, tasks: &[TaskId], order: Order) -> Vec<TaskId> {
        self.ledger.order(&Name::default_namespace(), tasks, order, self.now)
    }

    fn view(&self, id: TaskId) -> TaskView {
        self.ledger.task(&Name::default_namespace(), id).expect("it is remembered")
    }

    fn state(&self, id: TaskId) -> TaskState {
        self.view(id).state
    }

    fn states(&self, ids: &[TaskId]) -> Vec<TaskState> {
        ids.iter().map(|id| self.state(*id)).collect()
    }

    /// Whether somebody who sleeps until the queue has work is woken by this.
    fn rings<T>(&mut self, act: impl FnOnce(&mut Yard) -> T) -> bool {
        let sleeper = self.session();
        self.ledger.doze(&sleeper, &[queue()]);
        self.ledger.drain_wakes();
        act(self);
        self.ledger.drain_wakes().contains(&Wake::Work(queue()))
    }
}

fn json(text: &str) -> Json {
    text.parse().unwrap()
}
