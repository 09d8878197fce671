//! Elections as tables and as JSON.

use serde::Serialize;
use serde_json::{Value, json};
use tenure::election::by_rank;
use tenure::port::{ElectionView, LeaseView, SessionView, Term};
use tenure::{Leader, leaders};

use crate::output::{Ink, Table, ago, paint};

/// An election for scripts: what the store has, and who leads, spelled out.
#[derive(Serialize)]
pub(crate) struct Election<'a> {
    leader: Option<String>,
    leaders: Vec<Value>,
    /// Those that the store has as holders, and whose processes have died.
    expired: Vec<Value>,
    #[serde(flatten)]
    view: &'a ElectionView,
}

pub(crate) fn json_of(view: &ElectionView) -> Election<'_> {
    let leaders = leaders(view);
    Election {
        leader: leaders.first().map(|leader| leader.id.clone()),
        leaders: leaders
            .iter()
            .map(|leader| json!({"id": leader.id, "slot": leader.slot, "token": leader.token, "term": leader.token.to_string()}))
            .collect(),
        expired: expired(view)
            .map(|(lease, holder)| json!({"id": holder_id(view, holder), "slot": lease.slot, "token": lease.token}))
            .collect(),
        view,
    }
}

/// Leases whose holder has died, and which nobody has taken over.
fn expired(view: &ElectionView) -> impl Iterator<Item = (&LeaseView, &SessionView)> {
    view.leases.iter().filter_map(|lease| Some((lease, lease.holder.as_ref().filter(|holder| !holder.live)?)))
}

fn holder_id(view: &ElectionView, holder: &SessionView) -> String {
    view.candidate(&holder.id).map_or_else(|| holder.name.clone(), |candidate| candidate.id.clone())
}

pub(crate) fn list(views: &[ElectionView], namespaces: bool, now_ms: i64) -> String {
    let mut header = vec!["election", "leader", "token", "since", "beat", "via", "standing", "state"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header);
    for view in views {
        for mut row in rows_of(view, now_ms) {
            if namespaces {
                row.insert(0, (view.key.namespace.to_string(), Ink::Dim));
            }
            table.row(row);
        }
    }
    table.render()
}

fn rows_of(view: &ElectionView, now_ms: i64) -> Vec<Vec<(String, Ink)>> {
    let standing = format!("{}", view.candidates.iter().filter(|c| c.session.live).count());
    let state = match &view.paused {
        Some(pause) => (format!("paused by {}", pause.by), Ink::Yellow),
        None if leaders(view).is_empty() && expired(view).next().is_some() => {
            ("expired".to_owned(), Ink::Red)
        }
        // What `tenure run --once-per` writes down.
        None if view.candidates.is_empty() && view.key.name.as_str().ends_with(".runs") => {
            ("record of runs".to_owned(), Ink::Dim)
        }
        None if leaders(view).is_empty() => ("nobody leads".to_owned(), Ink::Red),
        None => ("led".to_owned(), Ink::Green),
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
            (name, Ink::Bold),
            match (leader, &lease.holder) {
                (Some(leader), _) => (leader.id, Ink::Green),
                (None, Some(gone)) => (holder_id(view, gone), Ink::Dim),
                (None, None) => ("–".to_owned(), Ink::Dim),
            },
            (lease.token.to_string(), Ink::Plain),
            (
                holder.and(lease.granted_at_ms).map_or_else(|| "–".to_owned(), |at| ago(at, now_ms)),
                Ink::Plain,
            ),
            beat_of(holder, now_ms),
            (holder.map_or("–", |_| lease.via.as_str()).to_owned(), Ink::Dim),
            (standing.clone(), Ink::Plain),
            state.clone(),
        ]
    });
    rows.collect()
}

fn beat_of(session: Option<&SessionView>, now_ms: i64) -> (String, Ink) {
    let Some(session) = session else { return ("–".to_owned(), Ink::Dim) };
    let age = now_ms - session.beat_at_ms;
    let late = age > i64::try_from(session.lease_ms / 2).unwrap_or(i64::MAX);
    (format!("{} ago", ago(session.beat_at_ms, now_ms)), if late { Ink::Yellow } else { Ink::Plain })
}

