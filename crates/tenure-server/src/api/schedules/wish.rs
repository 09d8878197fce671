//! How a schedule is set: the one way to do it, for the API and for the pages.

use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    CALL_TIMEOUT_MS, Expect, Json, Push, ScheduleKey, ScheduleSet, SetSchedule, StoreError, TopicKey, Trouble,
};
use tenure_core::event::check_push;
use tenure_core::schedule::{Definition, DefinitionError, Dst, Misfire, Overlap, Target, When, Zone};
use utoipa::ToSchema;

use super::record;
use crate::App;
use crate::access::Principal;
use crate::api::deeds::By;
use crate::api::groups::{check_secret, new_secret, push_address};
use crate::api::sense::of_group;
use crate::api::sessions::{short, signed, unfit};
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::webhooks::host_is_private;

/// What a schedule is to be.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"when": "30 2 * * MON-FRI", "zone": "Europe/Berlin", "misfire": "within(2h)",
    "target": {"task": {"queue": "reports", "task": {"kind": "nightly"}}}}))]
pub(crate) struct ScheduleWish {
    /// Its name, which the address says already.
    pub(crate) name: Option<Name>,
    /// When: a cron expression, or `every 90s`.
    #[schema(value_type = String, example = "30 2 * * MON-FRI")]
    pub(crate) when: When,
    /// On which wall clock: a name of the IANA database. Unless said, UTC.
    #[serde(default)]
    #[schema(value_type = String, default = "UTC", example = "Europe/Berlin")]
    pub(crate) zone: Zone,
    /// No tick before this, in milliseconds since 1970.
    pub(crate) start_ms: Option<i64>,
    /// No tick from this on.
    pub(crate) end_ms: Option<i64>,
    /// Each tick is due later by up to this, always the same for the same tick.
    #[serde(default)]
    #[schema(default = 0, maximum = 86400000)]
    pub(crate) jitter_ms: u64,
    /// What a jump of the wall clock means.
    #[serde(default)]
    pub(crate) dst: Dst,
    /// What becomes of ticks that were missed: `skip`, `fire_once`, `fire_all(100)`, `within(1h)`.
    #[serde(default)]
    #[schema(value_type = String, example = "fire_all(100)")]
    pub(crate) misfire: Misfire,
    /// What becomes of a tick while an earlier one's run is under way.
    #[serde(default)]
    pub(crate) overlap: Overlap,
    /// What a tick does.
    pub(crate) target: Target,
    /// What it does it with.
    #[serde(default)]
    pub(crate) payload: Json,
    /// What calls are signed with: `whsec_` and base64, or 16 bytes at least that are taken as they are. Left out, it stays as it is; if there is none yet, one is made, and shown in the answer to this request only.
    pub(crate) secret: Option<String>,
    /// Whether a new secret is made, and shown in the answer to this request only. The one before is of no use from then on.
    #[serde(default)]
    #[schema(default = false)]
    pub(crate) rotate: bool,
    /// Whether no secret is made where there is none: calls are not signed then.
    #[serde(default)]
    #[schema(default = false)]
    pub(crate) unsigned: bool,
    /// From which file or program it comes, for those who apply that and prune.
    #[schema(max_length = 1024)]
    pub(crate) source: Option<String>,
    /// Who says so, if it is another than who asks.
    #[schema(max_length = 1024)]
    pub(crate) by: Option<String>,
}

impl ScheduleWish {
    /// The definition that is wished for under a name.
    pub(super) fn definition(&self, name: &Name) -> Result<Definition, Problem> {
        if let Some(said) = self.name.as_ref().filter(|said| *said != name) {
            let detail = format!("the address says {name} and the body {said}");
            return Err(unfit("name", detail).remedy("leave `name` out"));
        }
        Ok(Definition {
            name: name.clone(),
            when: self.when.clone(),
            zone: self.zone.clone(),
            start_ms: self.start_ms,
            end_ms: self.end_ms,
            jitter_ms: self.jitter_ms,
            dst: self.dst,
            misfire: self.misfire,
            overlap: self.overlap,
            target: self.target.clone(),
            payload: self.payload.clone(),
        })
    }
}

