//! `tenure pools`: pools of resources, and requests for them.

use std::time::Duration;

use serde_json::json;
use tenure::Name;
use tenure::port::{
    AssignmentMode, NewResource, PoolKey, PoolRequest, PoolRequestAction, PoolRequestId, PoolRequestState,
    PoolRequestView, PoolSettings, PoolView, ResourceView, Store,
};
use tenure::runtime::{random, wall_ms};

use super::elections::whoami;
use super::maintenance;
use super::signals::Signals;
use super::watch_screen;
use crate::args::parsers::millis;
use crate::args::queues_and_pools::{HeldResourceArgs, ListArgs, PoolRequestArgs, PoolsArgs, PoolsCommand};
use crate::args::{GlobalArgs, OutputFormat};
use crate::error::{self, CliError};
use crate::output::{self, Table, TextStyle, ago, counted, paint, plain, span};
use crate::store;

pub(crate) async fn run(global: &GlobalArgs, args: PoolsArgs) -> Result<u8, CliError> {
    match args.command {
        PoolsCommand::AddResource { pool, resources, tags, disabled } => {
            add(global, &pool, &resources, &tags, !disabled).await
        }
        PoolsCommand::Set { pool, mode, fallback, cooldown, priority_formula, request_retention } => {
            set(global, &pool, |settings| {
                settings.mode = mode.unwrap_or(settings.mode);
                settings.fallback = fallback.unwrap_or(settings.fallback);
                settings.cooldown_ms = cooldown.map_or(settings.cooldown_ms, millis);
                settings.request_retention_ms =
                    request_retention.map_or(settings.request_retention_ms, millis);
                if let Some(formula) = priority_formula {
                    settings.priority_formula = formula;
                }
            })
            .await
        }
        PoolsCommand::List { listing } => list(global, listing).await,
        PoolsCommand::Show { pool, watch } => show(global, &pool, watch).await,
        PoolsCommand::Request(args) => request(global, args).await,
        PoolsCommand::Heartbeat { claim, claim_timeout } => {
            update_request(global, &claim, PoolRequestAction::Heartbeat(millis(claim_timeout))).await
        }
        PoolsCommand::Release { claim } => update_request(global, &claim, PoolRequestAction::Release).await,
        PoolsCommand::RemoveResource { pool, resource } => remove(global, &pool, &resource).await,
    }
}

async fn add(
    global: &GlobalArgs,
    pool: &str,
    names: &[String],
    tags: &[String],
    enabled: bool,
) -> Result<u8, CliError> {
    let key = store::pool(global, pool)?;
    let mut resources = Vec::new();
    for name in names {
        resources.push(NewResource { name: name.parse()?, tags: tags.to_vec(), enabled });
    }
    tenure::rules::work::validate_resources(&resources)
        .map_err(|error| CliError::usage(error.to_string()))?;
    let store = store::open(global).await?;
    store.add_resources(&key, &resources).await?;
    if global.output == OutputFormat::Json {
        output::print_json(&existing(store.as_ref(), &key).await?);
    }
    let off = if enabled { "" } else { ", disabled" };
    output::note(
        global,
        TextStyle::Green,
        &format!("added {} to {key}{off}", counted(names.len(), "resource")),
    );
    Ok(0)
}

async fn set(
    global: &GlobalArgs,
    pool: &str,
    change: impl FnOnce(&mut PoolSettings),
) -> Result<u8, CliError> {
    let key = store::pool(global, pool)?;
    let store = store::open(global).await?;
    let mut settings = store.pool(&key).await?.map(|view| view.settings).unwrap_or_default();
    change(&mut settings);
    tenure::rules::work::validate_pool(&settings).map_err(|error| CliError::usage(error.to_string()))?;
    store.set_pool(&key, &settings).await?;
    if global.output == OutputFormat::Json {
        output::print_json(&existing(store.as_ref(), &key).await?);
    }
    output::note(global, TextStyle::Green, &format!("pool {key} is updated: {}", settings.mode.as_str()));
    Ok(0)
}

