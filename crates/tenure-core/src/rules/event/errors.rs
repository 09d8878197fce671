//! Error messages that all stores share.

use crate::SessionId;
use crate::port::{ErrorKind, EventId, GROUPS_MAX, GroupKey, StoreError, TopicKey};

/// The topic does not exist.
pub fn no_such_topic(key: &TopicKey) -> StoreError {
    let TopicKey { namespace, name } = key;
    let there =
        if namespace.as_str() == "default" { String::new() } else { format!(" --namespace {namespace}") };
    request(format!(
        "topic {key} does not exist; create it with `tenure events topics create {name}{there}` or `PUT \
         /v1/topics/{name}`"
    ))
}

/// The group does not exist.
pub fn no_such_group(key: &GroupKey) -> StoreError {
    request(format!("group {key} does not exist; list the groups with `tenure events groups list`"))
}

/// The topic has the maximum number of groups.
pub fn too_many_groups(key: &GroupKey) -> StoreError {
    request(format!(
        "topic {} already has {GROUPS_MAX} groups, the maximum: cannot create group {}; delete an unused \
         group first (`tenure events groups list` shows them)",
        key.topic, key.name
    ))
}

/// The number of partitions of a topic cannot change.
pub fn partitions_are_fixed(key: &TopicKey, has: u32, requested: u32) -> StoreError {
    request(format!(
        "topic {key} has {has} partitions, and the number cannot change to {requested}, because keys would move \
         to other partitions and lose their order; create another topic, or delete this one first"
    ))
}

/// The topic has no such partition.
pub fn no_such_partition(key: &TopicKey, partition: u32, partitions: u32) -> StoreError {
    request(format!(
        "topic {key} has no partition {partition}; its {partitions} partitions are numbered from 0"
    ))
}

/// The group has live members.
pub fn has_members(key: &GroupKey, members: usize) -> StoreError {
    let (who, them) = if members == 1 { ("a live member", "it") } else { ("live members", "them") };
    request(format!("group {key} has {who} ({members}); stop {them} first"))
}

/// The session that joins has ended.
pub fn session_has_ended(session: &SessionId, key: &GroupKey) -> StoreError {
    request(format!("session {session} has ended and cannot join group {key}; open a new session"))
}

/// The event to park does not exist. The commit must fail, because otherwise the event would be lost.
pub fn parked_event_missing(key: &GroupKey, partition: u32, event: EventId) -> StoreError {
    request(format!(
        "event {event} cannot be parked for group {key}: it is not at this offset of partition {partition}; \
         nothing was changed"
    ))
}

fn request(message: String) -> StoreError {
    StoreError::new(ErrorKind::Request, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_an_unknown_topic_names_the_command_that_creates_it() {
        let key = |namespace: &str| TopicKey::new(namespace.parse().unwrap(), "orders".parse().unwrap());
        let message = no_such_topic(&key("default")).to_string();
        assert!(
            message.contains("`tenure events topics create orders` or `PUT /v1/topics/orders`"),
            "{message}"
        );
        let message = no_such_topic(&key("shop")).to_string();
        assert!(
            message.contains("topic shop/orders does not exist")
                && message.contains("create orders --namespace shop`"),
            "{message}"
        );
    }
}
