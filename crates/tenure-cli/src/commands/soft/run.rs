//! `tenure run --soft`: runs a command while this process is a soft leader.
//!
//! As with `tenure run`, the watchdog stops the command before the deadline. Members on the other side of a network
//! split may have a leader of their own at the same time.

use std::ffi::OsString;

use tenure::runtime::{now, sleep_until};
use tenure::store::gossip::{Gossip, SoftElector, SoftLeadership};

use super::{candidate, join, others, reason};
use crate::args::{GlobalArgs, RunArgs};
use crate::child::{Child, ChildExit, ChildSpec, SpawnError, Streams};
use crate::commands::environment::withheld;
use crate::commands::run::{TermResult, ending, stop_after_signal};
use crate::commands::signals::Signals;
use crate::error::{self, CliError};
use crate::output::{self, TextStyle};

pub(crate) async fn run(global: &GlobalArgs, args: &RunArgs) -> Result<u8, CliError> {
    let mut signals = Signals::all()?;
    let gossip = join(global, &args.election, &args.candidate).await?;
    let elector = candidate(&gossip, global, &args.election, &args.candidate).start().await?;
    let code = campaign(global, args, &gossip, &elector, &mut signals).await;
    let leaving = async {
        elector.stop().await;
        gossip.leave().await;
    };
    tokio::select! {
        () = leaving => {}
        // A second signal: exit at once; the other members detect the failure.
        _ = ending(&mut signals) => {}
    }
    code
}

async fn campaign(
    global: &GlobalArgs,
    args: &RunArgs,
    gossip: &Gossip,
    elector: &SoftElector,
    signals: &mut Signals,
) -> Result<u8, CliError> {
    let mut first = true;
    loop {
        let leadership = match wait_to_lead(global, args, gossip, elector, signals, first).await? {
            Ok(leadership) => leadership,
            Err(code) => return Ok(code),
        };
        first = false;
        let text = format!(
            "{} is soft leader of {}: each side of a network split may have another leader",
            gossip.name(),
            args.election
        );
        output::note(global, TextStyle::Green, &text);
        match run_term(args, gossip, leadership, signals).await? {
            TermResult::Done(code) => return Ok(code),
            TermResult::Gone(why) => {
                output::note(
                    global,
                    TextStyle::Yellow,
                    &format!("lost leadership of {}: {why}", args.election),
                );
                if let Some(command) = &args.on_lost {
                    crate::commands::run::on_lost(command, args, None, signals).await;
                }
                if args.once {
                    return Ok(error::LOST);
                }
            }
        }
    }
}

/// Waits until this candidate leads. An inner `Err` is the exit code with which the command ends instead.
async fn wait_to_lead(
    global: &GlobalArgs,
    args: &RunArgs,
    gossip: &Gossip,
    elector: &SoftElector,
    signals: &mut Signals,
    first: bool,
) -> Result<Result<SoftLeadership, u8>, CliError> {
    let pace = gossip.timing();
    let limit = match (first, args.no_wait, args.wait) {
        // A leader becomes known within the hold-down time.
        (true, true, _) => Some(pace.silence_limit() + pace.hold_down() + pace.settle() * 2),
        (true, false, wait) => wait,
        (false, _, _) => None,
    };
    let deadline = limit.map(|limit| now() + limit);
    let timed_out = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let other_leader = async {
        loop {
            if let Some(leader) = others(gossip, elector).into_iter().next() {
                if first && args.no_wait {
                    return;
                }
                output::note(global, TextStyle::Dim, &format!("{leader} leads {}; waiting", args.election));
                std::future::pending::<()>().await;
            }
            sleep_until(now() + pace.round()).await;
        }
    };
    let not_acquired = || {
        let why = if others(gossip, elector).is_empty() {
            "there is no leader yet"
        } else {
            "another candidate leads"
        };
        output::note(global, TextStyle::Yellow, &format!("not acquired: {}: {why}", args.election));
        Ok(Err(error::NOT_ACQUIRED))
    };
    tokio::select! {
        leadership = elector.elected() => Ok(Ok(leadership?)),
        () = timed_out => not_acquired(),
        () = other_leader => not_acquired(),
        signal = ending(signals) => Ok(Err(if first { 128 + signal as u8 } else { error::LOST })),
    }
}

/// Runs one term: the command runs until it exits, a signal arrives, or leadership ends.
async fn run_term(
    args: &RunArgs,
    gossip: &Gossip,
    leadership: SoftLeadership,
    signals: &mut Signals,
) -> Result<TermResult, CliError> {
    let spec = ChildSpec {
        argv: args.command.clone(),
        env: environment(args, gossip, &leadership),
        withheld: withheld(&args.pass_env),
        keep: Vec::new(),
        streams: Streams::default(),
        deadline_ns: leadership.trusted_until().as_nanos(),
        kill_after: args.kill_after,
        orphan_cleanup: Vec::new(),
    };
    let child = match Child::spawn(spec).await {
        Ok(child) => child,
        Err(SpawnError::TrustEnded) => {
            return Ok(TermResult::Gone("the deadline passed before the command started".into()));
        }
        Err(error) => return Err(CliError::new(error.exit_code() as u8, error.to_string())),
    };
    let mut tick = tokio::time::interval(gossip.timing().round());
    let ending = loop {
        tokio::select! {
            ending = child.wait() => break ending,
            _ = tick.tick() => child.extend(leadership.trusted_until().as_nanos()),
            over = leadership.lost() => {
                child.end().await;
                return Ok(TermResult::Gone(reason(over).to_owned()));
            }
            signal = signals.next() => {
                child.signal(signal);
                if matches!(signal, libc::SIGTERM | libc::SIGINT) {
                    break stop_after_signal(&child, signal, args.kill_after, signals).await;
                }
            }
        }
    };
    Ok(match ending {
        ChildExit::EndedForTrust => TermResult::Gone("no message of other members arrived in time".into()),
        ending => TermResult::Done(ending.exit_code() as u8),
    })
}

/// Variables of the command. A soft leader has no token.
fn environment(args: &RunArgs, gossip: &Gossip, leadership: &SoftLeadership) -> Vec<(OsString, OsString)> {
    [
        ("TENURE_ELECTION", args.election.clone()),
        ("TENURE_NAMESPACE", leadership.election().namespace.to_string()),
        ("TENURE_NAME", gossip.name().to_owned()),
        ("TENURE_SOFT", "1".to_owned()),
    ]
    .into_iter()
    .map(|(name, value)| (name.into(), value.into()))
    .collect()
}
