//! Rules of topics, events and consumer groups.
//!
//! All items are pure functions of their arguments. The members of a group call [`plan_rebalance`] on what they
//! observe and so agree without a coordinator. Stores and servers validate requests before anything is written.
//! Consumers use [`after_failure`] for failed events and split read events with [`commit_batches`], [`split_by_key`]
//! and [`plan_delivery`]. The behaviour of a store as a whole is modelled by [`model::Work`](crate::model::Work).
//!
//! | item | purpose |
//! |---|---|
//! | [`partition_for_key`] | partition of a key |
//! | [`plan_rebalance`] | partitions that a member releases and takes |
//! | [`validate_events`], [`validate_topic`], [`validate_group`], [`validate_join`], [`validate_take`], [`validate_read`], [`validate_commit`], [`validate_start_offset`], [`validate_webhook`] | validation before a store receives a request |
//! | [`no_such_topic`] and others | error messages shared by all stores |
//! | [`after_failure`], [`is_transient`] | whether and when a failed event is retried |
//! | [`commit_batches`], [`split_by_key`], [`plan_delivery`], [`ParkedKeys`] | splitting read events for delivery |
//! | [`TopicCursor`] | position of a reader without a group |
//! | [`lag`] | lag of a group |
//! | [`secret_of`], [`signing_key`] | signing secrets of webhooks |

mod batch;
mod cursor;
mod errors;
mod lag;
mod partition;
mod rebalance;
mod retry;
mod secret;
mod text;
mod validate_publish;
mod validate_request;

pub use self::batch::{DeliveryPlan, ParkedKeys, commit_batches, plan_delivery, split_by_key};
pub use self::cursor::{CURSOR_MAX, TopicCursor, TopicCursorError};
pub use self::errors::{
    has_members, no_such_group, no_such_partition, no_such_topic, parked_event_missing, partitions_are_fixed,
    session_has_ended, too_many_groups,
};
pub use self::lag::{Lag, lag};
pub use self::partition::partition_for_key;
pub use self::rebalance::{REBALANCE_DELAY_MS, RebalancePlan, plan_rebalance};
pub use self::retry::{after_failure, is_transient};
pub use self::secret::{SecretError, secret_of, signing_key};
pub use self::text::EventTextError;
pub use self::validate_publish::{PublishError, validate_events, weight};
pub use self::validate_request::{
    COMMIT_MAX, EventRequestError, validate_commit, validate_group, validate_join, validate_read,
    validate_start_offset, validate_take, validate_topic, validate_webhook,
};
