//! `tenure run --soft`: a command that runs on one machine of many, most of the time.
//!
//! As with `tenure run`, the command is ended before trust runs out, by the watchdog. What differs is what trust means: others may
//! lead too, where they do not hear us.

use std::ffi::OsString;

use tenure::backend::gossip::{Gossip, SoftElector, SoftLeadership};
use tenure::runtime::{now, sleep_until};

use super::{candidate, join, others, reason};
use crate::args::{Global, RunArgs};
use crate::child::{Child, Ending, SpawnError, Spec, Streams};
use crate::commands::environment::withheld;
use crate::commands::run::{Office, end_politely, ending};
use crate::commands::signals::Signals;
use crate::exit::{self, Failure};
use crate::output::{self, Ink};

pub(crate) async fn run(global: &Global, args: &RunArgs) -> Result<u8, Failure> {
    let mut signals = Signals::all()?;
    let gossip = join(global, &args.name, &args.standing).await?;
    let elector = candidate(&gossip, global, &args.name, &args.standing).start().await?;
    let code = campaign(global, args, &gossip, &elector, &mut signals).await;
    let leaving = async {
        elector.stop().await;
        gossip.leave().await;
    };
    tokio::select! {
        () = leaving => {}
        // Told to end once more: the others wait until we count as silent.
        _ = ending(&mut signals) => {}
    }
    code
}

async fn campaign(
    global: &Global,
    args: &RunArgs,
    gossip: &Gossip,
    elector: &SoftElector,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    let mut first = true;
    loop {
        let leadership = match wait_to_lead(global, args, gossip, elector, signals, first).await? {
            Ok(leadership) => leadership,
            Err(code) => return Ok(code),
        };
        first = false;
        let told = format!(
            "{} leads {} softly: others may too, where they do not hear it",
            gossip.name(),
            args.name
        );
        output::note(global, Ink::Green, &told);
        match office(args, gossip, leadership, signals).await? {
            Office::Done(code) => return Ok(code),
            Office::Gone(why) => {
                output::note(global, Ink::Yellow, &format!("leads {} no longer: {why}", args.name));
                if let Some(command) = &args.on_lost {
                    crate::commands::run::on_lost(command, args, None, signals).await;
                }
                if args.once {
                    return Ok(exit::LOST);
                }
            }
        }
    }
}

/// Waits until we lead. `Err`: the code to leave with instead.
async fn wait_to_lead(
    global: &Global,
    args: &RunArgs,
    gossip: &Gossip,
    elector: &SoftElector,
    signals: &mut Signals,
    first: bool,
) -> Result<Result<SoftLeadership, u8>, Failure> {
    let pace = gossip.pace();
    let limit = match (first, args.no_wait, args.wait) {
        // Whoever leads is heard of within our own hold-down.
        (true, true, _) => Some(pace.patience() + pace.hold_down() + pace.settle() * 2),
        (true, false, wait) => wait,
        (false, _, _) => None,
    };
    let deadline = limit.map(|limit| now() + limit);
    let too_late = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let somebody_else = async {
        loop {
            if let Some(leader) = others(gossip, elector).into_iter().next() {
                if first && args.no_wait {
                    return;
                }
                output::note(global, Ink::Dim, &format!("{leader} leads {}; waiting", args.name));
                std::future::pending::<()>().await;
            }
            sleep_until(now() + pace.round()).await;
        }
    };
    let not_acquired = || {
        let why = if others(gossip, elector).is_empty() { "nobody leads yet" } else { "somebody else leads" };
        output::note(global, Ink::Yellow, &format!("{} was not acquired: {why}", args.name));
        Ok(Err(exit::NOT_ACQUIRED))
    };
    tokio::select! {
        leadership = elector.elected() => Ok(Ok(leadership?)),
        () = too_late => not_acquired(),
        () = somebody_else => not_acquired(),
        signal = ending(signals) => Ok(Err(if first { 128 + signal as u8 } else { exit::LOST })),
    }
}

/// One time in office: the command runs until it ends, we are told to end, or leadership goes.
async fn office(
    args: &RunArgs,
    gossip: &Gossip,
    leadership: SoftLeadership,
    signals: &mut Signals,
) -> Result<Office, Failure> {
    let spec = Spec {
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
            return Ok(Office::Gone("trust ran out before the command began".into()));
        }
        Err(error) => return Err(Failure::new(error.exit_code() as u8, error.to_string())),
    };
    let mut tick = tokio::time::interval(gossip.pace().round());
    let ending = loop {
        tokio::select! {
            ending = child.wait() => break ending,
            _ = tick.tick() => child.extend(leadership.trusted_until().as_nanos()),
            over = leadership.lost() => {
                child.end().await;
                return Ok(Office::Gone(reason(over).to_owned()));
            }
            signal = signals.next() => {
                child.signal(signal);
                if matches!(signal, libc::SIGTERM | libc::SIGINT) {
                    break end_politely(&child, signal, args.kill_after, signals).await;
                }
            }
        }
    };
    Ok(match ending {
        Ending::EndedForTrust => Office::Gone("nothing was heard of the others in time".into()),
        ending => Office::Done(ending.exit_code() as u8),
    })
}

/// There is no token to tell.
fn environment(args: &RunArgs, gossip: &Gossip, leadership: &SoftLeadership) -> Vec<(OsString, OsString)> {
    [
        ("TENURE_ELECTION", args.name.clone()),
        ("TENURE_NAMESPACE", leadership.election().namespace.to_string()),
        ("TENURE_ID", gossip.name().to_owned()),
        ("TENURE_SOFT", "1".to_owned()),
    ]
    .into_iter()
    .map(|(name, value)| (name.into(), value.into()))
    .collect()
}
