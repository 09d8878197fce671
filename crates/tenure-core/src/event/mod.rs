//! The rules of events: into which slot, who reads which, what becomes of a failure.
//!
//! Everything here is a function of its arguments. Members of a group call [`assign`] on what they all see, and so agree without
//! a leader; stores and servers call the checks before anything is written; consumers ask [`after_failure`] what becomes of an
//! event, and split what they read with [`units`], [`lanes`] and [`sort_out`]. What a store does with rows, as a pure value, is
//! [`ledger`](crate::ledger).
//!
//! | | what it decides |
//! |---|---|
//! | [`slot_of`] | in which slot a key lies |
//! | [`assign`] | which slots a member gives up, and which it takes |
//! | [`check_events`], [`check_topic`], [`check_group`], [`check_join`], [`check_take`], [`check_read`], [`check_commit`], [`check_begin`], [`check_push`] | what makes no sense, before a store sees it |
//! | [`no_such_topic`] and others | what every store says when it refuses |
//! | [`after_failure`], [`is_transient`] | whether an event that failed is tried again, and when |
//! | [`units`], [`lanes`], [`sort_out`], [`Parked`] | in which parts what was read is handled |
//! | [`Cursor`] | from where somebody who only looks goes on |
//! | [`lag`] | how far a group is behind |
//! | [`secret_of`], [`signing_key`] | what pushed events are signed with |

mod ask;
mod assign;
mod batch;
mod check;
mod cursor;
mod lag;
mod refusal;
mod retry;
mod secret;
mod slot;
mod text;

pub use self::ask::{
    COMMIT_MAX, GroupError, check_begin, check_commit, check_group, check_join, check_push, check_read,
    check_take, check_topic,
};
pub use self::assign::{Balance, GATHER_MS, assign};
pub use self::batch::{Parked, Sorted, lanes, sort_out, units};
pub use self::check::{EventError, check_events, weight};
pub use self::cursor::{CURSOR_MAX, Cursor, CursorError};
pub use self::lag::{Lag, lag};
pub use self::refusal::{
    has_members, no_such_group, no_such_slot, no_such_topic, nothing_to_set_aside, session_is_gone,
    slots_are_fixed, too_many_groups,
};
pub use self::retry::{after_failure, is_transient};
pub use self::secret::{SecretError, secret_of, signing_key};
pub use self::slot::slot_of;
pub use self::text::WordError;