pub(crate) fn show(view: &ElectionView, terms: &[Term], now_ms: i64) -> String {
    let mut text = String::new();
    let led: Vec<String> = leaders(view).iter().map(|leader| led_by(leader, view)).collect();
    let headline = match (&view.paused, led.is_empty()) {
        (Some(pause), _) => {
            let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
            paint(&format!("paused by {} {} ago{reason}", pause.by, ago(pause.at_ms, now_ms)), Ink::Yellow)
        }
        (None, true) => match expired(view).next() {
            Some((lease, gone)) => {
                let text =
                    format!("nobody leads: {} died under token {}", holder_id(view, gone), lease.token);
                paint(&text, Ink::Red)
            }
            None => paint("nobody leads", Ink::Red),
        },
        (None, false) => paint(&led.join(", "), Ink::Green),
    };
    text.push_str(&format!("{}  {headline}\n", paint(&view.key.to_string(), Ink::Bold)));
    if !view.requires.is_empty() {
        text.push_str(&format!("a leader must be able to: {}\n", view.requires.join(", ")));
    }
    text.push('\n');
    text.push_str(&candidates(view, now_ms));
    if !terms.is_empty() {
        text.push('\n');
        text.push_str(&history(view, terms, now_ms));
    }
    text
}

fn led_by(leader: &Leader, view: &ElectionView) -> String {
    let place = if view.slots > 1 { format!(" in slot {}", leader.slot) } else { String::new() };
    format!("{} leads under token {}{place}", leader.id, leader.token)
}

fn candidates(view: &ElectionView, now_ms: i64) -> String {
    if view.candidates.is_empty() {
        return "nobody stands\n".to_owned();
    }
    let mut candidates: Vec<_> = view.candidates.iter().collect();
    candidates.sort_by(|a, b| by_rank(a, b));
    let mut table =
        Table::new(&["candidate", "status", "priority", "term", "beat", "joined", "session", "about"]);
    for candidate in candidates {
        let held =
            view.holders().find(|(_, holder)| holder.id == candidate.session.id).map(|(lease, _)| lease);
        let capable = tenure::election::may_lead(candidate, &view.requires);
        let (status, ink) = match (held, candidate.observer, capable) {
            (Some(_), _, _) => ("leader", Ink::Green),
            (None, true, _) => ("observer", Ink::Dim),
            (None, false, false) => ("incapable", Ink::Yellow),
            (None, false, true) => ("follower", Ink::Plain),
        };
        let about = candidate.metadata.iter().map(|(key, value)| format!("{key}={value}"));
        let about: Vec<_> = candidate.capabilities.iter().cloned().chain(about).collect();
        table.row(vec![
            (candidate.id.clone(), Ink::Bold),
            (status.to_owned(), ink),
            (candidate.priority.to_string(), Ink::Plain),
            (held.map_or_else(|| "–".to_owned(), |lease| lease.token.to_string()), Ink::Plain),
            beat_of(Some(&candidate.session), now_ms),
            (format!("{} ago", ago(candidate.joined_at_ms, now_ms)), Ink::Plain),
            (candidate.session.id.short().to_owned(), Ink::Dim),
            (about.join(" "), Ink::Dim),
        ]);
    }
    table.render()
}

fn history(view: &ElectionView, terms: &[Term], now_ms: i64) -> String {
    let mut table = Table::new(&["term", "leader", "came by", "began", "lasted", "ended"]);
    for term in terms {
        let lasted = ago(term.began_at_ms, term.ended_at_ms.unwrap_or(now_ms));
        table.row(vec![
            (term.token.to_string(), Ink::Bold),
            (term.id.clone(), Ink::Plain),
            (term.via.as_str().to_owned(), Ink::Plain),
            (format!("{} ago", ago(term.began_at_ms, now_ms)), Ink::Plain),
            (lasted, Ink::Plain),
            match &term.end {
                Some(end) => (end.clone(), Ink::Dim),
                None if expired(view).any(|(lease, _)| lease.token == term.token) => {
                    ("expired".to_owned(), Ink::Red)
                }
                None => ("leads".to_owned(), Ink::Green),
            },
        ]);
    }
    table.render()
}
