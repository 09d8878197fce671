//! `tenure elections watch`: prints changes of elections as they happen.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tenure::leaders;
use tenure::port::{ElectionView, Store};
use tenure::runtime::wall_ms;

use super::election_output;
use super::signals::Signals;
use crate::args::{GlobalArgs, OutputFormat, WatchArgs};
use crate::error::CliError;
use crate::output::{self, TextStyle, paint};
use crate::store;

/// Poll interval without notifications.
const FLOOR: Duration = Duration::from_secs(1);

pub(crate) async fn run(global: &GlobalArgs, args: WatchArgs) -> Result<u8, CliError> {
    let mut signals = Signals::ending()?;
    let only = args.election.as_deref().map(|name| store::key(global, name)).transpose()?;
    let namespace = global.namespace.parse()?;
    let store = store::read(global).await?;
    store::must_exist(global, store.as_ref())?;
    let mut changes = ChangeWaiter::new(store.as_ref());
    let mut seen: BTreeMap<_, (Vec<_>, bool, usize)> = BTreeMap::new();
    loop {
        let views = match &only {
            Some(key) => store.election(key).await.map(|view| view.into_iter().collect()),
            None => store.elections(Some(&namespace)).await,
        };
        match views {
            Ok(views) => {
                for view in &views {
                    let now = (leaders(view), view.paused.is_some(), view.candidates.len());
                    if seen.get(&view.key) != Some(&now) {
                        print_election(global, view);
                        seen.insert(view.key.clone(), now);
                    }
                }
            }
            // The store may become available again: report the error and continue.
            Err(error) => {
                let error = output::plain_lines(&error.to_string());
                crate::output::err_line(format_args!(
                    "{} {error}",
                    output::paint_err("store:", TextStyle::Yellow)
                ));
            }
        }
        if !output::stdout_open() {
            return Ok(0);
        }
        tokio::select! {
            () = changes.next() => {}
            _ = signals.next() => return Ok(0),
        }
    }
}

fn print_election(global: &GlobalArgs, election: &ElectionView) {
    if global.output == OutputFormat::Json {
        let mut line = serde_json::to_value(election_output::json_of(election)).unwrap_or_default();
        line["observed_at_ms"] = json!(wall_ms());
        output::print_json(&line);
        return;
    }
    let led: Vec<_> = leaders(election)
        .iter()
        .map(|leader| format!("{} leads under token {}", leader.name, leader.token))
        .collect();
    let state = match (&election.paused, led.is_empty()) {
        (Some(pause), _) => paint(&format!("paused by {}", pause.paused_by), TextStyle::Yellow),
        (None, true) => paint("no leader", TextStyle::Red),
        (None, false) => paint(&led.join(", "), TextStyle::Green),
    };
    let line = format!(
        "{}  {state}, {}",
        paint(&election.key.to_string(), TextStyle::Bold),
        output::counted(election.candidates.len(), "candidate")
    );
    output::print_line(&line);
}

/// Completes when it is time to read again: on a notification of the store, or after [`FLOOR`] without one.
pub(crate) struct ChangeWaiter {
    wakes: tenure::port::BoxNotificationSource,
    deaf: bool,
}

impl ChangeWaiter {
    pub(crate) fn new(store: &dyn Store) -> Self {
        ChangeWaiter { wakes: store.notifications(), deaf: false }
    }

    pub(crate) async fn next(&mut self) {
        let hint = async {
            if self.deaf {
                std::future::pending::<()>().await;
            }
            self.deaf = self.wakes.next().await.is_none();
        };
        tokio::select! {
            () = hint => {}
            () = tokio::time::sleep(FLOOR) => {}
        }
    }
}
