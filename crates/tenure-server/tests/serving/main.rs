//! The server from outside: what it refuses, whom it cuts off, and that it goes on serving the others meanwhile.

mod access;
mod bounds;
mod ending;
mod envelope;
mod flood;
mod health;
mod quotas;
mod support;
mod tls;
mod tokens;
mod walk;
