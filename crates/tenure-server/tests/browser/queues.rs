//! Queues, tasks, workers and pools in the browser.

use tenure::Name;
use tenure::port::{
    AssignmentMode, BrokerFallback, ClaimOutcome, NewTask, PoolRequestState, PoolSettings, PoolStore,
    TaskAdmin, TaskState,
};

use crate::DESKTOP_LIGHT;
use crate::chrome::{Browser, Screen};
use crate::fixture::Fixture;
use crate::queue_data::{pool, pool_request};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn every_page_of_queues_and_pools_fits_every_screen() {
    let (fixture, browser) = tokio::join!(Fixture::with_queues(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    // A task in every state.
    let mut pages: Vec<(String, String, String)> = Vec::new();
    for (of, state) in [
        ("mail", TaskState::Completed),
        ("mail", TaskState::Dead),
        ("mail", TaskState::Claimed),
        ("mail", TaskState::Scheduled),
        ("mail", TaskState::Blocked),
        ("mail", TaskState::Ready),
        ("render", TaskState::Ready),
        ("etl", TaskState::Waiting),
        ("etl", TaskState::Claimed),
    ] {
        let id = fixture.tasks(of, state).await.last().unwrap_or_else(|| panic!("{of} {state:?}")).id;
        pages.push((
            format!("task-{of}-{}", state.as_str()),
            format!("/tasks/{id}?namespace=default"),
            format!("Task {id}"),
        ));
    }
    let dead = fixture.tasks("mail", TaskState::Dead).await[0].id;
    let fixed = [
        ("queues", "/queues", "Task counts, throughput"),
        ("queues-filtered", "/queues?namespace=prod&q=acc", "1 of 5 queues"),
        ("queues-none", "/queues?q=nonesuch", "No matching queues"),
        ("queue", "/queues/mail?namespace=default", "Wait and run times"),
        ("queue-dead", "/queues/mail?namespace=default&state=dead", "user unknown"),
        ("queue-kind", "/queues/mail?namespace=default&kind=receipt&worker=mail-1", "kind receipt"),
        ("queue-exclusive", "/queues/render?namespace=default", "approved only"),
        ("queue-paused", "/queues/accounting?namespace=prod", "moving to the <new> database"),
        ("queue-empty", "/queues/reports?namespace=default", "No tasks, or all were pruned."),
        ("queue-settings", "/queues/render/settings?namespace=default", "Assignment mode"),
        ("queue-cancel", "/queues/mail/cancel?namespace=default&state=ready", "are cancelled"),
        ("queue-retry", "/queues/mail/retry?namespace=default", "2 tasks"),
        ("namespace-pause", "/namespace/pause?namespace=prod", "Pause namespace prod?"),
        ("submit", "/tasks/new?namespace=default&queue=mail", "Submit task"),
        ("workers", "/workers", "3 of 4 workers online"),
        ("workers-none", "/workers?q=nonesuch", "No matching workers"),
        ("worker-approve", "/workers/mail-2/approve?namespace=default", "Approve mail-2?"),
        ("pools", "/pools", "Pools of limited resources"),
        ("pool", "/pools/hosts?namespace=default", "no resource has the tag tape"),
        ("pool-add", "/pools/hosts/add?namespace=default", "Add resource to hosts"),
        ("pool-settings", "/pools/hosts/settings?namespace=default", "age_minutes"),
        ("front-busy", "/", "ready"),
    ];
    pages.extend(fixed.map(|(name, path, text)| (name.to_owned(), path.to_owned(), text.to_owned())));
    pages.push((
        "task-cancel".into(),
        format!("/tasks/{}/retry?namespace=default", dead.0),
        "all attempts restored".into(),
    ));
    let mut links = std::collections::BTreeSet::new();
    for (name, path, text) in &pages {
        page.open(&format!("{}{path}", fixture.url)).await;
        page.shows(text).await;
        page.eval("document.querySelectorAll('details').forEach(folded => folded.open = true)").await;
        page.fits_every_screen(name).await;
        let found = page.eval("[...new Set([...document.querySelectorAll('a')].map(a => new URL(a.href.baseVal ?? a.href, location).href.split('#')[0]))]").await;
        links.extend(found.as_array().unwrap().iter().map(|href| href.as_str().unwrap().to_owned()));
    }
    for link in &links {
        assert!(link.starts_with(&fixture.url), "{link} leads to another site");
        assert_eq!(page.eval(&format!("fetch({link:?}).then(answer => answer.status)")).await, 200, "{link}");
    }
    assert!(links.len() > 100, "{links:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn an_empty_queue_list_shows_the_first_command_and_its_result() {
    let (fixture, browser) = tokio::join!(Fixture::empty(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    for screen in Screen::all() {
        page.set_screen(screen).await;
        for (name, path, text) in [
            ("queues", "/queues", "No queues yet"),
            ("workers", "/workers", "No workers yet"),
            ("pools", "/pools", "No pools yet"),
        ] {
            page.open(&format!("{}{path}", fixture.url)).await;
            page.shows(text).await;
            page.screenshot(&format!("empty-{name}-{}", screen.name())).await;
            page.assert_no_problems().await;
        }
    }
    page.open(&format!("{}/queues", fixture.url)).await;
    let command = page.eval("document.getElementById('submit').textContent").await;
    let expected = format!(
        r#"tenure tasks submit mail --kind welcome --payload '{{"to": "ada"}}' --store {}"#,
        fixture.url
    );
    assert_eq!(command, expected);
    // The page shows the new queue without a reload.
    fixture.submit("mail", vec![NewTask::new("welcome")]).await;
    page.until("document.querySelector('#queues tbody th')?.innerText == 'mail'").await;
    page.assert_no_problems().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn the_queue_page_shows_how_the_queue_fills_and_drains() {
    let (fixture, browser) = tokio::join!(Fixture::empty(), Browser::start());
    fixture.submit("mail", vec![NewTask::new("welcome")]).await;
    let page = browser.page(DESKTOP_LIGHT).await;
    page.open(&format!("{}/queues/mail?namespace=default", fixture.url)).await;
    page.until("document.getElementById('live').innerText == 'live'").await;
    let fact = |name: &str| {
        format!(
            "[...document.querySelectorAll('.counts div')].find(d => d.querySelector('dt').innerText == '{name}').querySelector('dd').innerText"
        )
    };
    page.until(&format!("{} == '1'", fact("Ready"))).await;
    // The queue fills ...
    fixture.submit("mail", vec![NewTask::new("welcome"); 299]).await;
    page.until(&format!("{} == '300'", fact("Ready"))).await;
    // ... and drains in batches of a hundred, until the chart shows it and a throughput was visible.
    let mut fast = false;
    for _ in 0..3 {
        let claimed = fixture.claim("mail", "w", 100, None).await;
        assert_eq!(claimed.len(), 100);
        page.until(&format!("{} == '100'", fact("Claimed"))).await;
        for task in &claimed {
            fixture.settle("mail", task, ClaimOutcome::Complete(None)).await;
        }
        page.until(&format!("{} == '0'", fact("Claimed"))).await;
        let speed = page.eval(&fact("Throughput")).await;
        fast |= speed.as_str().is_some_and(|speed| speed != "0/s");
    }
    assert!(fast, "300 tasks finished, but the throughput stayed 0");
    page.until(&format!("{} == '0'", fact("Ready"))).await;
    // The chart shows the peak and the decrease.
    let lows = "document.querySelector('.line.f-ready').getAttribute('d').split(/[ML]/).filter(Boolean).map(p => Number(p.split(' ')[1]))";
    page.until(&format!("Math.min(...{lows}) < 50 && {lows}.at(-1) == 99")).await;
    page.screenshot("queue-drained").await;
    page.assert_no_problems().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn actions_on_queues_and_tasks_change_the_store() {
    let browser = Browser::start().await;
    for screen in Screen::all() {
        let fixture = Fixture::with_queues().await;
        let page = browser.page(screen).await;
        let mail = format!("{}/queues/mail?namespace=default", fixture.url);
        page.open(&mail).await;

        page.click("[data-key=pause]").await;
        page.click("dialog #reason").await;
        page.type_text("a <b>break</b>").await;
        page.screenshot(&format!("dialog-queue-{}", screen.name())).await;
        page.follow("dialog button").await;
        page.shows("“a <b>break</b>”").await;
        let paused = fixture.queue("mail").await.paused.expect("paused");
        assert_eq!((paused.paused_by.as_str(), paused.reason.as_str()), ("local", "a <b>break</b>"));
        page.click("[data-key=resume]").await;
        page.follow("dialog button").await;
        page.shows("Resumed").await;
        assert!(fixture.queue("mail").await.paused.is_none());

        // Escape closes the dialog without an effect.
        page.click("[data-key=settings]").await;
        page.until("document.querySelector('dialog[open] #confirm')").await;
        page.press("Escape").await;
        page.until("!document.querySelector('dialog')").await;
        page.click("[data-key=settings]").await;
        page.screenshot(&format!("dialog-settings-{}", screen.name())).await;
        page.click("dialog input[value=fallback]").await;
        page.click("dialog #max_claimed").await;
        page.type_text("25").await;
        page.click("dialog input[name=require_approval]").await;
        page.follow("dialog button").await;
        page.shows("Settings saved.").await;
        let settings = fixture.queue("mail").await.settings;
        assert_eq!(
            (settings.mode, settings.fallback),
            (AssignmentMode::Exclusive, BrokerFallback::Distributed)
        );
        assert_eq!((settings.max_claimed, settings.require_approval, settings.rate), (Some(25), true, None));
        page.until("[...document.querySelectorAll('#settings dd')].some(dd => dd.innerText == '25')").await;

        // Retry all dead tasks; cancel one ready task, then all of them.
        page.follow(".tabs a[href*='state=dead']").await;
        page.until("document.querySelectorAll('#tasks tbody tr').length == 2").await;
        page.click("[data-key=retry]").await;
        page.follow("dialog button").await;
        page.shows("Retried, with all attempts restored.").await;
        assert!(fixture.tasks("mail", TaskState::Dead).await.is_empty());
        let one = fixture.tasks("mail", TaskState::Ready).await[0].id;
        page.open(&format!("{}/tasks/{one}?namespace=default", fixture.url)).await;
        page.click("[data-key=cancel]").await;
        page.follow("dialog button").await;
        page.shows("Cancelled, with all tasks").await;
        assert_eq!(fixture.task("default", one).await.state, TaskState::Cancelled);
        page.click("[data-key=retry]").await;
        page.follow("dialog button").await;
        page.shows("Retried, with all attempts restored.").await;
        assert_eq!(fixture.task("default", one).await.state, TaskState::Ready);
        page.open(&format!("{mail}&state=ready")).await;
        page.click("[data-key=cancel]").await;
        page.shows("tasks in state ready").await;
        page.follow("dialog button").await;
        page.shows("Cancelled.").await;
        assert!(fixture.tasks("mail", TaskState::Ready).await.is_empty());
        assert!(
            !fixture.tasks("mail", TaskState::Claimed).await.is_empty(),
            "claimed tasks are not affected"
        );
        page.assert_no_problems().await;

        // Submit a task with the form.
        page.open(&mail).await;
        page.follow("[data-key=submit]").await;
        page.click("#kind").await;
        page.type_text("manual").await;
        page.click("#payload").await;
        page.eval("document.getElementById('payload').value = ''").await;
        page.type_text(r#"{"x": [1, 2]}"#).await;
        page.click("#more summary").await;
        page.click("#required_tags").await;
        page.type_text("gpu, eu").await;
        page.follow(".form button").await;
        page.shows("Submitted. This page updates").await;
        page.shows("No online worker has the required tags").await;
        let made = fixture.tasks("mail", TaskState::Ready).await;
        assert_eq!((made[0].kind.as_str(), made[0].payload.as_str()), ("manual", r#"{"x": [1, 2]}"#));
        assert_eq!(made[0].required_tags, ["eu", "gpu"]);

        // The page of the task updates by itself.
        page.until("document.querySelector('#state').innerText.trim() == 'ready'").await;
        fixture
            .store
            .apply_task_action(&Name::default_namespace(), &[made[0].id], tenure::port::TaskAction::Cancel)
            .await
            .unwrap();
        page.until("document.querySelector('#state').innerText.trim() == 'cancelled'").await;
        page.assert_no_problems().await;

        // Pause and resume a namespace.
        page.open(&format!("{}/queues?namespace=prod", fixture.url)).await;
        page.click("[data-key=pause-all]").await;
        page.follow("dialog button").await;
        page.shows("no queue or pool of this namespace").await;
        page.click("[data-key=resume-all]").await;
        page.follow("dialog button").await;
        page.shows("Queues paused individually remain paused").await;
        assert!(fixture.queue("prod/accounting").await.paused.is_some());
        page.open(&format!("{}/audit", fixture.url)).await;
        page.shows("namespace.resume").await;
        page.screenshot(&format!("audit-work-{}", screen.name())).await;
        page.assert_no_problems().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn actions_on_workers_and_pools_change_the_store() {
    let browser = Browser::start().await;
    for screen in Screen::all() {
        let fixture = Fixture::with_queues().await;
        let page = browser.page(screen).await;
        let default = Name::default_namespace();
        let approved = async |worker: &str| {
            let all = fixture.store.workers(Some(&default)).await.unwrap();
            all.into_iter().find(|view| view.worker.name == worker).unwrap().approved_by
        };
        page.open(&format!("{}/workers", fixture.url)).await;
        page.click("[data-key='worker-default/mail-2'] [data-key=approve]").await;
        page.follow("dialog button").await;
        page.shows("Approved.").await;
        assert_eq!(approved("mail-2").await.as_deref(), Some("local"));
        page.click("[data-key='worker-default/mail-1'] [data-key=revoke-approval]").await;
        page.follow("dialog button").await;
        page.shows("Approval revoked.").await;
        assert_eq!(approved("mail-1").await, None);
        page.assert_no_problems().await;

        let hosts = async || fixture.store.pool(&pool("hosts")).await.unwrap().unwrap();
        let host =
            async |name: &str| hosts().await.resources.into_iter().find(|r| r.resource.name.as_str() == name);
        page.open(&format!("{}/pools", fixture.url)).await;
        page.follow("[data-key='pool-default/hosts'] a").await;
        page.click("[data-key=add]").await;
        page.click("dialog #name").await;
        page.type_text("host-9").await;
        // Tags that no waiting request matches.
        page.click("dialog #tags").await;
        page.type_text("drum, eu").await;
        page.follow("dialog button").await;
        page.shows("Resource added.").await;
        assert_eq!(host("host-9").await.unwrap().resource.tags, ["drum", "eu"]);
        page.click("[data-key=resource-host-9] [data-key=disable]").await;
        page.follow("dialog button").await;
        page.shows("Resource disabled.").await;
        let disabled = host("host-9").await.unwrap().resource;
        assert!(!disabled.enabled && disabled.tags == ["drum", "eu"]);
        page.click("[data-key=resource-host-9] [data-key=enable]").await;
        page.follow("dialog button").await;
        page.shows("Resource enabled.").await;
        assert!(host("host-9").await.unwrap().resource.enabled);
        page.click("[data-key=resource-host-9] [data-key=remove]").await;
        page.follow("dialog button").await;
        page.shows("Resource removed.").await;
        assert!(host("host-9").await.is_none());

        // Revoke a claim, and cancel a waiting request.
        let held = host("host-1").await.unwrap().held_by.unwrap();
        page.click("[data-key=resource-host-1] [data-key=release]").await;
        page.shows("may still be using").await;
        page.screenshot(&format!("dialog-pool-{}", screen.name())).await;
        page.follow("dialog button").await;
        page.shows("Claim revoked.").await;
        let after = fixture.store.pool_request(&default, held.id).await.unwrap().unwrap();
        assert_eq!(after.state, PoolRequestState::Released);
        let waits =
            hosts().await.waiting_requests.into_iter().find(|view| view.request.owner == "barbara").unwrap();
        page.click(&format!("[data-key=request-{}] [data-key=release]", waits.id)).await;
        page.follow("dialog button").await;
        page.shows("Request cancelled.").await;
        assert!(!hosts().await.waiting_requests.iter().any(|view| view.id == waits.id));

        page.click("[data-key=settings]").await;
        page.click("dialog input[value=exclusive]").await;
        page.follow("dialog button").await;
        page.shows("Settings saved.").await;
        assert_eq!(hosts().await.settings.mode, AssignmentMode::Exclusive);
        page.shows("Activity").await;
        page.assert_no_problems().await;

        // The first resource creates the pool.
        page.open(&format!("{}/pools", fixture.url)).await;
        page.click("[data-key=new]").await;
        page.click("dialog #pool").await;
        page.type_text("phones").await;
        page.click("dialog #name").await;
        page.type_text("phone-1").await;
        page.follow("dialog button").await;
        page.shows("Resource added.").await;
        assert_eq!(fixture.store.pool(&pool("phones")).await.unwrap().unwrap().resources.len(), 1);
        page.assert_no_problems().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn queues_and_pools_are_shown_only_with_read_permission() {
    let (fixture, browser) = tokio::join!(Fixture::with(|settings| settings.auth = true), Browser::start());
    let task = fixture.submit("mail", vec![NewTask::new("welcome")]).await[0];
    fixture.submit("prod/accounting", vec![NewTask::new("book")]).await;
    for made in ["hosts", "prod/licenses"] {
        fixture.store.set_pool(&pool(made), &PoolSettings::default()).await.unwrap();
    }
    fixture.request("hosts", pool_request("k", "o", &[], None, Some(1000))).await;
    let secret = fixture.token("reader", &["default:read"]).await;
    let page = browser.page(DESKTOP_LIGHT).await;
    page.open(&format!("{}/queues", fixture.url)).await;
    page.click("#access_token").await;
    page.type_text(&secret).await;
    page.follow("main form button").await;
    page.until("location.pathname == '/queues'").await;
    page.shows("mail").await;
    assert_eq!(page.eval("document.body.innerText.includes('accounting')").await, false);
    for path in [
        "/queues",
        "/queues/mail?namespace=default",
        &format!("/tasks/{task}"),
        "/workers",
        "/pools",
        "/pools/hosts",
    ] {
        page.open(&format!("{}{path}", fixture.url)).await;
        let buttons = "document.querySelectorAll('[data-confirm], a[href^=\"/tasks/new\"]').length";
        assert_eq!(page.eval(buttons).await, 0, "{path}");
        assert_eq!(page.eval("document.body.innerText.includes('licenses')").await, false, "{path}");
        page.assert_no_problems().await;
    }
    for path in [
        "/queues/accounting?namespace=prod",
        "/pools/licenses?namespace=prod",
        "/queues/mail/pause",
        "/tasks/new",
    ] {
        page.open(&format!("{}{path}", fixture.url)).await;
        page.shows("Forbidden").await;
    }
    page.clear_complaints();
    // The id of a task in another namespace does not reveal it.
    page.open(&format!("{}/tasks/{}?namespace=default", fixture.url, task.0 + 1)).await;
    page.shows("no such task").await;
    assert!(fixture.queue("mail").await.paused.is_none());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: scripts/test browser"]
async fn queues_and_tasks_work_without_the_script() {
    let (fixture, browser) = tokio::join!(Fixture::with_queues(), Browser::start());
    let page = browser.page(DESKTOP_LIGHT).await;
    page.call("Emulation.setScriptExecutionDisabled", serde_json::json!({"value": true})).await;
    page.open(&format!("{}/queues", fixture.url)).await;
    page.until("document.querySelector('noscript a')?.innerText == 'Refresh'").await;
    // The snapshot may be older than the task; without the script the test reloads the page.
    while page.eval("!document.querySelector(`[data-key='queue-default/mail'] a`)").await == true {
        page.open(&format!("{}/queues", fixture.url)).await;
    }
    page.follow("[data-key='queue-default/mail'] a").await;
    page.shows("Wait and run times").await;
    page.follow(".tabs a[href*='state=dead']").await;
    page.follow("#tasks tbody a").await;
    page.shows("user unknown (try 3)").await;
    page.follow("[data-key=retry]").await;
    page.follow("#confirm button").await;
    page.shows("Retried, with all attempts restored.").await;
    page.open(&format!("{}/pools/hosts?namespace=default", fixture.url)).await;
    page.shows("no resource has the tag tape").await;
    page.screenshot("pool-without-script").await;
    page.assert_no_problems().await;
}
