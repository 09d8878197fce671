//! Schedules.

use tenure_core::port::{Calendar, Scheduling};

use super::Sqlite;

impl Scheduling for Sqlite {}

impl Calendar for Sqlite {}