async fn list(global: &GlobalArgs, listing: ListArgs) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.pools((!listing.all_namespaces).then_some(&namespace)).await?;
        Ok(watch_screen::render(global, &views, |views| table(views, listing.all_namespaces, wall_ms())))
    })
    .await
}

fn table(views: &[PoolView], namespaces: bool, now_ms: i64) -> String {
    if views.is_empty() {
        return "there are no pools; try: tenure pools add-resource hosts node-1 node-2 --tag gpu\n"
            .to_owned();
    }
    let mut header =
        vec!["pool", "mode", "resources", "free", "held", "cooldown", "disabled", "waiting", "state"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table =
        Table::new(&header).right(&["resources", "free", "held", "cooldown", "disabled", "waiting"]);
    for view in views {
        let count = |wanted: ResourceState| {
            let so = |resource: &&ResourceView| ResourceState::of(resource, now_ms) == wanted;
            view.resources.iter().filter(so).count()
        };
        let number = |count: usize, style: TextStyle| {
            (count.to_string(), if count == 0 { TextStyle::Dim } else { style })
        };
        let mut row = vec![
            (view.key.name.to_string(), TextStyle::Bold),
            (view.settings.mode.as_str().to_owned(), TextStyle::Plain),
            number(view.resources.len(), TextStyle::Plain),
            number(count(ResourceState::Free), TextStyle::Green),
            number(count(ResourceState::Held), TextStyle::Plain),
            number(count(ResourceState::Resting), TextStyle::Yellow),
            number(count(ResourceState::Off), TextStyle::Dim),
            number(view.waiting_requests.len(), TextStyle::Yellow),
            match &view.paused {
                Some(pause) => (format!("paused by {}", pause.paused_by), TextStyle::Yellow),
                None => ("open".to_owned(), TextStyle::Green),
            },
        ];
        if namespaces {
            row.insert(0, (view.key.namespace.to_string(), TextStyle::Dim));
        }
        table.row(row);
    }
    table.render()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ResourceState {
    Free,
    Held,
    Resting,
    Off,
}

impl ResourceState {
    fn of(view: &ResourceView, now_ms: i64) -> ResourceState {
        match (&view.held_by, view.resource.enabled, view.cooldown_until_at_ms) {
            (Some(_), _, _) => ResourceState::Held,
            (None, false, _) => ResourceState::Off,
            (None, true, Some(until)) if until > now_ms => ResourceState::Resting,
            _ => ResourceState::Free,
        }
    }

    fn word(self) -> (String, TextStyle) {
        let (word, style) = match self {
            ResourceState::Free => ("free", TextStyle::Green),
            ResourceState::Held => ("held", TextStyle::Plain),
            ResourceState::Resting => ("cooldown", TextStyle::Yellow),
            ResourceState::Off => ("disabled", TextStyle::Dim),
        };
        (word.to_owned(), style)
    }
}

async fn show(global: &GlobalArgs, pool: &str, watch: bool) -> Result<u8, CliError> {
    let key = store::pool(global, pool)?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), watch, async || {
        let view = existing(store.as_ref(), &key).await?;
        Ok(watch_screen::render(global, &view, |view| render_pool(view, wall_ms())))
    })
    .await
}

