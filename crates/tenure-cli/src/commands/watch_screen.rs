//! Output that is printed once or, with `--watch`, redrawn on every change.

use std::time::Duration;

use serde::Serialize;
use tenure::port::Store;

use super::signals::Signals;
use super::watch::ChangeWaiter;
use crate::args::{GlobalArgs, OutputFormat};
use crate::error::CliError;
use crate::output::{self, TextStyle};
use crate::store;

/// Minimum time between two reads of the store.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Prints the result of `read`. With `watch`, prints it again whenever it changes, until a signal arrives.
pub(crate) async fn show(
    global: &GlobalArgs,
    store: &dyn Store,
    watch: bool,
    read: impl AsyncFn() -> Result<String, CliError>,
) -> Result<u8, CliError> {
    if !watch {
        output::print_text(&read().await?);
        return Ok(0);
    }
    store::must_exist(global, store)?;
    let mut signals = Signals::ending()?;
    let mut changes = ChangeWaiter::new(store);
    let mut printed = String::new();
    loop {
        match read().await {
            Ok(text) if text != printed => {
                match global.output {
                    OutputFormat::Json => output::print_text(&text),
                    OutputFormat::Table => output::redraw(&text),
                }
                printed = text;
            }
            Ok(_) => {}
            // The store may become available again: keep the last output.
            Err(failure) if !printed.is_empty() => match global.output {
                OutputFormat::Json => failure.report(),
                OutputFormat::Table => output::redraw(&format!(
                    "{printed}\n{}\n",
                    output::paint(&output::plain_lines(failure.message()), TextStyle::Yellow)
                )),
            },
            Err(failure) => return Err(failure),
        }
        if !output::stdout_open() {
            return Ok(0);
        }
        let next = async { tokio::join!(changes.next(), tokio::time::sleep(MIN_INTERVAL)) };
        tokio::select! {
            _ = next => {}
            _ = signals.next() => return Ok(0),
        }
    }
}

/// Formats a value as a JSON line or as a table.
pub(crate) fn render<T: Serialize>(
    global: &GlobalArgs,
    value: &T,
    table: impl FnOnce(&T) -> String,
) -> String {
    match global.output {
        OutputFormat::Json => json(value),
        OutputFormat::Table => table(value),
    }
}

/// Formats a value as a JSON line.
pub(crate) fn json(value: &impl Serialize) -> String {
    // Plain data structures cannot fail to serialize.
    serde_json::to_string(value).unwrap_or_default() + "\n"
}
