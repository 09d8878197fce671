//! A consumer: a member of a group that passes the events it reads to a handler.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::port::{
    GroupAssignment, GroupKey, GroupSettings, PUBLISH_MAX, StartOffset, StoreError, TopicKey,
};
use tenure_core::rules::event::{validate_group, validate_join};
use tenure_core::{Name, SessionId};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::batch::EventBatch;
use super::handler::{EventHandler, PlainHandler};
use super::handler_error::IntoHandlerResult;
use super::membership::{ConsumerConfig, Membership, StopMode};
use crate::queue::context::locked;
use crate::worker::DrainOutcome;
use crate::{Error, Tenure, metrics};

/// Maximum value of the batch size.
const BATCH_MAX: usize = PUBLISH_MAX;

/// Maximum number of concurrent handler calls.
const CONCURRENCY_MAX: usize = 1_000;

/// A running member of a consumer group.
///
/// ```
/// # use tenure::{Tenure, store::memory::MemoryStore};
/// use tenure::port::{NewEvent, TopicSettings};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let orders = tenure.publisher("orders")?;
/// orders.create_topic(&TopicSettings::default()).await?;
/// let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
///
/// let mailer = tenure
///     .consumer("orders", "mailer")
///     .handler(move |batch| {
///         let sender = sender.clone();
///         async move {
///             for event in &batch {
///                 // At least once: use `event.id` to detect duplicates.
///                 let _ = sender.send(event.event_type.clone());
///             }
///         }
///     })
///     .start()
///     .await?;
///
/// orders.publish(NewEvent::new("order.paid")).await?;
/// assert_eq!(receiver.recv().await.as_deref(), Some("order.paid"));
/// mailer.drain().await?; // finishes running handlers and releases its partitions
/// # tenure.close().await }
/// ```
///
/// [`ConsumerBuilder::transactional`] makes effects happen exactly once. A dropped consumer stops at once: the
/// future of its handler is dropped, and its events are delivered to another member.
#[must_use = "a dropped consumer stops; keep it, and `drain` it in the end"]
pub struct Consumer {
    config: Arc<ConsumerConfig>,
    task: Option<JoinHandle<()>>,
    grace: Duration,
    // Keeps the session open as long as its consumers.
    _tenure: Tenure,
}

/// Settings of a consumer before it starts. See [`Tenure::consumer`].
#[must_use = "the consumer reads only after `start`"]
pub struct ConsumerBuilder {
    pub(super) tenure: Tenure,
    namespace: String,
    topic: String,
    group: String,
    member: Option<String>,
    from: StartOffset,
    settings: Option<GroupSettings>,
    batch: usize,
    concurrency: usize,
    limit: Duration,
    grace: Duration,
    pub(super) handler: Option<Arc<dyn EventHandler>>,
}

impl ConsumerBuilder {
    pub(crate) fn new(tenure: Tenure, topic: String, group: String) -> Self {
        ConsumerBuilder {
            tenure,
            namespace: Name::default_namespace().to_string(),
            topic,
            group,
            member: None,
            from: StartOffset::default(),
            settings: None,
            batch: 1_000,
            concurrency: 1,
            limit: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            handler: None,
        }
    }

    /// Namespace of the topic; `default` unless set.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Name of this member in the group; the name of the process unless set. After a restart, a member gets
    /// back the partitions of its name, so use a name that survives restarts, for example that of a StatefulSet
    /// pod.
    pub fn member(mut self, name: impl Into<String>) -> Self {
        self.member = Some(name.into());
        self
    }

    /// Start offset of the group if it is new; the oldest retained event unless set.
    pub fn from(mut self, from: StartOffset) -> Self {
        self.from = from;
        self
    }

    /// Sets the retry settings of the group. Unchanged unless set.
    pub fn settings(mut self, settings: GroupSettings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// Approximate number of events per handler call; 1,000 unless set. A commit batch is never split.
    pub fn batch(mut self, events: usize) -> Self {
        self.batch = events;
        self
    }

    /// Number of concurrent handler calls; one unless set. Each call receives different keys, so that the order
    /// of every key is kept. A transactional handler needs as many connections.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Time limit of one handler call; 30 seconds unless set. After that its future is dropped, and the call
    /// has failed.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How long [`Consumer::drain`] waits for the handler; 30 seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Sets the handler. Its events are committed when it returns, so each event is handled at least once:
    /// again if the process dies before the commit, or if another event of the batch fails.
    ///
    /// The handler returns nothing or a `Result`. An error or a panic is a failure.
    pub fn handler<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(EventBatch) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoHandlerResult> + Send + 'static,
    {
        let handler =
            Arc::new(move |batch| handler(batch).map(IntoHandlerResult::into_handler_result).boxed());
        self.handler = Some(Arc::new(PlainHandler { ctx: self.tenure.ctx().clone(), handler }));
        self
    }

    /// Joins the group and starts reading. The process also campaigns for maintenance
    /// ([`TaskClient::campaign_for_maintenance`](crate::TaskClient::campaign_for_maintenance)), which detects
    /// dead members. Fails with [`Error::Consumer`] if the settings are invalid.
    pub async fn start(self) -> Result<Consumer, Error> {
        let Some(handler) = self.handler else {
            let forms = "set one with `.handler(…)` or `.transactional(…)`";
            return Err(Error::Consumer(format!("no handler; {forms}")));
        };
        check_range("batch size", self.batch, BATCH_MAX)?;
        check_range("concurrency", self.concurrency, CONCURRENCY_MAX)?;
        let topic = TopicKey::new(self.namespace.parse()?, self.topic.parse()?);
        let group = GroupKey::new(topic, self.group.parse()?);
        let ctx = self.tenure.ctx().clone();
        let config = ConsumerConfig {
            ctx: ctx.clone(),
            group: Arc::new(group),
            member: self.member.unwrap_or_else(|| self.tenure.name().to_owned()),
            from: self.from,
            batch: self.batch,
            concurrency: self.concurrency,
            limit: self.limit,
            handler,
            stop: watch::Sender::new(StopMode::No),
            partitions: watch::Sender::new(Vec::new()),
        };
        let config = Arc::new(config);
        let guard = GroupMembershipGuard::take(&config)?;
        if let Some(settings) = &self.settings {
            validate_group(settings).map_err(StoreError::from)?;
            ctx.bounded(ctx.store.set_group(&config.group, settings, self.from)).await?;
        }
        self.tenure.tasks().campaign_for_maintenance().await?;
        let joined = match self.tenure.session() {
            None => None,
            Some(session) => {
                let join = Membership::new(&config, session.clone()).join();
                validate_join(&join).map_err(StoreError::from)?;
                Some((session, ctx.bounded(ctx.store.join_group(&join)).await?))
            }
        };
        let task = ctx.handle.spawn(consume(config.clone(), joined, guard));
        Ok(Consumer { config, task: Some(task), grace: self.grace, _tenure: self.tenure })
    }
}

fn check_range(what: &str, given: usize, most: usize) -> Result<(), Error> {
    if (1..=most).contains(&given) {
        return Ok(());
    }
    Err(Error::Consumer(format!("{what} {given} is out of range; use a number between 1 and {most}")))
}

impl Consumer {
    /// The group.
    pub fn group(&self) -> &GroupKey {
        &self.config.group
    }

