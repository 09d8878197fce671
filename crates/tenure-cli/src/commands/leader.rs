//! `tenure leader`: see and move leaders.

use std::io::IsTerminal;
use std::time::Duration;

use tenure::election::may_lead;
use tenure::port::{Ask, AskKind, Backend, CandidateView, ElectionView, Pause};
use tenure::runtime::{now, wall_ms};
use tenure::{ElectionKey, SessionId, leaders};

use super::signals::Signals;
use super::view;
use super::watch::Changes;
use crate::args::{Format, Global, LeaderArgs, LeaderCommand};
use crate::exit::{self, Failure};
use crate::output::{self, Ink};
use crate::store;

pub(crate) async fn run(global: &Global, args: LeaderArgs) -> Result<u8, Failure> {
    match args.command {
        LeaderCommand::List { watch, all_namespaces } => list(global, watch, all_namespaces).await,
        LeaderCommand::Show { name, terms } => show(global, &name, terms).await,
        LeaderCommand::Resign { name, patience } => resign(global, &name, patience.wait).await,
        LeaderCommand::Transfer { name, to, patience } => transfer(global, &name, &to, patience.wait).await,
        LeaderCommand::Pause { name, reason, patience } => pause(global, &name, reason, patience.wait).await,
        LeaderCommand::Resume { name } => resume(global, &name).await,
    }
}

async fn list(global: &Global, watch: bool, all: bool) -> Result<u8, Failure> {
    let namespace = global.namespace.parse()?;
    let store = store::open(global).await?;
    let mut signals = Signals::ending()?;
    let mut changes = Changes::new(store.as_ref());
    let mut shown = String::new();
    loop {
        let views = store.elections((!all).then_some(&namespace)).await;
        match views {
            Ok(views) if global.output == Format::Json => {
                let list: Vec<_> = views.iter().map(view::json_of).collect();
                output::print_json(&list);
            }
            Ok(views) => {
                let table = view::list(&views, all, wall_ms());
                if !watch {
                    output::print_text(&table);
                } else if table != shown {
                    redraw(&table);
                    shown = table;
                }
            }
            Err(error) if watch => {
                redraw(&format!("{shown}\n{}\n", output::paint(&error.message, Ink::Yellow)))
            }
            Err(error) => return Err(error.into()),
        }
        if !watch || !output::is_read() {
            return Ok(0);
        }
        tokio::select! {
            () = changes.next() => {}
            _ = signals.next() => return Ok(0),
        }
    }
}

/// Paints a screen anew without flicker; a pipe gets one table after the other.
fn redraw(text: &str) {
    if std::io::stdout().is_terminal() {
        // Home, each line cleared to its end, then everything below.
        let lines: String = text.lines().map(|line| format!("{line}\x1b[K\n")).collect();
        output::print_text(&format!("\x1b[H{lines}\x1b[J"));
    } else {
        output::print_line(text);
    }
}

async fn show(global: &Global, name: &str, terms: u32) -> Result<u8, Failure> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let election = existing(store.as_ref(), &key).await?;
    let terms = store.history(&key, terms).await?;
    if global.output == Format::Json {
        let mut value = serde_json::to_value(view::json_of(&election)).unwrap_or_default();
        value["terms"] = serde_json::to_value(&terms).unwrap_or_default();
        output::print_json(&value);
    } else {
        output::print_text(&view::show(&election, &terms, wall_ms()));
    }
    Ok(0)
}

async fn resign(global: &Global, name: &str, wait: Duration) -> Result<u8, Failure> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let election = existing(store.as_ref(), &key).await?;
    let asked = ask_all(store.as_ref(), &election, &AskKind::Resign).await?;
    let done = |now: &ElectionView| {
        now.leases
            .iter()
            .all(|lease| asked.iter().all(|ask| ask.slot != lease.slot || ask.token < lease.token))
    };
    until(global, store.as_ref(), &key, wait, "the leader has not resigned", done).await
}

async fn transfer(global: &Global, name: &str, to: &str, wait: Duration) -> Result<u8, Failure> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let election = existing(store.as_ref(), &key).await?;
    let candidate = candidate(&election, to)?;
    let target = candidate.session.id.clone();
    if election.holders().any(|(_, holder)| holder.id == target) {
        output::note(global, Ink::Green, &format!("{to} leads {name} already"));
        return Ok(0);
    }
    // Of several holders, the least makes way.
    let rank =
        |session: &SessionId| election.candidate(session).map_or(i32::MIN, |candidate| candidate.priority);
    let holder = election.holders().min_by_key(|(_, holder)| rank(&holder.id));
    let Some((lease, _)) = holder else {
        return Err(Failure::usage(format!(
            "nobody leads {name}, so there is nothing to transfer; it elects by itself"
        )));
    };
    let ask = Ask {
        election: key.clone(),
        slot: lease.slot,
        token: lease.token,
        kind: AskKind::Transfer(target.clone()),
        by: operator(),
    };
    store.ask(&ask).await?;
    let done = |now: &ElectionView| now.holders().any(|(_, holder)| holder.id == target);
    until(global, store.as_ref(), &key, wait, "the leadership has not moved", done).await
}

