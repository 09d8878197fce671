//! Events in this store.

use tenure_core::port::{Bureau, Events};

use super::Http;

impl Events for Http {}

impl Bureau for Http {}
