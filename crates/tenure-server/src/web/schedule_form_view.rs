//! The form that creates or edits a schedule, with a preview of its ticks.
//!
//! A POST with `step=preview` saves nothing. Its response is the same form with the entered values, their
//! errors and the next ticks. The script sends it while the user types and takes only the preview from the
//! response; without the script there is a button. A rejected save returns the same page, so no input is
//! lost.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use tenure::Name;
use tenure::port::{Precondition, ScheduleKey, ScheduleView, SetScheduleOutcome};
use tenure_core::rules::schedule::{ScheduleTarget, Zone};

use super::calendar_chart::{self, NEXT, UpcomingTicks};
use super::components;
use super::extract::{FormBody, PageParams};
use super::layout::{PageContext, page, problem_page};
use super::queues::NamespaceQuery;
use super::schedule_actions::{RELOAD, changed, find};
use super::schedule_form::{FieldError, ScheduleForm, field_error};
use super::topic_actions::{NAME, text};
use crate::App;
use crate::access::Principal;
use crate::api::{AuditActor, PutScheduleRequest, changed_meanwhile, check_schedule, set_schedule};

/// The preview of a form: its errors, and the next ticks if the expression is valid.
#[derive(Default)]
struct Preview {
    errors: Vec<FieldError>,
    ahead: Option<Box<(UpcomingTicks, Zone)>>,
}

/// The form as it is rendered.
#[derive(Clone, Copy)]
struct ScheduleFormView<'f> {
    namespace: &'f Name,
    /// The schedule to edit; `None` for a new one.
    stored: Option<&'f ScheduleView>,
    values: &'f ScheduleForm,
}

