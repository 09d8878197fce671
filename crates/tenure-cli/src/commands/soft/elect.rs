//! `tenure elect --soft`: a candidate without a command.

use futures_util::StreamExt;
use serde_json::json;
use tenure::backend::gossip::SoftElectionView;
use tenure::runtime::wall_ms;
use tenure::soft::Stance;

use super::{candidate, join};
use crate::args::{ElectArgs, Format, Global};
use crate::commands::signals::Signals;
use crate::exit::Failure;
use crate::output::{self, Ink, paint};

pub(crate) async fn run(global: &Global, args: &ElectArgs) -> Result<u8, Failure> {
    let mut signals = Signals::ending()?;
    if args.observer {
        return Err(Failure::usage("who only watches needs no --soft: tenure members -w shows who leads"));
    }
    let gossip = join(global, &args.name, &args.standing).await?;
    let elector = candidate(&gossip, global, &args.name, &args.standing).start().await?;
    let (mut stances, mut views) = (elector.stances(), elector.watch());
    let limit = async {
        match args.for_time {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(limit);
    let mut led = false;
    while output::is_read() {
        tokio::select! {
            stance = stances.next() => match stance {
                Some(stance) => {
                    let leads = stance == Stance::Leading;
                    if leads != led {
                        say_own(global, &args.name, leads);
                    }
                    led = leads;
                }
                None => break,
            },
            view = views.next() => match view {
                Some(view) => say_seen(global, &args.name, &view),
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
        // Told to end once more.
        _ = signals.next() => {}
    }
    Ok(0)
}

fn say_own(global: &Global, name: &str, leads: bool) {
    let (word, ink) = if leads { ("leading", Ink::Green) } else { ("lost", Ink::Red) };
    if global.output == Format::Json {
        return output::print_json(
            &json!({"election": name, "change": word, "soft": true, "at_ms": wall_ms()}),
        );
    }
    let told = if leads { "softly: no token, others may lead too" } else { "leads no longer" };
    output::print_line(&format!("{} {name} {told}", paint(&format!("{word:>8}"), ink)));
}

fn say_seen(global: &Global, name: &str, view: &SoftElectionView) {
    let leaders: Vec<_> = view.leaders().map(|leader| leader.member.name.as_str()).collect();
    let candidates: Vec<_> = view.candidates.iter().map(|standing| standing.member.name.as_str()).collect();
    if global.output == Format::Json {
        return output::print_json(&json!({
            "election": name, "change": "seen", "soft": true, "at_ms": wall_ms(), "leaders": leaders, "candidates": candidates,
        }));
    }
    let led = match leaders.as_slice() {
        [] => "nobody leads".to_owned(),
        [one] => format!("{} leads", output::plain(one)),
        many => format!("{} lead at once", output::plain(&many.join(", "))),
    };
    let ink = if leaders.len() > 1 { Ink::Yellow } else { Ink::Plain };
    let told = format!("{led}, {} standing", candidates.len());
    output::print_line(&format!("{} {name} {}", paint("    seen", Ink::Plain), paint(&told, ink)));
}
