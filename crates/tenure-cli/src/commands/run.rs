//! `tenure run`: a command that runs on one machine of many.
//!
//! The supervisor campaigns; while it leads, the command runs under the watchdog of [`crate::child`]. Trust flows one
//! way: every time it is extended, the watchdog is told the new deadline, and it ends the whole process group before
//! the last one it was told. The lease is given back only after the group is gone.

use std::ffi::OsString;
use std::time::Duration;

use futures_util::FutureExt as _;
use tenure::runtime::{now, sleep_until};
use tenure::{Elector, Over, Status, Tenure};

use super::environment::{self, withheld};
use super::held::{Candidate, Held};
use super::once::{self, Turn};
use super::signals::Signals;
use crate::args::{Global, RunArgs};
use crate::child::{Child, Ending, SpawnError, Spec, Streams};
use crate::exit::{self, Failure};
use crate::output::{self, Ink};
use crate::store;

/// How long `--no-wait` gives the store to say who leads.
const FIRST_LOOK: Duration = Duration::from_secs(3);

/// How one time in office ended.
pub(super) enum Office {
    /// The command ended, by itself or because we were told to end.
    Done(u8),
    /// Leadership is over, for this reason.
    Gone(String),
}

pub(crate) async fn run(global: &Global, args: RunArgs) -> Result<u8, Failure> {
    if args.soft {
        return super::soft::run::run(global, &args).await;
    }
    let mut signals = Signals::all()?;
    environment::tell_withheld(global, &args.pass_env);
    warn_of_local_file(global, &args)?;
    // The command may take its time to end; the lease is ours until it has.
    let grace = args.kill_after + Duration::from_secs(1);
    let candidate = Candidate::stand(global, &args.name, &args.standing, grace).await?;
    let code = campaign(global, &args, &candidate, &mut signals).await;
    if candidate.store_failed().now_or_never().is_some() {
        // It can be told nothing any more.
        return code;
    }
    tokio::select! {
        closed = candidate.close() => closed?,
        // Told to end once more: the store gets no farewell, and waits for the lease.
        _ = ending(&mut signals) => {}
    }
    code
}

/// A run that looks as if it were meant for several machines, on a file that only this one has: each machine would lead.
fn warn_of_local_file(global: &Global, args: &RunArgs) -> Result<(), Failure> {
    let options = store::options(global)?;
    let is_file = options.elect.is_none() && options.url.starts_with("sqlite:");
    let standing = &args.standing;
    let sign = match () {
        () if args.once_per.is_some() => "--once-per",
        () if standing.priority != 0 => "a priority",
        () if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => "a pod",
        () if std::env::var_os("NODE_ID").is_some() => "NODE_ID",
        () => return Ok(()),
    };
    if is_file {
        let text = format!(
            "the store is a file of this machine ({}), and {sign} looks like several machines: each of them would run {}; give \
             all of them one store with --store postgres://… or --store http://…",
            options.url, args.name
        );
        output::note(global, Ink::Yellow, &text);
    }
    Ok(())
}

async fn campaign(
    global: &Global,
    args: &RunArgs,
    candidate: &Candidate,
    signals: &mut Signals,
) -> Result<u8, Failure> {
    // After a failover nobody may lead for a lease; who leads is seen at once.
    let mut first = Some(FIRST_LOOK + candidate.tenure.timing().lease() * 11 / 10);
    loop {
        let leadership = match wait_to_lead(global, args, candidate, signals, first.take()).await? {
            Ok(leadership) => leadership,
            Err(code) => return Ok(code),
        };
        let token = leadership.first().token();
        if let Some(period) = args.once_per {
            match once::decide(&candidate.tenure, leadership.first(), period).await? {
                Turn::Run => {}
                Turn::RanAlready { ago, by } => {
                    let ago = output::ago(0, i64::try_from(ago.as_millis()).unwrap_or(i64::MAX));
                    let text = format!("{} ran {ago} ago on {by}: not again within {period:?}", args.name);
                    output::note(global, Ink::Dim, &text);
                    return Ok(0);
                }
                Turn::Lost => continue,
            }
        }
        let (name, tokens) = (candidate.tenure.name(), leadership.tokens());
        output::note(global, Ink::Green, &format!("{name} leads {} under {tokens}", args.name));
        match office(args, candidate, leadership, signals).await? {
            Office::Done(code) => return Ok(code),
            Office::Gone(why) => {
                output::note(global, Ink::Yellow, &format!("leads {} no longer: {why}", args.name));
                if let Some(command) = &args.on_lost {
                    on_lost(command, args, Some(token), signals).await;
                }
                if args.once {
                    return Ok(exit::LOST);
                }
            }
        }
    }
}