async fn pause(global: &Global, name: &str, reason: String, wait: Duration) -> Result<u8, Failure> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let pause = Pause { by: operator(), reason, at_ms: wall_ms() };
    if !store.set_paused(&key, Some(&pause)).await? {
        output::note(global, Ink::Yellow, &format!("{name} was paused already"));
        return Ok(0);
    }
    until(global, store.as_ref(), &key, wait, "the leader has not stopped", |now| {
        now.holders().next().is_none()
    })
    .await
}

async fn resume(global: &Global, name: &str) -> Result<u8, Failure> {
    let key = store::key(global, name)?;
    let store = store::open(global).await?;
    let was = store.set_paused(&key, None).await?;
    let text = if was { "resumed" } else { "was not paused" };
    output::note(global, if was { Ink::Green } else { Ink::Yellow }, &format!("{name} {text}"));
    Ok(0)
}

async fn existing(store: &dyn Backend, key: &ElectionKey) -> Result<ElectionView, Failure> {
    store.election(key).await?.ok_or_else(|| {
        Failure::usage(format!("there is no election {key}; `tenure leader list` shows those that there are"))
    })
}

/// The candidate that an operator means: by id, or by the beginning of its session.
fn candidate<'v>(election: &'v ElectionView, to: &str) -> Result<&'v CandidateView, Failure> {
    let found: Vec<_> = election
        .candidates
        .iter()
        .filter(|candidate| {
            candidate.id == to || (to.len() >= 4 && candidate.session.id.as_str().starts_with(to))
        })
        .collect();
    let names = |candidates: &[&CandidateView]| {
        let each =
            candidates.iter().map(|candidate| format!("{} ({})", candidate.id, candidate.session.id.short()));
        each.collect::<Vec<_>>().join(", ")
    };
    match found.as_slice() {
        [candidate] if may_lead(candidate, &election.requires) => Ok(candidate),
        [candidate] => {
            let why = if candidate.observer { "it is an observer" } else { "it lacks a required capability" };
            Err(Failure::usage(format!("{to} may not lead {}: {why}", election.key)))
        }
        [] if election.candidates.is_empty() => {
            Err(Failure::usage(format!("nobody stands for {}, so {to} can not lead it", election.key)))
        }
        [] => {
            let all: Vec<_> = election.candidates.iter().collect();
            Err(Failure::usage(format!(
                "{to} does not stand for {}; these do: {}",
                election.key,
                names(&all)
            )))
        }
        several => {
            Err(Failure::usage(format!("{to} is ambiguous; name one by its session: {}", names(several))))
        }
    }
}

async fn ask_all(store: &dyn Backend, election: &ElectionView, kind: &AskKind) -> Result<Vec<Ask>, Failure> {
    let mut asked = Vec::new();
    for (lease, _) in election.holders() {
        let ask = Ask {
            election: election.key.clone(),
            slot: lease.slot,
            token: lease.token,
            kind: kind.clone(),
            by: operator(),
        };
        if store.ask(&ask).await? {
            asked.push(ask);
        }
    }
    if asked.is_empty() {
        return Err(Failure::usage(format!("nobody leads {}", election.key)));
    }
    Ok(asked)
}

/// Waits until what was asked has happened, and shows it.
async fn until(
    global: &Global,
    store: &dyn Backend,
    key: &ElectionKey,
    wait: Duration,
    otherwise: &str,
    done: impl Fn(&ElectionView) -> bool,
) -> Result<u8, Failure> {
    let deadline = now() + wait;
    let mut changes = Changes::new(store);
    loop {
        let election = existing(store, key).await?;
        if done(&election) {
            if global.output == Format::Json {
                output::print_json(&view::json_of(&election));
            } else {
                let led: Vec<_> = leaders(&election)
                    .iter()
                    .map(|leader| format!("{} leads {key} under token {}", leader.id, leader.token))
                    .collect();
                let text = if led.is_empty() { format!("nobody leads {key}") } else { led.join(", ") };
                output::note(global, Ink::Green, &text);
            }
            return Ok(0);
        }
        if now() >= deadline {
            let message = format!(
                "{otherwise} within {wait:?}; it was asked, and `tenure leader show {key}` will tell"
            );
            return Err(Failure::new(exit::NOT_ACQUIRED, message));
        }
        tokio::select! {
            () = changes.next() => {}
            () = tenure::runtime::sleep_until(deadline) => {}
        }
    }
}

/// Who asks, for the others: the user and the host.
pub(super) fn operator() -> String {
    let user =
        std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "operator".into());
    let host = tenure::runtime::host_name();
    format!("{user}@{host}")
}
