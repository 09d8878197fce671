// Makes the pages live. Without it everything works too: links open pages, forms post, "refresh" refreshes.
//
// The server says over one stream that something changed; the page is then fetched anew, by its own address and under
// its own rights, and the parts that are marked `data-live` are brought up to date in place: focus, scrolling, open
// dialogs and what somebody is typing stay as they are.
"use strict";

const $ = (selector, within = document) => [...within.querySelectorAll(selector)];
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const status = document.getElementById("live");

// --- Countdowns: the server says how much was left when it rendered; from then on we count ourselves.

const since = new WeakMap();

function countdown(now) {
  for (const trust of $("[data-left-ms]")) {
    const left = Math.max(0, trust.dataset.leftMs - (now - (since.get(trust) ?? now)));
    const of = Number(trust.dataset.ofMs);
    const bar = trust.querySelector("progress");
    const text = trust.querySelector("output");
    // A page that hears nothing must not call others silent, and a lease that ran out here may have been renewed since.
    const deaf = ["lost", "stale"].includes(status.dataset.state) || "deaf" in trust.dataset;
    const silent = Number(trust.dataset.leftMs) <= 0;
    const shown = left > 0 ? (left / 1000).toFixed(1) + " s" : deaf ? "unknown" : silent ? "silent" : "0.0 s";
    if (bar) bar.value = left;
    if (text && text.textContent !== shown) text.textContent = shown;
    trust.classList.toggle("low", left > 0 && left < of / 3);
    trust.classList.toggle("none", silent && !deaf);
  }
}

function tick(now) {
  countdown(now); // Ten steps a second look smooth; one a second is calm.
  setTimeout(() => requestAnimationFrame(tick), calm.matches ? 1000 : 100);
}

function counted(now, within = document) {
  for (const trust of $("[data-left-ms]", within)) since.set(trust, now);
}

// --- Bringing a part up to date, node by node.

const keyOf = (node) => (node.nodeType === 1 && (node.id || node.dataset.key)) || null;
const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

