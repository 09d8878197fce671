//! Tests of a running server: access, limits, TLS, health and shutdown.

mod access;
mod all_routes;
mod credentials;
mod flood;
mod health;
mod limits;
mod middleware;
mod quotas;
mod shutdown;
mod support;
mod tls;
