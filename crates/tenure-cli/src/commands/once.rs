//! `tenure run --once-per`: at most one run per period on all machines together.
//!
//! Each run is recorded in the store as a term of the election `NAME.runs`. Only the leader of NAME takes it, right
//! before the command starts. The two instants that are compared come from the store: when the leader of NAME was
//! granted its lease, and when the last term of `NAME.runs` started. The clocks of the machines do not matter.
//!
//! A run counts from its start, whatever its result. If the leader dies between the record and the start of the
//! command, the period passes without a run: the guarantee is at most once.

use std::time::Duration;

use tenure::port::Term;
use tenure::{ElectionKey, Leadership, Tenure};

use crate::error::CliError;

/// Upper limit of the tolerance for early starts. A run may start early by a tenth of its period, because cron is not
/// exact.
const EARLY_MAX: Duration = Duration::from_secs(60);

/// Poll interval for a record that is stored but may not be visible yet.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Whether the command runs in this period.
pub(crate) enum Turn {
    /// The command runs, and the run is recorded.
    Run,
    /// The command started less than a period ago: how long ago, and the name of the candidate that ran it.
    RanAlready { ago: Duration, by: String },
    /// Leadership ended before the run was recorded.
    Lost,
}

/// The election `NAME.runs`, whose terms record the runs.
fn runs_of(key: &ElectionKey) -> Result<ElectionKey, CliError> {
    let name = format!("{}.runs", key.name).parse().map_err(|_| {
        CliError::usage(format!("the name {} is too long for --once-per: use at most 123 bytes", key.name))
    })?;
    Ok(ElectionKey::new(key.namespace.clone(), name))
}

/// Decides whether the leader runs the command, and records the run if so.
pub(crate) async fn decide(
    tenure: &Tenure,
    leadership: &Leadership,
    period: Duration,
) -> Result<Turn, CliError> {
    let runs = runs_of(leadership.election())?;
    let store = tenure.store();
    let granted_ms = loop {
        let view = store.election(leadership.election()).await?;
        let lease = view.iter().flat_map(|view| &view.leases).find(|lease| lease.token == leadership.token());
        match lease.and_then(|lease| lease.granted_at_ms) {
            Some(granted_ms) => break granted_ms,
            None if leadership.is_leader() => tokio::time::sleep(POLL_INTERVAL).await,
            None => return Ok(Turn::Lost),
        }
    };
    let last = store.term_history(&runs, 1).await?.into_iter().next();
    if let Some(turn) = last.as_ref().and_then(|last| too_soon(last, granted_ms, period)) {
        return Ok(turn);
    }
    let elector = tenure.elector(runs.name.as_str()).namespace(runs.namespace.as_str()).start().await?;
    let recorded = tokio::select! {
        recorded = elector.elected() => recorded?,
        _ = leadership.lost() => return Ok(Turn::Lost),
        _ = leadership.leader_request() => return Ok(Turn::Lost),
    };
    // A server may answer from an old snapshot, so wait for one with this record: it has all earlier records too.
    let before = loop {
        let mut terms = store.term_history(&runs, 2).await?.into_iter();
        if terms.next().is_some_and(|newest| newest.token == recorded.token()) {
            break terms.next();
        }
        if !leadership.is_leader() {
            return Ok(Turn::Lost);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    drop(recorded);
    elector.stop().await?;
    // Another leader may have recorded a run after the first read: this process was suspended, or the snapshot was old.
    let expected = before.as_ref().map(|term| term.token) == last.map(|last| last.token);
    Ok(match before.filter(|_| !expected).and_then(|before| too_soon(&before, granted_ms, period)) {
        Some(ran) => ran,
        None if leadership.is_leader() => Turn::Run,
        None => Turn::Lost,
    })
}

/// [`Turn::RanAlready`] if the last run started less than a period before the grant.
fn too_soon(last: &Term, granted_ms: i64, period: Duration) -> Option<Turn> {
    let early = (period / 10).min(EARLY_MAX);
    let ago = Duration::from_millis(u64::try_from(granted_ms - last.started_at_ms).unwrap_or(0));
    (ago < period.saturating_sub(early)).then(|| Turn::RanAlready { ago, by: last.candidate_name.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn term(started_at_ms: i64) -> Term {
        let session = "0123456789abcdef0123456789abcdef";
        serde_json::from_value(serde_json::json!({
            "slot": 0, "token": 1, "candidate_name": "web-1", "session": session, "start_reason": "release",
            "started_at_ms": started_at_ms,
            "ended_at_ms": null, "end_reason": null,
        }))
        .unwrap()
    }

    #[test]
    fn a_period_ends_slightly_early_and_not_after_a_clock_change() {
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
