//! Events in this store.

use tenure_core::port::{Bureau, Events};

use super::Memory;

impl Events for Memory {}

impl Bureau for Memory {}
