// Live updates. Without the script everything works too: links open pages, forms post, "Refresh" reloads.
//
// The server announces changes over one event stream. The script then fetches the page again, with the current permissions,
// and updates the elements marked `data-live` in place. Focus, scroll position, open dialogs and input are kept.
"use strict";

const $ = (selector, within = document) => [...within.querySelectorAll(selector)];
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const status = document.getElementById("live");

// --- Countdowns of the lease remaining: they start at the value that the server rendered.

const renderedAt = new WeakMap();

function countdown(now) {
  for (const lease of $("[data-remaining-ms]")) {
    const remaining = Math.max(0, lease.dataset.remainingMs - (now - (renderedAt.get(lease) ?? now)));
    const total = Number(lease.dataset.totalMs);
    const bar = lease.querySelector("progress");
    const text = lease.querySelector("output");
    // Without a connection to the server or the store, missing heartbeats prove nothing: the lease may have been extended.
    const disconnected = ["lost", "stale"].includes(status.dataset.state) || "disconnected" in lease.dataset;
    const expired = Number(lease.dataset.remainingMs) <= 0;
    const shown = remaining > 0 ? (remaining / 1000).toFixed(1) + " s" : disconnected ? "unknown" : expired ? "expired" : "0.0 s";
    if (bar) bar.value = remaining;
    if (text && text.textContent !== shown) text.textContent = shown;
    lease.classList.toggle("low", remaining > 0 && remaining < total / 3);
    lease.classList.toggle("none", expired && !disconnected);
  }
}

function tick(now) {
  countdown(now); // Ten updates per second look smooth; with reduced motion, one.
  setTimeout(() => requestAnimationFrame(tick), reducedMotion.matches ? 1000 : 100);
}

function startCountdowns(now, within = document) {
  for (const lease of $("[data-remaining-ms]", within)) renderedAt.set(lease, now);
}

