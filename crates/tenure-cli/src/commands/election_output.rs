//! Output of elections as tables and JSON.

use serde::Serialize;
use serde_json::{Value, json};
use tenure::port::{ElectionView, LeaseView, SessionView, Term};
use tenure::rules::election::by_rank;
use tenure::{LeaderInfo, leaders};

use crate::output::{Table, TextStyle, ago, paint};

/// JSON output of an election: the stored view plus its leaders.
#[derive(Serialize)]
pub(crate) struct ElectionOutput<'a> {
    leader: Option<String>,
    leaders: Vec<Value>,
    /// Holders of leases whose session has ended.
    expired: Vec<Value>,
    #[serde(flatten)]
    view: &'a ElectionView,
}

pub(crate) fn json_of(view: &ElectionView) -> ElectionOutput<'_> {
    let leaders = leaders(view);
    ElectionOutput {
        leader: leaders.first().map(|leader| leader.name.clone()),
        leaders: leaders
            .iter()
            .map(|leader| json!({"name": leader.name, "slot": leader.slot, "token": leader.token, "token_text": leader.token.to_string()}))
            .collect(),
        expired: expired(view)
            .map(|(lease, holder)| json!({"name": holder_id(view, holder), "slot": lease.slot, "token": lease.token}))
            .collect(),
        view,
    }
}

/// Leases whose holder has ended and which no candidate has taken over.
fn expired(view: &ElectionView) -> impl Iterator<Item = (&LeaseView, &SessionView)> {
    view.leases.iter().filter_map(|lease| Some((lease, lease.holder.as_ref().filter(|holder| !holder.live)?)))
}

fn holder_id(view: &ElectionView, holder: &SessionView) -> String {
    view.candidate(&holder.id).map_or_else(|| holder.name.clone(), |candidate| candidate.name.clone())
}

pub(crate) fn list(views: &[ElectionView], namespaces: bool, now_ms: i64) -> String {
    let mut header =
        vec!["election", "leader", "token", "since", "heartbeat", "start reason", "candidates", "state"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header);
    for view in views {
        for mut row in rows_of(view, now_ms) {
            if namespaces {
                row.insert(0, (view.key.namespace.to_string(), TextStyle::Dim));
            }
            table.row(row);
        }
    }
    table.render()
}

fn rows_of(view: &ElectionView, now_ms: i64) -> Vec<Vec<(String, TextStyle)>> {
    let standing = format!("{}", view.candidates.iter().filter(|c| c.session.live).count());
    let state = match &view.paused {
        Some(pause) => (format!("paused by {}", pause.paused_by), TextStyle::Yellow),
        None if leaders(view).is_empty() && expired(view).next().is_some() => {
            ("expired".to_owned(), TextStyle::Red)
        }
        // Written by `tenure run --once-per`.
        None if view.candidates.is_empty() && view.key.name.as_str().ends_with(".runs") => {
            ("run record".to_owned(), TextStyle::Dim)
        }
        None if leaders(view).is_empty() => ("no leader".to_owned(), TextStyle::Red),
        None => ("led".to_owned(), TextStyle::Green),
    };
    let rows = view.leases.iter().map(|lease| {
        let name = if view.slots > 1 {
            format!("{}#{}", view.key.name, lease.slot)
        } else {
            view.key.name.to_string()
        };
        let leader = leaders(view).into_iter().find(|leader| leader.slot == lease.slot);
        let holder = lease.holder.as_ref().filter(|holder| holder.live);
        vec![
            (name, TextStyle::Bold),
            match (leader, &lease.holder) {
                (Some(leader), _) => (leader.name, TextStyle::Green),
                (None, Some(gone)) => (holder_id(view, gone), TextStyle::Dim),
                (None, None) => ("–".to_owned(), TextStyle::Dim),
            },
            (lease.token.to_string(), TextStyle::Plain),
            (
                holder.and(lease.granted_at_ms).map_or_else(|| "–".to_owned(), |at| ago(at, now_ms)),
                TextStyle::Plain,
            ),
            heartbeat_of(holder, now_ms),
            (holder.map_or("–", |_| lease.start_reason.as_str()).to_owned(), TextStyle::Dim),
            (standing.clone(), TextStyle::Plain),
            state.clone(),
        ]
    });
    rows.collect()
}

fn heartbeat_of(session: Option<&SessionView>, now_ms: i64) -> (String, TextStyle) {
    let Some(session) = session else { return ("–".to_owned(), TextStyle::Dim) };
    let age = now_ms - session.heartbeat_at_ms;
    let late = age > i64::try_from(session.lease_ms / 2).unwrap_or(i64::MAX);
    (
        format!("{} ago", ago(session.heartbeat_at_ms, now_ms)),
        if late { TextStyle::Yellow } else { TextStyle::Plain },
    )
}

