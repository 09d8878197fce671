//! The path of the leader.

use tenure_core::claim::clip;
use tenure_core::event::{EventError, no_such_topic};
use tenure_core::port::{
    DUE_MAX, DueLook, DueSchedule, Fire, Fired, Firing, FiringTick, ScheduleKey, StoreError, TICKS_KEPT_MS,
};
use tenure_core::schedule::{Progress, Skipped, check_fire, load_of};
use tenure_core::{Name, SessionId, Token};

use super::super::claims::texts;
use super::super::error::garbled;
use super::super::events::{numbers, some_numbers, some_texts, whole};
use super::super::message::{Message, STRICT};
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{Postgres, from_json, get, get_json};
use super::ticks::{Ticks, check_effect};

impl Postgres {
    pub(super) async fn look_at_due(&self, limit: u32) -> Result<DueLook, StoreError> {
        let limit = limit.clamp(1, DUE_MAX);
        let rows = self.call("schedule_due", &[limit.into()]).await?;
        let (last, rows) = rows.split_last().ok_or_else(|| garbled("what is due", "no row"))?;
        // There is one more than was asked for, if there are more.
        let (found, others) = rows.split_at(rows.len().min(limit as usize));
        let mut schedules: Vec<_> = found.iter().filter_map(readable).collect();
        schedules.sort_by(|a, b| (a.due_ms, &a.schedule.key).cmp(&(b.due_ms, &b.schedule.key)));
        let seen = schedules.iter().map(|it| (it.schedule.key.clone(), (it.schedule.version, it.number)));
        self.shared.numbers.saw(seen.collect());
        Ok(DueLook {
            schedules: schedules.into_iter().map(|it| it.schedule).collect(),
            more: !others.is_empty(),
            store_ms: get(last, "store_ms")?,
            next_due_ms: get(others.first().unwrap_or(last), "due_ms")?,
        })
    }

    pub(super) async fn fire_all(&self, fire: &Fire) -> Result<Option<Vec<Fired>>, StoreError> {
        check_fire(fire)?;
        let mut fired = vec![Fired::Stale; fire.firings.len()];
        let mut order = Vec::with_capacity(fire.firings.len());
        for (place, firing) in fire.firings.iter().enumerate() {
            let mut effects = ticks_of(firing).iter().filter_map(|tick| tick.effect.as_ref());
            match effects.try_for_each(|effect| check_effect(effect, None)) {
                Ok(()) => order.push(place),
                Err(error) => fired[place] = Fired::Refused(error.message),
            }
        }
        // In one order, so that two who fire the same do not wait for each other in a circle.
        order.sort_by(|a, b| fire.firings[*a].key.cmp(&fire.firings[*b].key));
        let firings: Vec<&Firing> = order.iter().map(|place| &fire.firings[*place]).collect();
        let mut ticks = Ticks::default();
        for (place, firing) in (1..).zip(&firings) {
            ticks_of(firing).iter().for_each(|tick| ticks.push(place, tick));
        }
        let message = Message::fresh(&self.queries).plain(STRICT, self.shared.strict);
        let known = some_numbers(self.shared.numbers.of(&firings).into_iter());
        let message = written(message, fire, &firings, &ticks, known.as_deref())?;
        let rows = self.shared.calls.run(message).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        for (firing, fired) in fire.firings.iter().zip(&mut fired) {
            // What makes no sense was not sent. It is rather stale if it does not stand as it was seen.
            if matches!(fired, Fired::Refused(_)) && !self.stands(firing).await? {
                *fired = Fired::Stale;
            }
        }
        order.iter().for_each(|place| fired[*place] = Fired::Yes);
        let at = |place: usize| order.get(place.wrapping_sub(1)).copied();
        for (place, reason) in refused(row, &ticks)? {
            fired[at(place).ok_or_else(|| garbled("a firing", place))?] = Fired::Refused(reason);
        }
        for place in from_json::<Vec<usize>>(row, "stale")? {
            fired[at(place).ok_or_else(|| garbled("a firing", place))?] = Fired::Stale;
        }
        Ok(Some(fired))
    }

    /// Whether a schedule is as the leader has seen it.
    async fn stands(&self, firing: &Firing) -> Result<bool, StoreError> {
        let stored = self.stored(&firing.key).await?;
        Ok(stored.is_some_and(|stored| stored.stands(firing.version, firing.next_at_ms)))
    }

    pub(super) async fn forget_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), StoreError> {
        let values = [session.as_str().into(), int(token.as_u64()), Value::Int(TICKS_KEPT_MS), limit.into()];
        let message = Message::fresh(&self.queries).then("tick_prune", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let row = rows.first().ok_or_else(|| garbled("what was forgotten", "no row"))?;
        Ok((number(get::<i64>(row, "forgotten")?, "ticks")?, get(row, "more")?))
    }
}

