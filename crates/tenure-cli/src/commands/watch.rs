//! `tenure watch`: what changes, line by line.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tenure::leaders;
use tenure::port::{Backend, ElectionView};
use tenure::runtime::wall_ms;

use super::signals::Signals;
use super::view;
use crate::args::{Format, Global, WatchArgs};
use crate::exit::Failure;
use crate::output::{self, Ink, paint};
use crate::store;

/// How often the store is read when no hint comes.
const FLOOR: Duration = Duration::from_secs(1);

pub(crate) async fn run(global: &Global, args: WatchArgs) -> Result<u8, Failure> {
    let mut signals = Signals::ending()?;
    let only = args.name.as_deref().map(|name| store::key(global, name)).transpose()?;
    let namespace = global.namespace.parse()?;
    let store = store::read(global).await?;
    store::must_exist(global, store.as_ref())?;
    let mut changes = Changes::new(store.as_ref());
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
                        say(global, view);
                        seen.insert(view.key.clone(), now);
                    }
                }
            }
            // The store may come back; say so and go on.
            Err(error) => {
                let error = output::plain_lines(&error.to_string());
                crate::output::err_line(format_args!("{} {error}", output::paint_err("store:", Ink::Yellow)));
            }
        }
        if !output::is_read() {
            return Ok(0);
        }
        tokio::select! {
            () = changes.next() => {}
            _ = signals.next() => return Ok(0),
        }
    }
}

fn say(global: &Global, election: &ElectionView) {
    if global.output == Format::Json {
        let mut line = serde_json::to_value(view::json_of(election)).unwrap_or_default();
        line["at_ms"] = json!(wall_ms());
        output::print_json(&line);
        return;
    }
    let led: Vec<_> = leaders(election)
        .iter()
        .map(|leader| format!("{} leads under token {}", leader.id, leader.token))
        .collect();
    let state = match (&election.paused, led.is_empty()) {
        (Some(pause), _) => paint(&format!("paused by {}", pause.by), Ink::Yellow),
        (None, true) => paint("nobody leads", Ink::Red),
        (None, false) => paint(&led.join(", "), Ink::Green),
    };
    let line = format!(
        "{}  {state}, {} standing",
        paint(&election.key.to_string(), Ink::Bold),
        election.candidates.len()
    );
    output::print_line(&line);
}

/// Says when it is time to look again: at a hint of the store, and now and then without one.
pub(crate) struct Changes {
    wakes: tenure::port::Wakes,
    deaf: bool,
}

impl Changes {
    pub(crate) fn new(store: &dyn Backend) -> Self {
        Changes { wakes: store.wakes(), deaf: false }
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
