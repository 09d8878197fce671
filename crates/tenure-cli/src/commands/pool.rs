//! `tenure pool`: hosts, devices, licences; who has which, and who waits for one.

use std::time::Duration;

use serde_json::json;
use tenure::Name;
use tenure::port::{
    Backend, Handle, Mode, NewRequest, NewResource, PoolKey, PoolSettings, PoolView, RequestId, RequestState,
    RequestView, ResourceView,
};
use tenure::runtime::{random, wall_ms};

use super::keeper;
use super::leader::whoami;
use super::screen;
use super::signals::Signals;
use crate::args::claims::{Listing, PoolArgs, PoolClaim, PoolCommand, RequestArgs};
use crate::args::values::millis;
use crate::args::{Format, Global};
use crate::exit::{self, Failure};
use crate::output::{self, Ink, Table, ago, counted, paint, plain, span};
use crate::store;

pub(crate) async fn run(global: &Global, args: PoolArgs) -> Result<u8, Failure> {
    match args.command {
        PoolCommand::Add { pool, resources, tags, disabled } => {
            add(global, &pool, &resources, &tags, !disabled).await
        }
        PoolCommand::Set { pool, mode, fallback, cool_down, priority, keep } => {
            set(global, &pool, |settings| {
                settings.mode = mode.unwrap_or(settings.mode);
                settings.fallback = fallback.unwrap_or(settings.fallback);
                settings.cool_down_ms = cool_down.map_or(settings.cool_down_ms, millis);
                settings.keep_ms = keep.map_or(settings.keep_ms, millis);
                if let Some(formula) = priority {
                    settings.priority = formula;
                }
            })
            .await
        }
        PoolCommand::List { listing } => list(global, listing).await,
        PoolCommand::Show { pool, watch } => show(global, &pool, watch).await,
        PoolCommand::Request(args) => request(global, args).await,
        PoolCommand::Extend { claim, hold } => handle(global, &claim, Handle::Extend(millis(hold))).await,
        PoolCommand::Release { claim } => handle(global, &claim, Handle::Release).await,
        PoolCommand::Remove { pool, resource } => remove(global, &pool, &resource).await,
    }
}

async fn add(
    global: &Global,
    pool: &str,
    names: &[String],
    tags: &[String],
    enabled: bool,
) -> Result<u8, Failure> {
    let key = store::pool(global, pool)?;
    let mut resources = Vec::new();
    for name in names {
        resources.push(NewResource { name: name.parse()?, tags: tags.to_vec(), enabled });
    }
    tenure::claim::check_resources(&resources).map_err(|error| Failure::usage(error.to_string()))?;
    let store = store::open(global).await?;
    store.add_resources(&key, &resources).await?;
    if global.output == Format::Json {
        output::print_json(&existing(store.as_ref(), &key).await?);
    }
    let off = if enabled { "" } else { ", not to be handed out" };
    output::note(global, Ink::Green, &format!("{} in {key}{off}", counted(names.len(), "resource")));
    Ok(0)
}

async fn set(global: &Global, pool: &str, change: impl FnOnce(&mut PoolSettings)) -> Result<u8, Failure> {
    let key = store::pool(global, pool)?;
    let store = store::open(global).await?;
    let mut settings = store.pool(&key).await?.map(|view| view.settings).unwrap_or_default();
    change(&mut settings);
    tenure::claim::check_pool(&settings).map_err(|error| Failure::usage(error.to_string()))?;
    store.set_pool(&key, &settings).await?;
    if global.output == Format::Json {
        output::print_json(&existing(store.as_ref(), &key).await?);
    }
    output::note(global, Ink::Green, &format!("{key} is set: {}", settings.mode.as_str()));
    Ok(0)
}

async fn list(global: &Global, listing: Listing) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), listing.watch, async || {
        let views = store.pools((!listing.all_namespaces).then_some(&namespace)).await?;
        Ok(screen::drawn(global, &views, |views| table(views, listing.all_namespaces, wall_ms())))
    })
    .await
}