pub(crate) fn show(view: &ElectionView, terms: &[Term], now_ms: i64) -> String {
    let mut text = String::new();
    let led: Vec<String> = leaders(view).iter().map(|leader| describe_leader(leader, view)).collect();
    let headline = match (&view.paused, led.is_empty()) {
        (Some(pause), _) => {
            let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
            paint(
                &format!("paused by {} {} ago{reason}", pause.paused_by, ago(pause.paused_at_ms, now_ms)),
                TextStyle::Yellow,
            )
        }
        (None, true) => match expired(view).next() {
            Some((lease, gone)) => {
                let text = format!(
                    "no leader: the session of {} ended under token {}",
                    holder_id(view, gone),
                    lease.token
                );
                paint(&text, TextStyle::Red)
            }
            None => paint("no leader", TextStyle::Red),
        },
        (None, false) => paint(&led.join(", "), TextStyle::Green),
    };
    text.push_str(&format!("{}  {headline}\n", paint(&view.key.to_string(), TextStyle::Bold)));
    if !view.required_capabilities.is_empty() {
        text.push_str(&format!("required capabilities: {}\n", view.required_capabilities.join(", ")));
    }
    text.push('\n');
    text.push_str(&candidates(view, now_ms));
    if !terms.is_empty() {
        text.push('\n');
        text.push_str(&history(view, terms, now_ms));
    }
    text
}

fn describe_leader(leader: &LeaderInfo, view: &ElectionView) -> String {
    let place = if view.slots > 1 { format!(" in slot {}", leader.slot) } else { String::new() };
    format!("{} leads under token {}{place}", leader.name, leader.token)
}

fn candidates(view: &ElectionView, now_ms: i64) -> String {
    if view.candidates.is_empty() {
        return "no candidates\n".to_owned();
    }
    let mut candidates: Vec<_> = view.candidates.iter().collect();
    candidates.sort_by(|a, b| by_rank(a, b));
    let mut table = Table::new(&[
        "candidate",
        "status",
        "priority",
        "token",
        "heartbeat",
        "joined",
        "session",
        "details",
    ]);
    for candidate in candidates {
        let lease =
            view.holders().find(|(_, holder)| holder.id == candidate.session.id).map(|(lease, _)| lease);
        let capable = tenure::rules::election::is_eligible(candidate, &view.required_capabilities);
        let (status, style) = match (lease, candidate.observer, capable) {
            (Some(_), _, _) => ("leader", TextStyle::Green),
            (None, true, _) => ("observer", TextStyle::Dim),
            (None, false, false) => ("not capable", TextStyle::Yellow),
            (None, false, true) => ("follower", TextStyle::Plain),
        };
        let details = candidate.metadata.iter().map(|(key, value)| format!("{key}={value}"));
        let details: Vec<_> = candidate.capabilities.iter().cloned().chain(details).collect();
        table.row(vec![
            (candidate.name.clone(), TextStyle::Bold),
            (status.to_owned(), style),
            (candidate.priority.to_string(), TextStyle::Plain),
            (lease.map_or_else(|| "–".to_owned(), |lease| lease.token.to_string()), TextStyle::Plain),
            heartbeat_of(Some(&candidate.session), now_ms),
            (format!("{} ago", ago(candidate.joined_at_ms, now_ms)), TextStyle::Plain),
            (candidate.session.id.short().to_owned(), TextStyle::Dim),
            (details.join(" "), TextStyle::Dim),
        ]);
    }
    table.render()
}

fn history(view: &ElectionView, terms: &[Term], now_ms: i64) -> String {
    let mut table = Table::new(&["token", "leader", "start reason", "started", "lasted", "end reason"]);
    for term in terms {
        let lasted = ago(term.started_at_ms, term.ended_at_ms.unwrap_or(now_ms));
        table.row(vec![
            (term.token.to_string(), TextStyle::Bold),
            (term.candidate_name.clone(), TextStyle::Plain),
            (term.start_reason.as_str().to_owned(), TextStyle::Plain),
            (format!("{} ago", ago(term.started_at_ms, now_ms)), TextStyle::Plain),
            (lasted, TextStyle::Plain),
            match &term.end_reason {
                Some(end) => (end.clone(), TextStyle::Dim),
                None if expired(view).any(|(lease, _)| lease.token == term.token) => {
                    ("expired".to_owned(), TextStyle::Red)
                }
                None => ("leading".to_owned(), TextStyle::Green),
            },
        ]);
    }
    table.render()
}
