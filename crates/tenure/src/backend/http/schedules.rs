//! Schedules, for people. The servers fire what is due by themselves.

use async_trait::async_trait;
use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use tenure_core::port::{
    Calendar, DueLook, Expect, Fire, Fired, Hand, HandFired, Json, Pause, ScheduleFilter, ScheduleKey,
    ScheduleSet, ScheduleStats, ScheduleView, Scheduling, SetSchedule, StoreError, TickFilter, TickView,
};
use tenure_core::schedule::Definition;
use tenure_core::{Name, SessionId, Token};

use super::Http;
use super::answer::Answer;
use super::caller::{bare, get, part, send};
use super::claims::within;
use super::desk::{Changed, also};

/// How many schedules are asked for at once.
const SCHEDULES_PAGE: u32 = 500;
/// How many ticks.
const TICKS_PAGE: u32 = 1000;

#[derive(Deserialize)]
struct Schedules {
    schedules: Vec<ScheduleView>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Ticks {
    ticks: Vec<TickView>,
    next: Option<i64>,
}

#[derive(Deserialize)]
struct Calendars {
    namespaces: Vec<ScheduleStats>,
}

#[derive(Deserialize)]
struct Backfilled {
    ticks: Vec<HandFired>,
}

/// A definition on its way.
#[derive(Serialize)]
struct Wish<'a> {
    #[serde(flatten)]
    definition: &'a Definition,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<&'a str>,
    /// A server makes a secret where there is none; whoever speaks for a program decides for itself.
    unsigned: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    by: &'a str,
}

/// What became of it.
#[derive(Deserialize)]
struct Defined {
    outcome: Outcome,
    version: u64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Created,
    Changed,
    Same,
}

/// What fires by hand, on its way.
#[derive(Serialize)]
struct ByHand<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    ticks: Option<&'a [i64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a Json>,
    dry_run: bool,
    by: &'a str,
}

/// Nobody fires through a server but the servers themselves: in their namespace nobody else stands, so nobody else leads
/// [`scheduler_election`](tenure_core::port::scheduler_election).
#[async_trait]
impl Scheduling for Http {
    async fn due(&self, _: u32) -> Result<DueLook, StoreError> {
        Ok(DueLook::default())
    }

    async fn fire(&self, _: &Fire) -> Result<Option<Vec<Fired>>, StoreError> {
        Ok(None)
    }

    async fn prune_ticks(&self, _: &SessionId, _: Token, _: u32) -> Result<(u64, bool), StoreError> {
        Ok((0, false))
    }
}

#[async_trait]
impl Calendar for Http {
    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Vec<ScheduleView>, StoreError> {
        let only = [
            also("namespace", filter.namespace.as_ref().map(Name::as_str)),
            also("source", filter.source.as_deref()),
        ];
        let only = only.concat();
        let mut after = filter.after.as_ref().map(|key| format!("{}/{}", key.namespace, key.name));
        let wanted = if filter.limit == 0 { usize::MAX } else { filter.limit as usize };
        let mut all = Vec::new();
        loop {
            let limit = u32::try_from(wanted - all.len()).unwrap_or(SCHEDULES_PAGE).min(SCHEDULES_PAGE);
            let from = also("after", after.as_deref());
            let path = format!("/v1/schedules?limit={limit}{only}{from}");
            let page: Schedules = self.caller.call(&get(path)).await?.read()?;
            all.extend(page.schedules);
            after = page.next;
            if after.is_none() || all.len() >= wanted {
                return Ok(all);
            }
        }
    }

    async fn schedule(&self, key: &ScheduleKey) -> Result<Option<ScheduleView>, StoreError> {
        let answer = self.caller.call(&get(format!("{}&next=1", of(key, "")))).await?;
        if is_nowhere(&answer) { Ok(None) } else { answer.read().map(Some) }
    }

