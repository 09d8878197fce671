//! Schedules through a server. The servers fire due ticks themselves.

use async_trait::async_trait;
use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use tenure_core::port::{
    DueResponse, FireOutcome, FireRequest, ManualFire, ManualFireResult, Pause, Precondition, RawJson,
    ScheduleAdmin, ScheduleFilter, ScheduleKey, ScheduleStats, ScheduleStore, ScheduleView,
    SetScheduleOutcome, SetScheduleRequest, StoreError, TickFilter, TickView,
};
use tenure_core::rules::schedule::ScheduleDefinition;
use tenure_core::{Name, SessionId, Token};

use super::HttpStore;
use super::client::{bare, get, part, send};
use super::response::HttpResponse;
use super::task_admin::{ChangeResponse, pause_request, query_param};
use super::tasks::within;

/// Page size of schedules.
const SCHEDULES_PAGE: u32 = 500;
/// Page size of ticks.
const TICKS_PAGE: u32 = 1000;

#[derive(Deserialize)]
struct ScheduleList {
    schedules: Vec<ScheduleView>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct TickList {
    ticks: Vec<TickView>,
    next_cursor: Option<i64>,
}

#[derive(Deserialize)]
struct ScheduleStatsList {
    namespaces: Vec<ScheduleStats>,
}

#[derive(Deserialize)]
struct BackfillResponse {
    ticks: Vec<ManualFireResult>,
}

/// Schedule definition to set.
#[derive(Serialize)]
struct PutScheduleRequest<'a> {
    #[serde(flatten)]
    definition: &'a ScheduleDefinition,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<&'a str>,
    /// True: the server must not create a secret; the caller decides.
    webhook_unsigned: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    on_behalf_of: &'a str,
}

/// Result of setting a schedule.
#[derive(Deserialize)]
struct PutScheduleResponse {
    outcome: PutOutcome,
    version: u64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PutOutcome {
    Created,
    Updated,
    Unchanged,
}

/// Ticks to fire manually.
#[derive(Serialize)]
struct ManualFireRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    ticks: Option<&'a [i64]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawJson>,
    dry_run: bool,
    on_behalf_of: &'a str,
}

/// No-op: only servers can be candidates in their namespace and so lead
/// [`scheduler_election`](tenure_core::port::scheduler_election).
#[async_trait]
impl ScheduleStore for HttpStore {
    async fn due_schedules(&self, _: u32) -> Result<DueResponse, StoreError> {
        Ok(DueResponse::default())
    }

    async fn fire(&self, _: &FireRequest) -> Result<Option<Vec<FireOutcome>>, StoreError> {
        Ok(None)
    }

    async fn prune_ticks(&self, _: &SessionId, _: Token, _: u32) -> Result<(u64, bool), StoreError> {
        Ok((0, false))
    }
}

#[async_trait]
impl ScheduleAdmin for HttpStore {
    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Vec<ScheduleView>, StoreError> {
        let only = [
            query_param("namespace", filter.namespace.as_ref().map(Name::as_str)),
            query_param("source", filter.source.as_deref()),
        ];
        let only = only.concat();
        let mut after = filter.after.as_ref().map(|key| format!("{}/{}", key.namespace, key.name));
        let wanted = if filter.limit == 0 { usize::MAX } else { filter.limit as usize };
        let mut all = Vec::new();
        loop {
            let limit = u32::try_from(wanted - all.len()).unwrap_or(SCHEDULES_PAGE).min(SCHEDULES_PAGE);
            let from = query_param("cursor", after.as_deref());
            let path = format!("/v1/schedules?limit={limit}{only}{from}");
            let page: ScheduleList = self.client.call(&get(path)).await?.read()?;
            all.extend(page.schedules);
            after = page.next_cursor;
            if after.is_none() || all.len() >= wanted {
                return Ok(all);
            }
        }
    }

    async fn schedule(&self, key: &ScheduleKey) -> Result<Option<ScheduleView>, StoreError> {
        let response = self.client.call(&get(format!("{}&upcoming=1", of(key, "")))).await?;
        if is_missing(&response) { Ok(None) } else { response.read().map(Some) }
    }

