//! Publishing: one by one, many at once, or in the user's own transaction.

use std::sync::Arc;

use tenure_core::event;
use tenure_core::port::{
    EVENT_BYTES_MAX, NewEvent, PUBLISH_MAX, Published, StoreError, TopicKey, TopicSettings,
};

use super::Outbox;
use crate::claims::batch::{Batcher, Measure};
use crate::claims::hub::{Hub, IDLE_KEPT, bounded, call_limit, locked};
use crate::{Error, Tenure, metrics};

/// The most events of one statement that several callers share.
const SHARED_MAX: usize = 1_000;

/// The most bytes of such a statement, unless its first event alone has more.
const SHARED_BYTES: usize = 4 << 20;

/// Publishes to one topic. Clones share everything.
///
/// ```
/// # use tenure::{Tenure, backend::memory::Memory};
/// use tenure::port::{Json, NewEvent, Payload, TopicSettings};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let tenure = Tenure::builder().store(Memory::new()).open().await?;
/// let orders = tenure.publisher("orders")?;
/// orders.create_topic(&TopicSettings::default()).await?; // once; `tenure events topics create orders`
///
/// let paid = NewEvent {
///     key: Some("order-7".into()), // events of one key are read in the order of their commits
///     payload: Payload::Json(Json::of(&42)?),
///     ..NewEvent::new("order.paid")
/// };
/// let published = orders.publish(paid).await?;
/// assert!(published.new);
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

    /// The same topic of another tenant.
    pub fn namespace(mut self, namespace: &str) -> Result<Publisher, Error> {
        self.topic.namespace = namespace.parse()?;
        Ok(self)
    }

    /// Which topic.
    pub fn topic(&self) -> &TopicKey {
        &self.topic
    }

    /// Makes the topic, or sets it anew; `true` if it is new. Its number of slots never changes.
    pub async fn create_topic(&self, settings: &TopicSettings) -> Result<bool, Error> {
        let hub = self.tenure.hub();
        Ok(hub.bounded(hub.store.set_topic(&self.topic, settings)).await?)
    }

    /// Publishes an event. Calls at the same time share a statement, in the order in which they were made. Dropped, it may be published
    /// all the same.
    pub async fn publish(&self, event: NewEvent) -> Result<Published, Error> {
        check(std::slice::from_ref(&event))?;
        let hub = self.tenure.hub();
        let publisher = {
            let mut publishers = locked(&hub.publishers);
            if publishers.len() >= IDLE_KEPT {
                publishers.retain(|_, publisher| !publisher.is_idle());
            }
            publishers.entry(self.topic.clone()).or_insert_with(|| publisher(hub, &self.topic)).clone()
        };
        let published = publisher.call(event).await?;
        self.count(&[published]);
        Ok(published)
    }

    /// Publishes many at once, all or none, in this order. What shares a slot is delivered together.
    pub async fn publish_all(&self, events: &[NewEvent]) -> Result<Vec<Published>, Error> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        check(events)?;
        let hub = self.tenure.hub();
        let published = hub.bounded(hub.store.publish(&self.topic, events)).await?;
        self.count(&published);
        Ok(published)
    }

    /// Publishes in the user's own transaction, on the store's database: if, and when, that commits.
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
    /// orders.publish_in(&mut tx, &[NewEvent::new("order.made")]).await?;
    /// tx.commit().await?; // both, or neither
    /// # tenure.close().await?; Ok(()) }
    /// ```
    pub async fn publish_in(
        &self,
        tx: &mut impl Outbox,
        events: &[NewEvent],
    ) -> Result<Vec<Published>, Error> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        check(events)?;
        let published = tx.publish(&self.topic, events).await?;
        self.count(&published);
        Ok(published)
    }

    fn count(&self, published: &[Published]) {
        metrics::published(&self.topic, published.iter().filter(|one| one.new).count());
    }
}

/// What makes no sense in any topic; what is too long for this one, the store says.
fn check(events: &[NewEvent]) -> Result<(), StoreError> {
    event::check_events(events, EVENT_BYTES_MAX as u64).map_err(StoreError::from)
}

fn publisher(hub: &Arc<Hub>, topic: &TopicKey) -> Batcher<NewEvent, Published> {
    let measure = Measure {
        parts: SHARED_MAX.min(PUBLISH_MAX),
        weight: SHARED_BYTES,
        // One after the other: calls of one process about one key keep their order.
        under_way: 1,
        weigh: |event: &NewEvent| event.payload.len(),
        identity: None,
        halve: |_| false,
    };
    let (store, runtime, timing, topic) = (hub.store.clone(), hub.runtime.clone(), hub.timing, topic.clone());
    Batcher::new(hub.handle.clone(), measure, move |events: Vec<NewEvent>| {
        let (store, runtime, topic) = (store.clone(), runtime.clone(), topic.clone());
        async move { bounded(runtime.as_ref(), call_limit(timing), store.publish(&topic, &events)).await }
    })
}
