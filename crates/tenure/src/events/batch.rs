//! What a handler is given.

use std::sync::Arc;

use tenure_core::Token;
use tenure_core::port::{Event, GroupKey};

/// Events that are handled together: of one or more slots, each slot's in order, and what was published together in it whole.
/// Clones share it.
///
/// Given again after a failure, a part of it comes alone; so does an event that was set aside.
#[derive(Clone, Debug)]
pub struct Batch {
    pub(super) group: Arc<GroupKey>,
    pub(super) events: Arc<[Event]>,
    pub(super) tokens: Arc<[(u32, Token)]>,
    pub(super) attempt: u32,
}

impl Batch {
    /// The events, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// How many there are; at least one.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there are none: never so.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The events, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Event> {
        self.events.iter()
    }

    /// The group that reads them.
    pub fn group(&self) -> &GroupKey {
        &self.group
    }

    /// Which attempt this is, counted from 1: more only for an event that was set aside.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Under which token a slot of these events is held: it fences what the handler does elsewhere.
    pub fn token(&self, slot: u32) -> Option<Token> {
        self.tokens.iter().find(|(held, _)| *held == slot).map(|(_, token)| *token)
    }
}

impl<'a> IntoIterator for &'a Batch {
    type Item = &'a Event;
    type IntoIter = std::slice::Iter<'a, Event>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
