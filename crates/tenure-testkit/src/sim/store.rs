//! The reference store behind the network, with copies of its past to promote.

use tenure_core::book::Book;
use tenure_core::lease::{Answer, Command};
use tenure_core::port::{Expire, Pulse, StoreError, Take, Trouble};
use tenure_core::{ElectionKey, SessionId, Token};

use super::Mistake;

pub(super) struct Store {
    pub(super) book: Book,
    /// What an asynchronous standby has received.
    standby: Book,
    mistake: Option<Mistake>,
    epochs_forgotten: u32,
}

impl Store {
    pub(super) fn new(mistake: Option<Mistake>) -> Self {
        // A server's first epoch is 1.
        let mut book = Book::default();
        book.promote();
        Store { standby: book.clone(), book, mistake, epochs_forgotten: 0 }
    }

    /// The standby catches up.
    pub(super) fn replicate(&mut self) {
        self.standby = self.book.clone();
        self.standby.drain_wakes();
    }

    /// The standby takes over, with what it has.
    pub(super) fn promote(&mut self) {
        self.book = self.standby.clone();
        if self.mistake == Some(Mistake::TokensForgetTheEpoch) {
            self.epochs_forgotten += 1;
        } else {
            self.book.promote();
        }
        self.standby = self.book.clone();
    }

    /// Does what a process asks, at one moment. `None`: a command without an answer.
    pub(super) fn call(&mut self, command: &Command, wall_ms: i64) -> Option<Answer> {
        let book = &mut self.book;
        let answer = match command {
            Command::Open(session) => {
                let known = book.session(&session.id).is_some_and(|session| session.live);
                if known && self.mistake == Some(Mistake::HostnameAsSessionId) {
                    Answer::Pulse(Ok(book.beat(&session.id, wall_ms)))
                } else {
                    Answer::Pulse(Ok(book.open(session, wall_ms)))
                }
            }
            Command::Beat(id) => Answer::Pulse(Ok(match book.beat(id, wall_ms) {
                Pulse::Gone if self.mistake == Some(Mistake::BeatRevivesAnExpiredSession) => {
                    Pulse::Alive { epoch: book.epoch(), asks: Vec::new() }
                }
                pulse => pulse,
            })),
            Command::End(id) => {
                book.end(id, wall_ms);
                Answer::Done(Ok(()))
            }
            Command::Join(candidacy) => Answer::Joined(Ok(book.join(candidacy, wall_ms))),
            Command::Leave(id, key) => {
                book.leave(id, key);
                Answer::Done(Ok(()))
            }
            Command::Observe(id, scope) => Answer::Observed(Ok(book.observe(id, scope))),
            Command::Take(take) => Answer::Taken(Ok(self.take(take, wall_ms))),
            Command::Release(release) => {
                book.release(release, wall_ms);
                Answer::Done(Ok(()))
            }
            Command::Expire(expire) => {
                let expire = self.careless(expire);
                self.book.expire(&expire, wall_ms);
                Answer::Done(Ok(()))
            }
            Command::Ask(ask) => Answer::Asked(Ok(book.ask(ask))),
            Command::Watch(_) => return None,
        };
        Some(self.with_epoch(answer))
    }

    fn take(&mut self, take: &Take, wall_ms: i64) -> Option<Token> {
        let mut take = take.clone();
        take.epoch -= self.epochs_forgotten.min(take.epoch);
        take.expire = take.expire.map(|expire| self.careless(&expire));
        if self.mistake == Some(Mistake::TakeWithoutCompareAndSwap) {
            let view = self.book.election(&take.election)?;
            let lease = view.leases.get(take.slot as usize)?;
            let holder = lease.holder.as_ref().map(|holder| holder.id.clone());
            take.token = lease.token;
            take.expire = holder.clone().filter(|holder| *holder != take.session).map(|session| Expire {
                session,
                epoch: take.epoch,
                beat: None,
            });
            take.holder = holder;
        }
        self.book.take(&take, wall_ms)
    }

    fn careless(&self, expire: &Expire) -> Expire {
        let mut expire = expire.clone();
        expire.epoch -= self.epochs_forgotten.min(expire.epoch);
        if self.mistake == Some(Mistake::ExpiryIgnoresTheBeat) {
            expire.beat = None;
        }
        expire
    }

    /// Where tokens forget the epoch, the answers still tell it: only the tokens are wrong.
    fn with_epoch(&self, mut answer: Answer) -> Answer {
        match &mut answer {
            Answer::Pulse(Ok(Pulse::Alive { epoch, .. })) => *epoch += self.epochs_forgotten,
            Answer::Observed(Ok(seen)) => seen.epoch += self.epochs_forgotten,
            _ => {}
        }
        answer
    }

    /// Whether this session holds this slot under this token: what the guard asks.
    pub(super) fn holds(&self, key: &ElectionKey, slot: u32, token: Token, session: &SessionId) -> bool {
        let Some(view) = self.book.election(key) else { return false };
        let lease = view.leases.get(slot as usize).filter(|lease| lease.token == token);
        lease.is_some_and(|l| l.holder.as_ref().is_some_and(|holder| holder.live && holder.id == *session))
    }

    pub(super) fn is_live(&self, session: &SessionId) -> bool {
        self.book.session(session).is_some_and(|session| session.live)
    }
}

/// The answer that says that there was none.
pub(super) fn no_answer(command: &Command, kind: Trouble) -> Option<Answer> {
    let error = StoreError::new(kind, "");
    Some(match command {
        Command::Open(_) | Command::Beat(_) => Answer::Pulse(Err(error)),
        Command::Join(_) => Answer::Joined(Err(error)),
        Command::Observe(..) => Answer::Observed(Err(error)),
        Command::Take(_) => Answer::Taken(Err(error)),
        Command::End(_) | Command::Leave(..) | Command::Release(_) | Command::Expire(_) => {
            Answer::Done(Err(error))
        }
        Command::Ask(_) => Answer::Asked(Err(error)),
        Command::Watch(_) => return None,
    })
}
