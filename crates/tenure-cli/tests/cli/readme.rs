//! Rust examples of the README and the docs about elections, names and singletons: all compile, and the first one runs.

use crate::readme_blocks::Program;

/// The program of the README, verbatim.
mod example {
    include!("example.rs");

    pub fn run() -> Result<(), Box<dyn std::error::Error>> {
        main()
    }
}

/// Runs the program in a separate process.
#[test]
fn example_role() {
    if std::env::var_os("README_EXAMPLE").is_some() {
        example::run().expect("it runs");
    }
}

/// Regression: the first example of the README did not compile.
#[test]
fn the_first_rust_of_the_readme_runs_as_written() {
    let mut program = Program::start("Rust", include_str!("example.rs"));
    // The test harness may print text before it.
    let line = program.line_with("reported").unwrap_or_default();
    assert!(line.ends_with("reported under token 1"), "{line}");
    let world = program.wait();
    let shown = world.json(&["elections", "show", "nightly", "-o", "json"]);
    assert_eq!(shown["terms"][0]["end_reason"], "released", "{shown}");
}

/// Code fragments of the docs, each in a function with the variables it needs.
mod fragments {
    #![allow(dead_code, unused_mut, unused_variables)]

    use std::time::Duration;

    use tenure::cluster::{Registry, Supervisor};
    use tenure::{ScheduleBuilder, Tenure};
    use tenure_testkit::ElectionCluster;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    async fn sweep(_: i64) {}
    async fn import_from(_: &mut u64, _: tenure::Token) {}
    fn parse(_: &[u8]) -> u64 {
        0
    }

    async fn of_the_registry(tenure: Tenure) -> Outcome {
        let registry = Registry::strict(&tenure);
        let printer = registry.register("printer", [("address", "10.0.0.7:631")]).await?;
        let owner = registry.whereis("printer").await?; // owner and metadata
        printer.update([("address", "10.0.0.8:631")]).await?; // changes the metadata, keeps the name
        let mut changes = registry.watch(); // current entries, then each change
        printer.ended().await; // the name was lost, with the reason
        printer.unregister().await?; // the name is free when this returns
        drop(changes);
        Ok(())
    }

    async fn of_singletons(tenure: Tenure) -> Outcome {
        let supervisor = Supervisor::strict(&tenure)
            .singleton("importer", |singleton| async move {
                let mut cursor = singleton.state().map(parse).unwrap_or_default();
                loop {
                    tokio::select! {
                        () = singleton.stop_requested() => break,
                        () = import_from(&mut cursor, singleton.token()) => {}
                    }
                }
                let _ = singleton.set_handoff(cursor.to_string());
            })
            .start()
            .await?;
        Ok(())
    }

    async fn of_schedules(tenure: Tenure) -> Outcome {
        let scheduler = tenure
            .scheduler()
            .run("sweep", "every 5m", |tick| async move { sweep(tick.at_ms()).await })
            .start()
            .await?;
        scheduler
            .set(
                ScheduleBuilder::new("nightly", "30 2 * * *")
                    .time_zone("Europe/Berlin")
                    .task("reports", "nightly"),
            )
            .await?;
        Ok(())
    }

    #[test]
    fn of_the_testkit() {
        tenure_testkit::block_on(async {
            let cluster = ElectionCluster::of("nightly", ["a", "b", "c"]).await;
            cluster.cut_off("a");
            cluster.advance(Duration::from_secs(30)).await;
            assert_eq!(cluster.leaders(), ["b"]);
        });
    }
}

/// Code without whitespace.
fn words(code: &str) -> String {
    code.split_whitespace().collect::<String>().replace(",)", ")")
}

/// Every Rust block of the README and the docs is compiled by a test.
#[test]
fn every_example_in_rust_is_compiled() {
    let compiled = [
        include_str!("readme.rs"),
        include_str!("example.rs"),
        include_str!("../claims/example.rs"),
        include_str!("../events/example.rs"),
        include_str!("../schedules/example.rs"),
    ]
    .map(words);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let docs =
        std::fs::read_dir(format!("{folder}/docs")).expect("the docs").flatten().map(|file| file.path());
    let pages = docs
        .chain([format!("{folder}/README.md").into()])
        .filter(|path| path.extension().is_some_and(|it| it == "md"));
    let mut found = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page");
        for block in text.split("```rust\n").skip(1) {
            let code = words(block.split("```").next().expect("its end"));
            found += 1;
            assert!(
                compiled.iter().any(|compiled| compiled.contains(&code)),
                "{}: no test compiles {code}",
                page.display()
            );
        }
    }
    assert!(found >= 8, "only {found} examples were found");
}
