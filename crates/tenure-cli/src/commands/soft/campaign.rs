//! `tenure campaign --soft`: a candidate without a command.

use futures_util::StreamExt;
use serde_json::json;
use tenure::rules::soft::SoftCandidateState;
use tenure::runtime::wall_ms;
use tenure::store::gossip::SoftElectionView;

use super::{candidate, join};
use crate::args::{CampaignArgs, GlobalArgs, OutputFormat};
use crate::commands::signals::Signals;
use crate::error::CliError;
use crate::output::{self, TextStyle, paint};

pub(crate) async fn run(global: &GlobalArgs, args: &CampaignArgs) -> Result<u8, CliError> {
    let mut signals = Signals::ending()?;
    if args.observer {
        return Err(CliError::usage(
            "--observer cannot be used with --soft; `tenure gossip -w` shows the leaders",
        ));
    }
    let gossip = join(global, &args.election, &args.candidate).await?;
    let elector = candidate(&gossip, global, &args.election, &args.candidate).start().await?;
    let (mut states, mut views) = (elector.states(), elector.watch());
    let limit = async {
        match args.duration {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(limit);
    let mut led = false;
    while output::stdout_open() {
        tokio::select! {
            stance = states.next() => match stance {
                Some(stance) => {
                    let leads = stance == SoftCandidateState::Leading;
                    if leads != led {
                        print_own_change(global, &args.election, leads);
                    }
                    led = leads;
                }
                None => break,
            },
            view = views.next() => match view {
                Some(view) => print_election(global, &args.election, &view),
                None => break,
            },
            _ = signals.next() => break,
            () = &mut limit => break,
        }
    }
    let leaving = async {
        elector.stop().await;
        gossip.leave().await;
    };
    tokio::select! {
        () = leaving => {}
        // A second signal: exit at once.
        _ = signals.next() => {}
    }
    Ok(0)
}

fn print_own_change(global: &GlobalArgs, name: &str, leads: bool) {
    let (word, style) = if leads { ("leading", TextStyle::Green) } else { ("lost", TextStyle::Red) };
    if global.output == OutputFormat::Json {
        return output::print_json(
            &json!({"election": name, "change": word, "soft": true, "observed_at_ms": wall_ms()}),
        );
    }
    let text = if leads { "as soft leader: no token, other leaders are possible" } else { "leadership" };
    output::print_line(&format!("{} {name} {text}", paint(&format!("{word:>9}"), style)));
}

fn print_election(global: &GlobalArgs, name: &str, view: &SoftElectionView) {
    let leaders: Vec<_> = view.leaders().map(|leader| leader.member.name.as_str()).collect();
    let candidates: Vec<_> = view.candidates.iter().map(|standing| standing.member.name.as_str()).collect();
    if global.output == OutputFormat::Json {
        return output::print_json(&json!({
            "election": name, "change": "changed", "soft": true, "observed_at_ms": wall_ms(), "leaders": leaders, "candidates": candidates,
        }));
    }
    let led = match leaders.as_slice() {
        [] => "no leader".to_owned(),
        [one] => format!("{} leads", output::plain(one)),
        many => format!("{} lead at once", output::plain(&many.join(", "))),
    };
    let style = if leaders.len() > 1 { TextStyle::Yellow } else { TextStyle::Plain };
    let text = format!("{led}, {}", output::counted(candidates.len(), "candidate"));
    output::print_line(&format!("{} {name} {}", paint("  changed", TextStyle::Plain), paint(&text, style)));
}
