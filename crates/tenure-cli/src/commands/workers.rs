//! `tenure workers`: see and approve workers.

use serde_json::json;
use tenure::Name;
use tenure::port::WorkerView;
use tenure::runtime::wall_ms;

use super::leader::whoami;
use super::screen;
use crate::args::claims::{Listing, WorkersArgs, WorkersCommand};
use crate::args::{Format, Global};
use crate::exit::Failure;
use crate::output::{self, Ink, Table, ago};
use crate::store;

pub(crate) async fn run(global: &Global, args: WorkersArgs) -> Result<u8, Failure> {
    match args.command {
        WorkersCommand::List { listing } => list(global, listing).await,
        WorkersCommand::Approve { name } => approve(global, &name, true).await,
        WorkersCommand::Disapprove { name } => approve(global, &name, false).await,
    }
}

async fn list(global: &Global, listing: Listing) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.workers((!listing.all_namespaces).then_some(&namespace)).await?;
        Ok(match global.output {
            Format::Json => screen::json(&views),
            Format::Table => table(&views, listing.all_namespaces, wall_ms()),
        })
    })
    .await
}

fn table(views: &[WorkerView], namespaces: bool, now_ms: i64) -> String {
    if views.is_empty() {
        return "no worker has made itself known yet; try: tenure work mail -- ./send.sh\n".to_owned();
    }
    let mut header = vec!["worker", "status", "claimed", "approved", "seen", "queues", "kinds", "tags", "at"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["claimed"]);
    for view in views {
        let worker = &view.worker;
        let names: Vec<_> = worker.queues.iter().map(ToString::to_string).collect();
        let load = match worker.capacity {
            0 => view.claimed.to_string(),
            capacity => format!("{}/{capacity}", view.claimed),
        };
        let mut row = vec![
            (worker.name.clone(), Ink::Bold),
            if view.live { ("live".to_owned(), Ink::Green) } else { ("away".to_owned(), Ink::Dim) },
            (load, if view.claimed == 0 { Ink::Dim } else { Ink::Plain }),
            match &view.approved_by {
                Some(by) => (format!("by {by}"), Ink::Green),
                None => ("–".to_owned(), Ink::Dim),
            },
            match view.seen_at_ms {
                // Approved, and not known yet.
                ..=0 => ("never".to_owned(), Ink::Dim),
                at => (format!("{} ago", ago(at, now_ms)), Ink::Plain),
            },
            (names.join(" "), Ink::Plain),
            (if worker.kinds.is_empty() { "any".to_owned() } else { worker.kinds.join(" ") }, Ink::Plain),
            (worker.tags.join(" "), Ink::Plain),
            (worker.location.clone(), Ink::Dim),
        ];
        if namespaces {
            row.insert(0, (view.namespace.to_string(), Ink::Dim));
        }
        table.row(row);
    }
    table.render()
}

async fn approve(global: &Global, name: &str, approved: bool) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::open(global).await?;
    let by = whoami();
    let changed = store.approve(&namespace, name, approved.then_some(by.as_str())).await?;
    let (ink, text) = match (approved, changed) {
        (true, true) => (Ink::Green, "is approved"),
        (true, false) => (Ink::Yellow, "was approved already"),
        (false, true) => (Ink::Green, "is no longer approved; what it has claimed it may finish"),
        (false, false) => (Ink::Yellow, "was not approved"),
    };
    if global.output == Format::Json {
        output::print_json(&json!({"worker": name, "approved": approved, "changed": changed}));
    }
    output::note(global, ink, &format!("{} {text}", output::plain(name)));
    Ok(0)
}