fn render_pool(view: &PoolView, now_ms: i64) -> String {
    let settings = &view.settings;
    let rest = match settings.cooldown_ms {
        0 => String::new(),
        ms => format!(", cooldown {}", span(ms)),
    };
    let headline = match &view.paused {
        Some(pause) => paint(&plain(&format!("paused by {}", pause.paused_by)), TextStyle::Yellow),
        None => paint("open", TextStyle::Green),
    };
    let fallback = match settings.mode {
        AssignmentMode::Exclusive => format!(", fallback {}", settings.fallback.as_str()),
        AssignmentMode::Distributed => String::new(),
    };
    let mut text = format!(
        "{}  {headline}, {}{fallback}{rest}\n{}\n\n",
        paint(&view.key.to_string(), TextStyle::Bold),
        settings.mode.as_str(),
        paint(&format!("priority formula: {}", settings.priority_formula), TextStyle::Dim)
    );
    let mut table = Table::new(&["resource", "state", "held by", "request", "token", "until", "tags"])
        .right(&["request"]);
    for resource in &view.resources {
        let dash = || "–".to_owned();
        let holder = resource.held_by.as_ref();
        let until = holder.and_then(|holder| holder.expires_at_ms).or(resource.cooldown_until_at_ms);
        let until = until.filter(|at| *at > now_ms).map(|at| format!("in {}", ago(now_ms, at)));
        table.row(vec![
            (resource.resource.name.to_string(), TextStyle::Bold),
            ResourceState::of(resource, now_ms).word(),
            (holder.map_or_else(dash, |holder| holder.request.owner.clone()), TextStyle::Plain),
            (holder.map_or_else(dash, |holder| holder.id.to_string()), TextStyle::Plain),
            (resource.token.to_string(), TextStyle::Dim),
            (until.unwrap_or_else(dash), TextStyle::Plain),
            (resource.resource.tags.join(" "), TextStyle::Dim),
        ]);
    }
    text.push_str(&table.render());
    if !view.waiting_requests.is_empty() {
        text.push('\n');
        text.push_str(&waiting(&view.waiting_requests, now_ms));
    }
    text
}

fn waiting(requests: &[PoolRequestView], now_ms: i64) -> String {
    let mut table =
        Table::new(&["request", "owner", "priority", "waiting", "required tags", "preferred tags"])
            .right(&["request", "priority"]);
    for request in requests {
        table.row(vec![
            (request.id.to_string(), TextStyle::Bold),
            (request.request.owner.clone(), TextStyle::Plain),
            (
                request.priority.map_or_else(|| "–".to_owned(), |priority| priority.to_string()),
                TextStyle::Plain,
            ),
            (ago(request.created_at_ms, now_ms), TextStyle::Plain),
            (request.request.required_tags.join(" "), TextStyle::Plain),
            (request.request.preferred_tags.join(" "), TextStyle::Dim),
        ]);
    }
    table.render()
}

async fn request(global: &GlobalArgs, args: PoolRequestArgs) -> Result<u8, CliError> {
    let key = store::pool(global, &args.pool)?;
    // The request stays in the store while this command waits, and a short time longer in case it is killed.
    let max_wait = args.max_wait.unwrap_or(args.wait + Duration::from_secs(10));
    let request = PoolRequest {
        idempotency_key: args.idempotency_key.clone().unwrap_or_else(|| format!("cli-{:016x}", random())),
        owner: args.owner.unwrap_or_else(whoami),
        required_tags: args.required_tags,
        preferred_tags: args.preferred_tags,
        base_priority: args.base_priority,
        session: None,
        claim_timeout_ms: Some(millis(args.claim_timeout)),
        max_wait_ms: Some(millis(max_wait.max(args.wait))),
    };
    tenure::rules::work::validate_pool_request(&request)
        .map_err(|error| CliError::usage(error.to_string()))?;
    let mut signals = Signals::ending()?;
    let tenure = store::session_without_candidate(global).await?;
    maintenance::ensure_broker(&tenure).await?;
    let requester = PoolRequester {
        global,
        store: tenure.store().as_ref(),
        key: &key,
        owner: &request.owner,
        keep: args.max_wait.is_some(),
        private_key: args.idempotency_key.is_none(),
    };
    let result = requester.ask(&tenure.tasks(), &request, args.wait, &mut signals).await;
    tenure.close().await?;
    result
}

