//! From a release to the next leader.

use std::time::Duration;

use tenure::runtime::now;
use tenure::{Elector, Tenure};

use crate::bare::{self, Folder};
use crate::{BenchError, REST, Row, median_ms, row};

pub(crate) async fn postgres(url: &str, rounds: u32) -> Result<Vec<Row>, BenchError> {
    let (one_way, round_trip) = bare::notify(url, rounds).await?;
    let times = median_ms(hand_over(url, rounds).await?);
    Ok(vec![
        row("hand-over, PostgreSQL", "NOTIFY there and back", times, median_ms(round_trip), Some(2.0)),
        row("hand-over, PostgreSQL", "NOTIFY one way", times, median_ms(one_way), None),
    ])
}

pub(crate) async fn sqlite(folder: &Folder, rounds: u32) -> Result<Row, BenchError> {
    let bare = median_ms(bare::sqlite_write(folder, rounds).await?);
    let times = median_ms(hand_over(&folder.store("hand-over"), rounds).await?);
    Ok(row("hand-over, SQLite", "two durable writes", times, bare * 2.0, None))
}

/// Two processes' worth of candidates hand one lease to and fro.
async fn hand_over(url: &str, rounds: u32) -> Result<Vec<Duration>, BenchError> {
    let (a, b) = (candidate(url, "a").await?, candidate(url, "b").await?);
    let election = format!("hand-over-{}", std::process::id());
    let (first, second) = (stand(&a, &election).await?, stand(&b, &election).await?);
    let mut times = Vec::new();
    for _ in 0..rounds {
        let (other, leadership) = tokio::select! {
            leadership = first.elected() => (&second, leadership?),
            leadership = second.elected() => (&first, leadership?),
        };
        settled(other, leadership.token()).await;
        let start = now();
        let (elected, resigned) = tokio::join!(other.elected(), leadership.resign());
        resigned?;
        drop(elected?);
        times.push(now().since(start));
    }
    drop((first, second));
    tokio::join!(a.close(), b.close()).0?;
    Ok(times)
}

/// Waits until the follower has seen who leads, as it has in a service that runs.
async fn settled(follower: &Elector, token: tenure::Token) {
    let seen = || follower.view().is_some_and(|view| view.holders().any(|(lease, _)| lease.token == token));
    while !seen() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(REST).await;
}

pub(crate) async fn candidate(url: &str, name: &str) -> Result<Tenure, BenchError> {
    Ok(Tenure::builder().url(url).name(name).open().await?)
}

async fn stand(tenure: &Tenure, election: &str) -> Result<Elector, BenchError> {
    Ok(tenure.elector(election).namespace("tenure-bench").start().await?)
}
