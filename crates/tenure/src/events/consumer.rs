//! A consumer: a member of a group, that gives what it reads to a handler.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::event::{check_group, check_join};
use tenure_core::port::{Begin, GroupKey, GroupLook, GroupSettings, PUBLISH_MAX, StoreError, TopicKey};
use tenure_core::{Name, SessionId};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::batch::Batch;
use super::handler::{Deliver, Plain};
use super::report::Handled;
use super::stay::{Halt, Orders, Stay};
use crate::claims::hub::locked;
use crate::worker::Drained;
use crate::{Error, Tenure, metrics};

/// The most events that one batch is to have.
const BATCH_MAX: usize = PUBLISH_MAX;

/// The most calls of a handler at once.
const CONCURRENCY_MAX: usize = 1_000;

/// A running member of a group.
///
/// ```
/// # use tenure::{Tenure, backend::memory::Memory};
/// use tenure::port::{NewEvent, TopicSettings};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(Memory::new()).open().await?;
/// let orders = tenure.publisher("orders")?;
/// orders.create_topic(&TopicSettings::default()).await?;
/// let (told, mut seen) = tokio::sync::mpsc::unbounded_channel();
///
/// let mailer = tenure
///     .consumer("orders", "mailer")
///     .handler(move |batch| {
///         let told = told.clone();
///         async move {
///             for event in &batch {
///                 // At least once: `event.id` says whether it was before.
///                 let _ = told.send(event.kind.clone());
///             }
///         }
///     })
///     .start()
///     .await?;
///
/// orders.publish(NewEvent::new("order.paid")).await?;
/// assert_eq!(seen.recv().await.as_deref(), Some("order.paid"));
/// mailer.drain().await?; // finishes what is begun, and leaves its slots to the others
/// # tenure.close().await }
/// ```
///
/// [`ConsumerBuilder::transactional`] is the form whose effects happen exactly once. Dropped, a consumer stops at once: its handler's
/// future is dropped, and what it was given is given to another.
#[must_use = "a consumer that is dropped stops; keep it, and `drain` it in the end"]
pub struct Consumer {
    orders: Arc<Orders>,
    task: Option<JoinHandle<()>>,
    grace: Duration,
    // The session lives as long as its consumers.
    _tenure: Tenure,
}

/// Settings of a consumer, before it starts. See [`Tenure::consumer`].
#[must_use = "a consumer reads only after `start`"]
pub struct ConsumerBuilder {
    pub(super) tenure: Tenure,
    namespace: String,
    topic: String,
    group: String,
    member: Option<String>,
    from: Begin,
    settings: Option<GroupSettings>,
    batch: usize,
    concurrency: usize,
    limit: Duration,
    grace: Duration,
    pub(super) handler: Option<Arc<dyn Deliver>>,
}

impl ConsumerBuilder {
    pub(crate) fn new(tenure: Tenure, topic: String, group: String) -> Self {
        ConsumerBuilder {
            tenure,
            namespace: Name::default_namespace().to_string(),
            topic,
            group,
            member: None,
            from: Begin::default(),
            settings: None,
            batch: 1_000,
            concurrency: 1,
            limit: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            handler: None,
        }
    }

    /// The tenant; `default` unless set.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// What the group calls this member; the process's name unless set. After a restart, a member gets back the slots that its name had,
    /// so let it be one that outlives restarts, as the names of a StatefulSet's pods do.
    pub fn member(mut self, name: impl Into<String>) -> Self {
        self.member = Some(name.into());
        self
    }

    /// Where the group begins, if it is new; with the oldest event that is kept unless set.
    pub fn from(mut self, from: Begin) -> Self {
        self.from = from;
        self
    }

