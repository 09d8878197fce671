//! The batch of events that a handler receives.

use std::sync::Arc;

use tenure_core::Token;
use tenure_core::port::{Event, GroupKey};

/// Events that are handled together, from one or more partitions. Events of a partition are in order, and a
/// commit batch is never split. Clones share the events.
///
/// After a failure, the events are delivered again in smaller batches. A parked event is delivered alone.
#[derive(Clone, Debug)]
pub struct EventBatch {
    pub(super) group: Arc<GroupKey>,
    pub(super) events: Arc<[Event]>,
    pub(super) tokens: Arc<[(u32, Token)]>,
    pub(super) attempt: u32,
}

impl EventBatch {
    /// The events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Number of events; at least one.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether the batch is empty; always false.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Iterates over the events, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Event> {
        self.events.iter()
    }

    /// The consumer group.
    pub fn group(&self) -> &GroupKey {
        &self.group
    }

    /// Number of this attempt, counted from 1. Greater than 1 only for a parked event.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The token of the lease on a partition of this batch. It fences external writes of the handler.
    pub fn token(&self, partition: u32) -> Option<Token> {
        self.tokens.iter().find(|(held, _)| *held == partition).map(|(_, token)| *token)
    }
}

impl<'a> IntoIterator for &'a EventBatch {
    type Item = &'a Event;
    type IntoIter = std::slice::Iter<'a, Event>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
