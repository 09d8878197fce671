//! Reading partitions.

use std::collections::VecDeque;

use sqlx::Row;
use tenure_core::port::{Event, EventId, READ_BYTES, ReadEventsRequest, TopicKey};
use tenure_core::rules::event::{no_such_topic, validate_read};

use super::super::SqliteStore;
use super::super::connection::{Transaction, query};
use super::super::write_transaction::of_key;
use super::views::event;
use super::{CallError, json, number};

/// The commit batches to read. The plan takes one batch from each partition in turn, so that a long partition does not delay others.
struct ReadPlan {
    partitions: Vec<PartitionRead>,
    /// The order of turns, as indexes in `partitions`.
    waiting: VecDeque<usize>,
    limit: u64,
    events: u64,
    bytes: u64,
}

/// A commit batch that is not read yet.
struct CommitBatch {
    offset: i64,
    events: u64,
    bytes: u64,
}

/// The progress of reading one partition.
struct PartitionRead {
    partition: u32,
    /// The offset before the first batch.
    after: i64,
    batches: Vec<CommitBatch>,
    /// How many of the batches the plan takes.
    taken: usize,
    /// Whether the partition may have more batches.
    has_more: bool,
}

impl ReadPlan {
    fn new(read: &ReadEventsRequest) -> ReadPlan {
        let reading = |(partition, after): &(u32, u64)| PartitionRead {
            partition: *partition,
            after: number(*after),
            batches: Vec::new(),
            taken: 0,
            has_more: true,
        };
        let partitions: Vec<PartitionRead> = read.after.iter().map(reading).collect();
        let waiting = (0..partitions.len()).collect();
        ReadPlan { partitions, waiting, limit: read.limit.into(), events: 0, bytes: 0 }
    }

    /// Take loaded batches. Returns how many more events of each partition to load; `None` if the plan is complete.
    fn fill(&mut self) -> Option<u64> {
        while let Some(index) = self.waiting.pop_front() {
            let partition = &mut self.partitions[index];
            let Some(batch) = partition.batches.get(partition.taken) else {
                if !partition.has_more {
                    continue;
                }
                self.waiting.push_front(index);
                let open = self.partitions.iter().filter(|partition| partition.has_more).count() as u64;
                return Some((self.limit - self.events).div_ceil(open));
            };
            if self.events > 0 && self.bytes + batch.bytes > READ_BYTES as u64 {
                return None;
            }
            partition.taken += 1;
            self.events += batch.events;
            self.bytes += batch.bytes;
            if self.events >= self.limit {
                return None;
            }
            self.waiting.push_back(index);
        }
        None
    }

    /// For each partition with taken batches: the offset before the first, and the offset of the last.
    fn ranges(&self) -> Vec<(u32, i64, i64)> {
        let range = |partition: &PartitionRead| {
            let last = partition.batches[..partition.taken].last()?;
            Some((partition.partition, partition.after, last.offset))
        };
        self.partitions.iter().filter_map(range).collect()
    }
}

impl PartitionRead {
    /// The offset of the last loaded batch.
    fn loaded_until(&self) -> i64 {
        self.batches.last().map_or(self.after, |batch| batch.offset)
    }
}

impl SqliteStore {
    pub(super) async fn read_partitions(&self, read: &ReadEventsRequest) -> Result<Vec<Event>, CallError> {
        validate_read(read)?;
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let mut plan = ReadPlan::new(read);
        // When partitions turn out to be empty, the others are loaded further.
        while let Some(event_limit) = plan.fill() {
            self.load_batches(&mut transaction, &read.topic, &mut plan, event_limit).await?;
        }
        let ranges = plan.ranges();
        let mut events = Vec::with_capacity(usize::try_from(plan.events).unwrap_or_default());
        if ranges.is_empty() {
            self.find_topic(&mut transaction, &read.topic)
                .await?
                .ok_or_else(|| no_such_topic(&read.topic))?;
        } else {
            let select = of_key!(self, "event_read", read.topic).bind(json(&ranges)?);
            for row in transaction.all(select).await? {
                events.push(event(&row)?);
            }
        }
        transaction.commit().await?;
        Ok(events)
    }

    /// Load more batches of all partitions that may have some.
    async fn load_batches(
        &self,
        transaction: &mut Transaction,
        topic: &TopicKey,
        plan: &mut ReadPlan,
        event_limit: u64,
    ) -> Result<(), CallError> {
        let open: Vec<usize> =
            (0..plan.partitions.len()).filter(|index| plan.partitions[*index].has_more).collect();
        let requested: Vec<(u32, i64)> = open
            .iter()
            .map(|index| (plan.partitions[*index].partition, plan.partitions[*index].loaded_until()))
            .collect();
        let select =
            of_key!(self, "commit_batch_list", topic).bind(json(&requested)?).bind(number(event_limit));
        let mut found = vec![0; open.len()];
        for row in transaction.all(select).await? {
            let index = usize::try_from(row.try_get::<i64, _>("list_index")?).unwrap_or(usize::MAX);
            let Some(partition) = open.get(index).and_then(|index| plan.partitions.get_mut(*index)) else {
                continue;
            };
            let batch = CommitBatch {
                offset: row.try_get("event_offset")?,
                events: row.try_get::<i64, _>("event_count")?.cast_unsigned(),
                bytes: row.try_get::<i64, _>("payload_bytes")?.cast_unsigned(),
            };
            found[index] += batch.events;
            partition.batches.push(batch);
        }
        for (index, found) in open.into_iter().zip(found) {
            plan.partitions[index].has_more = found >= event_limit;
        }
        Ok(())
    }

    pub(super) async fn event_view(&self, topic: &TopicKey, id: EventId) -> Result<Option<Event>, CallError> {
        let select = of_key!(self, "event_get", topic).bind(number(id.0));
        let row = select.fetch_optional(&self.inner.pools.reads).await?;
        Ok(row.as_ref().map(event).transpose()?)
    }
}
