//! Sessions and leases: the one machine that drives every backend.
//!
//! **States.** A session is *closed*, *opening*, *live*, *ending* or *ended*. While live it is trusted or, once its
//! deadline has passed without a counted beat, in doubt. For each election the process follows, takes, leads, ends its
//! work, or releases (see the private `Phase`).
//!
//! **Who owns the truth.** The store does. The machine believes what the store said, for as long as the rule of trust
//! allows, and not longer.
//!
//! **When the store is away.** Beats fail, the deadline passes, everything led is lost ([`Event::Lost`]). The machine goes
//! on trying. When the store is back, what the session still holds is released first, because its work was stopped,
//! and then campaigned for anew, under a greater token.
//!
//! **How to drive it.** Feed [`Input`]s to [`Machine::handle`] with the time and a source of randomness; then drain
//! [`Machine::poll_command`] and [`Machine::poll_event`]; call again with [`Input::Tick`] at [`Machine::poll_timeout`].

mod campaign;
mod command;
mod consider;
mod eyes;
mod looking;
mod machine;
mod onlooker;
mod phase;
mod session;
mod sightings;
#[cfg(test)]
mod tests;
mod timers;

pub use command::{Answer, Command, CommandId, Event, Input, Loss, Stand};
pub(crate) use eyes::Eyes;
pub use machine::{Config, Machine};
pub use onlooker::{Bar, Onlooker, Turn};
pub use timers::Timer;
