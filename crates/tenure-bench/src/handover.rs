//! Handover: time from a release to the next leader.

use std::time::Duration;

use tenure::port::{OpenSessionRequest, TakeoverMode};
use tenure::runtime::now;
use tenure::{Elector, SessionId, Tenure};

use crate::baseline::{BenchDirectory, NotifyRoundTrip, SqliteWriter};
use crate::{BaselineRow, BenchError, REST, median_ms, row};

pub(crate) async fn postgres(url: &str, rounds: u32) -> Result<Vec<BaselineRow>, BenchError> {
    let (mut server, pair) = (NotifyRoundTrip::connect(url).await?, HandoverPair::campaign(url).await?);
    let (mut times, mut one_way, mut round_trip, mut durable) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rounds {
        one_way.push(server.one_way().await?);
        round_trip.push(server.round_trip().await?);
        durable.push(server.durable_round_trip().await?);
        times.push(pair.handover().await?);
    }
    pair.close().await?;
    let times = median_ms(times);
    let compare = |baseline: &str, with, max_ratio| {
        row("handover, PostgreSQL", baseline, times, median_ms(with), max_ratio)
    };
    Ok(vec![
        compare("NOTIFY round trip", round_trip, Some(2.0)),
        compare("NOTIFY round trip with a durable reply", durable, Some(2.0)),
        compare("NOTIFY one way", one_way, None),
    ])
}

pub(crate) async fn sqlite(directory: &BenchDirectory, rounds: u32) -> Result<BaselineRow, BenchError> {
    let (mut writer, pair) =
        (SqliteWriter::open(directory).await?, HandoverPair::campaign(&directory.store("handover")).await?);
    let (mut times, mut baseline) = (vec![], vec![]);
    for _ in 0..rounds {
        tokio::time::sleep(REST).await;
        let start = now();
        writer.write().await?;
        baseline.push(now().since(start));
        times.push(pair.handover().await?);
    }
    pair.close().await?;
    Ok(row("handover, SQLite", "two durable writes", median_ms(times), median_ms(baseline) * 2.0, None))
}

/// Two candidates that hand one lease back and forth.
pub(crate) struct HandoverPair {
    processes: [Tenure; 2],
    electors: [Elector; 2],
    is_sqlite: bool,
}

impl HandoverPair {
    pub(crate) async fn campaign(url: &str) -> Result<HandoverPair, BenchError> {
        // In memory, both candidates share one store.
        let first = candidate(url, "a").await?;
        let second = match url {
            "memory:" => Tenure::builder().shared_store(first.store().clone()).name("b").open().await?,
            _ => candidate(url, "b").await?,
        };
        let processes = [first, second];
        let election = format!("handover-{}", std::process::id());
        let electors = [campaign(&processes[0], &election).await?, campaign(&processes[1], &election).await?];
        Ok(HandoverPair { processes, electors, is_sqlite: url.starts_with("sqlite:") })
    }

    pub(crate) async fn handover(&self) -> Result<Duration, BenchError> {
        let [first, second] = &self.electors;
        let (other, leadership) = tokio::select! {
            leadership = first.elected() => (second, leadership?),
            leadership = second.elected() => (first, leadership?),
        };
        settled(other, leadership.token()).await;
        let start = now();
        let (elected, resigned) = tokio::join!(other.elected(), leadership.resign());
        resigned?;
        drop(elected?);
        Ok(now().since(start))
    }

    /// Durations of heartbeats that are durable before they are confirmed: the smallest write of a store.
    pub(crate) async fn heartbeat_durations(&self, rounds: u32) -> Result<Vec<Duration>, BenchError> {
        let session = self.durable_session().await?;
        let store = self.processes[0].store();
        let mut times = Vec::new();
        for _ in 0..rounds {
            tokio::time::sleep(REST).await;
            let start = now();
            store.heartbeat(&session).await?;
            times.push(now().since(start));
        }
        Ok(times)
    }

    /// A session whose heartbeats are durable. On SQLite, only heartbeats of a session with an owner are: other
    /// sessions cannot outlive the machine, so their heartbeats do not wait for the disk.
    async fn durable_session(&self) -> Result<SessionId, BenchError> {
        let [process, _] = &self.processes;
        if !self.is_sqlite {
            return process.session().ok_or_else(|| BenchError::Helper("the session has ended".into()));
        }
        let session = OpenSessionRequest {
            id: SessionId::from_stored(&format!("beats-{}", std::process::id())),
            name: "beats".into(),
            lease: Duration::from_secs(60),
            takeover: TakeoverMode::Lease,
            owner: Some("bench".into()),
        };
        process.store().open_session(&session).await?;
        Ok(session.id)
    }

    pub(crate) async fn close(self) -> Result<(), BenchError> {
        drop(self.electors);
        let [a, b] = self.processes;
        tokio::join!(a.close(), b.close()).0?;
        Ok(())
    }
}

/// Wait until the follower has seen the leader, as in a running service.
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

async fn campaign(tenure: &Tenure, election: &str) -> Result<Elector, BenchError> {
    Ok(tenure.elector(election).namespace(crate::NAMESPACE).start().await?)
}
