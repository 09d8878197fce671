//! Setting a schedule, for the API and the pages.

use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    ErrorKind, Precondition, RawJson, ScheduleKey, SetScheduleOutcome, SetScheduleRequest, StoreError,
    TopicKey, WEBHOOK_TIMEOUT_MS, WebhookSettings,
};
use tenure_core::rules::event::validate_webhook;
use tenure_core::rules::schedule::{
    DstPolicy, MisfirePolicy, OverlapPolicy, ScheduleDefinition, ScheduleDefinitionError, ScheduleExpression,
    ScheduleTarget, Zone,
};
use utoipa::ToSchema;

use super::record;
use crate::App;
use crate::access::Principal;
use crate::api::audit_writer::AuditActor;
use crate::api::groups::{new_secret, push_address, validate_secret};
use crate::api::sessions::{display_actor, invalid_value, validate_display_text};
use crate::api::validate::event_request_problem;
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::webhooks::host_is_private;

/// Definition of a schedule.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"expression": "30 2 * * MON-FRI", "time_zone": "Europe/Berlin", "misfire_policy": "within(2h)",
    "target": {"task": {"queue": "reports", "task": {"kind": "nightly"}}}}))]
pub(crate) struct PutScheduleRequest {
    /// Name; if given, it must equal the name in the path.
    pub(crate) name: Option<Name>,
    /// Cron expression, or an interval such as `every 90s`.
    #[schema(value_type = String, example = "30 2 * * MON-FRI")]
    pub(crate) expression: ScheduleExpression,
    /// IANA time zone; UTC if omitted.
    #[serde(default)]
    #[schema(value_type = String, default = "UTC", example = "Europe/Berlin")]
    pub(crate) time_zone: Zone,
    /// No tick before this instant.
    pub(crate) start_at_ms: Option<i64>,
    /// No tick at or after this instant.
    pub(crate) end_at_ms: Option<i64>,
    /// Maximum jitter: each tick is due later by a delay up to this. The delay of a tick is always the same.
    #[serde(default)]
    #[schema(default = 0, maximum = 86400000)]
    pub(crate) jitter_ms: u64,
    /// Policy for DST changes.
    #[serde(default)]
    pub(crate) dst: DstPolicy,
    /// Misfire policy: `skip`, `fire_once`, `fire_all(100)` or `within(1h)`.
    #[serde(default)]
    #[schema(value_type = String, example = "fire_all(100)")]
    pub(crate) misfire_policy: MisfirePolicy,
    /// Overlap policy: what happens to a tick while the run of an earlier one is unfinished.
    #[serde(default)]
    pub(crate) overlap_policy: OverlapPolicy,
    /// Target of each tick.
    pub(crate) target: ScheduleTarget,
    /// Payload of the event, task or webhook.
    #[serde(default)]
    pub(crate) payload: RawJson,
    /// Signing secret of the webhook: `whsec_` and base64, or at least 16 bytes of text. If omitted, the
    /// current secret stays; if there is none, the server creates one and returns it in this response only.
    pub(crate) secret: Option<String>,
    /// Create a new secret and return it in this response only. The previous secret becomes invalid.
    #[serde(default)]
    #[schema(default = false)]
    pub(crate) rotate_secret: bool,
    /// Leave the webhook unsigned: if it has no secret, the server does not create one.
    #[serde(default)]
    #[schema(default = false)]
    pub(crate) webhook_unsigned: bool,
    /// File or project that manages the schedule. `tenure schedules apply --prune` deletes only schedules of
    /// its own source.
    #[schema(max_length = 1024)]
    pub(crate) source: Option<String>,
    /// Principal that the client acts for; the caller if omitted.
    #[schema(max_length = 1024)]
    pub(crate) on_behalf_of: Option<String>,
}

impl PutScheduleRequest {
    /// Build the definition with a name.
    pub(super) fn definition(&self, name: &Name) -> Result<ScheduleDefinition, Problem> {
        if let Some(body_name) = self.name.as_ref().filter(|body_name| *body_name != name) {
            let detail = format!("the path has schedule {name} and the body {body_name}");
            return Err(invalid_value("name", detail).remedy("omit `name`"));
        }
        Ok(ScheduleDefinition {
            name: name.clone(),
            expression: self.expression.clone(),
            time_zone: self.time_zone.clone(),
            start_at_ms: self.start_at_ms,
            end_at_ms: self.end_at_ms,
            jitter_ms: self.jitter_ms,
            dst: self.dst,
            misfire_policy: self.misfire_policy,
            overlap_policy: self.overlap_policy,
            target: self.target.clone(),
            payload: self.payload.clone(),
        })
    }
}