/// Sets a schedule, for the API and for the pages. What came of it, and the secret if one was made.
pub(crate) async fn set_schedule(
    app: &App,
    principal: &Principal,
    by: &By,
    key: &ScheduleKey,
    wish: ScheduleWish,
    expect: Expect,
) -> Result<(ScheduleSet, Option<String>), Problem> {
    let definition = wish.definition(&key.name)?;
    sensible(app, &definition)?;
    let who = wish.by.unwrap_or_else(|| principal.name.to_string());
    short("by", &who)?;
    wish.source.as_deref().map_or(Ok(()), |source| short("source", source))?;
    quota::check(app, Object::Schedule(key)).await?;
    let (secret, made) =
        secret_of(app, key, &definition.target, wish.secret, wish.rotate, wish.unsigned).await?;
    let set = SetSchedule {
        namespace: key.namespace.clone(),
        definition,
        secret,
        expect,
        source: wish.source,
        by: signed(principal, &who),
    };
    let done = match app.store.set_schedule(&set).await {
        Ok(done) => done,
        Err(error) => return Err(of_target(app, key, &set.definition, error).await),
    };
    if let ScheduleSet::Created(version) | ScheduleSet::Changed(version) = done {
        record(app, by, "schedule.set", key, told(&set.definition, version)).await;
    }
    // Of a definition that was refused, nobody knows the secret.
    let made = made.filter(|_| !matches!(done, ScheduleSet::Conflict(_)));
    Ok((done, made))
}

/// Refuses what makes no sense, with the field to blame.
pub(super) fn sensible(app: &App, definition: &Definition) -> Result<(), Problem> {
    definition.clone().started(app.runtime.wall_ms()).check().map_err(|error| of_definition(&error))?;
    if let Target::Call { url } = &definition.target {
        let field = "target.call.url";
        push_address(url).map_err(|problem| problem.field(field))?;
        if !app.push_private && host_is_private(url) {
            return Err(unfit(field, "this is an address of a private network, or of this machine")
                .remedy("call a public address; or start the servers with --push-private"));
        }
    }
    Ok(())
}

/// The secret that is set with a schedule, and the one that is to be shown because it was made here.
async fn secret_of(
    app: &App,
    key: &ScheduleKey,
    target: &Target,
    given: Option<String>,
    rotate: bool,
    unsigned: bool,
) -> Result<(Option<String>, Option<String>), Problem> {
    let Target::Call { url } = target else {
        return match given.is_some() || rotate {
            true => Err(unfit("secret", "only calls are signed, and this schedule makes none")
                .remedy("leave `secret` and `rotate` out")),
            false => Ok((None, None)),
        };
    };
    if rotate && given.is_some() {
        return Err(unfit("rotate", "a secret is given, and another is to be made").remedy("leave one out"));
    }
    if let Some(secret) = given {
        let push = Push { url: url.clone(), secret, timeout_ms: CALL_TIMEOUT_MS };
        check_push(&push).map_err(|error| of_group(&error, "secret"))?;
        check_secret(&push.secret)?;
        return Ok((Some(push.secret), None));
    }
    let keeps = !rotate && (unsigned || app.store.schedule(key).await?.is_some_and(|view| view.signed));
    let made = (!keeps).then(new_secret);
    Ok((made.clone(), made))
}

/// A definition that makes no sense.
fn of_definition(error: &DefinitionError) -> Problem {
    let problem = Problem::told(http::StatusCode::UNPROCESSABLE_ENTITY, "unfit", &error.to_string());
    problem.field(error.field())
}

/// What a store has against a definition: a topic that is not there is to blame for what is said of it.
async fn of_target(app: &App, key: &ScheduleKey, definition: &Definition, error: StoreError) -> Problem {
    let is_request = error.kind == Trouble::Request;
    let problem = Problem::from(error);
    match &definition.target {
        Target::Event { topic, .. } if is_request => {
            let topic = TopicKey::new(key.namespace.clone(), topic.clone());
            match app.store.topic(&topic).await {
                Ok(None) => problem.field("target.event.topic"),
                _ => problem,
            }
        }
        _ => problem,
    }
}

/// A definition in a line, without what may be secret.
pub(super) fn told(definition: &Definition, version: u64) -> String {
    let target = match &definition.target {
        Target::Event { topic, .. } => format!("an event of {topic}"),
        Target::Task { queue, .. } => format!("a task of {queue}"),
        Target::Call { url } => format!("a call of {}", push_address(url).unwrap_or_default()),
        _ => "something else".into(),
    };
    format!("version {version}: {} in {}, {target}", definition.when, definition.zone)
}
