use tenure::{ScheduleBuilder, Tenure};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenure = Tenure::open("sqlite:tenure.db").await?; // or postgres://…

    let scheduler = tenure
        .scheduler() // stands for the election; one of all fires
        .run("pulse", "every 100ms", |tick| async move {
            println!("pulse of {}", tick.schedule().name);
        })
        .start()
        .await?;

    let nightly = ScheduleBuilder::new("nightly", "30 2 * * MON-FRI").zone("Europe/Berlin").task("reports", "nightly");
    scheduler.set(nightly).await?; // checked, and the same again changes nothing

    tokio::signal::ctrl_c().await?;
    scheduler.stop().await?; // finishes what is begun, and lets another lead
    Ok(tenure.close().await?)
}