/// Set a schedule, for the API and the pages. Returns the result and the new secret, if one was created.
pub(crate) async fn set_schedule(
    app: &App,
    principal: &Principal,
    by: &AuditActor,
    key: &ScheduleKey,
    body: PutScheduleRequest,
    expect: Precondition,
) -> Result<(SetScheduleOutcome, Option<String>), Problem> {
    let definition = body.definition(&key.name)?;
    validate_definition(app, &definition)?;
    let who = body.on_behalf_of.unwrap_or_else(|| principal.name.to_string());
    validate_display_text("on_behalf_of", &who)?;
    body.source.as_deref().map_or(Ok(()), |source| validate_display_text("source", source))?;
    quota::check(app, Object::Schedule(key)).await?;
    let (secret, created) =
        secret_of(app, key, &definition.target, body.secret, body.rotate_secret, body.webhook_unsigned)
            .await?;
    let set = SetScheduleRequest {
        namespace: key.namespace.clone(),
        definition,
        secret,
        precondition: expect,
        source: body.source,
        updated_by: display_actor(principal, &who),
    };
    let done = match app.store.set_schedule(&set).await {
        Ok(done) => done,
        Err(error) => return Err(of_target(app, key, &set.definition, error).await),
    };
    if let SetScheduleOutcome::Created(version) | SetScheduleOutcome::Updated(version) = done {
        record(app, by, "schedule.set", key, describe(&set.definition, version)).await;
    }
    // A secret of a rejected definition was not stored.
    let created = created.filter(|_| !matches!(done, SetScheduleOutcome::Conflict(_)));
    Ok((done, created))
}

/// Validate a definition; the problem names the invalid field.
pub(super) fn validate_definition(app: &App, definition: &ScheduleDefinition) -> Result<(), Problem> {
    definition.clone().started(app.runtime.wall_ms()).check().map_err(|error| of_definition(&error))?;
    if let ScheduleTarget::Webhook { url } = &definition.target {
        let field = "target.webhook.url";
        push_address(url).map_err(|problem| problem.field(field))?;
        if !app.allow_private_webhooks && host_is_private(url) {
            return Err(invalid_value(field, "the URL has a private or local address")
                .remedy("use a public address, or start the servers with --allow-private-webhooks"));
        }
    }
    Ok(())
}

/// Secret to store with the schedule, and the secret to return if it was created here.
async fn secret_of(
    app: &App,
    key: &ScheduleKey,
    target: &ScheduleTarget,
    secret: Option<String>,
    rotate: bool,
    unsigned: bool,
) -> Result<(Option<String>, Option<String>), Problem> {
    let ScheduleTarget::Webhook { url } = target else {
        return match secret.is_some() || rotate {
            true => Err(invalid_value("secret", "the schedule has no webhook to sign")
                .remedy("omit `secret` and `rotate_secret`")),
            false => Ok((None, None)),
        };
    };
    if rotate && secret.is_some() {
        return Err(invalid_value("rotate_secret", "`secret` and `rotate_secret` exclude each other")
            .remedy("omit one of them"));
    }
    if let Some(secret) = secret {
        let settings = WebhookSettings { url: url.clone(), secret, timeout_ms: WEBHOOK_TIMEOUT_MS };
        validate_webhook(&settings).map_err(|error| event_request_problem(&error, "secret"))?;
        validate_secret(&settings.secret)?;
        return Ok((Some(settings.secret), None));
    }
    let keep_secret =
        !rotate && (unsigned || app.store.schedule(key).await?.is_some_and(|view| view.webhook_signed));
    let created = (!keep_secret).then(new_secret);
    Ok((created.clone(), created))
}

/// Problem for an invalid definition.
fn of_definition(error: &ScheduleDefinitionError) -> Problem {
    let problem =
        Problem::from_message(http::StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", &error.to_string());
    problem.field(error.field())
}

/// Map a store error about a definition; a missing topic is reported for its field.
async fn of_target(
    app: &App,
    key: &ScheduleKey,
    definition: &ScheduleDefinition,
    error: StoreError,
) -> Problem {
    let is_request = error.kind == ErrorKind::Request;
    let problem = Problem::from(error);
    match &definition.target {
        ScheduleTarget::Event { topic, .. } if is_request => {
            let topic = TopicKey::new(key.namespace.clone(), topic.clone());
            match app.store.topic(&topic).await {
                Ok(None) => problem.field("target.event.topic"),
                _ => problem,
            }
        }
        _ => problem,
    }
}

/// Describe a definition in one line without secrets.
pub(super) fn describe(definition: &ScheduleDefinition, version: u64) -> String {
    let target = match &definition.target {
        ScheduleTarget::Event { topic, .. } => format!("event in topic {topic}"),
        ScheduleTarget::Task { queue, .. } => format!("task in queue {queue}"),
        ScheduleTarget::Webhook { url } => format!("webhook {}", push_address(url).unwrap_or_default()),
        _ => "other target".into(),
    };
    format!("version {version}: {} in {}, {target}", definition.expression, definition.time_zone)
}
