use tenure::{ScheduleBuilder, Tenure};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenure = Tenure::open("sqlite:tenure.db").await?; // or postgres://…

    let scheduler = tenure
        .scheduler() // a candidate; one process fires
        .run("pulse", "every 100ms", |tick| async move {
            println!("pulse of {}", tick.schedule().name);
        })
        .start()
        .await?;

    let nightly = ScheduleBuilder::new("nightly", "30 2 * * MON-FRI").time_zone("Europe/Berlin").task("reports", "nightly");
    scheduler.set(nightly).await?; // validated; setting it again changes nothing

    tokio::signal::ctrl_c().await?;
    scheduler.stop().await?; // finishes ticks in progress and resigns
    Ok(tenure.close().await?)
}
