//! Fixtures for tests of events: a topic as one client uses it, and members of a group.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::port::{
    CommitResult, ErrorKind, Event, EventId, GroupAssignment, GroupKey, GroupView, JoinGroupRequest,
    MaintenanceRequest, NewEvent, Offset, ParkEventRequest, ParkedEvent, ParkedEventFilter, ParkedEventState,
    ParkedKey, PartitionCommit, PartitionLease, PartitionOffsets, Payload, PublishReceipt, RawJson,
    ReadEventsRequest, StartOffset, Store, StoreError, TakePartitionsRequest, TakenPartition, TopicKey,
    TopicSettings, TopicView,
};
use tenure_core::rules::event::plan_rebalance;
use tenure_core::{Name, Token};

use super::test_queue::TestMaintenance;
use super::{StoreUnderTest, TestSession};

/// Default number of partitions in these tests.
pub const PARTITIONS: u32 = 4;

/// A topic as one client uses it.
#[derive(Clone)]
pub struct TestTopic {
    /// The client.
    pub store: Arc<dyn Store>,
    /// The topic.
    pub key: TopicKey,
}

impl TestTopic {
    /// The topic `t` of the default namespace with a few partitions, through a new client.
    pub async fn of(subject: &StoreUnderTest) -> TestTopic {
        TestTopic::with(subject, TopicSettings { partitions: PARTITIONS, ..TopicSettings::default() }).await
    }

    /// The topic `t` of the default namespace with these settings, through a new client.
    pub async fn with(subject: &StoreUnderTest, settings: TopicSettings) -> TestTopic {
        let test_topic = TestTopic { store: subject.client().await, key: topic("t") };
        assert_eq!(test_topic.store.set_topic(&test_topic.key, &settings).await, Ok(true));
        test_topic
    }

    /// Another topic with a few partitions, through the same client.
    pub async fn other_topic(&self, key: TopicKey) -> TestTopic {
        let test_topic = TestTopic { store: self.store.clone(), key };
        let settings = TopicSettings { partitions: PARTITIONS, ..TopicSettings::default() };
        test_topic.store.set_topic(&test_topic.key, &settings).await.expect("set_topic");
        test_topic
    }

    /// The same topic, through a new client.
    pub async fn reopen(&self, subject: &StoreUnderTest) -> TestTopic {
        TestTopic { store: subject.client().await, key: self.key.clone() }
    }

    /// Publishes all events in one call.
    pub async fn publish(&self, events: Vec<NewEvent>) -> Vec<PublishReceipt> {
        let published = self.store.publish(&self.key, &events).await.expect("publish");
        assert_eq!(published.len(), events.len(), "one receipt per event");
        published
    }

    /// Publishes one event.
    pub async fn publish_one(&self, event: NewEvent) -> EventId {
        self.publish(vec![event]).await[0].id
    }

    /// Publishes events of these keys one by one and returns their ids.
    pub async fn publish_each(&self, keys: &[&str]) -> Vec<EventId> {
        let mut numbers = Vec::new();
        for key in keys {
            numbers.push(self.publish_one(keyed(key)).await);
        }
        numbers
    }

    /// Publishes events that must be rejected and returns the error.
    pub async fn refused(&self, events: Vec<NewEvent>) -> String {
        refused(self.store.publish(&self.key, &events).await)
    }

    /// Reads partitions, each after an offset.
    pub async fn read(&self, after: &[(u32, Offset)], limit: u32) -> Vec<Event> {
        let query = ReadEventsRequest { topic: self.key.clone(), after: after.to_vec(), limit };
        self.store.read_events(&query).await.expect("read_events")
    }

    /// All events, partition by partition.
    pub async fn all(&self) -> Vec<Event> {
        let mut reader = TestReader::new(self.view().await.settings.partitions);
        let mut all = Vec::new();
        loop {
            let events = reader.read(self, 10_000).await;
            if events.is_empty() {
                all.sort_by_key(|event: &Event| (event.partition, event.offset, event.id));
                return all;
            }
            all.extend(events);
        }
    }

    /// The topic as this client sees it.
    pub async fn view(&self) -> TopicView {
        self.store.topic(&self.key).await.expect("topic").expect("the topic exists")
    }

    /// Start and end offsets of the partitions.
    pub async fn partition_offsets(&self) -> Vec<PartitionOffsets> {
        self.store.partition_offsets(&self.key).await.expect("slot_ends").expect("the topic exists")
    }

    /// End offset of a partition.
    pub async fn end_offset(&self, partition: u32) -> Offset {
        self.partition_offsets().await[partition as usize].end_offset
    }

    /// A group of this topic.
    pub fn group(&self, name: &str) -> GroupKey {
        GroupKey::new(self.key.clone(), name.parse().expect("a name"))
    }

    /// The group `g`.
    pub async fn group_view(&self) -> GroupView {
        let key = self.group("g");
        self.store.group(&key).await.expect("group").expect("the group exists")
    }

    /// Parked events of the group `g`.
    pub async fn parked_events(&self) -> Vec<ParkedEvent> {
        self.store.parked_events(&everything(&self.group("g"))).await.expect("parked events")
    }

