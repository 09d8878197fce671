//! `tenure elect`: a candidate without a command.

use std::time::Duration;

use futures_util::StreamExt;
use serde_json::json;
use tenure::runtime::wall_ms;
use tenure::{Change, leaders};

use super::held::{Candidate, Held};
use super::signals::Signals;
use crate::args::{ElectArgs, Format, Global};
use crate::exit::Failure;
use crate::output::{self, Ink, paint};
use crate::store;

/// How long a candidate without a command may take to end: it has nothing to end.
const GRACE: Duration = Duration::from_secs(1);

pub(crate) async fn run(global: &Global, args: ElectArgs) -> Result<u8, Failure> {
    if args.soft {
        return super::soft::elect::run(global, &args).await;
    }
    let mut signals = Signals::ending()?;
    if args.standing.and_store.as_ref().is_some_and(|url| !url.is_empty()) {
        return in_both(global, args, &mut signals).await;
    }
    let tenure = store::session(global, &args.name, &args.standing).await?;
    let elector =
        store::candidate(&tenure, global, &args.name, &args.standing).observer(args.observer).start().await?;
    let mut changes = elector.watch();
    // What happened before we watched.
    if let Some(leadership) = elector.leadership() {
        say(global, &args.name, &Change::Elected { token: leadership.token(), slot: leadership.slot() });
    } else if let Some(view) = elector.view() {
        say(global, &args.name, &Change::Seen(view));
    }
    let limit = async {
        match args.for_time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(limit);
    while output::is_read() {
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => say(global, &args.name, &change),
                None => break,
            },
            _ = signals.next() => break,
            () = &mut limit => break,
            error = tenure.store().failed() => return Err(error.into()),
        }
    }
    drop(elector);
    tokio::select! {
        closed = tenure.close() => closed?,
        // Told to end once more.
        _ = signals.next() => {}
    }
    Ok(0)
}

/// Leads only while it leads in both stores; says when that begins and ends.
async fn in_both(global: &Global, args: ElectArgs, signals: &mut Signals) -> Result<u8, Failure> {
    if args.observer {
        return Err(Failure::usage("an observer never leads, and so has nothing to do with --and-store"));
    }
    let candidate = Candidate::stand(global, &args.name, &args.standing, GRACE).await?;
    let limit = async {
        match args.for_time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    let leading = async {
        while output::is_read() {
            let held = candidate.elected().await?;
            tell(global, &args.name, "leading", Ink::Green, &held);
            tokio::select! {
                _ = held.lost() => tell(global, &args.name, "lost", Ink::Red, &held),
                _ = held.asked() => tell(global, &args.name, "released", Ink::Dim, &held),
            }
            held.resign().await?;
        }
        Ok::<(), tenure::Error>(())
    };
    tokio::select! {
        ended = leading => ended?,
        _ = signals.next() => {}
        () = limit => {}
        failure = candidate.store_failed() => return Err(failure),
    }
    tokio::select! {
        closed = candidate.close() => closed?,
        // Told to end once more.
        _ = signals.next() => {}
    }
    Ok(0)
}

fn tell(global: &Global, name: &str, word: &str, ink: Ink, held: &Held) {
    if global.output == Format::Json {
        let and = held.second().map(|second| second.token());
        let token = held.first().token();
        let line =
            json!({"election": name, "change": word, "at_ms": wall_ms(), "token": token, "and_token": and});
        return output::print_json(&line);
    }
    output::print_line(&format!("{} {name} under {}", paint(&format!("{word:>8}"), ink), held.tokens()));
}

fn say(global: &Global, name: &str, change: &Change) {
    let (word, ink, detail) = match change {
        Change::Elected { token, .. } => {
            ("leading", Ink::Green, json!({"token": token, "term": token.to_string()}))
        }
        Change::Asked(kind) => ("asked", Ink::Yellow, json!({"to": kind.word()})),
        Change::Lost { token, why } => ("lost", Ink::Red, json!({"token": token, "why": why.as_str()})),
        Change::Released { token } => ("released", Ink::Dim, json!({"token": token})),
        Change::Seen(view) => {
            let leaders: Vec<_> = leaders(view).into_iter().map(|leader| leader.id).collect();
            let candidates: Vec<_> = view.candidates.iter().map(|candidate| &candidate.id).collect();
            let detail =
                json!({"leaders": leaders, "candidates": candidates, "paused": view.paused.is_some()});
            ("seen", Ink::Plain, detail)
        }
        _ => return,
    };
    if global.output == Format::Json {
        let mut line = json!({"election": name, "change": word, "at_ms": wall_ms()});
        if let (Some(line), serde_json::Value::Object(detail)) = (line.as_object_mut(), detail) {
            line.extend(detail);
        }
        output::print_json(&line);
        return;
    }
    let words: Vec<String> = match change {
        Change::Elected { token, .. } => vec![format!("under token {token}")],
        Change::Asked(kind) => vec![format!("to {}", kind.word())],
        Change::Lost { why, .. } => vec![why.as_str().to_owned()],
        Change::Released { token } => vec![format!("token {token}")],
        Change::Seen(view) => {
            let leaders: Vec<_> = leaders(view)
                .iter()
                .map(|leader| format!("{} leads under token {}", leader.id, leader.token))
                .collect();
            let led = if leaders.is_empty() { vec!["nobody leads".to_owned()] } else { leaders };
            let paused = view.paused.as_ref().map(|pause| format!("paused by {}", pause.by));
            led.into_iter().chain(paused).chain([format!("{} standing", view.candidates.len())]).collect()
        }
        _ => Vec::new(),
    };
    output::print_line(&format!("{} {name} {}", paint(&format!("{word:>8}"), ink), words.join(", ")));
}
