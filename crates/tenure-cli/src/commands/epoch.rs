//! `tenure epoch`: the high bits of tokens, and how to raise them by hand.

use std::io::{BufRead, IsTerminal, Write};

use clap::{Args, Subcommand};
use tenure::Token;
use tenure::port::{EpochBump, EpochView};
use tenure::runtime::wall_ms;

use crate::args::{Format, Global, values};
use crate::exit::Failure;
use crate::output::{self, Ink, Table, ago};
use crate::store;

pub(crate) const EXAMPLES: &str = "\
The epoch is the part of a token before the dot: 319.4 is the fourth grant of epoch 319. A promotion, a restore, a copy or an upgrade of
the database begins a new one by itself. Bump it by hand after what the store cannot notice, such as a virtual machine or a
disk that was set back to a snapshot, and before a fenced system has to accept tokens again (docs/backup.md).

Examples:
  tenure epoch show
  tenure epoch show --store postgres://owner@db/app -o json
  tenure epoch bump --yes                        after the disk was set back to a snapshot
  tenure epoch bump --above 320.17 --yes         a fence elsewhere has seen 320.17
  tenure epoch bump --to 400 --yes";

#[derive(Args, Debug)]
pub(crate) struct EpochArgs {
    #[command(subcommand)]
    pub(crate) command: EpochCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum EpochCommand {
    /// Show the epoch of the store, since when, and why
    Show,
    /// Begin a new epoch: every leader stops, and no later token is lower than any before
    Bump {
        /// Begin at least this epoch
        #[arg(long, value_name = "N")]
        to: Option<u32>,
        /// Begin an epoch whose tokens all exceed this one
        #[arg(long, value_parser = values::token, value_name = "TOKEN")]
        above: Option<Token>,
        /// Record why
        #[arg(long, default_value = "bumped by an operator", value_name = "TEXT")]
        reason: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) async fn run(global: &Global, args: EpochArgs) -> Result<u8, Failure> {
    let store = store::open(global).await?;
    let shown = store.epoch().await?;
    let Some(now) = shown else {
        return Err(Failure::usage(
            "this store keeps no epoch of its own; name the database: --store sqlite:PATH or postgres://…",
        ));
    };
    let EpochCommand::Bump { to, above, reason, yes } = args.command else {
        show(global, &now);
        return Ok(0);
    };
    if let Some(to) = to.filter(|to| *to <= now.epoch) {
        let message = format!("the store is in epoch {} already; --to {to} would not raise it", now.epoch);
        return Err(Failure::usage(message));
    }
    if !yes && !confirmed(now.epoch)? {
        return Err(Failure::usage("nothing was changed; say --yes to begin a new epoch"));
    }
    let bump = EpochBump { at_least: to.unwrap_or(0), above, reason };
    show(global, &store.bump_epoch(&bump).await?);
    Ok(0)
}

/// Asks a person at a terminal. Anybody else must say `--yes`.
fn confirmed(epoch: u32) -> Result<bool, Failure> {
    let (input, prompt) = (std::io::stdin(), std::io::stderr());
    if !input.is_terminal() || !prompt.is_terminal() {
        return Ok(false);
    }
    let question = format!(
        "Begin a new epoch after {epoch}? Every leader on this store stops, and none is elected for a lease. [y/N] "
    );
    let mut answer = String::new();
    let asked =
        prompt.lock().write_all(question.as_bytes()).and_then(|()| input.lock().read_line(&mut answer));
    asked.map_err(|error| Failure::usage(format!("no answer: {error}; say --yes")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn show(global: &Global, view: &EpochView) {
    if global.output == Format::Json {
        return output::print_json(view);
    }
    let mut table = Table::plain();
    for (what, value) in [
        ("epoch", view.epoch.to_string()),
        ("began", ago(view.changed_at_ms, wall_ms())),
        ("reason", view.reason.clone()),
        ("identity", view.identity.clone()),
    ] {
        table.row(vec![(what.to_owned(), Ink::Bold), (value, Ink::Plain)]);
    }
    output::print_text(&table.render());
}