fn table(views: &[PoolView], namespaces: bool, now_ms: i64) -> String {
    if views.is_empty() {
        return "there are no pools yet; try: tenure pool add hosts node-1 node-2 --tag gpu\n".to_owned();
    }
    let mut header = vec!["pool", "mode", "resources", "free", "held", "resting", "off", "waiting", "state"];
    if namespaces {
        header.insert(0, "namespace");
    }
    let mut table = Table::new(&header).right(&["resources", "free", "held", "resting", "off", "waiting"]);
    for view in views {
        let count = |wanted: Standing| {
            let so = |resource: &&ResourceView| Standing::of(resource, now_ms) == wanted;
            view.resources.iter().filter(so).count()
        };
        let number = |count: usize, ink: Ink| (count.to_string(), if count == 0 { Ink::Dim } else { ink });
        let mut row = vec![
            (view.key.name.to_string(), Ink::Bold),
            (view.settings.mode.as_str().to_owned(), Ink::Plain),
            number(view.resources.len(), Ink::Plain),
            number(count(Standing::Free), Ink::Green),
            number(count(Standing::Held), Ink::Plain),
            number(count(Standing::Resting), Ink::Yellow),
            number(count(Standing::Off), Ink::Dim),
            number(view.waiting.len(), Ink::Yellow),
            match &view.paused {
                Some(pause) => (format!("paused by {}", pause.by), Ink::Yellow),
                None => ("open".to_owned(), Ink::Green),
            },
        ];
        if namespaces {
            row.insert(0, (view.key.namespace.to_string(), Ink::Dim));
        }
        table.row(row);
    }
    table.render()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Free,
    Held,
    Resting,
    Off,
}

impl Standing {
    fn of(view: &ResourceView, now_ms: i64) -> Standing {
        match (&view.holder, view.resource.enabled, view.cooling_until_ms) {
            (Some(_), _, _) => Standing::Held,
            (None, false, _) => Standing::Off,
            (None, true, Some(until)) if until > now_ms => Standing::Resting,
            _ => Standing::Free,
        }
    }

    fn word(self) -> (String, Ink) {
        let (word, ink) = match self {
            Standing::Free => ("free", Ink::Green),
            Standing::Held => ("held", Ink::Plain),
            Standing::Resting => ("resting", Ink::Yellow),
            Standing::Off => ("off", Ink::Dim),
        };
        (word.to_owned(), ink)
    }
}

async fn show(global: &Global, pool: &str, watch: bool) -> Result<u8, Failure> {
    let key = store::pool(global, pool)?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), watch, async || {
        let view = existing(store.as_ref(), &key).await?;
        Ok(screen::drawn(global, &view, |view| picture(view, wall_ms())))
    })
    .await
}

fn picture(view: &PoolView, now_ms: i64) -> String {
    let settings = &view.settings;
    let rest = match settings.cool_down_ms {
        0 => String::new(),
        ms => format!(", rests {} after use", span(ms)),
    };
    let headline = match &view.paused {
        Some(pause) => paint(&plain(&format!("paused by {}", pause.by)), Ink::Yellow),
        None => paint("open", Ink::Green),
    };
    let fallback = match settings.mode {
        Mode::Exclusive => format!(", fallback {}", settings.fallback.as_str()),
        Mode::Distributed => String::new(),
    };
    let mut text = format!(
        "{}  {headline}, {}{fallback}{rest}\n{}\n\n",
        paint(&view.key.to_string(), Ink::Bold),
        settings.mode.as_str(),
        paint(&format!("priority = {}", settings.priority), Ink::Dim)
    );
    let mut table =
        Table::new(&["resource", "state", "holder", "request", "token", "until", "tags"]).right(&["request"]);
    for resource in &view.resources {
        let dash = || "–".to_owned();
        let holder = resource.holder.as_ref();
        let until = holder.and_then(|holder| holder.deadline_ms).or(resource.cooling_until_ms);
        let until = until.filter(|at| *at > now_ms).map(|at| format!("in {}", ago(now_ms, at)));
        table.row(vec![
            (resource.resource.name.to_string(), Ink::Bold),
            Standing::of(resource, now_ms).word(),
            (holder.map_or_else(dash, |holder| holder.request.owner.clone()), Ink::Plain),
            (holder.map_or_else(dash, |holder| holder.id.to_string()), Ink::Plain),
            (resource.token.to_string(), Ink::Dim),
            (until.unwrap_or_else(dash), Ink::Plain),
            (resource.resource.tags.join(" "), Ink::Dim),
        ]);
    }
    text.push_str(&table.render());
    if !view.waiting.is_empty() {
        text.push('\n');
        text.push_str(&waiting(&view.waiting, now_ms));
    }
    text
}

