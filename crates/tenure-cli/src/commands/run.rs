//! `tenure run`: runs a command while this process is the leader.
//!
//! The supervisor campaigns. While it leads, the command runs under the watchdog of [`crate::child`]. After every
//! heartbeat the supervisor sends the watchdog the new deadline, and the watchdog stops the whole process group before
//! the last deadline it received. The supervisor releases the lease only after the process group is gone.

use std::ffi::OsString;
use std::time::Duration;

use futures_util::FutureExt as _;
use tenure::runtime::{now, sleep_until};
use tenure::{Elector, ElectorStatus, Tenure, TermEnd};

use super::environment::{self, withheld};
use super::leadership::{RunCandidate, RunLeadership};
use super::once::{self, Turn};
use super::signals::Signals;
use crate::args::{GlobalArgs, RunArgs};
use crate::child::{Child, ChildExit, ChildSpec, SpawnError, Streams};
use crate::error::{self, CliError};
use crate::output::{self, TextStyle};
use crate::store;

/// Time that `--no-wait` waits for a leader, in addition to a lease.
const FIRST_LOOK: Duration = Duration::from_secs(3);

/// How one term ended.
pub(super) enum TermResult {
    /// The command exited, on its own or after a signal to tenure.
    Done(u8),
    /// Leadership ended, for this reason.
    Gone(String),
}

pub(crate) async fn run(global: &GlobalArgs, args: RunArgs) -> Result<u8, CliError> {
    if args.soft {
        return super::soft::run::run(global, &args).await;
    }
    let mut signals = Signals::all()?;
    environment::note_withheld(global, &args.pass_env);
    warn_about_local_file(global, &args)?;
    // The candidate keeps the lease until the command has stopped.
    let grace = args.kill_after + Duration::from_secs(1);
    let candidate = RunCandidate::stand(global, &args.election, &args.candidate, grace).await?;
    let code = campaign(global, &args, &candidate, &mut signals).await;
    if candidate.store_failed().now_or_never().is_some() {
        // The store connection failed permanently; the session cannot be closed.
        return code;
    }
    tokio::select! {
        closed = candidate.close() => closed?,
        // A second signal: exit at once without releasing the lease.
        _ = ending(&mut signals) => {}
    }
    code
}

/// Warns if a run that looks like one of several machines uses a local SQLite file: each machine would have its own
/// leader.
fn warn_about_local_file(global: &GlobalArgs, args: &RunArgs) -> Result<(), CliError> {
    let options = store::options(global)?;
    let is_file = options.election_store.is_none() && options.url.starts_with("sqlite:");
    let sign = match () {
        () if args.once_per.is_some() => "--once-per",
        () if args.candidate.priority != 0 => "a priority",
        () if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() => "a pod",
        () if std::env::var_os("TENURE_NAME").is_some() => "TENURE_NAME",
        () => return Ok(()),
    };
    if is_file {
        let text = format!(
            "the store is a file on this machine ({}), and {sign} suggests several machines: each of them would run {}; use one \
             shared store: --store postgres://… or --store http://…",
            options.url, args.election
        );
        output::note(global, TextStyle::Yellow, &text);
    }
    Ok(())
}

async fn campaign(
    global: &GlobalArgs,
    args: &RunArgs,
    candidate: &RunCandidate,
    signals: &mut Signals,
) -> Result<u8, CliError> {
    // Limit of `--no-wait`: after a failover there may be no leader for a whole lease. If there is one, the wait ends
    // at once.
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
                    let text = format!(
                        "{} ran {ago} ago on {by}; it runs at most once per {period:?}",
                        args.election
                    );
                    output::note(global, TextStyle::Dim, &text);
                    return Ok(0);
                }
                Turn::Lost => continue,
            }
        }
        let (name, tokens) = (candidate.tenure.name(), leadership.tokens());
        output::note(global, TextStyle::Green, &format!("{name} leads {} under {tokens}", args.election));
        match run_term(args, candidate, leadership, signals).await? {
            TermResult::Done(code) => return Ok(code),
            TermResult::Gone(why) => {
                output::note(
                    global,
                    TextStyle::Yellow,
                    &format!("lost leadership of {}: {why}", args.election),
                );
                if let Some(command) = &args.on_lost {
                    on_lost(command, args, Some(token), signals).await;
                }
                if args.once {
                    return Ok(error::LOST);
                }
            }
        }
    }
}

