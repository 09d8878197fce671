//! Validation of firing requests, before a store receives them.

use std::collections::HashSet;

use crate::port::{DUE_MAX, ErrorKind, FireRequest, ManualFire, ScheduleKey, StoreError};

/// Rejects too many firings, a schedule that occurs twice in one call (the second decision would be based on outdated
/// state), and ticks that are unordered or duplicated.
pub fn validate_fire(fire: &FireRequest) -> Result<(), StoreError> {
    check_count(fire.firings.len(), "firings")?;
    let mut named: HashSet<&ScheduleKey> = HashSet::with_capacity(fire.firings.len());
    for firing in &fire.firings {
        if !named.insert(&firing.key) {
            let message = format!("schedule {} occurs twice in one call; name it once", firing.key);
            return Err(StoreError::new(ErrorKind::Request, message));
        }
        if !firing.ticks.is_sorted_by(|a, b| a.tick_at_ms < b.tick_at_ms) {
            let message =
                format!("the ticks of schedule {} are not in ascending order without duplicates", firing.key);
            return Err(StoreError::new(ErrorKind::Request, message));
        }
    }
    Ok(())
}

/// Rejects too many ticks.
pub fn validate_manual_fire(request: &ManualFire) -> Result<(), StoreError> {
    check_count(request.ticks.as_ref().map_or(0, Vec::len), "ticks")
}

fn check_count(count: usize, what: &str) -> Result<(), StoreError> {
    if count <= DUE_MAX as usize {
        return Ok(());
    }
    let message = format!("{count} {what} exceed the maximum of {DUE_MAX} per call; split them");
    Err(StoreError::new(ErrorKind::Request, message))
}
