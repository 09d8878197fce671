//! What is shown once, or kept on the screen.

use std::time::Duration;

use serde::Serialize;
use tenure::port::Backend;

use super::signals::Signals;
use super::watch::Changes;
use crate::args::{Format, Global};
use crate::exit::Failure;
use crate::output::{self, Ink};
use crate::store;

/// The store is not asked more often than this, however much happens in it.
const CEILING: Duration = Duration::from_millis(100);

/// Shows what a look brings; with `watch`, again whenever it has changed, until we are told to end.
pub(crate) async fn show(
    global: &Global,
    store: &dyn Backend,
    watch: bool,
    look: impl AsyncFn() -> Result<String, Failure>,
) -> Result<u8, Failure> {
    if !watch {
        output::print_text(&look().await?);
        return Ok(0);
    }
    store::must_exist(global, store)?;
    let mut signals = Signals::ending()?;
    let mut changes = Changes::new(store);
    let mut shown = String::new();
    loop {
        match look().await {
            Ok(text) if text != shown => {
                match global.output {
                    Format::Json => output::print_text(&text),
                    Format::Table => output::redraw(&text),
                }
                shown = text;
            }
            Ok(_) => {}
            // The store may come back; what was seen last stays.
            Err(failure) if !shown.is_empty() => match global.output {
                Format::Json => failure.report(),
                Format::Table => output::redraw(&format!(
                    "{shown}\n{}\n",
                    output::paint(&output::plain_lines(failure.message()), Ink::Yellow)
                )),
            },
            Err(failure) => return Err(failure),
        }
        if !output::is_read() {
            return Ok(0);
        }
        let next = async { tokio::join!(changes.next(), tokio::time::sleep(CEILING)) };
        tokio::select! {
            _ = next => {}
            _ = signals.next() => return Ok(0),
        }
    }
}

/// What a look brought: a line for scripts, or a picture for people.
pub(crate) fn drawn<T: Serialize>(global: &Global, seen: &T, picture: impl FnOnce(&T) -> String) -> String {
    match global.output {
        Format::Json => json(seen),
        Format::Table => picture(seen),
    }
}

/// A line for scripts.
pub(crate) fn json(value: &impl Serialize) -> String {
    // All that we print are plain data structures, which cannot fail to serialize.
    serde_json::to_string(value).unwrap_or_default() + "\n"
}
