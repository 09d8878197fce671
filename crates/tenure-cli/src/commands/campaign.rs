//! `tenure campaign`: a candidate without a command.

use std::time::Duration;

use futures_util::StreamExt;
use serde_json::json;
use tenure::runtime::wall_ms;
use tenure::{ElectionChange, leaders};

use super::leadership::{RunCandidate, RunLeadership};
use super::signals::Signals;
use crate::args::{CampaignArgs, GlobalArgs, OutputFormat};
use crate::error::CliError;
use crate::output::{self, TextStyle, paint};
use crate::store;

/// Grace period of a candidate without a command, which has nothing to stop.
const GRACE: Duration = Duration::from_secs(1);

pub(crate) async fn run(global: &GlobalArgs, args: CampaignArgs) -> Result<u8, CliError> {
    if args.soft {
        return super::soft::campaign::run(global, &args).await;
    }
    let mut signals = Signals::ending()?;
    if args.candidate.second_store.as_ref().is_some_and(|url| !url.is_empty()) {
        return run_in_both_stores(global, args, &mut signals).await;
    }
    let tenure = store::session(global, &args.election, &args.candidate).await?;
    let elector = store::candidate(&tenure, global, &args.election, &args.candidate)
        .observer(args.observer)
        .start()
        .await?;
    let mut changes = elector.watch();
    // Report the state from before the watch started.
    if let Some(leadership) = elector.leadership() {
        print_change(
            global,
            &args.election,
            &ElectionChange::Elected { token: leadership.token(), slot: leadership.slot() },
        );
    } else if let Some(view) = elector.view() {
        print_change(global, &args.election, &ElectionChange::Updated(view));
    }
    let limit = async {
        match args.duration {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(limit);
    while output::stdout_open() {
        tokio::select! {
            change = changes.next() => match change {
                Some(change) => print_change(global, &args.election, &change),
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
        // A second signal: exit at once.
        _ = signals.next() => {}
    }
    Ok(0)
}

/// Leads only while it leads in both stores, and prints when that starts and ends.
async fn run_in_both_stores(
    global: &GlobalArgs,
    args: CampaignArgs,
    signals: &mut Signals,
) -> Result<u8, CliError> {
    if args.observer {
        return Err(CliError::usage("--observer never leads, so it cannot be used with --second-store"));
    }
    let candidate = RunCandidate::stand(global, &args.election, &args.candidate, GRACE).await?;
    let limit = async {
        match args.duration {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    let leading = async {
        while output::stdout_open() {
            let held = candidate.elected().await?;
            print_leadership(global, &args.election, "leading", TextStyle::Green, &held);
            tokio::select! {
                _ = held.lost() => print_leadership(global, &args.election, "lost", TextStyle::Red, &held),
                _ = held.leader_request() => print_leadership(global, &args.election, "released", TextStyle::Dim, &held),
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
        // A second signal: exit at once.
        _ = signals.next() => {}
    }
    Ok(0)
}

fn print_leadership(global: &GlobalArgs, name: &str, word: &str, style: TextStyle, held: &RunLeadership) {
    if global.output == OutputFormat::Json {
        let second_token = held.second().map(|second| second.token());
        let token = held.first().token();
        let line = json!({"election": name, "change": word, "observed_at_ms": wall_ms(), "token": token, "second_token": second_token});
        return output::print_json(&line);
    }
    output::print_line(&format!("{} {name} under {}", paint(&format!("{word:>9}"), style), held.tokens()));
}

fn print_change(global: &GlobalArgs, name: &str, change: &ElectionChange) {
    let (word, style, detail) = match change {
        ElectionChange::Elected { token, .. } => {
            ("leading", TextStyle::Green, json!({"token": token, "token_text": token.to_string()}))
        }
        ElectionChange::LeaderRequest(kind) => {
            ("requested", TextStyle::Yellow, json!({"request": kind.as_str()}))
        }
        ElectionChange::Lost { token, why } => {
            ("lost", TextStyle::Red, json!({"token": token, "reason": why.as_str()}))
        }
        ElectionChange::Released { token } => ("released", TextStyle::Dim, json!({"token": token})),
        ElectionChange::Updated(view) => {
            let leaders: Vec<_> = leaders(view).into_iter().map(|leader| leader.name).collect();
            let candidates: Vec<_> = view.candidates.iter().map(|candidate| &candidate.name).collect();
            let detail =
                json!({"leaders": leaders, "candidates": candidates, "paused": view.paused.is_some()});
            ("changed", TextStyle::Plain, detail)
        }
        _ => return,
    };
    if global.output == OutputFormat::Json {
        let mut line = json!({"election": name, "change": word, "observed_at_ms": wall_ms()});
        if let (Some(line), serde_json::Value::Object(detail)) = (line.as_object_mut(), detail) {
            line.extend(detail);
        }
        output::print_json(&line);
        return;
    }
    let words: Vec<String> = match change {
        ElectionChange::Elected { token, .. } => vec![format!("under token {token}")],
        ElectionChange::LeaderRequest(kind) => vec![format!("leader to {}", kind.as_str())],
        ElectionChange::Lost { why, .. } => vec![why.as_str().to_owned()],
        ElectionChange::Released { token } => vec![format!("token {token}")],
        ElectionChange::Updated(view) => {
            let leaders: Vec<_> = leaders(view)
                .iter()
                .map(|leader| format!("{} leads under token {}", leader.name, leader.token))
                .collect();
            let led = if leaders.is_empty() { vec!["no leader".to_owned()] } else { leaders };
            let paused = view.paused.as_ref().map(|pause| format!("paused by {}", pause.paused_by));
            led.into_iter()
                .chain(paused)
                .chain([output::counted(view.candidates.len(), "candidate")])
                .collect()
        }
        _ => Vec::new(),
    };
    output::print_line(&format!("{} {name} {}", paint(&format!("{word:>9}"), style), words.join(", ")));
}
