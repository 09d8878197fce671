//! `tenure workers`: inspect and approve workers.

use serde_json::json;
use tenure::Name;
use tenure::port::WorkerView;
use tenure::runtime::wall_ms;

use super::elections::whoami;
use super::watch_screen;
use crate::args::queues_and_pools::{ListArgs, WorkersArgs, WorkersCommand};
use crate::args::{GlobalArgs, OutputFormat};
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, ago};
use crate::store;

pub(crate) async fn run(global: &GlobalArgs, args: WorkersArgs) -> Result<u8, CliError> {
    match args.command {
        WorkersCommand::List { listing } => list(global, listing).await,
        WorkersCommand::Approve { worker } => approve(global, &worker, true).await,
        WorkersCommand::RevokeApproval { worker } => approve(global, &worker, false).await,
    }
}

async fn list(global: &GlobalArgs, listing: ListArgs) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.workers((!listing.all_namespaces).then_some(&namespace)).await?;
        Ok(match global.output {
            OutputFormat::Json => watch_screen::json(&views),
            OutputFormat::Table => table(&views, listing.all_namespaces, wall_ms()),
        })
    })
    .await
}

fn table(views: &[WorkerView], namespaces: bool, now_ms: i64) -> String {
    if views.is_empty() {
        return "there are no workers; try: tenure work mail -- ./send.sh\n".to_owned();
    }
    let mut header =
        vec!["worker", "status", "claimed", "approved", "last seen", "queues", "kinds", "tags", "location"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["claimed"]);
    for view in views {
        let worker = &view.worker;
        let names: Vec<_> = worker.queues.iter().map(ToString::to_string).collect();
        let load = match worker.capacity {
            0 => view.claimed_count.to_string(),
            capacity => format!("{}/{capacity}", view.claimed_count),
        };
        let mut row = vec![
            (worker.name.clone(), TextStyle::Bold),
            if view.online {
                ("online".to_owned(), TextStyle::Green)
            } else {
                ("offline".to_owned(), TextStyle::Dim)
            },
            (load, if view.claimed_count == 0 { TextStyle::Dim } else { TextStyle::Plain }),
            match &view.approved_by {
                Some(by) => (format!("by {by}"), TextStyle::Green),
                None => ("–".to_owned(), TextStyle::Dim),
            },
            match view.last_seen_at_ms {
                // Approved, and not seen yet.
                ..=0 => ("never".to_owned(), TextStyle::Dim),
                at => (format!("{} ago", ago(at, now_ms)), TextStyle::Plain),
            },
            (names.join(" "), TextStyle::Plain),
            (
                if worker.task_kinds.is_empty() { "any".to_owned() } else { worker.task_kinds.join(" ") },
                TextStyle::Plain,
            ),
            (worker.tags.join(" "), TextStyle::Plain),
            (worker.location.clone(), TextStyle::Dim),
        ];
        if namespaces {
            row.insert(0, (view.namespace.to_string(), TextStyle::Dim));
        }
        table.row(row);
    }
    table.render()
}

async fn approve(global: &GlobalArgs, name: &str, approved: bool) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::open(global).await?;
    let by = whoami();
    let changed = store.set_worker_approval(&namespace, name, approved.then_some(by.as_str())).await?;
    let (style, text) = match (approved, changed) {
        (true, true) => (TextStyle::Green, "is approved"),
        (true, false) => (TextStyle::Yellow, "was already approved"),
        (false, true) => (TextStyle::Green, "is no longer approved; it may finish its claimed tasks"),
        (false, false) => (TextStyle::Yellow, "was not approved"),
    };
    if global.output == OutputFormat::Json {
        output::print_json(&json!({"worker": name, "approved": approved, "changed": changed}));
    }
    output::note(global, style, &format!("{} {text}", output::plain(name)));
    Ok(0)
}
