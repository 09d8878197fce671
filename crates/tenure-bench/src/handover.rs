//! From a release to the next leader.

use std::time::Duration;

use tenure::port::{NewSession, Takeover};
use tenure::runtime::now;
use tenure::{Elector, SessionId, Tenure};

use crate::bare::{Folder, Server, Writer};
use crate::{BenchError, REST, Row, median_ms, row};

pub(crate) async fn postgres(url: &str, rounds: u32) -> Result<Vec<Row>, BenchError> {
    let (mut server, rivals) = (Server::connect(url).await?, Rivals::stand(url).await?);
    let (mut times, mut one_way, mut there_and_back, mut durable) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rounds {
        one_way.push(server.one_way().await?);
        there_and_back.push(server.there_and_back().await?);
        durable.push(server.there_and_durably_back().await?);
        times.push(rivals.hand_over().await?);
    }
    rivals.close().await?;
    let times = median_ms(times);
    let beside = |bare: &str, with, aim| row("hand-over, PostgreSQL", bare, times, median_ms(with), aim);
    Ok(vec![
        beside("NOTIFY there and back", there_and_back, Some(2.0)),
        beside("NOTIFY there and, durably, back", durable, Some(2.0)),
        beside("NOTIFY one way", one_way, None),
    ])
}

pub(crate) async fn sqlite(folder: &Folder, rounds: u32) -> Result<Row, BenchError> {
    let (mut writer, rivals) =
        (Writer::open(folder).await?, Rivals::stand(&folder.store("hand-over")).await?);
    let (mut times, mut bare) = (vec![], vec![]);
    for _ in 0..rounds {
        tokio::time::sleep(REST).await;
        let start = now();
        writer.write().await?;
        bare.push(now().since(start));
        times.push(rivals.hand_over().await?);
    }
    rivals.close().await?;
    Ok(row("hand-over, SQLite", "two durable writes", median_ms(times), median_ms(bare) * 2.0, None))
}

/// Two processes' worth of candidates that hand one lease to and fro.
pub(crate) struct Rivals {
    processes: [Tenure; 2],
    electors: [Elector; 2],
    is_sqlite: bool,
}

impl Rivals {
    pub(crate) async fn stand(url: &str) -> Result<Rivals, BenchError> {
        // In memory, two processes are two users of one store.
        let first = candidate(url, "a").await?;
        let second = match url {
            "memory:" => Tenure::builder().shared_store(first.store().clone()).name("b").open().await?,
            _ => candidate(url, "b").await?,
        };
        let processes = [first, second];
        let election = format!("hand-over-{}", std::process::id());
        let electors = [stand(&processes[0], &election).await?, stand(&processes[1], &election).await?];
        Ok(Rivals { processes, electors, is_sqlite: url.starts_with("sqlite:") })
    }

    pub(crate) async fn hand_over(&self) -> Result<Duration, BenchError> {
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

    /// How long a beat takes that is durably written before it is answered: the least that a store does.
    pub(crate) async fn beats(&self, rounds: u32) -> Result<Vec<Duration>, BenchError> {
        let session = self.durable_session().await?;
        let store = self.processes[0].store();
        let mut times = Vec::new();
        for _ in 0..rounds {
            tokio::time::sleep(REST).await;
            let start = now();
            store.beat(&session).await?;
            times.push(now().since(start));
        }
        Ok(times)
    }

    /// Any session of ours; but on SQLite one with an owner, since the beats of any other end with the machine and do not wait for the disk.
    async fn durable_session(&self) -> Result<SessionId, BenchError> {
        let [process, _] = &self.processes;
        if !self.is_sqlite {
            return process.session().ok_or_else(|| BenchError::Helper("the session is gone".into()));
        }
        let session = NewSession {
            id: SessionId::from_stored(&format!("beats-{}", std::process::id())),
            name: "beats".into(),
            lease: Duration::from_secs(60),
            takeover: Takeover::Lease,
            owner: Some("bench".into()),
        };
        process.store().open(&session).await?;
        Ok(session.id)
    }

    pub(crate) async fn close(self) -> Result<(), BenchError> {
        drop(self.electors);
        let [a, b] = self.processes;
        tokio::join!(a.close(), b.close()).0?;
        Ok(())
    }
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
    Ok(tenure.elector(election).namespace(crate::NAMESPACE).start().await?)
}