    /// How the group is to be set: how often an event is tried, and how soon again. Left as it is unless set.
    pub fn settings(mut self, settings: GroupSettings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// About how many events the handler is given at once; 1,000 unless set. What was published together is never cut.
    pub fn batch(mut self, events: usize) -> Self {
        self.batch = events;
        self
    }

    /// How many calls of the handler go on at once; one unless set. Each gets other keys, so that the order of every key is kept; a
    /// transactional handler needs as many connections.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How long one call of the handler may take; 30 seconds unless set. After that its future is dropped, and it has failed.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How long [`Consumer::drain`] waits for the handler; 30 seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// What handles events. What it did is said to the store when it returns, so each event is handled at least once: again if the
    /// process dies in between, or if another event of the batch fails.
    ///
    /// The handler returns nothing, or a result. An error is a failure, and so is a panic.
    pub fn handler<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(Batch) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Handled> + Send + 'static,
    {
        let handler = Arc::new(move |batch| handler(batch).map(Handled::handled).boxed());
        self.handler = Some(Arc::new(Plain { hub: self.tenure.hub().clone(), handler }));
        self
    }

    /// Joins the group and begins to read. The process stands for the election of those who keep
    /// ([`Claims::stand`](crate::Claims::stand)): they find the members that died.
    pub async fn start(self) -> Result<Consumer, Error> {
        let Some(handler) = self.handler else {
            let forms = "give it one with `.handler(…)` or `.transactional(…)`";
            return Err(Error::Consumer(format!("it has no handler; {forms}")));
        };
        within("events in a batch", self.batch, BATCH_MAX)?;
        within("calls of the handler at once", self.concurrency, CONCURRENCY_MAX)?;
        let topic = TopicKey::new(self.namespace.parse()?, self.topic.parse()?);
        let group = GroupKey::new(topic, self.group.parse()?);
        let hub = self.tenure.hub().clone();
        let orders = Orders {
            hub: hub.clone(),
            group: Arc::new(group),
            member: self.member.unwrap_or_else(|| self.tenure.name().to_owned()),
            from: self.from,
            batch: self.batch,
            concurrency: self.concurrency,
            limit: self.limit,
            handler,
            halt: watch::Sender::new(Halt::No),
            slots: watch::Sender::new(Vec::new()),
        };
        let orders = Arc::new(orders);
        let seat = Seat::take(&orders)?;
        if let Some(settings) = &self.settings {
            check_group(settings).map_err(StoreError::from)?;
            hub.bounded(hub.store.set_group(&orders.group, settings, self.from)).await?;
        }
        self.tenure.claims().stand().await?;
        let joined = match self.tenure.session() {
            None => None,
            Some(session) => {
                let join = Stay::new(&orders, session.clone()).join();
                check_join(&join).map_err(StoreError::from)?;
                Some((session, hub.bounded(hub.store.join_group(&join)).await?))
            }
        };
        let task = hub.handle.spawn(consume(orders.clone(), joined, seat));
        Ok(Consumer { orders, task: Some(task), grace: self.grace, _tenure: self.tenure })
    }
}

fn within(what: &str, given: usize, most: usize) -> Result<(), Error> {
    if (1..=most).contains(&given) {
        return Ok(());
    }
    Err(Error::Consumer(format!("{given} {what} are not possible; choose between 1 and {most}")))
}

impl Consumer {
    /// Its group.
    pub fn group(&self) -> &GroupKey {
        &self.orders.group
    }

    /// What the group calls it.
    pub fn member(&self) -> &str {
        &self.orders.member
    }

    /// The slots that it has at the moment, by number.
    pub fn slots(&self) -> Vec<u32> {
        self.orders.slots.borrow().clone()
    }

    /// The slots that it has, whenever they change.
    pub fn watch_slots(&self) -> watch::Receiver<Vec<u32>> {
        self.orders.slots.subscribe()
    }

    /// Stops in good order: reads no more, waits for the handler up to the grace, says how far it came, frees its slots and leaves the
    /// group.
    pub async fn drain(mut self) -> Result<Drained, Error> {
        let runtime = self.orders.hub.runtime.clone();
        let Some(mut task) = self.task.take() else { return Err(Error::Closed) };
        self.orders.halt.send_replace(Halt::Drain);
        let mut cut_short = 0;
        tokio::select! {
            _ = &mut task => return Ok(Drained { cut_short }),
            () = runtime.sleep_until(runtime.now() + self.grace) => {}
        }
        self.orders.halt.send_replace(Halt::Now);
        cut_short = 1;
        let limit = self.orders.hub.call_limit();
        tokio::select! {
            _ = &mut task => Ok(Drained { cut_short }),
            () = runtime.sleep_until(runtime.now() + limit) => Err(Error::NotDrained(self.orders.member.clone())),
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // The task leaves the group, if the session still lives.
        self.orders.halt.send_replace(Halt::Now);
    }
}

/// This process's place in a group, until dropped. There is one: members are told apart by their sessions.
struct Seat(Arc<Orders>);

impl Seat {
    fn take(orders: &Arc<Orders>) -> Result<Seat, Error> {
        if locked(&orders.hub.groups).insert((*orders.group).clone()) {
            return Ok(Seat(orders.clone()));
        }
        let group = &orders.group;
        let remedy = "give that consumer more `.concurrency(…)`, or open a second Tenure";
        Err(Error::Consumer(format!("this process is a member of group {group} already; {remedy}")))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        locked(&self.0.hub.groups).remove(&*self.0.group);
    }
}

/// Stays in the group, under one session after the other, until it is told to stop.
async fn consume(orders: Arc<Orders>, mut joined: Option<(SessionId, GroupLook)>, _seat: Seat) {
    let hub = orders.hub.clone();
    let mut halt = orders.halt.subscribe();
    loop {
        let session = tokio::select! {
            biased;
            _ = halt.wait_for(|halt| *halt != Halt::No) => break,
            session = hub.trusted_session() => session,
            () = hub.closed() => break,
        };
        let look = joined.take().filter(|(joined, _)| *joined == session).map(|(_, look)| look);
        let stay = Stay::new(&orders, session.clone());
        let drained = tokio::select! {
            biased;
            _ = halt.wait_for(|halt| *halt == Halt::Now) => true,
            () = hub.closed() => true,
            () = hub.distrusted(&session) => false,
            // Ends when it is drained.
            () = stay.deliver() => true,
            () = stay.attend(look) => false,
            () = stay.read() => false,
        };
        drop(stay);
        orders.slots.send_replace(Vec::new());
        metrics::slots(&orders.group, &orders.member, 0);
        if drained {
            let left = hub.bounded(hub.store.leave_group(&orders.group, &session));
            tokio::select! {
                left = left => if let Err(error) = left {
                    tracing::debug!(group = %orders.group, "left without a word: {error}");
                },
                () = hub.closed() => {}
            }
            return;
        }
        tracing::info!(group = %orders.group, member = orders.member, "the session is lost, or not trusted any more");
    }
}
