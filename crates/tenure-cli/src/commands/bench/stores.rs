//! Report of `tenure bench stores`.

use tenure_bench::{StoresBench, StoresReport};

use super::{beside, failure, print};
use crate::args::GlobalArgs;
use crate::error::CliError;
use crate::output::{self, Table, TextStyle};

pub(super) async fn run(global: &GlobalArgs, bench: &StoresBench) -> Result<(), CliError> {
    let progress = |what: &str| output::note(global, TextStyle::Dim, what);
    let report = tenure_bench::stores(bench, &progress).await.map_err(failure)?;
    print(global, &report, render);
    Ok(())
}

fn render(report: &StoresReport) -> String {
    let mut changes = Table::new(&["store", "heartbeat", "handover", "in heartbeats", "crash", "in leases"])
        .right(&["heartbeat", "handover", "in heartbeats", "crash", "in leases"]);
    let mut holding =
        Table::new(&["store", "elections", "requests/s", "per heartbeat", "ratio to client-go"]).right(&[
            "elections",
            "requests/s",
            "per heartbeat",
            "ratio to client-go",
        ]);
    let none = || "–".to_owned();
    for store in &report.stores {
        changes.row(vec![
            (store.store.clone(), TextStyle::Bold),
            (format!("{:.2} ms", store.heartbeat_ms), TextStyle::Plain),
            (format!("{:.2} ms", store.handover_ms), TextStyle::Plain),
            (format!("{:.1}", store.handover_heartbeats), TextStyle::Plain),
            (store.crash_ms.map_or_else(none, |ms| format!("{ms:.0} ms")), TextStyle::Plain),
            (store.crash_leases.map_or_else(none, |leases| format!("{leases:.2}")), TextStyle::Plain),
        ]);
        for cost in &store.holding {
            holding.row(vec![
                (store.store.clone(), TextStyle::Bold),
                (cost.elections.to_string(), TextStyle::Plain),
                (format!("{:.2}", cost.requests_per_second), TextStyle::Plain),
                (format!("{:.2}", cost.per_heartbeat), TextStyle::Plain),
                (format!("{:.4}", cost.client_go_ratio), TextStyle::Plain),
            ]);
        }
    }
    format!("{}\n{}\n{}", changes.render(), holding.render(), beside(&report.rows).render())
}
