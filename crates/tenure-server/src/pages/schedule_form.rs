//! A schedule, made or defined anew by hand: the form, checked while somebody writes, with what it would mean.
//!
//! There is one way to render it. Whoever checks posts the form as if to save it, with `step=check`: the answer is the form as it
//! was filled in, what is wrong with it, and the ticks that would be next. The script does so while somebody writes, and takes
//! only that part of the answer; without it there is a button. What is refused when it is saved comes back in the same way, so
//! nothing that was written is lost.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use tenure::Name;
use tenure::port::{Expect, ScheduleKey, ScheduleSet, ScheduleView};
use tenure_core::schedule::{Target, Zone};

use super::frame::{Visit, page, trouble};
use super::given::{Got, Posted};
use super::parts;
use super::queues::Where;
use super::schedule_act::{AGAIN, changed, find};
use super::schedule_strip::{self, Ahead, NEXT};
use super::schedule_wish::{Wanted, Wrong, told};
use super::topic_act::{NAME, text};
use crate::App;
use crate::access::Principal;
use crate::api::{By, ScheduleWish, changed_meanwhile, check_schedule, set_schedule};

/// What a form would mean: what is wrong with it, and the next ticks, as soon as it says when.
#[derive(Default)]
struct Preview {
    wrong: Vec<Wrong>,
    ahead: Option<Box<(Ahead, Zone)>>,
}

/// A form that is shown: for whom, and for what.
#[derive(Clone, Copy)]
struct Form<'f> {
    namespace: &'f Name,
    /// The schedule that is edited; `None`: one is made.
    stored: Option<&'f ScheduleView>,
    wanted: &'f Wanted,
}

