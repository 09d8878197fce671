//! `tenure tasks claim`, and what a worker of shell and cron says about its claims.
//!
//! A command that has ended has no beat, so its claims last for a while (`--hold`) and hang on no session.

use std::time::Duration;

use serde_json::json;
use tenure::port::{
    Backend, ClaimRefusal, ClaimedTask, NewWorker, Outcome, Profile, QueueKey, Seat, Settled, Settlement,
    TaskId, TaskState,
};
use tenure::runtime::{Draw, System, host_name, now, wall_ms};
use tenure::{Claimed, Name, Tenure};

use crate::args::tasks::{ClaimArgs, TaskClaim};
use crate::args::values::millis;
use crate::args::{Format, Global};
use crate::commands::input;
use crate::commands::keeper;
use crate::commands::leader::whoami;
use crate::commands::signals::Signals;
use crate::exit::{self, Failure};
use crate::output::{self, Ink, Table, ago, clipped};
use crate::store;

/// How long a leader that was just elected may take until it can be reached.
const SETTLES: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(20);

pub(super) async fn run(global: &Global, args: ClaimArgs) -> Result<u8, Failure> {
    let queue = store::queue(global, &args.queue)?;
    let named = args.worker.is_some();
    let worker = Profile { name: args.worker.unwrap_or_else(whoami), kinds: args.kinds, tags: args.tags };
    let seat = Seat { worker, limit: args.limit, session: None, hold_ms: Some(millis(args.hold)) };
    tenure::claim::check_seats(std::slice::from_ref(&seat))
        .map_err(|error| Failure::usage(error.to_string()))?;
    let mut signals = Signals::ending()?;
    let tenure = store::visitor(global).await?;
    if named {
        register(tenure.store().as_ref(), &queue, &seat).await?;
    }
    let claimed = tokio::select! {
        claimed = claim(&tenure, &queue, &seat, args.wait) => claimed,
        signal = signals.next() => {
            tenure.close().await?;
            return Ok(128 + signal as u8);
        }
    };
    let told = match claimed {
        Ok(claimed) => tell(global, tenure.store().as_ref(), &queue, &seat, claimed).await,
        Err(failure) => Err(failure),
    };
    tenure.close().await?;
    told
}

async fn claim(tenure: &Tenure, queue: &QueueKey, seat: &Seat, wait: Duration) -> Result<Claimed, Failure> {
    keeper::is_there(tenure).await?;
    let settled = now() + SETTLES;
    loop {
        match tenure.claims().claim(queue, seat.clone(), wait).await? {
            // Who was just elected may not be reached yet, be it us.
            Claimed::NotNow if now() < settled => tokio::time::sleep(AGAIN).await,
            claimed => return Ok(claimed),
        }
    }
}

/// A worker with a name makes itself known, so that operators see it, and can approve it.
async fn register(store: &dyn Backend, queue: &QueueKey, seat: &Seat) -> Result<(), Failure> {
    let worker = NewWorker {
        name: seat.worker.name.clone(),
        kind: "shell".into(),
        tags: seat.worker.tags.clone(),
        kinds: seat.worker.kinds.clone(),
        queues: vec![queue.name.clone()],
        location: host_name(),
        capacity: seat.limit,
        session: None,
    };
    Ok(store.register(&queue.namespace, &worker).await?)
}

async fn tell(
    global: &Global,
    store: &dyn Backend,
    queue: &QueueKey,
    seat: &Seat,
    claimed: Claimed,
) -> Result<u8, Failure> {
    let nothing = match claimed {
        Claimed::Tasks(tasks) if !tasks.is_empty() => {
            show(global, &tasks);
            return Ok(0);
        }
        Claimed::Tasks(_) => format!("nothing to be had in {queue}"),
        Claimed::NotNow => format!(
            "not now: {queue} is exclusive, and its leader cannot be reached; ask again, or allow direct claims meanwhile: \
             tenure queue mode {queue} exclusive --fallback distributed"
        ),
        Claimed::Refused(ClaimRefusal::Paused) => paused(store, queue).await?,
        Claimed::Refused(ClaimRefusal::NotApproved(name)) => {
            register(store, queue, seat).await?;
            format!("{name} is not approved for {queue}; an operator says: tenure workers approve {name}")
        }
        Claimed::Refused(refusal) => format!("nothing was handed out of {queue}: {}", word(&refusal)),
    };
    output::note(global, Ink::Yellow, &nothing);
    Ok(exit::NOT_ACQUIRED)
}

async fn paused(store: &dyn Backend, queue: &QueueKey) -> Result<String, Failure> {
    let pause = store.queue(queue).await?.and_then(|view| view.paused);
    let by = pause.map(|pause| {
        let reason = if pause.reason.is_empty() { String::new() } else { format!(" ({})", pause.reason) };
        format!(" by {}{reason}", pause.by)
    });
    Ok(format!("{queue} is paused{}; it goes on with: tenure queue resume", by.unwrap_or_default()))
}

