//! A member of the group that keeps the books, and someone careless.
//!
//! The handler works in the transaction in which its group says how far it has read. When the library drops it, because the slot was
//! lost, or the process was stopped for so long that it may have been, its batch goes to the careless one; and so do some that were
//! done. That one waits until somebody else has had the slot, and then does all that the handler would have done, under the old
//! token: those are the stale commits that the store must refuse.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::{Backoff, GroupKey, GroupSettings, ShareCommit};
use tenure::{Batch, HandlerError, Tenure, Token};

use super::books::{GROUP, topic};

/// Is told what came of a stale commit: whether it was accepted, which must never be.
pub(crate) type Tell = Arc<dyn Fn(bool) + Send + Sync>;

/// How a member is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Temper {
    /// Its handlers take up to this long for what they do.
    pub(crate) pause_ms: u64,
    /// How many of them go on at once.
    pub(crate) concurrency: usize,
    /// Of how many events one fails, panics, or meets what passes; 0: none does.
    pub(crate) one_fails_in: u64,
}

impl Temper {
    /// Nothing fails that is not made to from outside.
    pub(crate) fn calm(pause_ms: u64) -> Temper {
        Temper { pause_ms, concurrency: 2, one_fails_in: 0 }
    }

    /// Whether the handler of this batch fails, after it has done what it does.
    fn fails(&self, batch: &Batch) -> Result<(), HandlerError> {
        let fails =
            |_: &_| self.one_fails_in > 0 && tenure::runtime::random().is_multiple_of(self.one_fails_in);
        if !batch.iter().any(fails) {
            return Ok(());
        }
        match tenure::runtime::random() % 4 {
            // A panic, without what is told of one on the screen.
            0 => std::panic::resume_unwind(Box::new("the torture wants this")),
            1 => Err(HandlerError::passing("the torture wants this to pass")),
            _ => Err(HandlerError::fail("the torture wants this")),
        }
    }
}

/// Tried again soon, and as good as never dead.
const RETRIES: GroupSettings =
    GroupSettings { max_attempts: 10_000, backoff: Backoff { first_ms: 10, most_ms: 100 } };

/// How many batches the careless one has in mind, how often he looks, and for how many looks he remembers each.
const IN_MIND: usize = 64;
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: u32 = 300;

/// Hands a batch over to the careless one, unless its handler returns.
struct Lost {
    batch: Option<Batch>,
    to: tokio::sync::mpsc::UnboundedSender<Batch>,
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            // Nobody may be there any more.
            let _ = self.to.send(batch);
        }
    }
}

/// The slots of a batch, each with its token and its last position.
fn slots(batch: &Batch) -> Vec<(u32, Token, u64)> {
    let mut slots = Vec::<(u32, Token, u64)>::new();
    for event in batch {
        let token = batch.token(event.slot).unwrap_or(Token::ZERO);
        match slots.iter_mut().find(|(slot, ..)| *slot == event.slot) {
            Some((.., last)) => *last = event.position,
            None => slots.push((event.slot, token, event.position)),
        }
    }
    slots
}

/// Batches whose slots somebody else may come to have.
#[derive(Default)]
struct InMind(Vec<(Batch, u32)>);

impl InMind {
    fn is_full(&self) -> bool {
        self.0.len() >= IN_MIND
    }

    fn add(&mut self, batch: Batch) {
        self.0.push((batch, LOOKS));
    }

    /// Those of which somebody else has had a slot by now, and that slot. What nobody takes is forgotten in the end. One look for all of
    /// them: a look for each would keep the store from everything else.
    async fn superseded(&mut self, tenure: &Tenure) -> Vec<(Batch, (u32, Token, u64))> {
        let Ok(group) = group() else { return Vec::new() };
        let Ok(Some(look)) = tenure.store().look_group(&group).await else { return Vec::new() };
        let newer = |(slot, token, _): &(u32, Token, u64)| {
            look.shares.iter().any(|share| share.slot == *slot && share.token > *token)
        };
        let mut superseded = Vec::new();
        self.0.retain_mut(|(batch, looks)| {
            *looks -= 1;
            let slot = slots(batch).into_iter().find(newer);
            let keep = slot.is_none() && *looks > 0;
            superseded.extend(slot.map(|slot| (batch.clone(), slot)));
            keep
        });
        superseded
    }
}

