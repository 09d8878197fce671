//! Events in this store.

use tenure_core::port::{Bureau, Events};

use super::Sqlite;

impl Events for Sqlite {}

impl Bureau for Sqlite {}