fn word(refusal: &ClaimRefusal) -> String {
    match refusal {
        ClaimRefusal::Mode(mode) => format!("its mode has just become {}; ask again", mode.as_str()),
        ClaimRefusal::NotLeader => "the leader is changing; ask again".into(),
        ClaimRefusal::Gone(session) => format!("the session {} has ended; ask again", session.short()),
        ClaimRefusal::Paused => "it is paused".into(),
        ClaimRefusal::NotApproved(name) => format!("{name} is not approved"),
    }
}

fn show(global: &Global, tasks: &[ClaimedTask]) {
    if global.output == Format::Json {
        tasks.iter().for_each(output::print_json);
        return;
    }
    let now_ms = wall_ms();
    let mut table =
        Table::new(&["task", "token", "kind", "attempt", "until", "payload"]).right(&["task", "attempt"]);
    for task in tasks {
        let until = task.deadline_ms.map_or_else(|| "–".to_owned(), |at| format!("in {}", ago(now_ms, at)));
        table.row(vec![
            (task.id.to_string(), Ink::Bold),
            (task.token.to_string(), Ink::Green),
            (task.kind.clone(), Ink::Plain),
            (format!("{}/{}", task.attempt, task.max_attempts), Ink::Plain),
            (until, Ink::Plain),
            (shown(task.payload.as_str()), Ink::Dim),
        ]);
    }
    output::print_text(&table.render());
}

pub(super) async fn complete(
    global: &Global,
    claim: &TaskClaim,
    result: Option<&str>,
) -> Result<u8, Failure> {
    let output = result.map(|text| input::json("--result", text)).transpose()?;
    let store = store::open(global).await?;
    settle(global, store.as_ref(), claim, Outcome::Complete(output)).await
}

pub(super) async fn fail(
    global: &Global,
    claim: &TaskClaim,
    error: String,
    retry: bool,
    after: Option<Duration>,
) -> Result<u8, Failure> {
    let store = store::open(global).await?;
    let after = match (retry, after) {
        (false, _) => Duration::ZERO,
        (true, Some(after)) => after,
        (true, None) => {
            let task = super::existing(store.as_ref(), &global.namespace.parse()?, TaskId(claim.id)).await?;
            tenure::claim::backoff(task.backoff, task.attempt, &mut Draw(&System))
        }
    };
    settle(global, store.as_ref(), claim, Outcome::Fail { error, retry, after }).await
}

pub(super) async fn release(global: &Global, claim: &TaskClaim) -> Result<u8, Failure> {
    let store = store::open(global).await?;
    settle(global, store.as_ref(), claim, Outcome::Release).await
}

pub(super) async fn extend(
    global: &Global,
    claim: &TaskClaim,
    hold: Duration,
    note: Option<String>,
) -> Result<u8, Failure> {
    let store = store::open(global).await?;
    settle(global, store.as_ref(), claim, Outcome::Progress { note, hold: Some(hold) }).await
}

async fn settle(
    global: &Global,
    store: &dyn Backend,
    claim: &TaskClaim,
    outcome: Outcome,
) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let (task, token) = (TaskId(claim.id), claim.token);
    let settlement = Settlement { namespace: namespace.clone(), task, token, outcome };
    let settled = store.settle(&[settlement]).await?.first().copied().unwrap_or(Settled::Lost);
    match settled {
        Settled::Now(state) => {
            if global.output == Format::Json {
                output::print_json(&json!({"task": task, "state": state}));
            } else {
                output::note(global, ink(state), &format!("task {task} is {}", state.as_str()));
            }
            Ok(0)
        }
        Settled::Lost => Err(lost(store, &namespace, claim).await?),
    }
}

fn ink(state: TaskState) -> Ink {
    match state {
        TaskState::Dead => Ink::Red,
        TaskState::Scheduled => Ink::Yellow,
        _ => Ink::Green,
    }
}

/// The claim is not there; where the task stands instead.
async fn lost(store: &dyn Backend, namespace: &Name, claim: &TaskClaim) -> Result<Failure, Failure> {
    let task = super::existing(store, namespace, TaskId(claim.id)).await?;
    let now = match (task.state, &task.worker) {
        (TaskState::Claimed, Some(worker)) => format!("{worker} has it under token {}", task.token),
        (state, _) => format!("it is {}, and its last token was {}", state.as_str(), task.token),
    };
    Ok(Failure::new(
        exit::LOST,
        format!(
            "the claim was lost: task {} is not claimed under token {}: {now}. Nothing was changed",
            claim.id, claim.token
        ),
    ))
}
/// The longest payload that a table shows.
const SHOWN: usize = 200;

/// A payload in a table: not all of a long one, whatever the table is printed to.
fn shown(payload: &str) -> String {
    match payload.len() > SHOWN {
        true => format!("{} ({} bytes; -o json prints them)", clipped(payload, SHOWN), payload.len()),
        false => payload.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A payload of 900 KB was once printed whole.
    #[test]
    fn a_table_shows_the_beginning_of_a_long_payload() {
        assert_eq!(shown(r#"{"to":"ada"}"#), r#"{"to":"ada"}"#);
        let long = shown(&"x".repeat(900_000));
        assert!(long.len() < 300 && long.ends_with("… (900000 bytes; -o json prints them)"), "{long}");
    }
}
