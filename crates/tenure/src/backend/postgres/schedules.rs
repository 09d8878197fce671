//! Schedules.

use tenure_core::port::{Calendar, Scheduling};

use super::Postgres;

impl Scheduling for Postgres {}

impl Calendar for Postgres {}
