//! A Tenure server as a store: `http://`, `https://`, and `http+unix:` for a socket on this machine.
//!
//! The truth is in the server's own store, and what this store promises is what that one does. One call is one request.
//! Any replica answers any call, so several may be given (`http://a:8368,b:8368`), and those that the servers know of one
//! another are used too. A replica that does not answer is asked last from then on; the call that found out goes to the
//! next one at once, where that is safe:
//!
//! | call | why it may be sent again, when nobody knows whether it happened |
//! |---|---|
//! | `beat`, `end`, `leave`, `expire`, `observe`, all reads | twice is as good as once |
//! | `open` | the second answer is *gone*, since the id was used: then a beat tells whether the first one happened |
//! | `join` | the last one counts, and both say the same |
//! | `take` | compares and swaps on the token that was seen: of two, one at most is granted. If it was the one whose answer was lost, the second says *not as you saw it*; the machine then finds the lease in its own name, and gives it back before it campaigns anew |
//! | `release` | compares and swaps on session and token: the second does nothing |
//! | `ask` | bound to a term, and the same request twice is one request |
//! | `put_credential` | the last one counts, and both say the same |
//! | `set_paused`, `set_queue_paused`, `approve`, `order` | *not* sent again: the answer "it was so already" would be wrong |
//! | `submit` | only if every task has a key: then the second finds the first |
//! | `claim` | *not* sent again: what the first may have claimed has to be looked for ([`held`](tenure_core::port::Tasks::held)), and whoever got tasks would not |
//! | `settle` | completed twice under one token is completed; all else that is said twice is *lost* the second time, and changes nothing |
//! | `request` | by its key, the same request |
//! | `publish` | only if every event has an idempotency key: then the second finds the first |
//! | `join_group`, `leave_group`, `free_shares`, `doze_topic`, `set_topic`, `set_group`, `set_push` | twice is as good as once |
//! | `take_shares` | compares and swaps on the token that was seen: of two, one at most is granted. If it was the one whose answer was lost, a look shows the slot in the session's own name, under a token that it never heard of: it gives it back, and takes it anew |
//! | `commit_shares` | how far a slot is read is the same twice; with anything else in it, *not* sent again |
//! | `set_schedule` | only if it expects nothing: then the last one counts, and both say the same |
//! | `delete_schedule` | what is gone is gone |
//! | `set_schedule_paused`, `fire_by_hand` | *not* sent again: what the first did would not be told, and *now* is another tick the second time |
//! | `reset_group`, `order_dead`, `set_group_paused` | *not* sent again: what the first did would not be told |
//!
//! Claims are routed by the server: whatever the mode of a queue or pool, it is asked for here as if it were distributed.
//!
//! To the machine, a call that is sent again is a call that failed and was repeated: it reads the clock before the first
//! try, so that no second try ever lengthens trust.
//!
//! There is no transaction to guard over HTTP: see [`fence`](crate::fence) for writes to a database of your own, or use
//! the token itself.

mod address;
mod answer;
mod caller;
mod claims;
mod desk;
mod directory;
mod events;
mod listen;
mod office;
mod pools;
mod proof;
mod schedules;
mod store;

pub use self::directory::PROMISES;

use std::sync::Arc;

use futures_core::future::BoxFuture;
use tenure_core::port::{Backend, StoreError};

use self::address::Address;
use self::caller::Caller;
use super::StoreOptions;

/// The version of the protocol that this client speaks. A server says which one it speaks.
const PROTOCOL: u32 = 1;

/// A Tenure server, or several on one store.
#[derive(Clone)]
pub struct Http {
    caller: Arc<Caller>,
}

impl Http {
    /// Finds a server that answers and speaks our protocol.
    pub async fn connect(options: &StoreOptions) -> Result<Http, StoreError> {
        let address: Address = options.url.parse()?;
        let caller = Arc::new(Caller::new(&address, &options.access)?);
        caller.meet().await?;
        Ok(Http { caller })
    }
}

/// For the registry.
pub(super) fn open_url(options: &StoreOptions) -> BoxFuture<'_, Result<Arc<dyn Backend>, StoreError>> {
    Box::pin(async { Ok(Arc::new(Http::connect(options).await?) as Arc<dyn Backend>) })
}