    /// Name of this member in the group.
    pub fn member(&self) -> &str {
        &self.config.member
    }

    /// Numbers of the partitions held now.
    pub fn partitions(&self) -> Vec<u32> {
        self.config.partitions.borrow().clone()
    }

    /// Returns a receiver that observes the numbers of the held partitions.
    pub fn watch_partitions(&self) -> watch::Receiver<Vec<u32>> {
        self.config.partitions.subscribe()
    }

    /// Stops gracefully: reads no more, waits for the handler up to the grace, commits offsets, releases the
    /// partitions and leaves the group.
    ///
    /// After the grace, drops the running handler calls. Fails with [`Error::NotDrained`] if the consumer does not
    /// end even then.
    pub async fn drain(mut self) -> Result<DrainOutcome, Error> {
        let runtime = self.config.ctx.runtime.clone();
        let Some(mut task) = self.task.take() else { return Err(Error::Closed) };
        self.config.stop.send_replace(StopMode::Drain);
        let mut aborted = 0;
        tokio::select! {
            _ = &mut task => return Ok(DrainOutcome { aborted }),
            () = runtime.sleep_until(runtime.now() + self.grace) => {}
        }
        self.config.stop.send_replace(StopMode::Now);
        aborted = 1;
        let limit = self.config.ctx.call_limit();
        tokio::select! {
            _ = &mut task => Ok(DrainOutcome { aborted }),
            () = runtime.sleep_until(runtime.now() + limit) => Err(Error::NotDrained(self.config.member.clone())),
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // The task leaves the group if the session is still alive.
        self.config.stop.send_replace(StopMode::Now);
    }
}

/// Ensures one membership per process and group, because the session identifies a member.
struct GroupMembershipGuard(Arc<ConsumerConfig>);

impl GroupMembershipGuard {
    fn take(config: &Arc<ConsumerConfig>) -> Result<GroupMembershipGuard, Error> {
        if locked(&config.ctx.groups).insert((*config.group).clone()) {
            return Ok(GroupMembershipGuard(config.clone()));
        }
        let group = &config.group;
        let remedy = "increase the `.concurrency(…)` of that consumer, or open a second session";
        Err(Error::Consumer(format!("this process is already a member of group {group}; {remedy}")))
    }
}

impl Drop for GroupMembershipGuard {
    fn drop(&mut self) {
        locked(&self.0.ctx.groups).remove(&*self.0.group);
    }
}

/// Keeps the membership, under one session after the other, until the consumer stops.
async fn consume(
    config: Arc<ConsumerConfig>,
    mut joined: Option<(SessionId, GroupAssignment)>,
    _guard: GroupMembershipGuard,
) {
    let ctx = config.ctx.clone();
    let mut stop = config.stop.subscribe();
    loop {
        let session = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop != StopMode::No) => break,
            session = ctx.trusted_session() => session,
            () = ctx.closed() => break,
        };
        let assignment =
            joined.take().filter(|(joined, _)| *joined == session).map(|(_, assignment)| assignment);
        let membership = Membership::new(&config, session.clone());
        let drained = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop == StopMode::Now) => true,
            () = ctx.closed() => true,
            () = ctx.distrusted(&session) => false,
            // Ends when drained.
            () = membership.deliver() => true,
            () = membership.maintain(assignment) => false,
            () = membership.read() => false,
        };
        drop(membership);
        config.partitions.send_replace(Vec::new());
        metrics::partitions_assigned(&config.group, &config.member, 0);
        if drained {
            let leave = ctx.bounded(ctx.store.leave_group(&config.group, &session));
            tokio::select! {
                leave = leave => if let Err(error) = leave {
                    tracing::debug!(group = %config.group, "leaving the group failed: {error}");
                },
                () = ctx.closed() => {}
            }
            return;
        }
        tracing::info!(group = %config.group, member = config.member, "consumer stopped, session lost or no longer trusted");
    }
}
