//! A headless Chromium, driven over its debugging pipe: JSON messages that end with a zero byte.
//!
//! All complaints of the browser are collected: script errors, console errors, log entries and violations of
//! the content security policy. [`Page::assert_no_problems`] fails if there are any.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex as AsyncMutex, broadcast, oneshot};

/// Timeout of every browser operation, far longer than it takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Script that reports policy violations and script errors to the console.
const ERROR_REPORTER: &str = r#"
    addEventListener("securitypolicyviolation", (e) => console.error(`blocked by the policy: ${e.violatedDirective} ${e.blockedURI} ${e.sample}`));
    addEventListener("error", (e) => console.error(`error: ${e.message}`));
    addEventListener("unhandledrejection", (e) => console.error(`rejected: ${e.reason}`));
"#;

/// Accessibility faults: controls without a name, images without a text, not exactly one `h1`, duplicate ids.
const ACCESSIBILITY_FAULTS: &str = r#"(() => {
    const named = (e) => (e.getAttribute("aria-label") || e.textContent).trim() || e.labels?.length;
    const controls = [...document.querySelectorAll("a, button, select, textarea, input:not([type=hidden]), summary")];
    const bad = controls.filter((e) => !named(e));
    bad.push(...[...document.querySelectorAll("img:not([alt]), svg:not([role=img], [aria-hidden=true], [aria-hidden=true] svg), progress:not([aria-label])")]);
    const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
    const said = bad.map((e) => e.outerHTML.slice(0, 120)).concat(ids.filter((id, n) => ids.indexOf(id) !== n));
    if (document.querySelectorAll("main h1").length !== 1) said.push("not exactly one h1");
    return said;
})()"#;

/// A running browser.
pub(crate) struct Browser {
    link: Arc<Link>,
    _process: Child,
    _profile: tempfile::TempDir,
}

/// A tab.
pub(crate) struct Page {
    link: Arc<Link>,
    session: String,
    complaints: Arc<Mutex<Vec<String>>>,
}

struct Link {
    to: AsyncMutex<ChildStdin>,
    number: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Result<Value, String>>>>,
    events: broadcast::Sender<Arc<Value>>,
}

impl Link {
    async fn call(&self, session: Option<&str>, method: &str, params: Value) -> Value {
        let answer = self.request(session, method, &params).await;
        answer.unwrap_or_else(|error| panic!("{method} {params}: {error}"))
    }

    /// Send a command and return the result or the error.
    async fn request(&self, session: Option<&str>, method: &str, params: &Value) -> Result<Value, String> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().unwrap().insert(number, sender);
        let mut message = json!({"id": number, "method": method, "params": params});
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.to.lock().await.write_all(&bytes).await.expect("the browser has exited");
        let answer = tokio::time::timeout(TIMEOUT, answer).await;
        let answer = answer.unwrap_or_else(|_| panic!("the browser did not answer {method}"));
        answer.expect("the browser has exited")
    }

    fn heard(&self, message: Value) {
        let Some(number) = message["id"].as_u64() else {
            let _ = self.events.send(Arc::new(message));
            return;
        };
        if let Some(waiting) = self.waiting.lock().unwrap().remove(&number) {
            let error = &message["error"];
            let answer = if error.is_null() { Ok(message["result"].clone()) } else { Err(error.to_string()) };
            let _ = waiting.send(answer);
        }
    }
}

impl Browser {
    /// Start a browser. `$CHROMIUM` names the program; the default is `chromium`.
    pub(crate) async fn start() -> Browser {
        let program = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".into());
        let profile = tempfile::tempdir().unwrap();
        // Chromium expects the pipe at file descriptors 3 and 4; a shell can set them without `unsafe`.
        let line = r#"exec "$0" --headless=new --remote-debugging-pipe --no-sandbox --disable-gpu --hide-scrollbars \
            --disable-dev-shm-usage --no-first-run --disable-extensions --disable-background-networking \
            --disable-component-update --force-color-profile=srgb --user-data-dir="$1" about:blank \
            3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null"#;
        let mut process = Command::new("sh")
            .args(["-c", line, &program])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a shell");
        let (to, from) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        let link = Arc::new(Link {
            to: AsyncMutex::new(to),
            number: AtomicU64::new(1),
            waiting: Mutex::default(),
            events: broadcast::channel(4096).0,
        });
        let heard = link.clone();
        tokio::spawn(async move {
            let mut from = BufReader::new(from);
            let mut message = Vec::new();
            while from.read_until(0, &mut message).await.is_ok_and(|n| n > 0) {
                message.pop();
                heard.heard(serde_json::from_slice(&message).unwrap_or_default());
                message.clear();
            }
            // Fail all pending commands.
            heard.waiting.lock().unwrap().clear();
        });
        Browser { link, _process: process, _profile: profile }
    }

