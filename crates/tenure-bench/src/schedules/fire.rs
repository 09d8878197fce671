//! Many that are due in the same second: until all have fired.

use std::time::Duration;

use tenure::schedule::Definition;

use super::bare::Bare;
use super::{SchedulesBench, Yard, helper, median};
use crate::BenchError;
use crate::bare::Folder;
use crate::claims::Compared;

/// How often it is looked whether something is left.
const GLANCE: Duration = Duration::from_millis(2);

/// How long before their tick they are made, at first, and at most.
const AHEAD_MS: (i64, i64) = (10_000, 600_000);

pub(super) async fn many(
    yard: &Yard,
    bench: &SchedulesBench,
    folder: &Folder,
    progress: &dyn Fn(&str),
) -> Result<Compared, BenchError> {
    let mut bare = Bare::open(bench.postgres.as_deref(), folder).await?;
    let (mut beside, mut fired) = (Vec::new(), Vec::new());
    let mut ahead_ms = AHEAD_MS.0;
    for round in 1..=bench.repeats.max(1) {
        progress(&format!(
            "{} of {} due in the same second, {round}",
            bench.due,
            bench.schedules + bench.due
        ));
        let at_ms = made_ahead(yard, &format!("due{round}"), bench.due, &mut ahead_ms).await?;
        beside.push(bare.insert(at_ms, bench.due).await?);
        fired.push(until_fired(yard, at_ms).await?);
    }
    let what = format!("firing {} of {} schedules", bench.due, bench.schedules + bench.due);
    let rows = format!("bare insert of {} rows", 2 * bench.due);
    Ok(Compared::new(what, median(fired), rows, median(beside), "ms").at_most(3.0))
}

/// Makes so many with the same tick, which is yet to come; the tick.
async fn made_ahead(yard: &Yard, name: &str, count: u64, ahead_ms: &mut i64) -> Result<i64, BenchError> {
    loop {
        let at_ms = (yard.store_ms().await? + *ahead_ms) / 1_000 * 1_000;
        let name = format!("{name}-{at_ms}");
        yard.make(&name, count, |definition| Definition { start_ms: Some(at_ms), ..definition }).await?;
        if yard.store_ms().await? + 1_000 < at_ms {
            return Ok(at_ms);
        }
        *ahead_ms *= 2;
        if *ahead_ms > AHEAD_MS.1 {
            return Err(helper(format!(
                "{count} schedules can not be made within ten minutes; measure fewer"
            )));
        }
    }
}

/// Milliseconds from a tick until nothing is left of it, by the store's clock.
async fn until_fired(yard: &Yard, at_ms: i64) -> Result<f64, BenchError> {
    loop {
        let look = yard.store().due(1).await?;
        if look.store_ms >= at_ms && look.schedules.is_empty() {
            return Ok((look.store_ms - at_ms) as f64);
        }
        let rest = u64::try_from(at_ms - look.store_ms - 50).unwrap_or(0);
        tokio::time::sleep(GLANCE.max(Duration::from_millis(rest))).await;
    }
}