impl ScheduleFormView<'_> {
    fn key(&self) -> Result<ScheduleKey, FieldError> {
        let name = match self.stored {
            Some(view) => view.definition.name.clone(),
            None => self
                .values
                .name
                .trim()
                .parse()
                .map_err(|error: tenure::NameError| FieldError::new("name", error.to_string()))?,
        };
        Ok(ScheduleKey::new(self.namespace.clone(), name))
    }

    /// Parse the form. Returns all errors at once.
    fn read(&self) -> Result<(ScheduleKey, PutScheduleRequest), Vec<FieldError>> {
        match (self.key(), self.values.request(self.stored)) {
            (Ok(key), Ok(request)) => Ok((key, request)),
            (Err(name), Ok(_)) => Err(vec![name]),
            (Err(name), Err(mut errors)) => {
                errors.insert(0, name);
                Err(errors)
            }
            (Ok(_), Err(errors)) => Err(errors),
        }
    }

    /// Preview the form. Empty fields are not errors yet, and errors in other fields do not hide the ticks.
    async fn preview(&self, app: &App) -> Preview {
        if self.values.is_blank() && self.stored.is_none() {
            return Preview::default();
        }
        let filled = self.values.filled_in();
        let errors = match self.ahead(app, &filled).await {
            Ok(ahead) => return Preview { errors: Vec::new(), ahead: Some(Box::new(ahead)) },
            Err(errors) => errors,
        };
        let ahead = self.ahead(app, &filled.only_times()).await.ok().map(Box::new);
        Preview { errors, ahead }
    }

    async fn ahead(
        &self,
        app: &App,
        values: &ScheduleForm,
    ) -> Result<(UpcomingTicks, Zone), Vec<FieldError>> {
        let (key, request) = ScheduleFormView { values, ..*self }.read()?;
        let checked =
            check_schedule(app, &key, &request, NEXT).await.map_err(|problem| vec![field_error(&problem)])?;
        let from = checked.upcoming.first().map(|next| next.tick_at_ms);
        let ahead =
            UpcomingTicks::of_definition(&checked.definition, &key.namespace, from, app.runtime.wall_ms());
        Ok((ahead, checked.definition.time_zone))
    }

    fn page(&self, ctx: &PageContext, preview: &Preview, wall: i64) -> Response {
        let title = match self.stored {
            Some(view) => format!("Edit {}", view.definition.name),
            None => "Create schedule".into(),
        };
        let content = html! {
            div.head { div {
                p.crumb {
                    a href="/schedules" { "Schedules" } " / " (self.namespace)
                    @if let Some(view) = self.stored { " / " a href=(components::schedule_href(&view.key(), "")) { (view.definition.name) } }
                }
                h1 { (title) }
                @if let Some(source) = self.stored.and_then(|view| view.source.as_ref()) {
                    p { "Managed by " code { (source) } ". Changes made here are overwritten by the next apply." }
                }
            } }
            div.with-preview {
                section.card aria-label="Definition" { div.body { (self.fields(preview)) } }
                section.card aria-labelledby="preview-title" {
                    header { h2 #preview-title { "Preview" } }
                    div.body #preview aria-live="polite" { (shown(preview, wall)) }
                }
            }
        };
        page(ctx, &title, "Schedules", content)
    }

    fn fields(&self, preview: &Preview) -> Markup {
        let values = self.values;
        let action = match self.stored {
            Some(view) => components::schedule_href(&view.key(), "edit"),
            None => format!("/schedules/new?namespace={}", components::escape(self.namespace.as_str())),
        };
        let back = self
            .stored
            .map_or_else(|| "/schedules".into(), |view| components::schedule_href(&view.key(), ""));
        let is_invalid = |field: &str| preview.errors.iter().any(|one| one.field == field).then_some("true");
        html! {
            form.form method="post" action=(action) data-preview {
                input type="hidden" name="version" value=(values.version);
                @if self.stored.is_none() {
                    div.field { label for="name" { "Name" } input #name name="name" required autocomplete="off" value=(values.name) placeholder="nightly-report" pattern=(NAME) aria-invalid=[is_invalid("name")]; }
                }
                div.across {
                    div.field {
                        label for="expression" { "Expression" }
                        input #expression .mono name="expression" required autocomplete="off" spellcheck="false" value=(values.expression) placeholder="30 2 * * MON-FRI" aria-invalid=[is_invalid("expression")];
                        small { "Cron expression such as " code { "*/5 * * * *" } " or " code { "@daily" } ", or interval such as " code { "every 90s" } "." }
                    }
                    div.field {
                        label for="time_zone" { "Time zone" }
                        input #time_zone name="time_zone" required autocomplete="off" spellcheck="false" value=(values.time_zone) placeholder="Europe/Berlin" aria-invalid=[is_invalid("time_zone")];
                        small { "IANA name." }
                    }
                }
                (self.target(&is_invalid))
                div.field {
                    label for="payload" { "Payload" }
                    textarea #payload .mono name="payload" rows="4" spellcheck="false" placeholder="{}" aria-invalid=[is_invalid("payload")] { (values.payload) }
                    small { "JSON." }
                }
                (self.policies(&is_invalid))
                div.buttons {
                    button.button.main name="step" value="save" data-key="save" { @if self.stored.is_some() { "Save" } @else { "Create" } }
                    button.button name="step" value="preview" formnovalidate data-key="preview" { "Preview" }
                    a.button href=(back) { "Cancel" }
                }
            }
        }
    }

    fn target(&self, is_invalid: &dyn Fn(&str) -> Option<&'static str>) -> Markup {
        let values = self.values;
        let choice = |value: &str, name: &str, means: &str| {
            html! { label { input type="radio" name="target" value=(value) checked[values.target == value]; span.choice-text { span.strong { (name) } span.soft.small { (means) } } } }
        };
        let signed =
            self.stored.is_some_and(|view| matches!(view.definition.target, ScheduleTarget::Webhook { .. }));
        html! {
            fieldset.field.target {
                legend { "Target" }
                div.choices.row {
                    (choice("task", "Task", "submitted to a queue"))
                    (choice("event", "Event", "published to a topic"))
                    (choice("webhook", "Webhook", "signed POST"))
                }
                div.across.of-task {
                    div.field { label for="queue" { "Queue" } input #queue name="queue" autocomplete="off" value=(values.queue) placeholder="reports" aria-invalid=[is_invalid("queue")]; small { "Created if missing." } }
                    (text("kind", "Kind", &values.kind, "Tells the worker how to run the task. Empty: any worker of the queue."))
                    (text("priority", "Priority", &values.priority, "Each point equals one minute of waiting."))
                    (text("max_attempts", "Maximum attempts", &values.max_attempts, ""))
                }
                div.across.of-event {
                    div.field { label for="topic" { "Topic" } input #topic name="topic" autocomplete="off" value=(values.topic) placeholder="reports" aria-invalid=[is_invalid("topic")]; small { "Must exist." } }
                    (text("key", "Event key", &values.key, "Empty: the name of the schedule."))
                }
                div.across.of-webhook {
                    div.field { label for="url" { "URL" } input #url name="url" autocomplete="off" value=(values.url) placeholder="https://example.org/hooks/nightly" aria-invalid=[is_invalid("url")]; small { "A " code { "2xx" } " response succeeds; other responses are retried." } }
                    div.field {
                        label for="secret" { "Signing secret" }
                        input #secret name="secret" type="password" autocomplete="off" aria-invalid=[is_invalid("secret")];
                        small { @if signed { "Empty: keep the current one." } @else { "Empty: create one and show it once." } }
                    }
                    @if signed { div.checkboxes { label { input type="checkbox" name="rotate_secret" value="on" checked[values.rotate_secret.is_some()]; "Rotate the secret and show the new one once" } } }
                }
            }
        }
    }

    fn policies(&self, is_invalid: &dyn Fn(&str) -> Option<&'static str>) -> Markup {
        let values = self.values;
        let select = |id: &str, label: &str, value: &str, options: &[(&str, &str)]| {
            html! {
                div.field {
                    label for=(id) { (label) }
                    select id=(id) name=(id) aria-invalid=[is_invalid(id)] { @for (word, means) in options { option value=(word) selected[*word == value] { (means) } } }
                }
            }
        };
        let time = |id: &str, label: &str, value: &str, help: &str| {
            html! { div.field { label for=(id) { (label) } input id=(id) name=(id) type="datetime-local" step="any" value=(value) aria-invalid=[is_invalid(id)]; small { (help) } } }
        };
        let usual = ScheduleForm { version: values.version, ..ScheduleForm::default() };
        let is_usual = [
            (&values.start_at, &usual.start_at),
            (&values.end_at, &usual.end_at),
            (&values.jitter, &usual.jitter),
            (&values.misfire_policy, &usual.misfire_policy),
            (&values.dst_gap, &usual.dst_gap),
            (&values.dst_overlap, &usual.dst_overlap),
            (&values.overlap_policy, &usual.overlap_policy),
        ]
        .iter()
        .all(|(one, other)| one == other);
        html! {
            details #more open[!is_usual] {
                summary { "Start, end, jitter and policies" }
                div.across.more {
                    (time("start_at", "Start", &values.start_at, "Empty: now."))
                    (time("end_at", "End (exclusive)", &values.end_at, "Empty: no end."))
                    (text("jitter", "Jitter", &values.jitter, "Delays each tick by up to this duration, always by the same amount for the same tick."))
                    (select("misfire_policy", "Misfire policy", &values.misfire_policy, &[
                        ("fire_once", "Fire once"), ("skip", "Skip"), ("fire_all", "Fire all, up to a maximum"), ("within", "Fire within a duration"),
                    ]))
                    div.field.of-all { label for="cap" { "Maximum" } input #cap name="cap" inputmode="numeric" autocomplete="off" value=(values.cap) aria-invalid=[is_invalid("cap")]; small { "The newest ticks." } }
                    div.field.of-within { label for="grace" { "Within" } input #grace name="grace" autocomplete="off" value=(values.grace) aria-invalid=[is_invalid("grace")]; small { "For example 15m, 2h or 1d." } }
                    (select("overlap_policy", "Overlap policy", &values.overlap_policy, &[
                        ("allow", "Allow"), ("skip", "Skip"), ("queue", "Queue"),
                    ]))
                    (select("dst_gap", "DST gap", &values.dst_gap, &[("", "Default"), ("shift", "Shift"), ("skip", "Skip")]))
                    (select("dst_overlap", "DST overlap", &values.dst_overlap, &[("", "Default"), ("first", "First occurrence"), ("both", "Both occurrences")]))
                }
            }
        }
    }
}

/// Render the preview.
fn shown(preview: &Preview, wall: i64) -> Markup {
    html! {
        @if !preview.errors.is_empty() {
            ul.form-errors {
                @for one in &preview.errors {
                    li data-error-field=(one.field) {
                        (components::state("bad", html! { a href={ "#" (one.field) } { (one.field) } ": " (one.message) }))
                        @if let Some(mark) = &one.mark { pre.position { (mark) } }
                    }
                }
            }
        }
        @match &preview.ahead {
            Some(fine) => (calendar_chart::upcoming(&fine.0, &fine.1, false, wall)),
            None if preview.errors.is_empty() => p.soft { "Enter an expression to preview the next ten ticks." },
            None => {},
        }
    }
}

pub(super) async fn new(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let form = ScheduleFormView { namespace: &at.namespace, stored: None, values: &ScheduleForm::default() };
    form.page(&ctx, &Preview::default(), app.runtime.wall_ms())
}

pub(super) async fn edit(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(name)): PageParams<Path<Name>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = ScheduleKey::new(at.namespace, name);
    let view = match find(&app, &key).await {
        Ok(view) => view,
        Err(problem) => return problem_page(&ctx, &problem),
    };
    let form =
        ScheduleFormView { namespace: &key.namespace, stored: Some(&view), values: &ScheduleForm::of(&view) };
    let preview = form.preview(&app).await;
    form.page(&ctx, &preview, app.runtime.wall_ms())
}

pub(super) async fn create(
    State(app): State<App>,
    ctx: PageContext,
    principal: Principal,
    by: AuditActor,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(values): FormBody<ScheduleForm>,
) -> Response {
    let form = ScheduleFormView { namespace: &at.namespace, stored: None, values: &values };
    saved(&app, &ctx, &principal, &by, &form).await
}

pub(super) async fn save(
    State(app): State<App>,
    ctx: PageContext,
    principal: Principal,
    by: AuditActor,
    PageParams(Path(name)): PageParams<Path<Name>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(values): FormBody<ScheduleForm>,
) -> Response {
    let key = ScheduleKey::new(at.namespace, name);
    let view = match find(&app, &key).await {
        Ok(view) => view,
        Err(problem) => return problem_page(&ctx, &problem),
    };
    // Fields that the form lacks are taken from the stored schedule, so its version must be the one that the
    // form showed.
    if view.version != values.version && values.step != "preview" {
        return problem_page(&ctx, &changed_meanwhile(&key, Some(view.version)).remedy(RELOAD));
    }
    let form = ScheduleFormView { namespace: &key.namespace, stored: Some(&view), values: &values };
    saved(&app, &ctx, &principal, &by, &form).await
}

async fn saved(
    app: &App,
    ctx: &PageContext,
    principal: &Principal,
    by: &AuditActor,
    form: &ScheduleFormView<'_>,
) -> Response {
    let wall = app.runtime.wall_ms();
    if form.values.step == "preview" {
        return form.page(ctx, &form.preview(app).await, wall);
    }
    let rejected = |errors: Vec<FieldError>, status: StatusCode| {
        let mut page = form.page(ctx, &Preview { errors, ahead: None }, wall);
        *page.status_mut() = status;
        page
    };
    let (key, request) = match form.read() {
        Ok(read) => read,
        Err(errors) => return rejected(errors, StatusCode::UNPROCESSABLE_ENTITY),
    };
    let expect = form.stored.map_or(Precondition::New, |view| Precondition::Version(view.version));
    let (outcome, secret) = match set_schedule(app, principal, by, &key, request, expect).await {
        Ok(set) => set,
        // The user can correct the form.
        Err(problem) if problem.status.is_client_error() => {
            return rejected(vec![field_error(&problem)], problem.status);
        }
        Err(problem) => return problem_page(ctx, &problem),
    };
    changed(app).await;
    let word = match outcome {
        SetScheduleOutcome::Created(_) => "new",
        SetScheduleOutcome::Updated(_) => "set",
        SetScheduleOutcome::Unchanged(_) => "already",
        SetScheduleOutcome::Conflict(Some(_)) if form.stored.is_none() => {
            let message = format!("Schedule {key} exists; choose another name or edit the existing one.");
            return rejected(vec![FieldError::new("name", message)], StatusCode::CONFLICT);
        }
        SetScheduleOutcome::Conflict(version) => {
            return problem_page(ctx, &changed_meanwhile(&key, version).remedy(RELOAD));
        }
    };
    let next = components::schedule_href(&key, "");
    match secret {
        Some(secret) => ctx.redirect_with_secret(&next, word, &secret),
        None => ctx.redirect_with_message(&next, word),
    }
}
