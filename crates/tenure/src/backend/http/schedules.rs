//! Schedules.

use tenure_core::port::{Calendar, Scheduling};

use super::Http;

impl Scheduling for Http {}

impl Calendar for Http {}
