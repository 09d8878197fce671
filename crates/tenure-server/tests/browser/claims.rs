//! Queues, tasks, workers and pools in the browser.

use tenure::Name;
use tenure::port::{Desk, Fallback, Mode, NewTask, Outcome, PoolSettings, Pools, RequestState, TaskState};

use crate::DESK;
use crate::chrome::{Browser, Look};
use crate::work::{asks, pool};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn every_page_about_work_fits_every_screen() {
    let (world, browser) = tokio::join!(World::busy(), Browser::start());
    let page = browser.page(DESK).await;
    // A task in each state that one can be in.
    let mut pages: Vec<(String, String, String)> = Vec::new();
    for (of, state) in [
        ("mail", TaskState::Completed),
        ("mail", TaskState::Dead),
        ("mail", TaskState::Claimed),
        ("mail", TaskState::Scheduled),
        ("mail", TaskState::Held),
        ("mail", TaskState::Ready),
        ("render", TaskState::Ready),
        ("etl", TaskState::Waiting),
        ("etl", TaskState::Claimed),
    ] {
        let id = world.tasks(of, state).await.last().unwrap_or_else(|| panic!("{of} {state:?}")).id;
        pages.push((
            format!("task-{of}-{}", state.as_str()),
            format!("/tasks/{id}?namespace=default"),
            format!("Task {id}"),
        ));
    }
    let dead = world.tasks("mail", TaskState::Dead).await[0].id;
    let fixed = [
        ("queues", "/queues", "All queues"),
        ("queues-filtered", "/queues?namespace=prod&q=led", "1 of 5 queues"),
        ("queues-none", "/queues?q=nonesuch", "No queue matches"),
        ("queue", "/queues/mail?namespace=default", "How long they wait and run"),
        ("queue-dead", "/queues/mail?namespace=default&state=dead", "user unknown"),
        ("queue-kind", "/queues/mail?namespace=default&kind=receipt&worker=mail-1", "kind receipt"),
        ("queue-exclusive", "/queues/render?namespace=default", "only approved ones"),
        ("queue-paused", "/queues/ledger?namespace=prod", "moving to the <new> database"),
        ("queue-empty", "/queues/reports?namespace=default", "There are none"),
        ("queue-settings", "/queues/render/settings?namespace=default", "Handed out"),
        ("queue-cancel", "/queues/mail/cancel?namespace=default&state=ready", "called off"),
        ("queue-retry", "/queues/mail/retry?namespace=default", "2 tasks"),
        ("namespace-pause", "/namespace/pause?namespace=prod", "Pause everything in prod?"),
        ("submit", "/tasks/new?namespace=default&queue=mail", "Submit a task"),
        ("workers", "/workers", "3 of 4 workers live"),
        ("workers-none", "/workers?q=nonesuch", "No worker matches"),
        ("worker-approve", "/workers/mail-2/approve?namespace=default", "Approve mail-2?"),
        ("pools", "/pools", "All pools"),
        ("pool", "/pools/hosts?namespace=default", "no resource has tape"),
        ("pool-add", "/pools/hosts/add?namespace=default", "Add a resource to hosts"),
        ("pool-settings", "/pools/hosts/settings?namespace=default", "age_minutes"),
        ("front-busy", "/", "ready"),
    ];
    pages.extend(fixed.map(|(name, path, text)| (name.to_owned(), path.to_owned(), text.to_owned())));
    pages.push((
        "task-cancel".into(),
        format!("/tasks/{}/retry?namespace=default", dead.0),
        "another attempt".into(),
    ));
    let mut links = std::collections::BTreeSet::new();
    for (name, path, text) in &pages {
        page.open(&format!("{}{path}", world.url)).await;
        page.shows(text).await;
        page.eval("document.querySelectorAll('details').forEach(folded => folded.open = true)").await;
        page.fits_every_screen(name).await;
        let found = page.eval("[...new Set([...document.querySelectorAll('a')].map(a => new URL(a.href.baseVal ?? a.href, location).href.split('#')[0]))]").await;
        links.extend(found.as_array().unwrap().iter().map(|href| href.as_str().unwrap().to_owned()));
    }
    for link in &links {
        assert!(link.starts_with(&world.url), "{link} leads away");
        assert_eq!(page.eval(&format!("fetch({link:?}).then(answer => answer.status)")).await, 200, "{link}");
    }
    assert!(links.len() > 100, "{links:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn nothing_yet_teaches_the_first_task_and_shows_it() {
    let (world, browser) = tokio::join!(World::empty(), Browser::start());
    let page = browser.page(DESK).await;
    for look in Look::all() {
        page.look(look).await;
        for (name, path, text) in [
            ("queues", "/queues", "Nothing was ever submitted"),
            ("workers", "/workers", "No worker has made itself known yet"),
            ("pools", "/pools", "There is no pool yet"),
        ] {
            page.open(&format!("{}{path}", world.url)).await;
            page.shows(text).await;
            page.screenshot(&format!("empty-{name}-{}", look.name())).await;
            page.calm().await;
        }
    }
    page.open(&format!("{}/queues", world.url)).await;
    let command = page.eval("document.getElementById('submit').textContent").await;
    let expected = format!(
        r#"tenure tasks submit mail --kind welcome --payload '{{"to": "ada"}}' --store {}"#,
        world.url
    );
    assert_eq!(command, expected);
    // Whoever does that sees it, without touching the page.
    world.submit("mail", vec![NewTask::new("welcome")]).await;
    page.until("document.querySelector('#queues tbody th')?.innerText == 'mail'").await;
    page.calm().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn a_queue_is_seen_filling_and_draining() {
    let (world, browser) = tokio::join!(World::empty(), Browser::start());
    world.submit("mail", vec![NewTask::new("welcome")]).await;
    let page = browser.page(DESK).await;
    page.open(&format!("{}/queues/mail?namespace=default", world.url)).await;
    page.until("document.getElementById('live').innerText == 'live'").await;
    let fact = |name: &str| {
        format!(
            "[...document.querySelectorAll('.counts div')].find(d => d.querySelector('dt').innerText == '{name}').querySelector('dd').innerText"
        )
    };
    page.until(&format!("{} == '1'", fact("Ready"))).await;
    // It fills ...
    world.submit("mail", vec![NewTask::new("welcome"); 299]).await;
    page.until(&format!("{} == '300'", fact("Ready"))).await;
    // ... and drains, a hundred in a batch, until the line has come down and the speed was seen.
    let mut fast = false;
    for _ in 0..3 {
        let claimed = world.claim("mail", "w", 100, None).await;
        assert_eq!(claimed.len(), 100);
        page.until(&format!("{} == '100'", fact("Claimed"))).await;
        for task in &claimed {
            world.settle("mail", task, Outcome::Complete(None)).await;
        }
        page.until(&format!("{} == '0'", fact("Claimed"))).await;
        let speed = page.eval(&fact("Finished")).await;
        fast |= speed.as_str().is_some_and(|speed| speed != "0/s");
    }
    assert!(fast, "300 tasks finished, and nobody saw it");
    page.until(&format!("{} == '0'", fact("Ready"))).await;
    // The picture has the height that it had, and the way down.
    let lows = "document.querySelector('.line.f-ready').getAttribute('d').split(/[ML]/).filter(Boolean).map(p => Number(p.split(' ')[1]))";
    page.until(&format!("Math.min(...{lows}) < 50 && {lows}.at(-1) == 99")).await;
    page.screenshot("queue-drained").await;
    page.calm().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn buttons_of_queues_and_tasks_reach_the_store() {
    let browser = Browser::start().await;
    for look in Look::all() {
        let world = World::busy().await;
        let page = browser.page(look).await;
        let mail = format!("{}/queues/mail?namespace=default", world.url);
        page.open(&mail).await;

        page.click("[data-key=pause]").await;
        page.click("dialog #reason").await;
        page.type_text("a <b>break</b>").await;
        page.screenshot(&format!("dialog-queue-{}", look.name())).await;
        page.follow("dialog button").await;
        page.shows("“a <b>break</b>”").await;
        let paused = world.queue("mail").await.paused.expect("paused");
        assert_eq!((paused.by.as_str(), paused.reason.as_str()), ("local", "a <b>break</b>"));
        page.click("[data-key=resume]").await;
        page.follow("dialog button").await;
        page.shows("Resumed").await;
        assert!(world.queue("mail").await.paused.is_none());

        // Escape leads back, and nothing has happened.
        page.click("[data-key=settings]").await;
        page.until("document.querySelector('dialog[open] #confirm')").await;
        page.press("Escape").await;
        page.until("!document.querySelector('dialog')").await;
        page.click("[data-key=settings]").await;
        page.screenshot(&format!("dialog-settings-{}", look.name())).await;
        page.click("dialog input[value=fallback]").await;
        page.click("dialog #max_claimed").await;
        page.type_text("25").await;
        page.click("dialog input[name=approval]").await;
        page.follow("dialog button").await;
        page.shows("Set.").await;
        let settings = world.queue("mail").await.settings;
        assert_eq!((settings.mode, settings.fallback), (Mode::Exclusive, Fallback::Distributed));
        assert_eq!((settings.max_claimed, settings.approval, settings.rate), (Some(25), true, None));
        page.shows("at most 25").await;

        // All that are dead get another chance; one that is ready is called off, then all of them.
        page.follow(".tabs a[href*='state=dead']").await;
        page.until("document.querySelectorAll('#tasks tbody tr').length == 2").await;
        page.click("[data-key=retry]").await;
        page.follow("dialog button").await;
        page.shows("They are tried again").await;
        assert!(world.tasks("mail", TaskState::Dead).await.is_empty());
        let one = world.tasks("mail", TaskState::Ready).await[0].id;
        page.open(&format!("{}/tasks/{one}?namespace=default", world.url)).await;
        page.click("[data-key=cancel]").await;
        page.follow("dialog button").await;
        page.shows("Cancelled, and with it").await;
        assert_eq!(world.task("default", one).await.state, TaskState::Cancelled);
        page.click("[data-key=retry]").await;
        page.follow("dialog button").await;
        page.shows("It is tried again").await;
        assert_eq!(world.task("default", one).await.state, TaskState::Ready);
        page.open(&format!("{mail}&state=ready")).await;
        page.click("[data-key=cancel]").await;
        page.shows("tasks that are ready").await;
        page.follow("dialog button").await;
        page.shows("Cancelled.").await;
        assert!(world.tasks("mail", TaskState::Ready).await.is_empty());
        assert!(!world.tasks("mail", TaskState::Claimed).await.is_empty(), "only what was ready was meant");
        page.calm().await;

        // One by hand.
        page.open(&mail).await;
        page.follow("[data-key=submit]").await;
        page.click("#kind").await;
        page.type_text("by-hand").await;
        page.click("#payload").await;
        page.eval("document.getElementById('payload').value = ''").await;
        page.type_text(r#"{"x": [1, 2]}"#).await;
        page.click("#more summary").await;
        page.click("#requires").await;
        page.type_text("gpu, eu").await;
        page.follow(".form button").await;
        page.shows("Submitted. This page follows it").await;
        page.shows("No live worker has the tags").await;
        let made = world.tasks("mail", TaskState::Ready).await;
        assert_eq!((made[0].kind.as_str(), made[0].payload.as_str()), ("by-hand", r#"{"x": [1, 2]}"#));
        assert_eq!(made[0].requires, ["eu", "gpu"]);

        // The page of the task follows it.
        page.until("document.querySelector('#state').innerText.trim() == 'ready'").await;
        world
            .store
            .order(&Name::default_namespace(), &[made[0].id], tenure::port::Order::Cancel)
            .await
            .unwrap();
        page.until("document.querySelector('#state').innerText.trim() == 'cancelled'").await;
        page.calm().await;

        // Everything of a namespace.
        page.open(&format!("{}/queues?namespace=prod", world.url)).await;
        page.click("[data-key=pause-all]").await;
        page.follow("dialog button").await;
        page.shows("no queue and no pool of this namespace").await;
        page.click("[data-key=resume-all]").await;
        page.follow("dialog button").await;
        page.shows("Queues that were paused for themselves still are").await;
        assert!(world.queue("prod/ledger").await.paused.is_some());
        page.open(&format!("{}/audit", world.url)).await;
        page.shows("namespace.resume").await;
        page.screenshot(&format!("audit-work-{}", look.name())).await;
        page.calm().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn buttons_of_workers_and_pools_reach_the_store() {
    let browser = Browser::start().await;
    for look in Look::all() {
        let world = World::busy().await;
        let page = browser.page(look).await;
        let default = Name::default_namespace();
        let approved = async |worker: &str| {
            let all = world.store.workers(Some(&default)).await.unwrap();
            all.into_iter().find(|view| view.worker.name == worker).unwrap().approved_by
        };
        page.open(&format!("{}/workers", world.url)).await;
        page.click("[data-key='worker-default/mail-2'] [data-key=approve]").await;
        page.follow("dialog button").await;
        page.shows("Approved.").await;
        assert_eq!(approved("mail-2").await.as_deref(), Some("local"));
        page.click("[data-key='worker-default/mail-1'] [data-key=disapprove]").await;
        page.follow("dialog button").await;
        page.shows("Withdrawn.").await;
        assert_eq!(approved("mail-1").await, None);
        page.calm().await;

        let hosts = async || world.store.pool(&pool("hosts")).await.unwrap().unwrap();
        let host =
            async |name: &str| hosts().await.resources.into_iter().find(|r| r.resource.name.as_str() == name);
        page.open(&format!("{}/pools", world.url)).await;
        page.follow("[data-key='pool-default/hosts'] a").await;
        page.click("[data-key=add]").await;
        page.click("dialog #name").await;
        page.type_text("host-9").await;
        // What nobody waits for.
        page.click("dialog #tags").await;
        page.type_text("drum, eu").await;
        page.follow("dialog button").await;
        page.shows("Added.").await;
        assert_eq!(host("host-9").await.unwrap().resource.tags, ["drum", "eu"]);
        page.click("[data-key=resource-host-9] [data-key=disable]").await;
        page.follow("dialog button").await;
        page.shows("Disabled.").await;
        let disabled = host("host-9").await.unwrap().resource;
        assert!(!disabled.enabled && disabled.tags == ["drum", "eu"]);
        page.click("[data-key=resource-host-9] [data-key=enable]").await;
        page.follow("dialog button").await;
        page.shows("Enabled.").await;
        assert!(host("host-9").await.unwrap().resource.enabled);
        page.click("[data-key=resource-host-9] [data-key=remove]").await;
        page.follow("dialog button").await;
        page.shows("Removed.").await;
        assert!(host("host-9").await.is_none());

        // Taken from whoever has it; and a request that waits is called off.
        let held = host("host-1").await.unwrap().holder.unwrap();
        page.click("[data-key=resource-host-1] [data-key=release]").await;
        page.shows("may still be using").await;
        page.screenshot(&format!("dialog-pool-{}", look.name())).await;
        page.follow("dialog button").await;
        page.shows("Taken back.").await;
        let after = world.store.pool_request(&default, held.id).await.unwrap().unwrap();
        assert_eq!(after.state, RequestState::Released);
        let waits = hosts().await.waiting.into_iter().find(|view| view.request.owner == "barbara").unwrap();
        page.click(&format!("[data-key=request-{}] [data-key=release]", waits.id)).await;
        page.follow("dialog button").await;
        page.shows("Request called off. It held no resource.").await;
        assert!(!hosts().await.waiting.iter().any(|view| view.id == waits.id));

        page.click("[data-key=settings]").await;
        page.click("dialog input[value=exclusive]").await;
        page.follow("dialog button").await;
        page.shows("Set.").await;
        assert_eq!(hosts().await.settings.mode, Mode::Exclusive);
        page.shows("Who did what here").await;
        page.calm().await;

        // A pool that is not there yet is made with its first resource.
        page.open(&format!("{}/pools", world.url)).await;
        page.click("[data-key=new]").await;
        page.click("dialog #pool").await;
        page.type_text("phones").await;
        page.click("dialog #name").await;
        page.type_text("phone-1").await;
        page.follow("dialog button").await;
        page.shows("Added.").await;
        assert_eq!(world.store.pool(&pool("phones")).await.unwrap().unwrap().resources.len(), 1);
        page.calm().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn work_is_shown_to_those_who_may_see_it() {
    let (world, browser) = tokio::join!(World::with(|settings| settings.auth = true), Browser::start());
    let task = world.submit("mail", vec![NewTask::new("welcome")]).await[0];
    world.submit("prod/ledger", vec![NewTask::new("book")]).await;
    for made in ["hosts", "prod/licences"] {
        world.store.set_pool(&pool(made), &PoolSettings::default()).await.unwrap();
    }
    world.request("hosts", asks("k", "o", &[], None, Some(1000))).await;
    let secret = world.token("reader", &["default:read"]).await;
    let page = browser.page(DESK).await;
    page.open(&format!("{}/queues", world.url)).await;
    page.click("#token").await;
    page.type_text(&secret).await;
    page.follow("main form button").await;
    page.until("location.pathname == '/queues'").await;
    page.shows("mail").await;
    assert_eq!(page.eval("document.body.innerText.includes('ledger')").await, false);
    for path in [
        "/queues",
        "/queues/mail?namespace=default",
        &format!("/tasks/{task}"),
        "/workers",
        "/pools",
        "/pools/hosts",
    ] {
        page.open(&format!("{}{path}", world.url)).await;
        let buttons = "document.querySelectorAll('[data-confirm], a[href^=\"/tasks/new\"]').length";
        assert_eq!(page.eval(buttons).await, 0, "{path}");
        assert_eq!(page.eval("document.body.innerText.includes('licences')").await, false, "{path}");
        page.calm().await;
    }
    for path in [
        "/queues/ledger?namespace=prod",
        "/pools/licences?namespace=prod",
        "/queues/mail/pause",
        "/tasks/new",
    ] {
        page.open(&format!("{}{path}", world.url)).await;
        page.shows("Forbidden").await;
    }
    page.forgive();
    // What is in another namespace is not to be had by its number, either.
    page.open(&format!("{}/tasks/{}?namespace=default", world.url, task.0 + 1)).await;
    page.shows("there is no task").await;
    assert!(world.queue("mail").await.paused.is_none());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn work_can_be_read_and_operated_without_a_script() {
    let (world, browser) = tokio::join!(World::busy(), Browser::start());
    let page = browser.page(DESK).await;
    page.call("Emulation.setScriptExecutionDisabled", serde_json::json!({"value": true})).await;
    page.open(&format!("{}/queues", world.url)).await;
    page.until("document.querySelector('noscript a')?.innerText == 'Refresh'").await;
    // What the server shows is a moment old, and without a script it is the reader who looks again.
    while page.eval("!document.querySelector(`[data-key='queue-default/mail'] a`)").await == true {
        page.open(&format!("{}/queues", world.url)).await;
    }
    page.follow("[data-key='queue-default/mail'] a").await;
    page.shows("How long they wait and run").await;
    page.follow(".tabs a[href*='state=dead']").await;
    page.follow("#tasks tbody a").await;
    page.shows("user unknown (try 3)").await;
    page.follow("[data-key=retry]").await;
    page.follow("#confirm button").await;
    page.shows("It is tried again").await;
    page.open(&format!("{}/pools/hosts?namespace=default", world.url)).await;
    page.shows("no resource has tape").await;
    page.screenshot("pool-without-script").await;
    page.calm().await;
}