impl Form<'_> {
    fn key(&self) -> Result<ScheduleKey, Wrong> {
        let name = match self.stored {
            Some(view) => view.definition.name.clone(),
            None => self
                .wanted
                .name
                .trim()
                .parse()
                .map_err(|error: tenure::NameError| Wrong::new("name", error.to_string()))?,
        };
        Ok(ScheduleKey::new(self.namespace.clone(), name))
    }

    /// The schedule and what is wished for; all that is wrong at once.
    fn read(&self) -> Result<(ScheduleKey, ScheduleWish), Vec<Wrong>> {
        match (self.key(), self.wanted.wish(self.stored)) {
            (Ok(key), Ok(wish)) => Ok((key, wish)),
            (Err(name), Ok(_)) => Err(vec![name]),
            (Err(name), Err(mut wrong)) => {
                wrong.insert(0, name);
                Err(wrong)
            }
            (Ok(_), Err(wrong)) => Err(wrong),
        }
    }

    /// What it would mean. Fields that are still empty are not mistakes yet, and whatever else is wrong does not keep the ticks
    /// from being shown.
    async fn preview(&self, app: &App) -> Preview {
        if self.wanted.is_blank() && self.stored.is_none() {
            return Preview::default();
        }
        let filled = self.wanted.filled_in();
        let wrong = match self.ahead(app, &filled).await {
            Ok(ahead) => return Preview { wrong: Vec::new(), ahead: Some(Box::new(ahead)) },
            Err(wrong) => wrong,
        };
        let ahead = self.ahead(app, &filled.only_times()).await.ok().map(Box::new);
        Preview { wrong, ahead }
    }

    async fn ahead(&self, app: &App, wanted: &Wanted) -> Result<(Ahead, Zone), Vec<Wrong>> {
        let (key, wish) = Form { wanted, ..*self }.read()?;
        let checked = check_schedule(app, &key, &wish, NEXT).await.map_err(|problem| vec![told(&problem)])?;
        let from = checked.upcoming.first().map(|next| next.at_ms);
        let ahead = Ahead::would(&checked.definition, &key.namespace, from, app.runtime.wall_ms());
        Ok((ahead, checked.definition.zone))
    }

    fn page(&self, visit: &Visit, preview: &Preview, wall: i64) -> Response {
        let title = match self.stored {
            Some(view) => format!("Edit {}", view.definition.name),
            None => "Make a schedule".into(),
        };
        let content = html! {
            div.head { div {
                p.crumb {
                    a href="/schedules" { "Schedules" } " / " (self.namespace)
                    @if let Some(view) = self.stored { " / " a href=(parts::schedule_href(&view.key(), "")) { (view.definition.name) } }
                }
                h1 { (title) }
                @if let Some(source) = self.stored.and_then(|view| view.source.as_ref()) {
                    p { "It comes from " code { (source) } ": what is changed here lasts until that is applied again." }
                }
            } }
            div.writing {
                section.card aria-label="The schedule" { div.body { (self.fields(preview)) } }
                section.card aria-labelledby="means" {
                    header { h2 #means { "What it would mean" } }
                    div.body #preview aria-live="polite" { (shown(preview, wall)) }
                }
            }
        };
        page(visit, &title, "Schedules", content)
    }

    fn fields(&self, preview: &Preview) -> Markup {
        let wanted = self.wanted;
        let action = match self.stored {
            Some(view) => parts::schedule_href(&view.key(), "edit"),
            None => format!("/schedules/new?namespace={}", parts::escape(self.namespace.as_str())),
        };
        let back =
            self.stored.map_or_else(|| "/schedules".into(), |view| parts::schedule_href(&view.key(), ""));
        let is_wrong = |field: &str| preview.wrong.iter().any(|one| one.field == field).then_some("true");
        html! {
            form.form method="post" action=(action) data-check {
                input type="hidden" name="version" value=(wanted.version);
                @if self.stored.is_none() {
                    div.field { label for="name" { "Name" } input #name name="name" required autocomplete="off" value=(wanted.name) placeholder="nightly-report" pattern=(NAME) aria-invalid=[is_wrong("name")]; }
                }
                div.across {
                    div.field {
                        label for="when" { "When" }
                        input #when .mono name="when" required autocomplete="off" spellcheck="false" value=(wanted.when) placeholder="30 2 * * MON-FRI" aria-invalid=[is_wrong("when")];
                        small { "Cron, such as " code { "*/5 * * * *" } " or " code { "@daily" } ", or " code { "every 90s" } "." }
                    }
                    div.field {
                        label for="zone" { "On the clocks of" }
                        input #zone name="zone" required autocomplete="off" spellcheck="false" value=(wanted.zone) placeholder="Europe/Berlin" aria-invalid=[is_wrong("zone")];
                        small { "A time zone, by its IANA name." }
                    }
                }
                (self.target(&is_wrong))
                div.field {
                    label for="payload" { "Carries" }
                    textarea #payload .mono name="payload" rows="4" spellcheck="false" placeholder="{}" aria-invalid=[is_wrong("payload")] { (wanted.payload) }
                    small { "JSON." }
                }
                (self.policies(&is_wrong))
                div.buttons {
                    button.button.main name="step" value="save" data-key="save" { @if self.stored.is_some() { "Save" } @else { "Make" } }
                    button.button name="step" value="check" formnovalidate data-key="check" { "Check" }
                    a.button href=(back) { "Cancel" }
                }
            }
        }
    }

    fn target(&self, is_wrong: &dyn Fn(&str) -> Option<&'static str>) -> Markup {
        let wanted = self.wanted;
        let choice = |value: &str, name: &str, means: &str| {
            html! { label { input type="radio" name="target" value=(value) checked[wanted.target == value]; span.says { span.strong { (name) } span.soft.small { (means) } } } }
        };
        let signed = self.stored.is_some_and(|view| matches!(view.definition.target, Target::Call { .. }));
        html! {
            fieldset.field.target {
                legend { "Each tick" }
                div.choices.row {
                    (choice("task", "submits a task", "which a worker does"))
                    (choice("event", "publishes an event", "which groups read"))
                    (choice("call", "calls an address", "by POST, signed"))
                }
                div.across.of-task {
                    div.field { label for="queue" { "Queue" } input #queue name="queue" autocomplete="off" value=(wanted.queue) placeholder="reports" aria-invalid=[is_wrong("queue")]; small { "Made, if it is not there." } }
                    (text("kind", "Kind", &wanted.kind, "What is to be done. Empty: any worker of the queue."))
                    (text("priority", "Priority", &wanted.priority, "Each point is worth a minute of waiting."))
                    (text("attempts", "Attempts", &wanted.attempts, "At most."))
                }
                div.across.of-event {
                    div.field { label for="topic" { "Topic" } input #topic name="topic" autocomplete="off" value=(wanted.topic) placeholder="reports" aria-invalid=[is_wrong("topic")]; small { "It has to be there." } }
                    (text("key", "Key", &wanted.key, "Events of one key are read in order. Empty: the schedule's name."))
                }
                div.across.of-call {
                    div.field { label for="url" { "Address" } input #url name="url" autocomplete="off" value=(wanted.url) placeholder="https://example.org/hooks/nightly" aria-invalid=[is_wrong("url")]; small { "Any " code { "2xx" } " says that it is done; else it is tried again." } }
                    div.field {
                        label for="secret" { "Secret" }
                        input #secret name="secret" type="password" autocomplete="off" aria-invalid=[is_wrong("secret")];
                        small { @if signed { "Empty: it stays as it is." } @else { "Empty: one is made, and shown once." } }
                    }
                    @if signed { div.verbs { label { input type="checkbox" name="rotate" value="on" checked[wanted.rotate.is_some()]; "Make a new secret, and show it once" } } }
                }
            }
        }
    }

    fn policies(&self, is_wrong: &dyn Fn(&str) -> Option<&'static str>) -> Markup {
        let wanted = self.wanted;
        let select = |id: &str, label: &str, value: &str, options: &[(&str, &str)]| {
            html! {
                div.field {
                    label for=(id) { (label) }
                    select id=(id) name=(id) aria-invalid=[is_wrong(id)] { @for (word, means) in options { option value=(word) selected[*word == value] { (means) } } }
                }
            }
        };
        let time = |id: &str, label: &str, value: &str, help: &str| {
            html! { div.field { label for=(id) { (label) } input id=(id) name=(id) type="datetime-local" step="any" value=(value) aria-invalid=[is_wrong(id)]; small { (help) } } }
        };
        let usual = Wanted { version: wanted.version, ..Wanted::default() };
        let is_usual = [
            (&wanted.start, &usual.start),
            (&wanted.end, &usual.end),
            (&wanted.jitter, &usual.jitter),
            (&wanted.misfire, &usual.misfire),
            (&wanted.gap, &usual.gap),
            (&wanted.fold, &usual.fold),
            (&wanted.overlap, &usual.overlap),
        ]
        .iter()
        .all(|(one, other)| one == other);
        html! {
            details #more open[!is_usual] {
                summary { "Start, end, jitter; what was missed, what overlaps, what clocks jump over" }
                div.across.more {
                    (time("start", "From", &wanted.start, "Empty: from now on."))
                    (time("end", "Until before", &wanted.end, "Empty: for ever."))
                    (text("jitter", "Jitter", &wanted.jitter, "Each tick is later by up to this, always the same."))
                    (select("misfire", "Ticks that were missed", &wanted.misfire, &[
                        ("fire_once", "fire once for all"), ("skip", "are left out"), ("fire_all", "all fire, up to a number"), ("within", "fire within a time"),
                    ]))
                    div.field.of-all { label for="cap" { "At most" } input #cap name="cap" inputmode="numeric" autocomplete="off" value=(wanted.cap) aria-invalid=[is_wrong("cap")]; small { "The newest so many." } }
                    div.field.of-within { label for="grace" { "Within" } input #grace name="grace" autocomplete="off" value=(wanted.grace) aria-invalid=[is_wrong("grace")]; small { "Such as 15m, 2h or 1d." } }
                    (select("overlap", "While an earlier run goes on", &wanted.overlap, &[
                        ("allow", "a tick fires as well"), ("skip", "a tick does nothing"), ("queue", "a tick waits for its turn"),
                    ]))
                    (select("gap", "A time that clocks jump over", &wanted.gap, &[("", "as is usual for it"), ("shift", "comes later by as much"), ("skip", "is left out")]))
                    (select("fold", "A time that clocks show twice", &wanted.fold, &[("", "as is usual for it"), ("first", "counts the first time"), ("both", "counts both times")]))
                }
            }
        }
    }
}

/// What a form would mean.
fn shown(preview: &Preview, wall: i64) -> Markup {
    html! {
        @if !preview.wrong.is_empty() {
            ul.mistakes {
                @for one in &preview.wrong {
                    li data-wrong=(one.field) {
                        (parts::state("bad", html! { a href={ "#" (one.field) } { (one.field) } ": " (one.says) }))
                        @if let Some(mark) = &one.mark { pre.where { (mark) } }
                    }
                }
            }
        }
        @match &preview.ahead {
            Some(fine) => (schedule_strip::ahead(&fine.0, &fine.1, false, wall)),
            None if preview.wrong.is_empty() => p.soft { "Enter an expression to preview the next ten ticks." },
            None => {},
        }
    }
}

pub(super) async fn new(State(app): State<App>, visit: Visit, Got(Query(at)): Got<Query<Where>>) -> Response {
    let form = Form { namespace: &at.namespace, stored: None, wanted: &Wanted::default() };
    form.page(&visit, &Preview::default(), app.runtime.wall_ms())
}

pub(super) async fn edit(
    State(app): State<App>,
    visit: Visit,
    Got(Path(name)): Got<Path<Name>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = ScheduleKey::new(at.namespace, name);
    let view = match find(&app, &key).await {
        Ok(view) => view,
        Err(problem) => return trouble(&visit, &problem),
    };
    let form = Form { namespace: &key.namespace, stored: Some(&view), wanted: &Wanted::of(&view) };
    let preview = form.preview(&app).await;
    form.page(&visit, &preview, app.runtime.wall_ms())
}

pub(super) async fn make(
    State(app): State<App>,
    visit: Visit,
    principal: Principal,
    by: By,
    Got(Query(at)): Got<Query<Where>>,
    Posted(wanted): Posted<Wanted>,
) -> Response {
    let form = Form { namespace: &at.namespace, stored: None, wanted: &wanted };
    saved(&app, &visit, &principal, &by, &form).await
}

pub(super) async fn save(
    State(app): State<App>,
    visit: Visit,
    principal: Principal,
    by: By,
    Got(Path(name)): Got<Path<Name>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(wanted): Posted<Wanted>,
) -> Response {
    let key = ScheduleKey::new(at.namespace, name);
    let view = match find(&app, &key).await {
        Ok(view) => view,
        Err(problem) => return trouble(&visit, &problem),
    };
    // What the form leaves out is taken from what is stored: that must be what whoever edits it saw.
    if view.version != wanted.version && wanted.step != "check" {
        return trouble(&visit, &changed_meanwhile(&key, Some(view.version)).remedy(AGAIN));
    }
    let form = Form { namespace: &key.namespace, stored: Some(&view), wanted: &wanted };
    saved(&app, &visit, &principal, &by, &form).await
}

async fn saved(app: &App, visit: &Visit, principal: &Principal, by: &By, form: &Form<'_>) -> Response {
    let wall = app.runtime.wall_ms();
    if form.wanted.step == "check" {
        return form.page(visit, &form.preview(app).await, wall);
    }
    let refused = |wrong: Vec<Wrong>, status: StatusCode| {
        let mut page = form.page(visit, &Preview { wrong, ahead: None }, wall);
        *page.status_mut() = status;
        page
    };
    let (key, wish) = match form.read() {
        Ok(read) => read,
        Err(wrong) => return refused(wrong, StatusCode::UNPROCESSABLE_ENTITY),
    };
    let expect = form.stored.map_or(Expect::New, |view| Expect::Version(view.version));
    let (done, secret) = match set_schedule(app, principal, by, &key, wish, expect).await {
        Ok(set) => set,
        // What was asked for is to blame: whoever asked may mend it.
        Err(problem) if problem.status.is_client_error() => {
            return refused(vec![told(&problem)], problem.status);
        }
        Err(problem) => return trouble(visit, &problem),
    };
    changed(app).await;
    let word = match done {
        ScheduleSet::Created(_) => "new",
        ScheduleSet::Changed(_) => "set",
        ScheduleSet::Same(_) => "already",
        ScheduleSet::Conflict(Some(_)) if form.stored.is_none() => {
            let says = format!(
                "there is a schedule {key} already; choose another name, or edit the one that is there"
            );
            return refused(vec![Wrong::new("name", says)], StatusCode::CONFLICT);
        }
        ScheduleSet::Conflict(version) => {
            return trouble(visit, &changed_meanwhile(&key, version).remedy(AGAIN));
        }
    };
    let next = parts::schedule_href(&key, "");
    match secret {
        Some(secret) => visit.tell_secret(&next, word, &secret),
        None => visit.tell(&next, word),
    }
}