/// Waits until this candidate leads. An inner `Err` is the exit code with which the command ends instead.
///
/// `first` is the limit of `--no-wait` in the first call and `None` in later calls, which wait without a limit. In the
/// first call, `--no-wait` also ends the wait when another candidate leads.
async fn wait_to_lead(
    global: &GlobalArgs,
    args: &RunArgs,
    candidate: &RunCandidate,
    signals: &mut Signals,
    first: Option<Duration>,
) -> Result<Result<RunLeadership, u8>, CliError> {
    let elector = candidate.elector();
    let is_first = first.is_some();
    let limit = match (first, args.no_wait, args.wait) {
        (Some(look), true, _) => Some(look),
        (Some(_), false, wait) => wait,
        (None, _, _) => None,
    };
    let deadline = limit.map(|limit| now() + limit);
    let timed_out = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let other_leader = async {
        while elector.status() != ElectorStatus::Follower && elector.status() != ElectorStatus::Paused {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if !(is_first && args.no_wait) {
            let leader = elector.view().and_then(|view| tenure::leaders(&view).into_iter().next());
            if let Some(leader) = leader {
                output::note(
                    global,
                    TextStyle::Dim,
                    &format!("{} leads {}; waiting", leader.name, args.election),
                );
            }
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        leadership = candidate.elected() => Ok(Ok(leadership?)),
        () = timed_out => not_acquired(global, args, elector),
        () = other_leader => not_acquired(global, args, elector),
        failure = candidate.store_failed() => Err(failure),
        // A signal arrived before the first term, or between two terms.
        signal = ending(signals) => Ok(Err(if is_first { 128 + signal as u8 } else { error::LOST })),
    }
}

fn not_acquired(
    global: &GlobalArgs,
    args: &RunArgs,
    elector: &Elector,
) -> Result<Result<RunLeadership, u8>, CliError> {
    let why = match elector.status() {
        ElectorStatus::Follower => "another candidate leads",
        ElectorStatus::Paused => "the election is paused",
        ElectorStatus::Leader => "another candidate leads in the second store",
        _ => "there is no leader yet",
    };
    output::note(global, TextStyle::Yellow, &format!("not acquired: {}: {why}", args.election));
    Ok(Err(error::NOT_ACQUIRED))
}

/// The next signal that stops tenure. Ignores others, because no command runs that could receive them.
pub(super) async fn ending(signals: &mut Signals) -> i32 {
    loop {
        let signal = signals.next().await;
        if matches!(signal, libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT) {
            return signal;
        }
    }
}

/// Runs one term: the command runs until it exits, a signal arrives, or leadership ends.
async fn run_term(
    args: &RunArgs,
    candidate: &RunCandidate,
    leadership: RunLeadership,
    signals: &mut Signals,
) -> Result<TermResult, CliError> {
    let tenure = &candidate.tenure;
    let keep = candidate.locks(&leadership);
    let spec = ChildSpec {
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
        // The lease ran out before the command started.
        Err(SpawnError::TrustEnded) => {
            leadership.resign().await?;
            return Ok(TermResult::Gone("the lease ran out before the command started".into()));
        }
        Err(error) => return Err(CliError::new(error.exit_code() as u8, error.to_string())),
    };
    tracing::debug!(pid = child.pid(), watchdog = child.watchdog_pid(), "command started");
    let mut sent = leadership.trusted_until();
    // A quarter of the heartbeat interval: the watchdog gets each new deadline well before the previous one passes.
    let mut tick = tokio::time::interval(tenure.timing().heartbeat_interval() / 4);
    let ending = loop {
        tokio::select! {
            ending = child.wait() => break ending,
            _ = tick.tick() => {
                let until = leadership.trusted_until();
                if until > sent {
                    child.extend(until.as_nanos());
                    sent = until;
                }
            }
            failure = candidate.store_failed() => {
                child.end().await;
                return Err(failure);
            }
            over = leadership.lost() => {
                child.end().await;
                return Ok(TermResult::Gone(reason(over)));
            }
            request = leadership.leader_request() => {
                forward_deadlines(&child, &leadership, tenure, child.end()).await;
                return Ok(TermResult::Gone(format!("requested to {}", request.as_str())));
            }
            signal = signals.next() => {
                child.signal(signal);
                if matches!(signal, libc::SIGTERM | libc::SIGINT) {
                    let ending = stop_after_signal(&child, signal, args.kill_after, signals);
                    break forward_deadlines(&child, &leadership, tenure, ending).await;
                }
            }
        }
    };
    match ending {
        // The watchdog stopped the command before the next heartbeat succeeded. The term is over, whatever the store
        // says now.
        ChildExit::EndedForTrust => {
            leadership.resign().await?;
            Ok(TermResult::Gone("no heartbeat succeeded in time".into()))
        }
        ending => Ok(TermResult::Done(ending.exit_code() as u8)),
    }
}

fn reason(over: TermEnd) -> String {
    match over {
        TermEnd::Lost(why) => why.as_str().to_owned(),
        _ => "released".to_owned(),
    }
}

/// Waits for the command after it received the signal. Stops it after `kill_after`, or after a second signal.
pub(super) async fn stop_after_signal(
    child: &Child,
    signal: i32,
    kill_after: Duration,
    signals: &mut Signals,
) -> ChildExit {
    if signal == libc::SIGTERM {
        return child.end().await;
    }
    tokio::select! {
        ending = child.wait() => ending,
        () = tokio::time::sleep(kill_after) => child.end().await,
        _ = ending(signals) => child.end().await,
    }
}

/// Forwards new deadlines to the watchdog while the command stops; heartbeats continue.
async fn forward_deadlines<T>(
    child: &Child,
    leadership: &RunLeadership,
    tenure: &Tenure,
    ending: impl Future<Output = T>,
) -> T {
    let mut tick = tokio::time::interval(tenure.timing().heartbeat_interval() / 4);
    tokio::pin!(ending);
    loop {
        tokio::select! {
            ended = &mut ending => return ended,
            _ = tick.tick() => child.extend(leadership.trusted_until().as_nanos()),
        }
    }
}

fn environment(args: &RunArgs, tenure: &Tenure, held: &RunLeadership) -> Vec<(OsString, OsString)> {
    let leadership = held.first();
    let election = leadership.election();
    let other = held.second().map(|second| ("TENURE_SECOND_TOKEN", second.token().as_u64().to_string()));
    [
        ("TENURE_ELECTION", args.election.clone()),
        ("TENURE_NAMESPACE", election.namespace.to_string()),
        ("TENURE_TOKEN", leadership.token().as_u64().to_string()),
        ("TENURE_SLOT", leadership.slot().to_string()),
        ("TENURE_SESSION", leadership.session().to_string()),
        ("TENURE_NAME", tenure.name().to_owned()),
    ]
    .into_iter()
    .chain(other)
    .map(|(name, value)| (name.into(), value.into()))
    .collect()
}

/// Runs the `--on-lost` hook. A failure of the hook is reported and has no other effect.
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
        .env("TENURE_ELECTION", &args.election)
        .envs(token.map(|token| ("TENURE_TOKEN", token.as_u64().to_string())))
        .kill_on_drop(true)
        .status();
    let status = tokio::select! {
        status = status => status,
        // A signal ends the wait for a hook that hangs.
        _ = ending(signals) => return,
    };
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => crate::output::err_line(format_args!("tenure: the --on-lost command failed: {status}")),
        Err(error) => {
            crate::output::err_line(format_args!("tenure: cannot run the --on-lost command: {error}"))
        }
    }
}