fn waiting(requests: &[RequestView], now_ms: i64) -> String {
    let mut table = Table::new(&["request", "owner", "priority", "waits", "requires", "prefers"])
        .right(&["request", "priority"]);
    for request in requests {
        table.row(vec![
            (request.id.to_string(), Ink::Bold),
            (request.request.owner.clone(), Ink::Plain),
            (request.priority.map_or_else(|| "–".to_owned(), |priority| priority.to_string()), Ink::Plain),
            (ago(request.created_at_ms, now_ms), Ink::Plain),
            (request.request.requires.join(" "), Ink::Plain),
            (request.request.prefers.join(" "), Ink::Dim),
        ]);
    }
    table.render()
}

async fn request(global: &Global, args: RequestArgs) -> Result<u8, Failure> {
    let key = store::pool(global, &args.pool)?;
    // In the store for as long as we wait; should we be killed, a moment longer.
    let stay = args.keep_waiting.unwrap_or(args.wait + Duration::from_secs(10));
    let request = NewRequest {
        key: args.key.clone().unwrap_or_else(|| format!("cli-{:016x}", random())),
        owner: args.owner.unwrap_or_else(whoami),
        requires: args.requires,
        prefers: args.prefers,
        base: args.base,
        session: None,
        hold_ms: Some(millis(args.hold)),
        max_wait_ms: Some(millis(stay.max(args.wait))),
    };
    tenure::claim::check_request(&request).map_err(|error| Failure::usage(error.to_string()))?;
    let mut signals = Signals::ending()?;
    let tenure = store::visitor(global).await?;
    keeper::is_there(&tenure).await?;
    let asker = Asker {
        global,
        store: tenure.store().as_ref(),
        key: &key,
        owner: &request.owner,
        keep: args.keep_waiting.is_some(),
        alone: args.key.is_none(),
    };
    let told = asker.ask(&tenure.claims(), &request, args.wait, &mut signals).await;
    tenure.close().await?;
    told
}

/// Who asks a pool for something, here and now.
struct Asker<'a> {
    global: &'a Global,
    store: &'a dyn Backend,
    key: &'a PoolKey,
    owner: &'a str,
    /// Whether the request is to wait on when we do not.
    keep: bool,
    /// Whether nobody else can know the request's key, and have its grant.
    alone: bool,
}

impl Asker<'_> {
    async fn ask(
        &self,
        claims: &tenure::Claims,
        request: &NewRequest,
        wait: Duration,
        signals: &mut Signals,
    ) -> Result<u8, Failure> {
        // Not given up half way: only what has a number can be called off.
        let mut view = claims.request(self.key, request, Duration::ZERO).await?;
        if view.state == RequestState::Waiting && !wait.is_zero() {
            view = tokio::select! {
                waited = claims.await_request(self.key, view.id, wait) => waited?.unwrap_or(view),
                signal = signals.next() => {
                    self.interrupted(view).await?;
                    return Ok(128 + signal as u8);
                }
            };
        }
        if view.state == RequestState::Waiting && !self.keep {
            view = self.called_off(view).await?;
        }
        Ok(match view.state {
            RequestState::Granted => self.granted(&view),
            _ => self.nothing(&view),
        })
    }

    /// Nobody waits any more.
    async fn interrupted(&self, view: RequestView) -> Result<(), Failure> {
        if self.keep {
            self.waits_on(&view);
            return Ok(());
        }
        let view = self.called_off(view).await?;
        let (namespace, id) = (&self.key.namespace, view.id);
        let (text, ink) = match (view.state, view.token) {
            (RequestState::Granted, Some(token)) if self.alone => {
                let given = self
                    .store
                    .handle_request(namespace, id, self.owner, Some(token), Handle::Release)
                    .await?;
                match given {
                    true => (format!("what request {id} got at that moment is given back"), Ink::Yellow),
                    false => (format!("request {id} is over"), Ink::Yellow),
                }
            }
            // Somebody else may have asked under the same key, and use it.
            (RequestState::Granted, Some(token)) => {
                let then = format!(
                    "give it back with: tenure pool release {id} --token {token} --owner {}",
                    self.owner
                );
                (format!("request {id} was granted at that moment; {then}"), Ink::Red)
            }
            _ => (format!("request {id} was called off"), Ink::Yellow),
        };
        output::note(self.global, ink, &text);
        Ok(())
    }

    /// A request that waits, after we have called it off: it may have been granted before that.
    async fn called_off(&self, view: RequestView) -> Result<RequestView, Failure> {
        let namespace = &self.key.namespace;
        self.store.handle_request(namespace, view.id, self.owner, None, Handle::Release).await?;
        Ok(self.store.pool_request(namespace, view.id).await?.unwrap_or(view))
    }

    fn granted(&self, view: &RequestView) -> u8 {
        let (Some(resource), Some(token)) = (&view.resource, view.token) else { return self.nothing(view) };
        if self.global.output == Format::Json {
            output::print_json(view);
            return 0;
        }
        let until =
            view.deadline_ms.map(|at| format!(" until in {}", ago(wall_ms(), at))).unwrap_or_default();
        let mut table = Table::new(&["resource", "request", "token", "owner"]);
        table.row(vec![
            (resource.to_string(), Ink::Bold),
            (view.id.to_string(), Ink::Plain),
            (token.to_string(), Ink::Green),
            (self.owner.to_owned(), Ink::Plain),
        ]);
        output::print_text(&table.render());
        output::note(self.global, Ink::Green, &format!("{resource} of {} is yours{until}", self.key));
        0
    }

    fn nothing(&self, view: &RequestView) -> u8 {
        if view.state == RequestState::Waiting {
            if self.global.output == Format::Json {
                output::print_json(view);
            }
            self.waits_on(view);
        } else {
            self.note_nothing("the request was called off");
        }
        exit::NOT_ACQUIRED
    }

    fn waits_on(&self, view: &RequestView) {
        let (id, key, owner) = (view.id, &view.request.key, self.owner);
        self.note_nothing(&format!(
            "request {id} goes on waiting; ask again with --key {key} --owner {owner}"
        ));
    }

    fn note_nothing(&self, then: &str) {
        let text = format!("nothing fitting was free in {} in time; {then}", self.key);
        output::note(self.global, Ink::Yellow, &text);
    }
}

