//! What every store says when it refuses, in the same words.

use crate::SessionId;
use crate::port::{EventId, GROUPS_MAX, GroupKey, StoreError, TopicKey, Trouble};

/// Nobody made this topic.
pub fn no_such_topic(key: &TopicKey) -> StoreError {
    let TopicKey { namespace, name } = key;
    let there =
        if namespace.as_str() == "default" { String::new() } else { format!(" --namespace {namespace}") };
    request(format!(
        "there is no topic {key}; make it first: `tenure events topics create {name}{there}`, or `PUT /v1/topics/{name}`"
    ))
}

/// Nobody made this group.
pub fn no_such_group(key: &GroupKey) -> StoreError {
    request(format!("there is no group {key}; `tenure events groups` shows those that there are"))
}

/// A topic has as many groups as it may.
pub fn too_many_groups(key: &GroupKey) -> StoreError {
    request(format!(
        "the topic {} has {GROUPS_MAX} groups, and {} would be one more; delete one that nobody reads: `tenure events groups` shows \
         them",
        key.topic, key.name
    ))
}

/// A topic keeps the number of its slots.
pub fn slots_are_fixed(key: &TopicKey, has: u32, wanted: u32) -> StoreError {
    request(format!(
        "the topic {key} has {has} slots and keeps them: with {wanted}, keys would move to other slots, past what is in them; \
         make another topic, or delete this one first"
    ))
}

/// A slot that a topic does not have.
pub fn no_such_slot(key: &TopicKey, slot: u32, slots: u32) -> StoreError {
    request(format!("the topic {key} has no slot {slot}; its {slots} slots are counted from 0"))
}

/// A group is being read.
pub fn has_members(key: &GroupKey, members: usize) -> StoreError {
    let (who, them) = if members == 1 { ("a live member", "it") } else { ("live members", "them") };
    request(format!("the group {key} has {who} ({members}); stop {them} first"))
}

/// Whoever joins must live.
pub fn session_is_gone(session: &SessionId, key: &GroupKey) -> StoreError {
    request(format!("the session {session} is over and can not join the group {key}; open another"))
}

/// What is to be set aside is not there: going on would lose it.
pub fn nothing_to_set_aside(key: &GroupKey, slot: u32, event: EventId) -> StoreError {
    request(format!(
        "event {event} can not be set aside for the group {key}: it is not at this position of slot {slot}; nothing was changed"
    ))
}

fn request(message: String) -> StoreError {
    StoreError::new(Trouble::Request, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_topic_is_refused_with_the_command_that_makes_it() {
        let key = |namespace: &str| TopicKey::new(namespace.parse().unwrap(), "orders".parse().unwrap());
        let said = no_such_topic(&key("default")).to_string();
        assert!(said.contains("`tenure events topics create orders`, or `PUT /v1/topics/orders`"), "{said}");
        let said = no_such_topic(&key("shop")).to_string();
        assert!(
            said.contains("no topic shop/orders") && said.contains("create orders --namespace shop`"),
            "{said}"
        );
    }
}