// --- In-place update, node by node.

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
  for (const child of [...fresh.childNodes]) {
    const have = keyOf(child) ? byKey.get(keyOf(child)) : at;
    if (have && have !== at && alike(have, child)) old.insertBefore(have, at);
    if (have && alike(have, child)) {
      morph(have, child);
      at = have.nextSibling;
    } else {
      old.insertBefore(child, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// --- Announcement of changes to screen readers.

const announcements = () => new Map($("[data-announce]").map((node) => [keyOf(node), node.dataset.announce]));

function announce(before) {
  const news = [];
  for (const node of $("[data-announce]")) {
    if (before.get(keyOf(node)) === node.dataset.announce) continue;
    news.push(node.dataset.announce);
    node.classList.remove("fresh");
    void node.offsetWidth; // restart the animation
    node.classList.add("fresh");
  }
  if (news.length) document.getElementById("news").textContent = news.slice(0, 3).join(". ");
}

// --- Event stream.

let busy = false;
let refreshAgain = false;
// Aborted when a form is sent: the page is about to be replaced, so refreshes stop.
const leaving = new AbortController();
document.addEventListener("submit", (event) => {
  if (!event.defaultPrevented) leaving.abort();
});
// Reload a page that the browser restored from its back/forward cache.
window.addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

function setStatus(state, text) {
  if (status.dataset.state === state) return;
  status.dataset.state = state;
  status.textContent = text;
  status.hidden = false;
}

// "12 s", "3 m 05 s", as the server formats durations.
function elapsed(ms) {
  const s = Math.floor(ms / 1000);
  return s < 60 ? `${s} s` : `${Math.floor(s / 60)} m ${String(s % 60).padStart(2, "0")} s`;
}

// When the shown data was requested.
let shownSince = performance.now();
const isStale = () => document.querySelector("#store-state [data-stale]") !== null;
const isFailed = (page) => page.querySelector("main[data-failed]") !== null;

function showLiveState() {
  if (isStale()) setStatus("stale", "stale");
  else setStatus("live", "live");
}

async function refresh() {
  if (leaving.signal.aborted) return;
  if (document.hidden || busy) {
    refreshAgain = true;
    return;
  }
  busy = true;
  refreshAgain = false;
  // Measured before the request, so the lease remaining is never overestimated.
  const requestedAt = performance.now();
  try {
    const headers = { accept: "text/html", "x-tenure-refresh": "1" };
    const response = await fetch(location.href, { headers, signal: leaving.signal });
    if (response.redirected) return location.reload(); // redirected to the login
    // The object is deleted or the permission is revoked.
    if ([403, 404].includes(response.status) && !formIsOpen()) return location.reload();
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    const failed = isFailed(fresh);
    if (!response.ok && !failed) throw new Error(`status ${response.status}`);
    if (!failed && isFailed(document)) return location.reload();
    const before = announcements();
    // Take only the banner of a page that could not be rendered; the shown data stays and ages.
    for (const part of failed ? $("#store-state", fresh) : $("[data-live]", fresh)) {
      const old = document.getElementById(part.id);
      if (old) {
        morph(old, part);
        startCountdowns(requestedAt, old);
      }
    }
    if (!failed) shownSince = requestedAt;
    else if (!isFailed(document)) {
      document.querySelector("#store-state [data-age]").textContent = `Data is up to ${elapsed(performance.now() - shownSince)} old.`;
    }
    showLiveState();
    countdown(performance.now());
    announce(before);
  } catch {
    if (leaving.signal.aborted) return;
    setStatus("lost", "reconnecting…");
    refreshAgain = true;
    await new Promise((done) => setTimeout(done, 2000));
  }
  busy = false;
  if (refreshAgain) refresh();
}

// Browsers limit the connections per server, so a hidden tab closes its stream.
let stream = null;
// Whether the page has live content besides the store banner.
const hasLiveContent = $("[data-live]").some((part) => part.id !== "store-state");
const formIsOpen = () => document.querySelector("dialog[open]") !== null;

function listen() {
  stream?.close();
  stream = document.hidden ? null : new EventSource("/live");
  stream?.addEventListener("refresh", ({ data }) => {
    if (hasLiveContent || data.endsWith("stale") !== isStale()) refresh();
  });
  stream?.addEventListener("open", showLiveState);
  stream?.addEventListener("error", ({ target }) => {
    setStatus("lost", "reconnecting…");
    // After a rejected request the browser does not reconnect by itself.
    if (target.readyState === EventSource.CLOSED && target === stream) setTimeout(() => (listen(), refresh()), 3000);
  });
}

// --- Form previews: while the user types, the form is posted with step=preview and the preview is taken from the response.

const previewRequests = new WeakMap();

async function preview(form) {
  const request = (previewRequests.get(form) ?? 0) + 1;
  previewRequests.set(form, request);
  await new Promise((done) => setTimeout(done, 250));
  if (previewRequests.get(form) !== request) return;
  const body = new URLSearchParams(new FormData(form));
  body.set("step", "preview");
  const response = await fetch(form.action, { method: "POST", body, headers: { accept: "text/html" } });
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("preview");
  // A newer request supersedes this one.
  if (!fresh || previewRequests.get(form) !== request) return;
  morph(document.getElementById("preview"), fresh);
  const invalid = new Set($("#preview [data-error-field]").map((one) => one.dataset.errorField));
  for (const field of form.elements) {
    if (field.id && invalid.has(field.id)) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
  }
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-preview]");
  if (form) preview(form).catch(() => {});
});

// --- Confirmations: the linked page, shown in a dialog.

async function confirmIn(link) {
  const response = await fetch(link.href, { headers: { accept: "text/html" } });
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const form = page.getElementById("confirm");
  if (!response.ok || !form) return location.assign(link.href);
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "confirm-title");
  dialog.append(form);
  document.body.append(dialog);
  dialog.addEventListener("close", () => (dialog.remove(), link.focus()));
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-cancel]")) {
      event.preventDefault();
      dialog.close();
    }
  });
  // A click inside the form is not a click on the backdrop.
  form.addEventListener("click", (event) => {
    if (!event.target.closest("[data-cancel]")) event.stopPropagation();
  });
  dialog.showModal();
  // Enter must not trigger a dangerous action by accident: focus Cancel.
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

// On the root element, which no refresh changes.
if (navigator.clipboard) document.documentElement.classList.add("can-copy");
startCountdowns(performance.now());
requestAnimationFrame(tick);
// The stream requires a login.
if (document.querySelector(".nav") || isFailed(document)) {
  listen();
  document.addEventListener("visibilitychange", () => (listen(), refresh()));
}
