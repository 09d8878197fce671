//! Operations of the scheduler: find due schedules, fire them, prune ticks.

use tenure_core::port::{
    DUE_MAX, DueResponse, DueSchedule, FireOutcome, FireRequest, FiringTick, ScheduleFiring, ScheduleKey,
    StoreError, TICK_RETENTION_MS,
};
use tenure_core::rules::event::{PublishError, no_such_topic};
use tenure_core::rules::schedule::{ScheduleTickState, SkippedTicks, unfinished_runs, validate_fire};
use tenure_core::rules::work::clip;
use tenure_core::{Name, SessionId, Token};

use super::super::error::unexpected_response;
use super::super::events::{numbers, some_numbers, some_texts, to_bigint};
use super::super::message::{Message, REQUIRE_SYNC_STANDBY};
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::work::texts;
use super::super::{PostgresStore, from_json, get, get_json};
use super::ticks::{TickColumns, check_effect};

impl PostgresStore {
    pub(super) async fn list_due(&self, limit: u32) -> Result<DueResponse, StoreError> {
        let limit = limit.clamp(1, DUE_MAX);
        let rows = self.call("schedule_due", &[limit.into()]).await?;
        let (last, rows) = rows.split_last().ok_or_else(|| unexpected_response("due schedules", "no row"))?;
        // The server returns one more than the limit if there are more.
        let (found, others) = rows.split_at(rows.len().min(limit as usize));
        let mut schedules: Vec<_> = found.iter().filter_map(decode_or_skip).collect();
        schedules.sort_by(|a, b| (a.due_at_ms, &a.schedule.key).cmp(&(b.due_at_ms, &b.schedule.key)));
        let ids = schedules.iter().map(|it| (it.schedule.key.clone(), (it.schedule.version, it.id)));
        self.shared.schedule_ids.replace(ids.collect());
        Ok(DueResponse {
            schedules: schedules.into_iter().map(|it| it.schedule).collect(),
            has_more: !others.is_empty(),
            store_now_at_ms: get(last, "store_now_at_ms")?,
            next_due_at_ms: get(others.first().unwrap_or(last), "due_at_ms")?,
        })
    }

    pub(super) async fn fire_all(&self, fire: &FireRequest) -> Result<Option<Vec<FireOutcome>>, StoreError> {
        validate_fire(fire)?;
        let mut fired = vec![FireOutcome::Stale; fire.firings.len()];
        let mut order = Vec::with_capacity(fire.firings.len());
        for (index, firing) in fire.firings.iter().enumerate() {
            let mut effects = ticks_of(firing).iter().filter_map(|tick| tick.effect.as_ref());
            match effects.try_for_each(|effect| check_effect(effect, None)) {
                Ok(()) => order.push(index),
                Err(error) => fired[index] = FireOutcome::Rejected(error.message),
            }
        }
        // Lock schedules in the order of their names, so that two calls with the same schedules do not deadlock.
        order.sort_by(|a, b| fire.firings[*a].key.cmp(&fire.firings[*b].key));
        let firings: Vec<&ScheduleFiring> = order.iter().map(|index| &fire.firings[*index]).collect();
        let mut ticks = TickColumns::default();
        for (index, firing) in (1..).zip(&firings) {
            ticks_of(firing).iter().for_each(|tick| ticks.push(index, tick));
        }
        let message = Message::fresh(&self.queries).plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication);
        let known = some_numbers(self.shared.schedule_ids.of(&firings).into_iter());
        let message = fire_message(message, fire, &firings, &ticks, known.as_deref())?;
        let rows = self.shared.calls.run(message).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        for (firing, fired) in fire.firings.iter().zip(&mut fired) {
            // Firings that failed validation were not sent to the server. Report them as stale if the stored state
            // differs.
            if matches!(fired, FireOutcome::Rejected(_)) && !self.is_current(firing).await? {
                *fired = FireOutcome::Stale;
            }
        }
        order.iter().for_each(|index| fired[*index] = FireOutcome::Fired);
        let at = |index: usize| order.get(index.wrapping_sub(1)).copied();
        for (index, reason) in rejected(row, &ticks)? {
            fired[at(index).ok_or_else(|| unexpected_response("a firing", index))?] =
                FireOutcome::Rejected(reason);
        }
        for index in from_json::<Vec<usize>>(row, "stale")? {
            fired[at(index).ok_or_else(|| unexpected_response("a firing", index))?] = FireOutcome::Stale;
        }
        Ok(Some(fired))
    }

    /// Whether the stored state of a schedule is still the state from which the firing was planned.
    async fn is_current(&self, firing: &ScheduleFiring) -> Result<bool, StoreError> {
        let stored = self.stored(&firing.key).await?;
        Ok(stored.is_some_and(|stored| stored.is_current(firing.version, firing.next_tick_at_ms)))
    }

    pub(super) async fn prune_old_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), StoreError> {
        let values =
            [session.as_str().into(), int(token.as_u64()), Value::Int(TICK_RETENTION_MS), limit.into()];
        let message = Message::fresh(&self.queries).then("tick_prune", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("a pruning result", "no row"))?;
        Ok((number(get::<i64>(row, "pruned")?, "ticks")?, get(row, "has_more")?))
    }
}