fn group() -> Result<GroupKey, tenure::NameError> {
    Ok(GroupKey::new(topic()?, GROUP.parse()?))
}

fn word(batch: &Batch, (slot, token, last): (u32, Token, u64)) -> ShareCommit {
    ShareCommit {
        group: batch.group().clone(),
        slot,
        token,
        position: Some(last),
        done: Vec::new(),
        set_aside: Vec::new(),
        settled: Vec::new(),
    }
}

macro_rules! reader_on {
    ($dialect:ident, $database:ty) => {
        pub(crate) mod $dialect {
            use super::*;
            use crate::events::books::{TOPIC, $dialect::keep};
            use sqlx::Pool;
            use tenure::port::Committed;
            use tenure::{Consumer, Error, Outbox};
            use tokio::sync::mpsc;

            /// Joins the group. What the careless one is to have goes `to` him.
            pub(crate) async fn join(
                tenure: &Tenure,
                pool: &Pool<$database>,
                to: mpsc::UnboundedSender<Batch>,
                temper: Temper,
            ) -> Result<Consumer, Error> {
                let member = tenure.name().to_owned();
                let builder =
                    tenure.consumer(TOPIC, GROUP).batch(50).concurrency(temper.concurrency).settings(RETRIES);
                let handler = move |batch: Batch, mut tx: tenure::Tx<$database>| {
                    let (to, member) = (to.clone(), member.clone());
                    async move {
                        let mut lost = Lost { batch: Some(batch.clone()), to };
                        // Who it was, and how: for whoever has to find out.
                        let tokens =
                            slots(&batch).into_iter().map(|(slot, token, _)| format!("{slot}:{token}"));
                        let who = format!(
                            "{member}, attempt {} of {}, {}",
                            batch.attempt(),
                            batch.len(),
                            tokens.collect::<Vec<_>>().join(" ")
                        );
                        let kept = keep(batch.events(), &mut tx, &who).await;
                        let pause = tenure::runtime::random() % (temper.pause_ms + 1);
                        tokio::time::sleep(Duration::from_millis(pause)).await;
                        temper.fails(&batch)?;
                        if tenure::runtime::random() % 8 != 0 {
                            lost.batch = None;
                        }
                        kept
                    }
                };
                builder.transactional(pool, handler).start().await
            }

            /// The careless one.
            pub(crate) async fn careless(
                tenure: Tenure,
                pool: Pool<$database>,
                mut lost: mpsc::UnboundedReceiver<Batch>,
                tell: Tell,
            ) {
                let (mut in_mind, mut saying) = (InMind::default(), tokio::task::JoinSet::new());
                let mut look = tokio::time::interval(LOOK);
                look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    tokio::select! {
                        batch = lost.recv(), if !in_mind.is_full() => match batch {
                            Some(batch) => in_mind.add(batch),
                            None => return,
                        },
                        _ = look.tick() => {
                            for (batch, slot) in in_mind.superseded(&tenure).await {
                                saying.spawn(say_late(pool.clone(), batch, slot, tell.clone()));
                            }
                            while saying.try_join_next().is_some() {}
                        }
                    }
                }
            }

            async fn say_late(pool: Pool<$database>, batch: Batch, slot: (u32, Token, u64), tell: Tell) {
                let commit = word(&batch, slot);
                let Ok(mut tx) = pool.begin().await else { return };
                match tx.commit_share(&commit, Duration::from_secs(1)).await {
                    Ok(Committed::Stale) => tell(false),
                    Ok(Committed::Yes) => {
                        if keep(batch.events(), &mut tx, "careless").await.is_ok()
                            && tx.commit().await.is_ok()
                        {
                            tell(true);
                        }
                    }
                    Err(_) => {}
                }
            }
        }
    };
}

reader_on!(sqlite, sqlx::Sqlite);
reader_on!(postgres, sqlx::Postgres);
