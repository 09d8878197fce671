//! Publishing and group membership through a server.

mod admin;

use async_trait::async_trait;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure_core::port::{
    CommitResult, ErrorKind, Event, EventStore, GroupAssignment, GroupKey, JoinGroupRequest,
    MaintenanceRequest, NewEvent, Offset, ParkedKey, PartitionCommit, PublishReceipt, ReadEventsRequest,
    StoreError, TakePartitionsRequest, TakenPartition, TopicKey,
};
use tenure_core::{SessionId, Token};

use super::HttpStore;
use super::client::{bare, get, part, send};
use super::tasks::within;

/// Maximum number of commits in one request.
const COMMITS_MAX: usize = 1024;

#[derive(Serialize)]
struct NewEvents<'a> {
    events: &'a [NewEvent],
}

#[derive(Deserialize)]
struct PublishedEventList {
    events: Vec<PublishReceipt>,
}

#[derive(Deserialize)]
struct TakePartitionsResponse {
    taken: Vec<TakenPartition>,
}

#[derive(Serialize)]
struct ReadEventsRequestJson {
    after: Vec<PartitionOffset>,
    limit: u32,
}

#[derive(Serialize)]
struct PartitionOffset {
    partition: u32,
    offset: Offset,
}

#[derive(Deserialize)]
struct EventList {
    events: Vec<Event>,
}

#[derive(Serialize)]
struct CommitPartitionsRequest<'a> {
    commits: &'a [PartitionCommit],
}

#[derive(Deserialize)]
struct CommitPartitionsResponse {
    committed: Vec<CommitResult>,
}

#[derive(Deserialize)]
struct ParkedKeyList {
    keys: Vec<ParkedKey>,
}

