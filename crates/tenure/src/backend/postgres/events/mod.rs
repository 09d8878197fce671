//! Events in this store.

use tenure_core::port::{Bureau, Events};

use super::Postgres;

impl Events for Postgres {}

impl Bureau for Postgres {}