/// Waits until we lead; the first time, `--no-wait` waits for as long as it takes to know. `Err`: the code to leave with instead.
async fn wait_to_lead(
    global: &Global,
    args: &RunArgs,
    candidate: &Candidate,
    signals: &mut Signals,
    first: Option<Duration>,
) -> Result<Result<Held, u8>, Failure> {
    let elector = candidate.elector();
    let is_first = first.is_some();
    let limit = match (first, args.no_wait, args.wait) {
        (Some(look), true, _) => Some(look),
        (Some(_), false, wait) => wait,
        (None, _, _) => None,
    };
    let deadline = limit.map(|limit| now() + limit);
    let too_late = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let somebody_else = async {
        while elector.status() != Status::Follower && elector.status() != Status::Paused {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if !(is_first && args.no_wait) {
            let leader = elector.view().and_then(|view| tenure::leaders(&view).into_iter().next());
            if let Some(leader) = leader {
                output::note(global, Ink::Dim, &format!("{} leads {}; waiting", leader.id, args.name));
            }
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        leadership = candidate.elected() => Ok(Ok(leadership?)),
        () = too_late => not_acquired(global, args, elector),
        () = somebody_else => not_acquired(global, args, elector),
        failure = candidate.store_failed() => Err(failure),
        // Told to end before we led, or between two times in office.
        signal = ending(signals) => Ok(Err(if is_first { 128 + signal as u8 } else { exit::LOST })),
    }
}

fn not_acquired(global: &Global, args: &RunArgs, elector: &Elector) -> Result<Result<Held, u8>, Failure> {
    let why = match elector.status() {
        Status::Follower => "somebody else leads",
        Status::Paused => "it is paused",
        Status::Leader => "somebody else leads in the other store",
        _ => "nobody leads yet",
    };
    output::note(global, Ink::Yellow, &format!("{} was not acquired: {why}", args.name));
    Ok(Err(exit::NOT_ACQUIRED))
}

/// The next signal that ends us; there is no command yet to pass others on to.
pub(super) async fn ending(signals: &mut Signals) -> i32 {
    loop {
        let signal = signals.next().await;
        if matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT) {
            return signal;
        }
    }
}

/// One time in office: the command runs until it ends, we are told to end, or leadership goes.
async fn office(
    args: &RunArgs,
    candidate: &Candidate,
    leadership: Held,
    signals: &mut Signals,
) -> Result<Office, Failure> {
    let tenure = &candidate.tenure;
    let keep = candidate.locks(&leadership);
    let spec = Spec {
        argv: args.command.clone(),
        env: environment(args, tenure, &leadership),
        withheld: withheld(&args.pass_env),
        keep,
        streams: Streams::default(),
        deadline_ns: leadership.trusted_until().as_nanos(),
        kill_after: args.kill_after,
        orphan_cleanup: candidate.orphan_cleanup(&leadership),
    };
    let child = match Child::spawn(spec).await {
        Ok(child) => child,
        // Trust ended before the command began.
        Err(SpawnError::TrustEnded) => {
            leadership.resign().await?;
            return Ok(Office::Gone("trust ran out before the command began".into()));
        }
        Err(error) => return Err(Failure::new(error.exit_code() as u8, error.to_string())),
    };
    tracing::debug!(pid = child.pid(), watchdog = child.watchdog_pid(), "the command runs");
    let mut told = leadership.trusted_until();
    // Often enough that the watchdog always knows of the latest counted beat well before the one before it runs out.
    let mut tick = tokio::time::interval(tenure.timing().beat() / 4);
    let ending = loop {
        tokio::select! {
            ending = child.wait() => break ending,
            _ = tick.tick() => {
                let until = leadership.trusted_until();
                if until > told {
                    child.extend(until.as_nanos());
                    told = until;
                }
            }
            failure = candidate.store_failed() => {
                child.end().await;
                return Err(failure);
            }
            over = leadership.lost() => {
                child.end().await;
                return Ok(Office::Gone(reason(over)));
            }
            asked = leadership.asked() => {
                keep_trusted(&child, &leadership, tenure, child.end()).await;
                return Ok(Office::Gone(format!("asked to {}", asked.word())));
            }
            signal = signals.next() => {
                child.signal(signal);
                if matches!(signal, libc::SIGTERM | libc::SIGINT) {
                    let ending = end_politely(&child, signal, args.kill_after, signals);
                    break keep_trusted(&child, &leadership, tenure, ending).await;
                }
            }
        }
    };
    match ending {
        // The watchdog was quicker than the next counted beat. Whatever the store says by now, this term is over.
        Ending::EndedForTrust => {
            leadership.resign().await?;
            Ok(Office::Gone("no beat was counted in time".into()))
        }
        ending => Ok(Office::Done(ending.exit_code() as u8)),
    }
}

/// Why a term ended, in words.
fn reason(over: Over) -> String {
    match over {
        Over::Lost(why) => why.as_str().to_owned(),
        _ => "given up".to_owned(),
    }
}

/// The command has got the signal; if it does not heed it in time, or we are told a second time, it is ended.
pub(super) async fn end_politely(
    child: &Child,
    signal: i32,
    kill_after: Duration,
    signals: &mut Signals,
) -> Ending {
    if signal == libc::SIGTERM {
        return child.end().await;
    }
    tokio::select! {
        ending = child.wait() => ending,
        () = tokio::time::sleep(kill_after) => child.end().await,
        _ = ending(signals) => child.end().await,
    }
}

/// While the command ends, beats go on, and so does what the watchdog is told of them.
async fn keep_trusted<T>(
    child: &Child,
    leadership: &Held,
    tenure: &Tenure,
    ending: impl Future<Output = T>,
) -> T {
    let mut tick = tokio::time::interval(tenure.timing().beat() / 4);
    tokio::pin!(ending);
    loop {
        tokio::select! {
            ended = &mut ending => return ended,
            _ = tick.tick() => child.extend(leadership.trusted_until().as_nanos()),
        }
    }
}

fn environment(args: &RunArgs, tenure: &Tenure, held: &Held) -> Vec<(OsString, OsString)> {
    let leadership = held.first();
    let election = leadership.election();
    let other = held.second().map(|second| ("TENURE_AND_TOKEN", second.token().as_u64().to_string()));
    [
        ("TENURE_ELECTION", args.name.clone()),
        ("TENURE_NAMESPACE", election.namespace.to_string()),
        ("TENURE_TOKEN", leadership.token().as_u64().to_string()),
        ("TENURE_SLOT", leadership.slot().to_string()),
        ("TENURE_SESSION", leadership.session().to_string()),
        ("TENURE_ID", tenure.name().to_owned()),
    ]
    .into_iter()
    .chain(other)
    .map(|(name, value)| (name.into(), value.into()))
    .collect()
}

/// Runs the user's own reaction. Its failure is told and changes nothing.
pub(super) async fn on_lost(
    command: &str,
    args: &RunArgs,
    token: Option<tenure::Token>,
    signals: &mut Signals,
) {
    let mut hook = tokio::process::Command::new("sh");
    for name in withheld(&args.pass_env) {
        hook.env_remove(name);
    }
    let status = hook
        .args(["-c", command])
        .env("TENURE_ELECTION", &args.name)
        .envs(token.map(|token| ("TENURE_TOKEN", token.as_u64().to_string())))
        .kill_on_drop(true)
        .status();
    let status = tokio::select! {
        status = status => status,
        // A hook that hangs does not keep us from ending.
        _ = ending(signals) => return,
    };
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => crate::output::err_line(format_args!("tenure: --on-lost ended with {status}")),
        Err(error) => crate::output::err_line(format_args!("tenure: --on-lost could not run: {error}")),
    }
}