function morph(old, fresh) {
  if (old.nodeType !== 1) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeName === "DIALOG" || old.hasAttribute("data-keep")) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const byKey = new Map([...old.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const have = keyOf(wanted) ? byKey.get(keyOf(wanted)) : at;
    if (have && have !== at && alike(have, wanted)) old.insertBefore(have, at);
    if (have && alike(have, wanted)) {
      morph(have, wanted);
      at = have.nextSibling;
    } else {
      old.insertBefore(wanted, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// --- What changed, said to those who do not see it.

const said = () => new Map($("[data-says]").map((node) => [keyOf(node), node.dataset.says]));

function announce(before) {
  const news = [];
  for (const node of $("[data-says]")) {
    if (before.get(keyOf(node)) === node.dataset.says) continue;
    news.push(node.dataset.says);
    node.classList.remove("fresh");
    void node.offsetWidth; // so that the animation begins anew
    node.classList.add("fresh");
  }
  if (news.length) document.getElementById("news").textContent = news.slice(0, 3).join(". ");
}

// --- The stream.

let busy = false;
let again = false;
// Set once a form is sent: what this page shows may be gone before the next page comes, and is not asked for any more.
const leaving = new AbortController();
document.addEventListener("submit", (event) => {
  if (!event.defaultPrevented) leaving.abort();
});
// Whoever comes back by the browser's own memory gets a page that goes on.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

function say(state, text) {
  if (status.dataset.state === state) return;
  status.dataset.state = state;
  status.textContent = text;
  status.hidden = false;
}

// "12 s", "3 min 05 s": as the server writes it.
function lasted(ms) {
  const s = Math.floor(ms / 1000);
  return s < 60 ? `${s} s` : `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
}

// When what this page shows was asked for.
let shownSince = performance.now();
const isStale = () => document.querySelector("#store-state [data-stale]") !== null;
const isFailed = (page) => page.querySelector("main[data-failed]") !== null;

function sayWhetherLive() {
  if (isStale()) say("stale", "stale");
  else say("live", "live");
}

async function refresh() {
  if (leaving.signal.aborted) return;
  if (document.hidden || busy) {
    again = true;
    return;
  }
  busy = true;
  again = false;
  // From before we ask: what is on its way is shown as used up.
  const asked = performance.now();
  try {
    const headers = { accept: "text/html", "x-tenure-refresh": "1" };
    const answer = await fetch(location.href, { headers, signal: leaving.signal });
    if (answer.redirected) return location.reload(); // to the login
    // What this page shows is gone, or not for this visitor any more.
    if ([403, 404].includes(answer.status) && !formIsOpen()) return location.reload();
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const failed = isFailed(fresh);
    if (!answer.ok && !failed) throw new Error(`answered ${answer.status}`);
    if (!failed && isFailed(document)) return location.reload();
    const before = said();
    // Of a page that can not be rendered only the banner is taken: what is shown stays, and gets older.
    for (const part of failed ? $("#store-state", fresh) : $("[data-live]", fresh)) {
      const old = document.getElementById(part.id);
      if (old) {
        morph(old, part);
        counted(asked, old);
      }
    }
    if (!failed) shownSince = asked;
    else if (!isFailed(document)) {
      document.querySelector("#store-state [data-age]").textContent = `Data is up to ${lasted(performance.now() - shownSince)} old.`;
    }
    sayWhetherLive();
    countdown(performance.now());
    announce(before);
  } catch {
    if (leaving.signal.aborted) return;
    say("lost", "reconnecting…");
    again = true;
    await new Promise((done) => setTimeout(done, 2000));
  }
  busy = false;
  if (again) refresh();
}

// Browsers open only a few connections to one server: a tab that nobody sees must not hold one.
let stream = null;
// Whether this page shows anything that changes, other than whether the store can be read.
const watches = $("[data-live]").some((part) => part.id !== "store-state");
const formIsOpen = () => document.querySelector("dialog[open]") !== null;

function listen() {
  stream?.close();
  stream = document.hidden ? null : new EventSource("/live");
  stream?.addEventListener("look", ({ data }) => {
    if (watches || data.endsWith("stale") !== isStale()) refresh();
  });
  stream?.addEventListener("open", sayWhetherLive);
  stream?.addEventListener("error", ({ target }) => {
    say("lost", "reconnecting…");
    // Refused rather than cut off: the browser gives up, we do not.
    if (target.readyState === EventSource.CLOSED && target === stream) setTimeout(() => (listen(), refresh()), 3000);
  });
}

// --- Forms that are checked while somebody writes: posted as to be checked, and the part that says what they mean is taken.

const turns = new WeakMap();

async function check(form) {
  const turn = (turns.get(form) ?? 0) + 1;
  turns.set(form, turn);
  await new Promise((done) => setTimeout(done, 250));
  if (turns.get(form) !== turn) return;
  const body = new URLSearchParams(new FormData(form));
  body.set("step", "check");
  const answer = await fetch(form.action, { method: "POST", body, headers: { accept: "text/html" } });
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("preview");
  // What was written meanwhile is asked about by itself.
  if (!fresh || turns.get(form) !== turn) return;
  morph(document.getElementById("preview"), fresh);
  const wrong = new Set($("#preview [data-wrong]").map((one) => one.dataset.wrong));
  for (const field of form.elements) {
    if (field.id && wrong.has(field.id)) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-check]");
  if (form) check(form).catch(() => {});
});

// --- Confirmations: the page that a link leads to, shown in a dialog.

async function confirmIn(link) {
  const answer = await fetch(link.href, { headers: { accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const question = page.getElementById("confirm");
  if (!answer.ok || !question) return location.assign(link.href);
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "confirm-title");
  dialog.append(question);
  document.body.append(dialog);
  dialog.addEventListener("close", () => (dialog.remove(), link.focus()));
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-cancel]")) {
      event.preventDefault();
      dialog.close();
    }
  });
  // A click inside must not count as one on the backdrop, nor a choice as a way out.
  question.addEventListener("click", (event) => {
    if (!event.target.closest("[data-cancel]")) event.stopPropagation();
  });
  dialog.showModal();
  // Whoever presses Enter without reading must not do harm.
  const field = dialog.querySelector("input:not([type=hidden]), select, textarea");
  if (!field && dialog.querySelector(".button.danger")) dialog.querySelector("[data-cancel]").focus();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-confirm]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
    event.preventDefault();
    confirmIn(link).catch(() => location.assign(link.href));
  }
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    const text = document.getElementById(copy.dataset.copy).textContent;
    navigator.clipboard.writeText(text).then(() => (copy.textContent = "Copied"), () => (copy.textContent = "Press Ctrl+C"));
    setTimeout(() => (copy.textContent = "Copy"), 2000);
  }
});

// In the root, which no refresh touches.
if (navigator.clipboard) document.documentElement.classList.add("can-copy");
counted(performance.now());
requestAnimationFrame(tick);
// Whoever has not logged in may not listen.
if (document.querySelector(".nav") || isFailed(document)) {
  listen();
  document.addEventListener("visibilitychange", () => (listen(), refresh()));
}
