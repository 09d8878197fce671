//! Membership of groups and leases on partitions.

use std::collections::BTreeMap;

use tenure_core::port::{
    GroupAssignment, GroupKey, JoinGroupRequest, ParkedKey, StartOffset, StoreError, TakePartitionsRequest,
    TakenPartition,
};
use tenure_core::rules::event::{session_has_ended, validate_join, validate_take};
use tenure_core::{SessionId, Token};

use super::super::message::{Message, REQUIRE_SYNC_STANDBY};
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::work::array;
use super::super::{PostgresStore, from_json, get, get_json};
use super::group;

impl PostgresStore {
    pub(super) async fn join(&self, join: &JoinGroupRequest) -> Result<GroupAssignment, StoreError> {
        validate_join(join)?;
        let [namespace, topic, name] = group(&join.group);
        let [from, value] = start_offset(join.from);
        let (session, member) = (join.session.as_str().into(), join.member.as_str().into());
        let message = Message::fresh(&self.queries)
            .then("group_join", &[namespace, topic, name, session, member, from, value])?
            .then("group_assignment_get", &group(&join.group))?;
        let mut answers = self.shared.calls.run_all(message).await?;
        let (assignment, joined) = (answers.pop().unwrap_or_default(), answers.pop().unwrap_or_default());
        let joined = joined.first().map(|row| get::<Option<i32>>(row, "id")).transpose()?.flatten();
        match (joined, assignment.first()) {
            (Some(_), Some(row)) => from_json(row, "assignment"),
            _ => Err(session_has_ended(&join.session, &join.group)),
        }
    }

    pub(super) async fn leave(&self, key: &GroupKey, session: &SessionId) -> Result<(), StoreError> {
        let [namespace, topic, name] = group(key);
        self.call("group_leave", &[namespace, topic, name, session.as_str().into()]).await.map(drop)
    }

    pub(super) async fn get_assignment(&self, key: &GroupKey) -> Result<Option<GroupAssignment>, StoreError> {
        let rows = self.call("group_assignment_get", &group(key)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        get::<Option<&str>>(row, "assignment")?.map(|_| from_json(row, "assignment")).transpose()
    }

    pub(super) async fn take_leases(
        &self,
        take: &TakePartitionsRequest,
    ) -> Result<Vec<TakenPartition>, StoreError> {
        validate_take(take)?;
        let [namespace, topic, name] = group(&take.group);
        let partitions = array(take.partitions.iter().map(|(partition, _)| u64::from(*partition)));
        let tokens = array(take.partitions.iter().map(|(_, token)| token.as_u64()));
        let session = take.session.as_str().into();
        let values = [namespace, topic, name, session, partitions.as_str().into(), tokens.as_str().into()];
        let message = Message::fresh(&self.queries).plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication);
        let rows = self.shared.calls.run(message.then("partition_lease_take", &values)?).await?;
        let mut taken = Vec::with_capacity(rows.len());
        for row in &rows {
            taken.push(TakenPartition {
                partition: number(get::<i32>(row, "partition")?, "a partition")?,
                token: Token::from_u64(number(get::<i64>(row, "token")?, "a token")?),
                offset: number(get::<i64>(row, "committed_offset")?, "an offset")?,
                processed_event_ids: get_json(row, "processed_event_ids")?,
                parked_keys: get_json(row, "parked_keys")?,
            });
        }
        // In the order of the request.
        let index = |partition: u32| take.partitions.iter().position(|(wanted, _)| *wanted == partition);
        taken.sort_by_key(|taken| index(taken.partition));
        Ok(taken)
    }

    pub(super) async fn release_leases(
        &self,
        key: &GroupKey,
        partitions: &[(u32, Token)],
    ) -> Result<(), StoreError> {
        let [namespace, topic, name] = group(key);
        let ids = array(partitions.iter().map(|(partition, _)| u64::from(*partition)));
        let tokens = array(partitions.iter().map(|(_, token)| token.as_u64()));
        let values = [namespace, topic, name, ids.as_str().into(), tokens.as_str().into()];
        let message = Message::fresh(&self.queries).then("partition_lease_release", &values)?;
        self.shared.calls.run(message).await.map(drop)
    }

    pub(super) async fn list_parked_keys(
        &self,
        key: &GroupKey,
        partition: u32,
    ) -> Result<Vec<ParkedKey>, StoreError> {
        let [namespace, topic, name] = group(key);
        let rows = self.call("parked_key_list", &[namespace, topic, name, partition.into()]).await?;
        rows.first().map_or_else(|| Ok(Vec::new()), |row| get_json(row, "keys"))
    }

    pub(super) async fn list_parked_keys_in(
        &self,
        key: &GroupKey,
        partitions: &[u32],
    ) -> Result<BTreeMap<u32, Vec<ParkedKey>>, StoreError> {
        let [namespace, topic, name] = group(key);
        let partitions = array(partitions.iter().map(|partition| u64::from(*partition)));
        let rows =
            self.call("parked_key_list_in", &[namespace, topic, name, partitions.as_str().into()]).await?;
        let keys = |row| Ok((number(get::<i32>(row, "partition")?, "a partition")?, get_json(row, "keys")?));
        rows.iter().map(keys).collect()
    }
}

/// A start offset in the form that `tenure.resolve_offset` reads: a word and a number.
pub(super) fn start_offset(start: StartOffset) -> [Value<'static>; 2] {
    match start {
        StartOffset::Earliest => ["earliest".into(), Value::Int(0)],
        StartOffset::Latest => ["latest".into(), Value::Int(0)],
        StartOffset::Offset(offset) => ["offset".into(), int(offset)],
        StartOffset::PublishedAtMs(at_ms) => ["published_at_ms".into(), Value::Int(at_ms)],
    }
}