/// Makes a pool request and waits for it.
struct PoolRequester<'a> {
    global: &'a GlobalArgs,
    store: &'a dyn Store,
    key: &'a PoolKey,
    owner: &'a str,
    /// Whether the request stays in the pool after this command stops waiting.
    keep: bool,
    /// Whether the idempotency key is random, so that no other process can use the grant.
    private_key: bool,
}

impl PoolRequester<'_> {
    async fn ask(
        &self,
        claims: &tenure::TaskClient,
        request: &PoolRequest,
        wait: Duration,
        signals: &mut Signals,
    ) -> Result<u8, CliError> {
        // Do not interrupt the creation: only a request with a known id can be cancelled.
        let mut view = claims.request(self.key, request, Duration::ZERO).await?;
        if view.state == PoolRequestState::Waiting && !wait.is_zero() {
            view = tokio::select! {
                waited = claims.wait_for_pool_request(self.key, view.id, wait) => waited?.unwrap_or(view),
                signal = signals.next() => {
                    self.interrupted(view).await?;
                    return Ok(128 + signal as u8);
                }
            };
        }
        if view.state == PoolRequestState::Waiting && !self.keep {
            view = self.cancel(view).await?;
        }
        Ok(match view.state {
            PoolRequestState::Granted => self.granted(&view),
            _ => self.not_acquired(&view),
        })
    }

    /// Handles a signal during the wait.
    async fn interrupted(&self, view: PoolRequestView) -> Result<(), CliError> {
        if self.keep {
            self.note_waiting(&view);
            return Ok(());
        }
        let view = self.cancel(view).await?;
        let (namespace, id) = (&self.key.namespace, view.id);
        let (text, style) = match (view.state, view.token) {
            (PoolRequestState::Granted, Some(token)) if self.private_key => {
                let given = self
                    .store
                    .update_pool_request(namespace, id, self.owner, Some(token), PoolRequestAction::Release)
                    .await?;
                match given {
                    true => (
                        format!("request {id} was granted during the cancellation; its resource is released"),
                        TextStyle::Yellow,
                    ),
                    false => (format!("request {id} has ended"), TextStyle::Yellow),
                }
            }
            // Another process may use the same idempotency key and hold the resource.
            (PoolRequestState::Granted, Some(token)) => {
                let then = format!(
                    "release it with: tenure pools release {id} --token {token} --owner {}",
                    self.owner
                );
                (format!("request {id} was granted during the cancellation; {then}"), TextStyle::Red)
            }
            _ => (format!("request {id} is cancelled"), TextStyle::Yellow),
        };
        output::note(self.global, style, &text);
        Ok(())
    }

    /// Cancels a waiting request. Returns its new view: it may have been granted before the cancellation.
    async fn cancel(&self, view: PoolRequestView) -> Result<PoolRequestView, CliError> {
        let namespace = &self.key.namespace;
        self.store
            .update_pool_request(namespace, view.id, self.owner, None, PoolRequestAction::Release)
            .await?;
        Ok(self.store.pool_request(namespace, view.id).await?.unwrap_or(view))
    }

    fn granted(&self, view: &PoolRequestView) -> u8 {
        let (Some(resource), Some(token)) = (&view.resource, view.token) else {
            return self.not_acquired(view);
        };
        if self.global.output == OutputFormat::Json {
            output::print_json(view);
            return 0;
        }
        let until = view.expires_at_ms.map(|at| format!(" for {}", ago(wall_ms(), at))).unwrap_or_default();
        let mut table = Table::new(&["resource", "request", "token", "owner"]);
        table.row(vec![
            (resource.to_string(), TextStyle::Bold),
            (view.id.to_string(), TextStyle::Plain),
            (token.to_string(), TextStyle::Green),
            (self.owner.to_owned(), TextStyle::Plain),
        ]);
        output::print_text(&table.render());
        output::note(self.global, TextStyle::Green, &format!("{resource} of {} is granted{until}", self.key));
        0
    }

    fn not_acquired(&self, view: &PoolRequestView) -> u8 {
        if view.state == PoolRequestState::Waiting {
            if self.global.output == OutputFormat::Json {
                output::print_json(view);
            }
            self.note_waiting(view);
        } else {
            self.note_not_acquired("the request is cancelled");
        }
        error::NOT_ACQUIRED
    }

    fn note_waiting(&self, view: &PoolRequestView) {
        let (id, key, owner) = (view.id, &view.request.idempotency_key, self.owner);
        self.note_not_acquired(&format!(
            "request {id} remains in the pool; repeat with --idempotency-key {key} --owner {owner}"
        ));
    }

    fn note_not_acquired(&self, then: &str) {
        let text = format!("not acquired: no matching resource of {} became free in time; {then}", self.key);
        output::note(self.global, TextStyle::Yellow, &text);
    }
}

