//! One file per command.

pub(crate) mod bench;
pub(crate) mod doctor;
pub(crate) mod elect;
pub(crate) mod events;
pub(crate) mod input;
pub(crate) mod keeper;
pub(crate) mod leader;
pub(crate) mod lines;
pub(crate) mod migrate;
pub(crate) mod pool;
pub(crate) mod program;
pub(crate) mod queue;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod screen;
pub(crate) mod secret;
pub(crate) mod serve;
pub(crate) mod shell;
pub(crate) mod signals;
pub(crate) mod tasks;
pub(crate) mod token;
pub(crate) mod view;
pub(crate) mod watch;
pub(crate) mod work;
pub(crate) mod workers;