    async fn set_schedule(&self, set: &SetScheduleRequest) -> Result<SetScheduleOutcome, StoreError> {
        let key = ScheduleKey::new(set.namespace.clone(), set.definition.name.clone());
        let body = PutScheduleRequest {
            definition: &set.definition,
            secret: set.secret.as_deref(),
            webhook_unsigned: true,
            source: set.source.as_deref(),
            on_behalf_of: &set.updated_by,
        };
        let expect = match set.precondition {
            Precondition::Any => "any".into(),
            Precondition::New => "new".into(),
            Precondition::Version(version) => version.to_string(),
        };
        let mut call = send(Method::PUT, format!("{}&if_version={expect}", of(&key, "")), &body);
        // No retry with a precondition: a lost first attempt would change the version that the second one
        // expects.
        call.again = set.precondition == Precondition::Any;
        let response = self.client.call(&call).await?;
        if response.status == StatusCode::PRECONDITION_FAILED && response.says("schedule-changed") {
            return Ok(SetScheduleOutcome::Conflict(response.version()));
        }
        let PutScheduleResponse { outcome, version } = response.read()?;
        Ok(match outcome {
            PutOutcome::Created => SetScheduleOutcome::Created(version),
            PutOutcome::Updated => SetScheduleOutcome::Updated(version),
            PutOutcome::Unchanged => SetScheduleOutcome::Unchanged(version),
        })
    }

    async fn delete_schedule(
        &self,
        key: &ScheduleKey,
        expect: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        let expect = query_param("if_version", expect.map(|version| version.to_string()).as_deref());
        let response = self.client.call(&bare(Method::DELETE, format!("{}{expect}", of(key, "")))).await?;
        if is_missing(&response) {
            // After a retry, an earlier attempt may have deleted it.
            return Ok((response.tries > 1).then_some(true));
        }
        if response.says("schedule-changed") {
            return Ok(Some(false));
        }
        response.done().map(|()| Some(true))
    }

    async fn set_schedule_paused(
        &self,
        key: &ScheduleKey,
        pause: Option<&Pause>,
    ) -> Result<Option<bool>, StoreError> {
        let mut call = match pause {
            Some(pause) => send(Method::POST, of(key, "/pause"), &pause_request(pause)),
            None => bare(Method::POST, of(key, "/resume")),
        };
        // No retry: after a lost response the second attempt would report `changed: false`.
        call.again = false;
        let response = self.client.call(&call).await?;
        if is_missing(&response) {
            return Ok(None);
        }
        response.read().map(|response: ChangeResponse| Some(response.changed))
    }

    async fn fire_manually(
        &self,
        manual_fire: &ManualFire,
    ) -> Result<Option<Vec<ManualFireResult>>, StoreError> {
        let place = if manual_fire.ticks.is_some() { "/backfill" } else { "/trigger" };
        let body = ManualFireRequest {
            ticks: manual_fire.ticks.as_deref(),
            payload: manual_fire.payload.as_ref(),
            dry_run: manual_fire.dry_run,
            on_behalf_of: &manual_fire.requested_by,
        };
        let mut call = send(Method::POST, of(&manual_fire.key, place), &body);
        // No retry: a second trigger is another tick, and ticks that the first attempt fired would be
        // reported as already fired.
        call.again = manual_fire.dry_run;
        let response = self.client.call(&call).await?;
        if is_missing(&response) {
            return Ok(None);
        }
        match manual_fire.ticks {
            Some(_) => response.read().map(|fired: BackfillResponse| Some(fired.ticks)),
            None => response.read().map(|fired: ManualFireResult| Some(vec![fired])),
        }
    }

    async fn ticks(&self, filter: &TickFilter) -> Result<Vec<TickView>, StoreError> {
        let (mut all, mut before) = (Vec::new(), filter.before_ms);
        let wanted = filter.limit as usize;
        while all.len() < wanted {
            let limit = u32::try_from(wanted - all.len()).unwrap_or(TICKS_PAGE).min(TICKS_PAGE);
            let from = before.map(|at| format!("&cursor={at}")).unwrap_or_default();
            let path = format!("{}&limit={limit}{from}", of(&filter.key, "/ticks"));
            let response = self.client.call(&get(path)).await?;
            if is_missing(&response) {
                break;
            }
            let page: TickList = response.read()?;
            all.extend(page.ticks);
            before = page.next_cursor;
            if before.is_none() {
                break;
            }
        }
        // A page never splits ticks of one instant, so it may contain more.
        all.truncate(wanted);
        Ok(all)
    }

    async fn schedule_stats(&self) -> Result<Vec<ScheduleStats>, StoreError> {
        self.client
            .call(&get("/v1/schedule-stats"))
            .await?
            .read()
            .map(|response: ScheduleStatsList| response.namespaces)
    }

    /// None: the servers send webhooks themselves and never reveal secrets.
    async fn webhook_secret(&self, _: &ScheduleKey) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}

/// Whether the schedule does not exist.
fn is_missing(response: &HttpResponse) -> bool {
    response.says("no-such-schedule")
}

/// Path of a schedule.
fn of(key: &ScheduleKey, rest: &str) -> String {
    within(&format!("/v1/schedules/{}{rest}", part(key.name.as_str())), &key.namespace)
}