    async fn set_schedule(&self, set: &SetSchedule) -> Result<ScheduleSet, StoreError> {
        let key = ScheduleKey::new(set.namespace.clone(), set.definition.name.clone());
        let wish = Wish {
            definition: &set.definition,
            secret: set.secret.as_deref(),
            unsigned: true,
            source: set.source.as_deref(),
            by: &set.by,
        };
        let expect = match set.expect {
            Expect::Any => "any".into(),
            Expect::New => "new".into(),
            Expect::Version(version) => version.to_string(),
        };
        let mut call = send(Method::PUT, format!("{}&expect={expect}", of(&key, "")), &wish);
        // What a try whose answer was lost has changed is not what the next one expects.
        call.again = set.expect == Expect::Any;
        let answer = self.caller.call(&call).await?;
        if answer.status == StatusCode::PRECONDITION_FAILED && answer.says("schedule-changed") {
            return Ok(ScheduleSet::Conflict(answer.version()));
        }
        let Defined { outcome, version } = answer.read()?;
        Ok(match outcome {
            Outcome::Created => ScheduleSet::Created(version),
            Outcome::Changed => ScheduleSet::Changed(version),
            Outcome::Same => ScheduleSet::Same(version),
        })
    }

    async fn delete_schedule(
        &self,
        key: &ScheduleKey,
        expect: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        let expect = also("expect", expect.map(|version| version.to_string()).as_deref());
        let answer = self.caller.call(&bare(Method::DELETE, format!("{}{expect}", of(key, "")))).await?;
        if is_nowhere(&answer) {
            // Of a second try it is known that it is gone, not since when.
            return Ok((answer.tries > 1).then_some(true));
        }
        if answer.says("schedule-changed") {
            return Ok(Some(false));
        }
        answer.done().map(|()| Some(true))
    }

    async fn set_schedule_paused(
        &self,
        key: &ScheduleKey,
        pause: Option<&Pause>,
    ) -> Result<Option<bool>, StoreError> {
        let mut call = match pause {
            Some(pause) => send(Method::POST, of(key, "/pause"), pause),
            None => bare(Method::POST, of(key, "/resume")),
        };
        // Whoever paused it with a try whose answer was lost would be told that it was paused already.
        call.again = false;
        let answer = self.caller.call(&call).await?;
        if is_nowhere(&answer) {
            return Ok(None);
        }
        answer.read().map(|answer: Changed| Some(answer.changed))
    }

    async fn fire_by_hand(&self, hand: &Hand) -> Result<Option<Vec<HandFired>>, StoreError> {
        let place = if hand.ticks.is_some() { "/backfill" } else { "/trigger" };
        let wish = ByHand {
            ticks: hand.ticks.as_deref(),
            payload: hand.payload.as_ref(),
            dry_run: hand.dry_run,
            by: &hand.by,
        };
        let mut call = send(Method::POST, of(&hand.key, place), &wish);
        // Now is another tick the second time; and what the first try has fired would be told as fired before.
        call.again = hand.dry_run;
        let answer = self.caller.call(&call).await?;
        if is_nowhere(&answer) {
            return Ok(None);
        }
        match hand.ticks {
            Some(_) => answer.read().map(|fired: Backfilled| Some(fired.ticks)),
            None => answer.read().map(|fired: HandFired| Some(vec![fired])),
        }
    }

    async fn ticks(&self, filter: &TickFilter) -> Result<Vec<TickView>, StoreError> {
        let (mut all, mut before) = (Vec::new(), filter.before_ms);
        let wanted = filter.limit as usize;
        while all.len() < wanted {
            let limit = u32::try_from(wanted - all.len()).unwrap_or(TICKS_PAGE).min(TICKS_PAGE);
            let from = before.map(|at| format!("&before={at}")).unwrap_or_default();
            let path = format!("{}&limit={limit}{from}", of(&filter.key, "/ticks"));
            let answer = self.caller.call(&get(path)).await?;
            if is_nowhere(&answer) {
                break;
            }
            let page: Ticks = answer.read()?;
            all.extend(page.ticks);
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        // A page does not part what is at one instant.
        all.truncate(wanted);
        Ok(all)
    }

    async fn schedule_stats(&self) -> Result<Vec<ScheduleStats>, StoreError> {
        self.caller.call(&get("/v1/calendar")).await?.read().map(|answer: Calendars| answer.namespaces)
    }

    /// The servers make the calls by themselves, and show their secrets to nobody.
    async fn call_secret(&self, _: &ScheduleKey) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

/// Whether there is no such schedule.
fn is_nowhere(answer: &Answer) -> bool {
    answer.says("no-such-schedule")
}

/// The path of a schedule.
fn of(key: &ScheduleKey, rest: &str) -> String {
    within(&format!("/v1/schedules/{}{rest}", part(key.name.as_str())), &key.namespace)
}