    /// Open a tab with its own cookies.
    pub(crate) async fn page(&self, screen: Screen) -> Page {
        let context = self.link.call(None, "Target.createBrowserContext", json!({})).await;
        let target = json!({"url": "about:blank", "browserContextId": context["browserContextId"]});
        let target = self.link.call(None, "Target.createTarget", target).await;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.link.call(None, "Target.attachToTarget", attach).await;
        let session = session["sessionId"].as_str().unwrap().to_owned();
        let complaints = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn(collect_complaints(self.link.events.subscribe(), session.clone(), complaints.clone()));
        let page = Page { link: self.link.clone(), session, complaints };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), json!({})).await;
        }
        page.call("Page.addScriptToEvaluateOnNewDocument", json!({"source": ERROR_REPORTER})).await;
        page.set_screen(screen).await;
        page
    }
}

/// Collect the complaints of the browser.
async fn collect_complaints(
    mut events: broadcast::Receiver<Arc<Value>>,
    session: String,
    complaints: Arc<Mutex<Vec<String>>>,
) {
    loop {
        let event = match events.recv().await {
            Ok(event) => event,
            Err(broadcast::error::RecvError::Lagged(_)) => continue,
            Err(broadcast::error::RecvError::Closed) => return,
        };
        if event["sessionId"] != session.as_str() {
            continue;
        }
        let params = &event["params"];
        let complaint = match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled"
                if matches!(params["type"].as_str(), Some("error" | "warning" | "assert")) =>
            {
                Some(params["args"].to_string())
            }
            "Log.entryAdded" if matches!(params["entry"]["level"].as_str(), Some("error" | "warning")) => {
                Some(params["entry"].to_string())
            }
            _ => None,
        };
        complaints.lock().unwrap().extend(complaint);
    }
}

/// Window width and theme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Screen {
    pub(crate) width: u32,
    pub(crate) dark: bool,
}

impl Screen {
    pub(crate) const PHONE: u32 = 360;
    pub(crate) const DESKTOP: u32 = 1280;
    /// A phone, a tablet, a laptop and a large screen.
    const WIDTHS: [u32; 4] = [390, 768, 1440, 2560];

    /// Every width in both themes.
    pub(crate) fn every() -> impl Iterator<Item = Screen> {
        Screen::WIDTHS.into_iter().flat_map(|width| [false, true].map(|dark| Screen { width, dark }))
    }

    pub(crate) fn all() -> [Screen; 4] {
        let screen = |width, dark| Screen { width, dark };
        [
            screen(Self::DESKTOP, false),
            screen(Self::DESKTOP, true),
            screen(Self::PHONE, false),
            screen(Self::PHONE, true),
        ]
    }

    pub(crate) fn name(self) -> String {
        let light = if self.dark { "dark" } else { "light" };
        match self.width {
            Screen::PHONE => format!("phone-{light}"),
            Screen::DESKTOP => format!("desktop-{light}"),
            width => format!("{width}-{light}"),
        }
    }
}

impl Page {
    pub(crate) async fn call(&self, method: &str, params: Value) -> Value {
        self.link.call(Some(&self.session), method, params).await
    }

    /// Set the window width and the preferred colour scheme.
    pub(crate) async fn set_screen(&self, screen: Screen) {
        let phone = screen.width < 700;
        let metrics = json!({"width": screen.width, "height": if phone { 740 } else { 900 },
            "deviceScaleFactor": if phone { 2 } else { 1 }, "mobile": phone, "screenWidth": screen.width, "screenHeight": 900});
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
        let light = json!({"features": [
            {"name": "prefers-color-scheme", "value": if screen.dark { "dark" } else { "light" }}]});
        self.call("Emulation.setEmulatedMedia", light).await;
    }

    /// Open a URL and wait until it is loaded.
    pub(crate) async fn open(&self, url: &str) {
        let mut events = self.link.events.subscribe();
        let answer = self.call("Page.navigate", json!({"url": url})).await;
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        self.loaded(&mut events).await;
    }

