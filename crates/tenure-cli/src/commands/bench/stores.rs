//! The stores, as they were measured.

use tenure_bench::{StoresBench, StoresReport};

use super::{beside, failure, print};
use crate::args::Global;
use crate::exit::Failure;
use crate::output::{self, Ink, Table};

pub(super) async fn run(global: &Global, bench: &StoresBench) -> Result<(), Failure> {
    let progress = |what: &str| output::note(global, Ink::Dim, what);
    let report = tenure_bench::stores(bench, &progress).await.map_err(failure)?;
    print(global, &report, render);
    Ok(())
}

fn render(report: &StoresReport) -> String {
    let mut changes = Table::new(&["store", "one beat", "hand-over", "in beats", "crash", "in leases"])
        .right(&["one beat", "hand-over", "in beats", "crash", "in leases"]);
    let mut holding = Table::new(&["store", "held", "requests/s", "per beat", "of client-go's"]).right(&[
        "held",
        "requests/s",
        "per beat",
        "of client-go's",
    ]);
    let none = || "–".to_owned();
    for store in &report.stores {
        changes.row(vec![
            (store.store.clone(), Ink::Bold),
            (format!("{:.2} ms", store.beat_ms), Ink::Plain),
            (format!("{:.2} ms", store.hand_over_ms), Ink::Plain),
            (format!("{:.1}", store.hand_over_beats), Ink::Plain),
            (store.crash_ms.map_or_else(none, |ms| format!("{ms:.0} ms")), Ink::Plain),
            (store.crash_leases.map_or_else(none, |leases| format!("{leases:.2}")), Ink::Plain),
        ]);
        for cost in &store.holding {
            holding.row(vec![
                (store.store.clone(), Ink::Bold),
                (cost.held.to_string(), Ink::Plain),
                (format!("{:.2}", cost.requests_per_second), Ink::Plain),
                (format!("{:.2}", cost.per_beat), Ink::Plain),
                (format!("{:.4}", cost.of_client_go), Ink::Plain),
            ]);
        }
    }
    format!("{}\n{}\n{}", changes.render(), holding.render(), beside(&report.rows).render())
}