#[async_trait]
impl EventStore for HttpStore {
    async fn publish(
        &self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, StoreError> {
        if events.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = send(Method::POST, of(topic, "/events"), &NewEvents { events });
        call.again = events.iter().all(|event| event.idempotency_key.is_some());
        self.client.call(&call).await?.read().map(|published: PublishedEventList| published.events)
    }

    async fn join_group(&self, join: &JoinGroupRequest) -> Result<GroupAssignment, StoreError> {
        let response =
            self.client.call(&send(Method::PUT, member(&join.session, &join.group, ""), join)).await?;
        if response.is_session_ended() {
            let message = format!(
                "session {} is not live and cannot join a group; open another session",
                join.session.short()
            );
            return Err(StoreError::new(ErrorKind::Request, message));
        }
        response.read()
    }

    async fn leave_group(&self, group: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        let response = self.client.call(&bare(Method::DELETE, member(session, group, ""))).await?;
        if response.is_session_ended() { Ok(()) } else { response.done() }
    }

    async fn group_assignment(&self, group: &GroupKey) -> Result<Option<GroupAssignment>, StoreError> {
        let response = self.client.call(&get(internal_group_path(group, "/assignment"))).await?;
        if is_missing(&response) { Ok(None) } else { response.read().map(Some) }
    }

    async fn take_partitions(&self, take: &TakePartitionsRequest) -> Result<Vec<TakenPartition>, StoreError> {
        if take.partitions.is_empty() {
            return Ok(Vec::new());
        }
        let path = member(&take.session, &take.group, "/take-partitions");
        let response =
            self.client.call(&send(Method::POST, path, &partition_tokens(&take.partitions))).await?;
        if response.is_session_ended() || is_missing(&response) {
            return Ok(Vec::new());
        }
        response.read().map(|taken: TakePartitionsResponse| taken.taken)
    }

    async fn release_partitions(
        &self,
        group: &GroupKey,
        partitions: &[(u32, Token)],
    ) -> Result<(), StoreError> {
        if partitions.is_empty() {
            return Ok(());
        }
        let call = send(
            Method::POST,
            internal_group_path(group, "/release-partitions"),
            &partition_tokens(partitions),
        );
        let response = self.client.call(&call).await?;
        if is_missing(&response) { Ok(()) } else { response.done() }
    }

    async fn read_events(&self, read: &ReadEventsRequest) -> Result<Vec<Event>, StoreError> {
        let after =
            read.after.iter().map(|&(partition, offset)| PartitionOffset { partition, offset }).collect();
        let reading = ReadEventsRequestJson { after, limit: read.limit };
        let response =
            self.client.call(&send(Method::POST, of(&read.topic, "/events/read"), &reading)).await?;
        response.read().map(|list: EventList| list.events)
    }

    async fn commit_partitions(&self, commits: &[PartitionCommit]) -> Result<Vec<CommitResult>, StoreError> {
        let mut all = Vec::with_capacity(commits.len());
        let mut rest = commits;
        while let Some(first) = rest.first() {
            let same = rest.iter().take(COMMITS_MAX).take_while(|commit| commit.group == first.group).count();
            let (batch, later) = rest.split_at(same);
            let mut call = send(
                Method::POST,
                internal_group_path(&first.group, "/commit-partitions"),
                &CommitPartitionsRequest { commits: batch },
            );
            // A repeated offset is harmless; repeated failures would be counted twice.
            call.again = batch.iter().all(|commit| {
                commit.processed.is_empty() && commit.parked.is_empty() && commit.parked_results.is_empty()
            });
            let response = self.client.call(&call).await?;
            if is_missing(&response) {
                all.extend(batch.iter().map(|_| CommitResult::LeaseLost));
            } else {
                let response: CommitPartitionsResponse = response.read()?;
                if response.committed.len() != batch.len() {
                    let message = format!(
                        "the server returned {} results for {} commits; it may have another version",
                        response.committed.len(),
                        batch.len()
                    );
                    return Err(StoreError::new(ErrorKind::Misconfigured, message));
                }
                all.extend(response.committed);
            }
            rest = later;
        }
        Ok(all)
    }

    async fn parked_keys(&self, group: &GroupKey, partition: u32) -> Result<Vec<ParkedKey>, StoreError> {
        let response = self
            .client
            .call(&get(internal_group_path(group, &format!("/partitions/{partition}/parked-keys"))))
            .await?;
        if is_missing(&response) {
            return Ok(Vec::new());
        }
        response.read().map(|keys: ParkedKeyList| keys.keys)
    }

    async fn register_topic_waiter(&self, session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        let place = format!(
            "/internal/v1/sessions/{}/topics/{}/waiter",
            part(session.as_str()),
            part(topic.name.as_str())
        );
        let response = self.client.call(&bare(Method::PUT, within(&place, &topic.namespace))).await?;
        if response.is_session_ended() { Ok(()) } else { response.done() }
    }

    /// No-op: the servers run maintenance themselves.
    async fn prune_events(&self, _: &MaintenanceRequest) -> Result<(u64, bool), StoreError> {
        Ok((0, false))
    }
}

/// Body with partitions and the tokens of their leases.
fn partition_tokens(partitions: &[(u32, Token)]) -> serde_json::Value {
    let partitions: Vec<_> = partitions
        .iter()
        .map(|(partition, token)| json!({ "partition": partition, "token": token }))
        .collect();
    json!({ "partitions": partitions })
}

/// Whether the group or its topic does not exist.
fn is_missing(response: &super::response::HttpResponse) -> bool {
    response.says("no-such-group") || response.says("no-such-topic")
}

/// Public path of a topic.
fn of(key: &TopicKey, rest: &str) -> String {
    within(&format!("/v1/topics/{}{rest}", part(key.name.as_str())), &key.namespace)
}

/// Public path of a group.
fn group_path(key: &GroupKey, rest: &str) -> String {
    of(&key.topic, &format!("/groups/{}{rest}", part(key.name.as_str())))
}

/// Internal path of a group.
fn internal_group_path(key: &GroupKey, rest: &str) -> String {
    let (topic, name) = (part(key.topic.name.as_str()), part(key.name.as_str()));
    within(&format!("/internal/v1/topics/{topic}/groups/{name}{rest}"), &key.topic.namespace)
}

/// Internal path of a group member.
fn member(session: &SessionId, group: &GroupKey, rest: &str) -> String {
    let (topic, name) = (part(group.topic.name.as_str()), part(group.name.as_str()));
    let path = format!("/internal/v1/sessions/{}/topics/{topic}/groups/{name}{rest}", part(session.as_str()));
    within(&path, &group.topic.namespace)
}