/// The message of a firing. Its first statement limits the transaction to the lease of the scheduler; the second one
/// fires.
fn fire_message<'q>(
    message: Message<'q>,
    fire: &FireRequest,
    firings: &[&ScheduleFiring],
    ticks: &TickColumns<'_>,
    known: Option<&str>,
) -> Result<Message<'q>, StoreError> {
    let (session, token) = (&fire.session, fire.token);
    let namespaces = texts(firings.iter().map(|firing| Some(firing.key.namespace.as_str())));
    let names = texts(firings.iter().map(|firing| Some(firing.key.name.as_str())));
    let versions = numbers(firings.iter().map(|firing| Some(to_bigint(firing.version))));
    let next_ticks = numbers(firings.iter().map(|firing| Some(firing.next_tick_at_ms)));
    let new_next_ticks = numbers(firings.iter().map(|firing| firing.tick_state.map(|to| to.next_tick_at_ms)));
    let new_last_ticks =
        numbers(firings.iter().map(|firing| firing.tick_state.and_then(|to| to.last_tick_at_ms)));
    let due_times = numbers(firings.iter().map(|firing| firing.due_at_ms));
    let errors: Vec<_> = firings.iter().map(|firing| firing.error.as_deref().map(clip)).collect();
    let errors = some_texts(errors.iter().map(Option::as_deref));
    let count = |firing: &ScheduleFiring, fires: bool| {
        let ticks = ticks_of(firing).iter().filter(|tick| tick.effect.is_some() == fires);
        i64::try_from(ticks.count()).ok()
    };
    let fired = numbers(firings.iter().map(|firing| count(firing, true)));
    let overlapped = numbers(firings.iter().map(|firing| count(firing, false)));
    let skipped = firings.iter().map(|firing| skipped_of(firing));
    let skipped_counts =
        some_numbers(skipped.clone().map(|skipped| skipped.map(|skipped| to_bigint(skipped.tick_count))));
    let skipped_first =
        some_numbers(skipped.clone().map(|skipped| skipped.map(|skipped| skipped.first_tick_at_ms)));
    let skipped_last = some_numbers(skipped.map(|skipped| skipped.map(|skipped| skipped.last_tick_at_ms)));
    let ticks = ticks.encode()?;
    let mut values = vec![
        session.as_str().into(),
        int(token.as_u64()),
        namespaces.as_str().into(),
        names.as_str().into(),
        versions.as_str().into(),
        next_ticks.as_str().into(),
        new_next_ticks.as_str().into(),
        new_last_ticks.as_str().into(),
        due_times.as_str().into(),
        errors.as_deref().into(),
        fired.as_str().into(),
        overlapped.as_str().into(),
        skipped_counts.as_deref().into(),
        skipped_first.as_deref().into(),
        skipped_last.as_deref().into(),
        ticks.firings(),
    ];
    values.extend(ticks.values());
    values.push(known.into());
    message
        .then("schedule_limit_transaction_time", &[session.as_str().into()])?
        .then("schedule_fire", &values)
}

/// The ticks of a firing; none if it failed.
fn ticks_of(firing: &ScheduleFiring) -> &[FiringTick] {
    if firing.error.is_none() { &firing.ticks } else { &[] }
}

fn skipped_of(firing: &ScheduleFiring) -> Option<SkippedTicks> {
    firing.skipped.filter(|_| firing.error.is_none())
}

/// Firings that the target rejects, by index, with the reason.
fn rejected(row: &PgRow, ticks: &TickColumns<'_>) -> Result<Vec<(usize, String)>, StoreError> {
    let indexes: Vec<usize> = from_json(row, "rejected")?;
    let events: Vec<usize> = get_json(row, "rejected_events")?;
    let max_bytes: Vec<Option<u64>> = get_json(row, "rejected_max_bytes")?;
    let mut rejected = Vec::with_capacity(indexes.len());
    for (index, (event, max)) in indexes.into_iter().zip(events.into_iter().zip(max_bytes)) {
        let (topic, event) = ticks.event(event).ok_or_else(|| unexpected_response("an event", event))?;
        let reason = match max {
            Some(max) => {
                PublishError::TooLarge { place: 0, bytes: event.payload.len(), most: max }.to_string()
            }
            None => no_such_topic(topic).message,
        };
        rejected.push((index, reason));
    }
    Ok(rejected)
}

/// Decode a due schedule. If it cannot be decoded, for example because a newer program wrote it, log this and skip
/// it, so that the other schedules fire.
fn decode_or_skip(row: &PgRow) -> Option<DueRow> {
    due(row)
        .inspect_err(|error| {
            let of = |column| get::<&str>(row, column).unwrap_or_default();
            let (namespace, name) = (of("namespace"), of("name"));
            tracing::warn!(namespace, name, %error, "schedule skipped: its definition cannot be decoded");
        })
        .ok()
}

/// A due schedule with its due time and row id.
struct DueRow {
    schedule: DueSchedule,
    due_at_ms: i64,
    id: i64,
}

fn due(row: &PgRow) -> Result<DueRow, StoreError> {
    let name = |column| {
        let name: &str = get(row, column)?;
        name.parse::<Name>().map_err(|error| unexpected_response(column, error))
    };
    let schedule = DueSchedule {
        key: ScheduleKey::new(name("namespace")?, name("name")?),
        version: number(get::<i64>(row, "version")?, "a version")?,
        definition: from_json(row, "definition")?,
        tick_state: ScheduleTickState {
            next_tick_at_ms: get(row, "next_tick_at_ms")?,
            last_tick_at_ms: get(row, "last_tick_at_ms")?,
        },
        unfinished_runs: unfinished_runs(number(get::<i64>(row, "unfinished")?, "runs")?),
        consecutive_failures: number(get::<i32>(row, "consecutive_failures")?, "failures")?,
    };
    Ok(DueRow { schedule, due_at_ms: get(row, "due_at_ms")?, id: get::<i32>(row, "schedule_id")?.into() })
}