    async fn loaded(&self, events: &mut broadcast::Receiver<Arc<Value>>) {
        let loaded = async {
            loop {
                match events.recv().await {
                    Ok(e)
                        if e["sessionId"] == self.session.as_str()
                            && e["method"] == "Page.loadEventFired" =>
                    {
                        return;
                    }
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        if tokio::time::timeout(TIMEOUT, loaded).await.is_err() {
            self.screenshot("failed").await;
            panic!("the page did not load: {}", self.eval("location.href + document.body.innerText").await);
        }
    }

    /// Evaluate an expression.
    pub(crate) async fn eval(&self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Wait until an expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        let deadline = tenure::runtime::now() + TIMEOUT;
        // While a page is being replaced the evaluation fails; retry it.
        let guarded = format!("(() => {{ try {{ return !!({expression}) }} catch {{ return false }} }})()");
        loop {
            let params = json!({"expression": guarded, "returnByValue": true});
            let answer = self.link.request(Some(&self.session), "Runtime.evaluate", &params).await;
            if answer.is_ok_and(|answer| answer["result"]["value"] == true) {
                return;
            }
            if tenure::runtime::now() >= deadline {
                self.screenshot("failed").await;
                let text = self.eval("document.body.innerText").await;
                panic!(
                    "timed out: {expression}\n{}\n{:?}",
                    text.as_str().unwrap_or_default(),
                    self.complaints()
                );
            }
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
    }

    /// Wait until the page contains a text.
    pub(crate) async fn shows(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text))).await;
    }

    /// Click the centre of the first element of a selector. Fails if another element covers it.
    pub(crate) async fn click(&self, selector: &str) {
        let found = format!("document.querySelector({})", json!(selector));
        self.until(&found).await;
        let place = format!(
            "(() => {{ const e = {found}; e.scrollIntoView({{block: 'center', behavior: 'instant'}}); \
             const r = e.getBoundingClientRect(); const x = r.x + r.width / 2, y = r.y + r.height / 2; \
             const top = document.elementFromPoint(x, y); \
             return {{x, y, hit: e.contains(top), top: top && top.outerHTML.slice(0, 200)}} }})()"
        );
        // Wait until the element stops moving.
        let mut at = self.eval(&place).await;
        let place = loop {
            tokio::time::sleep(Duration::from_millis(60)).await;
            let now = self.eval(&place).await;
            if now == at {
                break now;
            }
            at = now;
        };
        assert_eq!(place["hit"], true, "{selector} is covered by {}", place["top"]);
        for kind in ["mousePressed", "mouseReleased"] {
            let event =
                json!({"type": kind, "x": place["x"], "y": place["y"], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event).await;
        }
    }

    /// Click an element and wait for the next page.
    pub(crate) async fn follow(&self, selector: &str) {
        let mut events = self.link.events.subscribe();
        self.click(selector).await;
        self.loaded(&mut events).await;
    }

    /// Type into the focused element.
    pub(crate) async fn type_text(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Press a key: `Tab`, `Enter`, `Escape`.
    pub(crate) async fn press(&self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            other => panic!("unknown key {other}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": if kind == "keyDown" { text } else { "" }});
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Write a screenshot to `target/screenshots/`: of the full page up to the browser's limit, or of the
    /// window if a dialog is open.
    pub(crate) async fn screenshot(&self, name: &str) {
        self.eval(SETTLED).await;
        let mut params = json!({"format": "png", "optimizeForSpeed": true});
        if self.eval("!document.querySelector('dialog[open]')").await == true {
            let clip = "({x: 0, y: 0, scale: 1, width: document.documentElement.scrollWidth, height: \
                        Math.min(document.documentElement.scrollHeight, Math.floor(16000 / devicePixelRatio))})";
            params["captureBeyondViewport"] = true.into();
            params["clip"] = self.eval(clip).await;
        }
        let answer = self.call("Page.captureScreenshot", params).await;
        let folder = screenshots();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), from_base64(answer["data"].as_str().unwrap()))
            .unwrap();
    }

    /// The complaints of the browser so far.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.complaints.lock().unwrap().clone()
    }

    /// Clear expected complaints.
    pub(crate) fn clear_complaints(&self) {
        self.complaints.lock().unwrap().clear();
    }

    /// Check the open page in every width and theme: no overflow, no broken words, no findings of axe-core.
    /// Writes screenshots of some.
    pub(crate) async fn fits_every_screen(&self, name: &str) {
        let mut all = Vec::new();
        for screen in Screen::every() {
            self.set_screen(screen).await;
            if screen.width != 2560 || !screen.dark {
                self.screenshot(&format!("{name}-{}", screen.name())).await;
            }
            let mut found = self.problems().await;
            // Colours depend on the theme and layout on the width: these two combinations cover both.
            if matches!((screen.width, screen.dark), (390, false) | (1440, true)) {
                found.extend(self.accessible().await);
            }
            all.extend(found.into_iter().map(|problem| format!("{name}-{}: {problem}", screen.name())));
        }
        assert!(all.is_empty(), "{}", all.join("\n"));
    }