/// The message of a firing: bounded by the leader's lease, and then all of it in one statement.
fn written<'q>(
    message: Message<'q>,
    fire: &Fire,
    firings: &[&Firing],
    ticks: &Ticks<'_>,
    known: Option<&str>,
) -> Result<Message<'q>, StoreError> {
    let (session, token) = (&fire.session, fire.token);
    let namespaces = texts(firings.iter().map(|firing| Some(firing.key.namespace.as_str())));
    let names = texts(firings.iter().map(|firing| Some(firing.key.name.as_str())));
    let versions = numbers(firings.iter().map(|firing| Some(whole(firing.version))));
    let nexts = numbers(firings.iter().map(|firing| Some(firing.next_at_ms)));
    let then_nexts = numbers(firings.iter().map(|firing| firing.progress.map(|to| to.next_at_ms)));
    let then_lasts = numbers(firings.iter().map(|firing| firing.progress.and_then(|to| to.last_at_ms)));
    let dues = numbers(firings.iter().map(|firing| firing.due_ms));
    let troubles: Vec<_> = firings.iter().map(|firing| firing.trouble.as_deref().map(clip)).collect();
    let troubles = some_texts(troubles.iter().map(Option::as_deref));
    let count = |firing: &Firing, runs: bool| {
        let ticks = ticks_of(firing).iter().filter(|tick| tick.effect.is_some() == runs);
        i64::try_from(ticks.count()).ok()
    };
    let runs = numbers(firings.iter().map(|firing| count(firing, true)));
    let rests = numbers(firings.iter().map(|firing| count(firing, false)));
    let skipped = firings.iter().map(|firing| skipped_of(firing));
    let skips = some_numbers(skipped.clone().map(|skipped| skipped.map(|skipped| whole(skipped.count))));
    let firsts = some_numbers(skipped.clone().map(|skipped| skipped.map(|skipped| skipped.first_ms)));
    let lasts = some_numbers(skipped.map(|skipped| skipped.map(|skipped| skipped.last_ms)));
    let ticks = ticks.written()?;
    let mut values = vec![
        session.as_str().into(),
        int(token.as_u64()),
        namespaces.as_str().into(),
        names.as_str().into(),
        versions.as_str().into(),
        nexts.as_str().into(),
        then_nexts.as_str().into(),
        then_lasts.as_str().into(),
        dues.as_str().into(),
        troubles.as_deref().into(),
        runs.as_str().into(),
        rests.as_str().into(),
        skips.as_deref().into(),
        firsts.as_deref().into(),
        lasts.as_deref().into(),
        ticks.firings(),
    ];
    values.extend(ticks.values());
    values.push(known.into());
    message.then("schedule_bound", &[session.as_str().into()])?.then("schedule_fire", &values)
}

/// The ticks that fire: none, if it can not.
fn ticks_of(firing: &Firing) -> &[FiringTick] {
    if firing.trouble.is_none() { &firing.ticks } else { &[] }
}

fn skipped_of(firing: &Firing) -> Option<Skipped> {
    firing.skipped.filter(|_| firing.trouble.is_none())
}

/// Firings whose target can not be, by place, and why not.
fn refused(row: &PgRow, ticks: &Ticks<'_>) -> Result<Vec<(usize, String)>, StoreError> {
    let places: Vec<usize> = from_json(row, "refused")?;
    let events: Vec<usize> = get_json(row, "refused_events")?;
    let most: Vec<Option<u64>> = get_json(row, "refused_most")?;
    let mut refused = Vec::with_capacity(places.len());
    for (place, (event, most)) in places.into_iter().zip(events.into_iter().zip(most)) {
        let (topic, event) = ticks.event(event).ok_or_else(|| garbled("an event", event))?;
        let reason = match most {
            Some(most) => EventError::TooLarge { place: 0, bytes: event.payload.len(), most }.to_string(),
            None => no_such_topic(topic).message,
        };
        refused.push((place, reason));
    }
    Ok(refused)
}

/// One that can not be read, as a newer program may have written it, keeps none of the others waiting.
fn readable(row: &PgRow) -> Option<Seen> {
    due(row)
        .inspect_err(|error| {
            let of = |column| get::<&str>(row, column).unwrap_or_default();
            let (namespace, name) = (of("namespace"), of("name"));
            tracing::warn!(namespace, name, %error, "this schedule can not be read, and does not fire");
        })
        .ok()
}

/// A schedule that is due, since when, and its number.
struct Seen {
    schedule: DueSchedule,
    due_ms: i64,
    number: i64,
}

fn due(row: &PgRow) -> Result<Seen, StoreError> {
    let name = |column| {
        let name: &str = get(row, column)?;
        name.parse::<Name>().map_err(|error| garbled(column, error))
    };
    let schedule = DueSchedule {
        key: ScheduleKey::new(name("namespace")?, name("name")?),
        version: number(get::<i64>(row, "version")?, "a version")?,
        definition: from_json(row, "definition")?,
        progress: Progress { next_at_ms: get(row, "next_at_ms")?, last_at_ms: get(row, "last_at_ms")? },
        load: load_of(number(get::<i64>(row, "unfinished")?, "runs")?),
        strikes: number(get::<i32>(row, "strikes")?, "strikes")?,
    };
    Ok(Seen { schedule, due_ms: get(row, "due_ms")?, number: get::<i32>(row, "schedule")?.into() })
}