    /// Waits until the store's wall clock, as visible in the times of events, is past an instant.
    pub async fn wait_past(&self, moment_ms: i64) {
        let clock = self.other_topic(topic("clock")).await;
        loop {
            let id = clock.publish_one(NewEvent::new("tick")).await;
            let event = clock.store.event(&clock.key, id).await.expect("event").expect("it is kept");
            if event.published_at_ms > moment_ms {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Prunes until this many events are gone. Expiries need up to a millisecond of store time.
    pub async fn prune_until(&self, maintenance: &TestMaintenance, count: u64) {
        let mut sum = 0;
        while sum < count {
            sum += self.prune(&maintenance.request()).await.0;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(sum, count, "and no more");
    }

    /// Prunes once.
    pub async fn prune(&self, request: &MaintenanceRequest) -> (u64, bool) {
        self.store.prune_events(request).await.expect("prune_events")
    }
}

/// A reader of a topic from its start, without a group.
pub struct TestReader {
    /// Offsets by partition.
    pub after: BTreeMap<u32, Offset>,
}

impl TestReader {
    /// A reader at the start.
    pub fn new(partitions: u32) -> TestReader {
        TestReader { after: (0..partitions).map(|partition| (partition, 0)).collect() }
    }

    /// The next events of all partitions.
    pub async fn read(&mut self, test_topic: &TestTopic, limit: u32) -> Vec<Event> {
        let after: Vec<_> = self.after.iter().map(|(partition, offset)| (*partition, *offset)).collect();
        let events = test_topic.read(&after, limit).await;
        for event in &events {
            self.after.insert(event.partition, event.offset);
        }
        events
    }
}

/// A member of the group `g`.
pub struct TestMember {
    /// Its session and client.
    pub session: TestSession,
    /// The group.
    pub group: GroupKey,
    /// Its name.
    pub name: String,
}

impl TestMember {
    /// Joins the group `g` of a topic through a new client.
    pub async fn of(subject: &StoreUnderTest, test_topic: &TestTopic, name: &str) -> TestMember {
        TestMember::by(subject.session(name).await, test_topic.group("g"), name).await
    }

    /// Joins a group.
    pub async fn by(session: TestSession, group: GroupKey, name: &str) -> TestMember {
        let member = TestMember { session, group, name: name.into() };
        member.join().await.expect("join_group");
        member
    }

    /// Joins the group again.
    pub async fn join(&self) -> Result<GroupAssignment, StoreError> {
        self.session.store.join_group(&self.joining()).await
    }

    /// The join request.
    pub fn joining(&self) -> JoinGroupRequest {
        joining(&self.session, &self.group, &self.name)
    }

    /// Members and partition leases of the group.
    pub async fn assignment(&self) -> GroupAssignment {
        self.session.store.group_assignment(&self.group).await.expect("look_group").expect("the group exists")
    }

    /// The lease of a partition.
    pub async fn partition_lease(&self, partition: u32) -> PartitionLease {
        self.assignment().await.partition_leases[partition as usize].clone()
    }

    /// A request to take partitions as currently observed.
    pub async fn take_request(&self, partitions: &[u32]) -> TakePartitionsRequest {
        let look = self.assignment().await;
        let partitions = partitions
            .iter()
            .map(|partition| (*partition, look.partition_leases[*partition as usize].token))
            .collect();
        TakePartitionsRequest { group: self.group.clone(), session: self.session.id.clone(), partitions }
    }

    /// Takes the partitions that are free.
    pub async fn take(&self, partitions: &[u32]) -> Vec<TakenPartition> {
        let bid = self.take_request(partitions).await;
        let mut taken = self.session.store.take_partitions(&bid).await.expect("take_shares");
        taken.sort_by_key(|it| it.partition);
        taken
    }

    /// Takes one free partition.
    pub async fn take_one(&self, partition: u32) -> TakenPartition {
        let mut taken = self.take(&[partition]).await;
        assert_eq!(taken.iter().map(|it| it.partition).collect::<Vec<_>>(), [partition], "it is free");
        taken.remove(0)
    }

    /// Releases partitions.
    pub async fn release(&self, leases: &[(u32, Token)]) {
        self.session.store.release_partitions(&self.group, leases).await.expect("free_shares");
    }

    /// Executes the rebalance plan of this member and returns whether it had anything to do. Skips the rebalance delay,
    /// so that no test waits for it.
    pub async fn balance(&self) -> bool {
        let look = GroupAssignment { active_ms: u64::MAX, ..self.assignment().await };
        let balance = plan_rebalance(&look, &self.session.id);
        self.release(&balance.release).await;
        let bid = TakePartitionsRequest {
            group: self.group.clone(),
            session: self.session.id.clone(),
            partitions: balance.take.clone(),
        };
        self.session.store.take_partitions(&bid).await.expect("take_shares");
        !(balance.release.is_empty() && balance.take.is_empty())
    }

    /// Commits partitions.
    pub async fn commit_all(&self, commits: &[PartitionCommit]) -> Vec<CommitResult> {
        let committed = self.session.store.commit_partitions(commits).await.expect("commit_shares");
        assert_eq!(committed.len(), commits.len(), "one result per commit");
        committed
    }

    /// Commits a partition.
    pub async fn commit(&self, commit: PartitionCommit) -> CommitResult {
        self.commit_all(&[commit]).await[0]
    }

    /// Makes a commit that must be rejected and returns the error.
    pub async fn commit_refused(&self, commit: PartitionCommit) -> String {
        refused(self.session.store.commit_partitions(&[commit]).await)
    }

    /// An empty commit for a taken partition.
    pub fn empty_commit(&self, taken: &TakenPartition) -> PartitionCommit {
        PartitionCommit {
            group: self.group.clone(),
            partition: taken.partition,
            token: taken.token,
            offset: None,
            processed: Vec::new(),
            parked: Vec::new(),
            parked_results: Vec::new(),
        }
    }

    /// A commit of this offset.
    pub fn read_to(&self, taken: &TakenPartition, offset: Offset) -> PartitionCommit {
        PartitionCommit { offset: Some(offset), ..self.empty_commit(taken) }
    }

    /// A commit that sets the states of parked events.
    pub fn settle_commit(
        &self,
        taken: &TakenPartition,
        settled: Vec<(EventId, ParkedEventState)>,
    ) -> PartitionCommit {
        PartitionCommit { parked_results: settled, ..self.empty_commit(taken) }
    }

    /// Parked keys of a partition.
    pub async fn parked_keys(&self, partition: u32) -> Vec<ParkedKey> {
        self.session.store.parked_keys(&self.group, partition).await.expect("parked keys")
    }

    /// Reads a partition from its committed offset to its end.
    pub async fn read(&self, taken: &TakenPartition) -> Vec<Event> {
        let (topic, after) = (self.group.topic.clone(), vec![(taken.partition, taken.offset)]);
        let query = ReadEventsRequest { topic, after, limit: 10_000 };
        self.session.store.read_events(&query).await.expect("read_events")
    }

    /// Leaves the group.
    pub async fn leave(&self) {
        self.session.store.leave_group(&self.group, &self.session.id).await.expect("leave_group");
    }
}

/// A request to join a group.
pub fn joining(session: &TestSession, group: &GroupKey, name: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group: group.clone(),
        session: session.id.clone(),
        member: name.into(),
        from: StartOffset::Earliest,
    }
}

/// A topic of the default namespace.
pub fn topic(name: &str) -> TopicKey {
    TopicKey::new(Name::default_namespace(), name.parse().expect("a name"))
}

/// An event of a key.
pub fn keyed(key: &str) -> NewEvent {
    NewEvent { key: Some(key.into()), ..NewEvent::new("k") }
}

/// An event of a key with a number.
pub fn numbered(key: &str, number: u64) -> NewEvent {
    NewEvent { payload: Payload::Json(RawJson::of(&number).expect("a number")), ..keyed(key) }
}

/// The number of such an event.
pub fn number(event: &Event) -> u64 {
    match &event.payload {
        Payload::Json(json) => json.as_str().parse().expect("a number"),
        Payload::Bytes(_) => panic!("{event:?} has no number"),
    }
}

/// Keys of this partition.
pub fn keys_in(partition: u32, count: usize) -> Vec<String> {
    let keys = (0..).map(|n| format!("key-{n}"));
    keys.filter(|key| tenure_core::rules::event::partition_for_key(key, PARTITIONS) == partition)
        .take(count)
        .collect()
}

/// A request to park an event.
pub fn park_request(event: &Event, how: ParkedEventState) -> ParkEventRequest {
    ParkEventRequest { event_id: event.id, offset: event.offset, state: how }
}

/// A retry after this many milliseconds.
pub fn retry(attempts: u32, after_ms: u64) -> ParkedEventState {
    ParkedEventState::Retry { attempts, retry_in_ms: after_ms, error: "it broke".into() }
}

/// A dead letter.
pub fn dead(attempts: u32) -> ParkedEventState {
    ParkedEventState::Dead { attempts, error: "it broke".into() }
}

/// A filter that selects all parked events of a group.
pub fn everything(group: &GroupKey) -> ParkedEventFilter {
    ParkedEventFilter {
        group: group.clone(),
        dead: false,
        partition: None,
        key: None,
        after: None,
        limit: 1_000,
    }
}

/// The message of a rejection.
pub fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
    let error = result.expect_err("it is rejected");
    assert_eq!(error.kind, ErrorKind::Request, "{error}");
    error.message
}

/// Expects an empty result, or an error that says the object does not exist.
pub fn expect_nothing<T: std::fmt::Debug>(result: Result<Vec<T>, StoreError>, name: &str) {
    match result {
        Ok(list) => assert!(list.is_empty(), "{list:?}"),
        Err(error) => assert!(error.kind == ErrorKind::Request && error.message.contains(name), "{error}"),
    }
}

/// The ids of events.
pub fn event_ids(events: &[Event]) -> Vec<EventId> {
    events.iter().map(|event| event.id).collect()
}
