//! Publishing: single events, several at once, or in the user's own transaction.

use std::sync::Arc;

use tenure_core::port::{
    EVENT_BYTES_MAX, NewEvent, PUBLISH_MAX, PublishReceipt, StoreError, TopicKey, TopicSettings,
};
use tenure_core::rules::event;

use super::Outbox;
use crate::queue::batcher::{BatchLimits, Batcher};
use crate::queue::context::{ClientContext, IDLE_MAX, bounded, call_limit, locked};
use crate::{Error, Tenure, metrics};

/// Maximum number of events in a statement that several callers share.
const SHARED_MAX: usize = 1_000;

/// Maximum bytes of such a statement, unless its first event alone has more.
const SHARED_BYTES: usize = 4 << 20;

/// Publishes to one topic. Clones share everything.
///
/// ```
/// # use tenure::{Tenure, store::memory::MemoryStore};
/// use tenure::port::{NewEvent, Payload, RawJson, TopicSettings};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let orders = tenure.publisher("orders")?;
/// orders.create_topic(&TopicSettings::default()).await?; // once; `tenure events topics create orders`
///
/// let paid = NewEvent {
///     key: Some("order-7".into()), // events of one key are read in commit order
///     payload: Payload::Json(RawJson::of(&42)?),
///     ..NewEvent::new("order.paid")
/// };
/// let published = orders.publish(paid).await?;
/// assert!(published.created);
/// # tenure.close().await?; Ok(()) }
/// ```
#[derive(Clone)]
pub struct Publisher {
    tenure: Tenure,
    topic: TopicKey,
}

impl Publisher {
    pub(crate) fn new(tenure: Tenure, topic: TopicKey) -> Publisher {
        Publisher { tenure, topic }
    }

    /// The topic of this name in another namespace.
    pub fn namespace(mut self, namespace: &str) -> Result<Publisher, Error> {
        self.topic.namespace = namespace.parse()?;
        Ok(self)
    }

    /// Key of the topic.
    pub fn topic(&self) -> &TopicKey {
        &self.topic
    }

    /// Creates the topic, or changes its settings. Returns `true` if it is new. The number of partitions never
    /// changes.
    pub async fn create_topic(&self, settings: &TopicSettings) -> Result<bool, Error> {
        let ctx = self.tenure.ctx();
        Ok(ctx.bounded(ctx.store.set_topic(&self.topic, settings)).await?)
    }

    /// Publishes an event. Concurrent calls share a statement, in call order. If the future is dropped, the
    /// event may still be published.
    pub async fn publish(&self, event: NewEvent) -> Result<PublishReceipt, Error> {
        check(std::slice::from_ref(&event))?;
        let ctx = self.tenure.ctx();
        let publisher = {
            let mut publishers = locked(&ctx.publishers);
            if publishers.len() >= IDLE_MAX {
                publishers.retain(|_, publisher| !publisher.is_idle());
            }
            publishers.entry(self.topic.clone()).or_insert_with(|| publisher(ctx, &self.topic)).clone()
        };
        let published = publisher.call(event).await?;
        self.count(&[published]);
        Ok(published)
    }

    /// Publishes several events, all or none, in this order. Events of one partition are delivered together.
    pub async fn publish_all(&self, events: &[NewEvent]) -> Result<Vec<PublishReceipt>, Error> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        check(events)?;
        let ctx = self.tenure.ctx();
        let published = ctx.bounded(ctx.store.publish(&self.topic, events)).await?;
        self.count(&published);
        Ok(published)
    }

    /// Adds events to the user's own transaction; they are published when it commits. The transaction must be on the
    /// database of the store. After an error, roll back.
    ///
    #[cfg_attr(feature = "sqlite", doc = "```")]
    #[cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
    /// # use tenure::{Tenure, port::{NewEvent, TopicSettings}};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let file = folder.path().join("shop.db");
    /// let tenure = Tenure::open(&format!("sqlite:{}", file.display())).await?;
    /// let pool = sqlx::SqlitePool::connect(&format!("sqlite:{}", file.display())).await?;
    /// # sqlx::query("CREATE TABLE orders (id INTEGER)").execute(&pool).await?;
    /// let orders = tenure.publisher("orders")?;
    /// orders.create_topic(&TopicSettings::default()).await?;
    ///
    /// let mut tx = pool.begin().await?;
    /// sqlx::query("INSERT INTO orders VALUES (7)").execute(&mut *tx).await?;
    /// orders.publish_in(&mut tx, &[NewEvent::new("order.created")]).await?;
    /// tx.commit().await?; // both, or neither
    /// # tenure.close().await?; Ok(()) }
    /// ```
    pub async fn publish_in(
        &self,
        tx: &mut impl Outbox,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, Error> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        check(events)?;
        let published = tx.publish(&self.topic, events).await?;
        self.count(&published);
        Ok(published)
    }

    fn count(&self, published: &[PublishReceipt]) {
        metrics::events_published(&self.topic, published.iter().filter(|one| one.created).count());
    }
}

/// Checks rules that hold for every topic; the store checks the size limit of this one.
fn check(events: &[NewEvent]) -> Result<(), StoreError> {
    event::validate_events(events, EVENT_BYTES_MAX as u64).map_err(StoreError::from)
}

fn publisher(ctx: &Arc<ClientContext>, topic: &TopicKey) -> Batcher<NewEvent, PublishReceipt> {
    let limits = BatchLimits {
        parts: SHARED_MAX.min(PUBLISH_MAX),
        weight: SHARED_BYTES,
        // One batch at a time: calls of one process keep their order per key.
        concurrent: 1,
        weigh: |event: &NewEvent| event.payload.len(),
        identity: None,
        halve: |_| false,
    };
    let (store, runtime, timing, topic) = (ctx.store.clone(), ctx.runtime.clone(), ctx.timing, topic.clone());
    Batcher::new(ctx.handle.clone(), limits, move |events: Vec<NewEvent>| {
        let (store, runtime, topic) = (store.clone(), runtime.clone(), topic.clone());
        async move { bounded(runtime.as_ref(), call_limit(timing), store.publish(&topic, &events)).await }
    })
}