async fn handle(global: &Global, claim: &PoolClaim, handle: Handle) -> Result<u8, Failure> {
    let namespace: Name = global.namespace.parse()?;
    let id = RequestId(claim.request);
    let owner = claim.owner.clone().unwrap_or_else(whoami);
    let store = store::open(global).await?;
    if !store.handle_request(&namespace, id, &owner, claim.token, handle).await? {
        return Err(not_held(store.as_ref(), &namespace, claim, &owner).await?);
    }
    let done = match (handle, claim.token) {
        (Handle::Release, Some(_)) => "is given back".to_owned(),
        (Handle::Release, None) => "is called off".to_owned(),
        (Handle::Extend(ms), _) => format!("lasts for {}", span(ms)),
    };
    if global.output == Format::Json {
        output::print_json(&json!({"request": id, "done": true}));
    }
    output::note(global, Ink::Green, &format!("request {id} {done}"));
    Ok(0)
}

async fn not_held(
    store: &dyn Backend,
    namespace: &Name,
    claim: &PoolClaim,
    owner: &str,
) -> Result<Failure, Failure> {
    let id = RequestId(claim.request);
    let Some(view) = store.pool_request(namespace, id).await? else {
        return Ok(Failure::usage(format!(
            "there is no request {id} in namespace {namespace}, or it is no longer remembered; `tenure pool show` shows who has \
             what"
        )));
    };
    let (state, token) = (view.state.as_str(), view.token.map(|token| format!(" under token {token}")));
    let token = token.unwrap_or_default();
    let message = match (view.request.owner == owner, claim.token) {
        (false, _) => format!(
            "request {id} is {}'s, not {owner}'s; only its owner (--owner) may say something about it",
            view.request.owner
        ),
        (true, None) if view.state == RequestState::Granted => {
            format!(
                "request {id} is granted: name its token with --token, as `tenure pool request` printed it"
            )
        }
        (true, _) => format!("request {id} is {state}{token}; nothing was changed"),
    };
    Ok(Failure::new(exit::LOST, message))
}

async fn remove(global: &Global, pool: &str, resource: &str) -> Result<u8, Failure> {
    let key = store::pool(global, pool)?;
    let name: Name = resource.parse()?;
    let store = store::open(global).await?;
    if !store.remove_resource(&key, &name).await? {
        existing(store.as_ref(), &key).await?;
        return Err(Failure::usage(format!(
            "there is no {name} in {key}; `tenure pool show {key}` shows what there is"
        )));
    }
    output::note(global, Ink::Green, &format!("{name} is out of {key}"));
    Ok(0)
}

async fn existing(store: &dyn Backend, key: &PoolKey) -> Result<PoolView, Failure> {
    store.pool(key).await?.ok_or_else(|| {
        Failure::usage(format!("there is no pool {key}; `tenure pool list` shows those that there are"))
    })
}
