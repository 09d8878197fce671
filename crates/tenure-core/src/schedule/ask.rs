//! What makes no sense in a wish to fire, found before a store sees it.

use std::collections::HashSet;

use crate::port::{DUE_MAX, Fire, Hand, ScheduleKey, StoreError, Trouble};

/// Refuses too many firings, a schedule that fires twice in one call (its second firing was decided from what the first changes), and
/// ticks that are not in order, each once.
pub fn check_fire(fire: &Fire) -> Result<(), StoreError> {
    check_count(fire.firings.len(), "firings")?;
    let mut named: HashSet<&ScheduleKey> = HashSet::with_capacity(fire.firings.len());
    for firing in &fire.firings {
        if !named.insert(&firing.key) {
            let message = format!("the schedule {} is to fire twice in one call; name it once", firing.key);
            return Err(StoreError::new(Trouble::Request, message));
        }
        if !firing.ticks.is_sorted_by(|a, b| a.at_ms < b.at_ms) {
            let message = format!("the ticks of the schedule {} are not in order, each once", firing.key);
            return Err(StoreError::new(Trouble::Request, message));
        }
    }
    Ok(())
}

/// Refuses too many ticks.
pub fn check_hand(hand: &Hand) -> Result<(), StoreError> {
    check_count(hand.ticks.as_ref().map_or(0, Vec::len), "ticks")
}

fn check_count(count: usize, what: &str) -> Result<(), StoreError> {
    if count <= DUE_MAX as usize {
        return Ok(());
    }
    let message = format!("there are {count} {what}; at most {DUE_MAX} go together: split them");
    Err(StoreError::new(Trouble::Request, message))
}
