//! The API, driven in memory and over real sockets.

mod campaign;
mod operate;
mod reads;
mod support;
mod watch;
