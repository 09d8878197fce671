//! `tenure epoch`: shows the epoch, the prefix of every token, and raises it manually.

use std::io::{BufRead, IsTerminal, Write};

use clap::{Args, Subcommand};
use tenure::Token;
use tenure::port::{EpochBump, EpochView};
use tenure::runtime::wall_ms;

use crate::args::{GlobalArgs, OutputFormat, parsers};
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, ago};
use crate::store;

pub(crate) const EXAMPLES: &str = "\
The epoch is the part of a token before the dot: 319.4 is the fourth grant of epoch 319. The store starts a new epoch when \
it detects a promotion, a restore, a copy or an upgrade of the database. Bump it manually after a change that the store \
cannot detect, such as a virtual machine or disk reset to a snapshot, before a fenced system accepts tokens again \
(docs/backup.md).

Examples:
  tenure epoch show
  tenure epoch show --store postgres://owner@db/app -o json
  tenure epoch bump --yes                        after a disk was reset to a snapshot
  tenure epoch bump --above 320.17 --yes         an external fence has seen 320.17
  tenure epoch bump --to 400 --yes";

#[derive(Args, Debug)]
pub(crate) struct EpochArgs {
    #[command(subcommand)]
    pub(crate) command: EpochCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum EpochCommand {
    /// Show the epoch of the store, its start and its reason
    Show,
    /// Start a new epoch: every leader stops, and every later token is greater than all earlier ones
    Bump {
        /// Minimum number of the new epoch; must be greater than the current epoch
        #[arg(long, value_name = "N")]
        to: Option<u32>,
        /// Start an epoch whose tokens are all greater than this one
        #[arg(long, value_parser = parsers::token, value_name = "TOKEN")]
        above: Option<Token>,
        /// Reason to record
        #[arg(long, default_value = "bumped by an operator", value_name = "TEXT")]
        reason: String,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) async fn run(global: &GlobalArgs, args: EpochArgs) -> Result<u8, CliError> {
    let store = store::open(global).await?;
    let shown = store.epoch().await?;
    let Some(now) = shown else {
        return Err(CliError::usage(
            "this store has no epoch of its own; name the database: --store sqlite:PATH or postgres://…",
        ));
    };
    let EpochCommand::Bump { to, above, reason, yes } = args.command else {
        show(global, &now);
        return Ok(0);
    };
    if let Some(to) = to.filter(|to| *to <= now.epoch) {
        let message =
            format!("the store is already in epoch {}; --to must be greater than that, not {to}", now.epoch);
        return Err(CliError::usage(message));
    }
    if !yes && !confirmed(now.epoch)? {
        return Err(CliError::usage("nothing was changed; use --yes to start a new epoch"));
    }
    let bump = EpochBump { at_least: to.unwrap_or(0), above, reason };
    show(global, &store.bump_epoch(&bump).await?);
    Ok(0)
}

/// Asks for confirmation on a terminal. Returns `false` without a terminal, where `--yes` is required.
fn confirmed(epoch: u32) -> Result<bool, CliError> {
    let (input, prompt) = (std::io::stdin(), std::io::stderr());
    if !input.is_terminal() || !prompt.is_terminal() {
        return Ok(false);
    }
    let question = format!(
        "Start a new epoch after {epoch}? Every leader on this store stops, and none is elected for the duration of a lease. [y/N] "
    );
    let mut answer = String::new();
    let answered =
        prompt.lock().write_all(question.as_bytes()).and_then(|()| input.lock().read_line(&mut answer));
    answered.map_err(|error| CliError::usage(format!("cannot read the answer: {error}; use --yes")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn show(global: &GlobalArgs, view: &EpochView) {
    if global.output == OutputFormat::Json {
        return output::print_json(view);
    }
    let mut table = Table::plain();
    for (what, value) in [
        ("epoch", view.epoch.to_string()),
        ("started", ago(view.changed_at_ms, wall_ms())),
        ("reason", view.reason.clone()),
        ("identity", view.identity.clone()),
    ] {
        table.row(vec![(what.to_owned(), TextStyle::Bold), (value, TextStyle::Plain)]);
    }
    output::print_text(&table.render());
}