async fn update_request(
    global: &GlobalArgs,
    claim: &HeldResourceArgs,
    handle: PoolRequestAction,
) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let id = PoolRequestId(claim.request_id);
    let owner = claim.owner.clone().unwrap_or_else(whoami);
    let store = store::open(global).await?;
    if !store.update_pool_request(&namespace, id, &owner, claim.token, handle).await? {
        return Err(not_held(store.as_ref(), &namespace, claim, &owner).await?);
    }
    let done = match (handle, claim.token) {
        (PoolRequestAction::Release, Some(_)) => "is released".to_owned(),
        (PoolRequestAction::Release, None) => "is cancelled".to_owned(),
        (PoolRequestAction::Heartbeat(ms), _) => format!("has a claim timeout of {}", span(ms)),
    };
    if global.output == OutputFormat::Json {
        output::print_json(&json!({"request_id": id, "completed": true}));
    }
    output::note(global, TextStyle::Green, &format!("request {id} {done}"));
    Ok(0)
}

async fn not_held(
    store: &dyn Store,
    namespace: &Name,
    claim: &HeldResourceArgs,
    owner: &str,
) -> Result<CliError, CliError> {
    let id = PoolRequestId(claim.request_id);
    let Some(view) = store.pool_request(namespace, id).await? else {
        return Ok(CliError::usage(format!(
            "request {id} does not exist in namespace {namespace}, or was pruned; list the requests with `tenure pools show POOL`"
        )));
    };
    let (state, token) = (view.state.as_str(), view.token.map(|token| format!(" under token {token}")));
    let token = token.unwrap_or_default();
    let message = match (view.request.owner == owner, claim.token) {
        (false, _) => format!(
            "request {id} belongs to {}, not to {owner}; only its owner (--owner) may change it",
            view.request.owner
        ),
        (true, None) if view.state == PoolRequestState::Granted => {
            format!(
                "request {id} is granted: pass the token that `tenure pools request` printed with --token"
            )
        }
        (true, _) => format!("request {id} is {state}{token}; nothing was changed"),
    };
    Ok(CliError::new(error::LOST, message))
}

async fn remove(global: &GlobalArgs, pool: &str, resource: &str) -> Result<u8, CliError> {
    let key = store::pool(global, pool)?;
    let name: Name = resource.parse()?;
    let store = store::open(global).await?;
    if !store.remove_resource(&key, &name).await? {
        existing(store.as_ref(), &key).await?;
        return Err(CliError::usage(format!(
            "resource {name} does not exist in pool {key}; list the resources with `tenure pools show {}`",
            key.name
        )));
    }
    output::note(global, TextStyle::Green, &format!("removed {name} from {key}"));
    Ok(0)
}

async fn existing(store: &dyn Store, key: &PoolKey) -> Result<PoolView, CliError> {
    store.pool(key).await?.ok_or_else(|| {
        CliError::usage(format!("pool {key} does not exist; list the pools with `tenure pools list`"))
    })
}