    /// The findings of axe-core.
    async fn accessible(&self) -> Option<String> {
        let path = folder().join("axe/node_modules/axe-core/axe.min.js");
        let source = std::fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!("{}: {error}; `scripts/test browser` installs it", path.display())
        });
        if self.eval("typeof window.axe === 'undefined'").await == true {
            self.eval(&format!("{source}; 0")).await;
        }
        let found = self.eval(AXE).await;
        (found != json!([])).then(|| format!("axe-core: {}", serde_json::to_string_pretty(&found).unwrap()))
    }

    /// Fail on complaints of the browser, overflow, broken words and accessibility faults.
    pub(crate) async fn assert_no_problems(&self) {
        let problems = self.problems().await;
        if !problems.is_empty() {
            self.screenshot("failed").await;
            panic!("{}: {}", self.eval("location.href + ' at ' + screen.width").await, problems.join("\n"));
        }
    }

    /// The problems of the current page.
    async fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let checks = [
            ("too wide", WIDE),
            ("words are broken", BROKEN),
            ("accessibility faults", ACCESSIBILITY_FAULTS),
        ];
        for (what, check) in checks {
            let found = self.eval(check).await;
            if found != json!([]) {
                problems.push(format!("{what}: {found}"));
            }
        }
        // Messages arrive in order, so all complaints before this response are collected.
        problems.extend(self.complaints());
        problems
    }
}

/// Overflow: elements wider than the window, cards that scroll sideways, and a navigation that wraps on a
/// wide screen. A phone zooms out until everything fits, so the width of the screen counts.
const WIDE: &str = r#"(() => {
    const most = screen.width, wide = document.documentElement.scrollWidth, found = [];
    const brief = (e) => e.outerHTML.slice(0, 140);
    if (wide > most) {
        found.push(`${wide} of ${most} pixels`, ...[...document.querySelectorAll("body *")]
            .filter((e) => e.getBoundingClientRect().right > most + 1 && !e.closest(".hidden, .skip")).slice(0, 3).map(brief));
    }
    for (const card of document.querySelectorAll(".card")) {
        if (card.scrollWidth <= card.clientWidth + 1) continue;
        const edge = card.getBoundingClientRect().right;
        const over = [...card.querySelectorAll("*")].filter((e) => e.getBoundingClientRect().right > edge + 1 && !e.closest(".hidden"));
        found.push(`a card of ${card.clientWidth} has ${card.scrollWidth} pixels`, ...over.slice(0, 2).map(brief));
    }
    const lines = new Set([...document.querySelectorAll(".nav a")].map((a) => Math.round(a.getBoundingClientRect().top)));
    if (most >= 768 && lines.size > 1) found.push("the navigation wraps");
    return found;
})()"#;

/// Words that are broken across lines. Texts of more than 24 characters without a space, such as addresses,
/// are exempt. A word ends where a browser may break a line, such as after a hyphen.
const BROKEN: &str = r#"(() => {
    const found = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    while (texts.nextNode() && found.length < 5) {
        const node = texts.currentNode;
        const parent = node.parentElement;
        if (!parent.checkVisibility() || parent.closest(".hidden, .skip, svg, textarea")) continue;
        // The header of a table that is shown as cards is visible only to screen readers.
        const head = parent.closest("thead");
        if (head && head.clientWidth <= 1) continue;
        for (const [text, at] of [...node.data.matchAll(/\S+/g)].map((text) => [text[0], text.index])) {
            if (text.length > 24) continue;
            for (const word of text.matchAll(/[\p{L}\p{N}_.]{2,}/gu)) {
                range.setStart(node, at + word.index);
                range.setEnd(node, at + word.index + word[0].length);
                const lines = new Set([...range.getClientRects()].filter((r) => r.width > 0).map((r) => Math.round(r.top)));
                if (lines.size > 1) found.push(`${word[0]} in ${parent.outerHTML.slice(0, 100)}`);
            }
        }
    }
    return found;
})()"#;

/// Run axe-core and return rule and location of each violation.
const AXE: &str = "axe.run(document, {preload: false, resultTypes: ['violations']}).then(({violations}) =>     violations.map(({id, help, nodes}) => ({id, help, nodes: nodes.slice(0, 3).map((node) => node.html.slice(0, 200) + ' ' + node.failureSummary)})))";

/// Finish all animations; endless ones are cancelled. It does not wait for callbacks, because pages without
/// scripts have none.
const SETTLED: &str = "(() => { getComputedStyle(document.body).color; \
    for (const change of document.getAnimations()) { try { change.finish() } catch { change.cancel() } } \
    return getComputedStyle(document.body).color != '' })()";

/// The folder of screenshots in the target directory.
fn screenshots() -> PathBuf {
    folder().join("screenshots")
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned()
}

fn from_base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() * 3 / 4), 0u32, 0);
    for digit in text.bytes().filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte)) {
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    bytes
}
