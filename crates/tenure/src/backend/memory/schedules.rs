//! Schedules.

use tenure_core::port::{Calendar, Scheduling};

use super::Memory;

impl Scheduling for Memory {}

impl Calendar for Memory {}
