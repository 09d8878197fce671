//! `tenure run --once-per`: at most one run in each period, whichever machine it is on.
//!
//! Each run is recorded in the store as a term of an election of its own, `NAME.runs`, which only the leader of NAME takes, and only
//! right before the command starts. Both moments that are compared are the store's: when the leader of NAME was granted its lease, and
//! when the last term of `NAME.runs` began. So the clocks of the machines do not matter.
//!
//! A run counts from its start, whatever came of it. If the leader dies between the record and the start of the command, the period
//! passes without a run: at most one, not at least one.

use std::time::Duration;

use tenure::port::Term;
use tenure::{ElectionKey, Leadership, Tenure};

use crate::exit::Failure;

/// A run may start this much before its period is over: a tenth of the period, at most this. Cron is not exact.
const EARLY_MAX: Duration = Duration::from_secs(60);

/// How soon to look again for what the store must have.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Whether the command is to run.
pub(crate) enum Turn {
    /// It is, and that is recorded.
    Run,
    /// It started less than a period ago: this long ago, on this machine.
    RanAlready { ago: Duration, by: String },
    /// Leadership ended before the run was recorded.
    Lost,
}

/// The election whose terms are the runs.
fn runs_of(key: &ElectionKey) -> Result<ElectionKey, Failure> {
    let name = format!("{}.runs", key.name).parse().map_err(|_| {
        Failure::usage(format!(
            "{} is too long a name for --once-per; at most 123 bytes are allowed",
            key.name
        ))
    })?;
    Ok(ElectionKey::new(key.namespace.clone(), name))
}

/// Decides whether the leader runs the command, and records the run if so.
pub(crate) async fn decide(
    tenure: &Tenure,
    leadership: &Leadership,
    period: Duration,
) -> Result<Turn, Failure> {
    let runs = runs_of(leadership.election())?;
    let store = tenure.store();
    let granted_ms = loop {
        let view = store.election(leadership.election()).await?;
        let lease = view.iter().flat_map(|view| &view.leases).find(|lease| lease.token == leadership.token());
        match lease.and_then(|lease| lease.granted_at_ms) {
            Some(granted_ms) => break granted_ms,
            None if leadership.is_leader() => tokio::time::sleep(LOOK_AGAIN).await,
            None => return Ok(Turn::Lost),
        }
    };
    let last = store.history(&runs, 1).await?.into_iter().next();
    if let Some(turn) = last.as_ref().and_then(|last| too_soon(last, granted_ms, period)) {
        return Ok(turn);
    }
    let elector = tenure.elector(runs.name.as_str()).namespace(runs.namespace.as_str()).start().await?;
    let recorded = tokio::select! {
        recorded = elector.elected() => recorded?,
        _ = leadership.lost() => return Ok(Turn::Lost),
        _ = leadership.asked() => return Ok(Turn::Lost),
    };
    // A server may answer from what it saw a moment ago. What shows our own record shows all records before it.
    let before = loop {
        let mut terms = store.history(&runs, 2).await?.into_iter();
        if terms.next().is_some_and(|newest| newest.token == recorded.token()) {
            break terms.next();
        }
        if !leadership.is_leader() {
            return Ok(Turn::Lost);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    drop(recorded);
    elector.stop().await?;
    // Another leader may have recorded a run since we looked: ours was stopped for long, or a server's answer was old.
    let expected = before.as_ref().map(|term| term.token) == last.map(|last| last.token);
    Ok(match before.filter(|_| !expected).and_then(|before| too_soon(&before, granted_ms, period)) {
        Some(ran) => ran,
        None if leadership.is_leader() => Turn::Run,
        None => Turn::Lost,
    })
}

/// That the last run started too short a time before this moment.
fn too_soon(last: &Term, granted_ms: i64, period: Duration) -> Option<Turn> {
    let early = (period / 10).min(EARLY_MAX);
    let ago = Duration::from_millis(u64::try_from(granted_ms - last.began_at_ms).unwrap_or(0));
    (ago < period.saturating_sub(early)).then(|| Turn::RanAlready { ago, by: last.id.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(began_at_ms: i64) -> Term {
        let session = "0123456789abcdef0123456789abcdef";
        serde_json::from_value(serde_json::json!({
            "slot": 0, "token": 1, "id": "web-1", "session": session, "via": "release", "began_at_ms": began_at_ms,
            "ended_at_ms": null, "end": null,
        }))
        .unwrap()
    }

    #[test]
    fn a_period_is_over_a_little_early_and_never_by_a_clock_that_went_back() {
        let (hour, minute_ms) = (Duration::from_secs(3600), 60_000);
        assert!(too_soon(&term(0), 58 * minute_ms, hour).is_some());
        assert!(too_soon(&term(0), 59 * minute_ms, hour).is_none(), "cron may be a minute early");
        assert!(too_soon(&term(0), 4000, Duration::from_secs(5)).is_some());
        assert!(too_soon(&term(0), 4500, Duration::from_secs(5)).is_none());
        assert!(
            too_soon(&term(5 * minute_ms), 0, hour).is_some(),
            "the last run is in the future: it counts as now"
        );
    }
}
