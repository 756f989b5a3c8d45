// The console works without this script. It refreshes stale panels, copies, opens dialogs over the page and adds keys.
(() => {
  "use strict";
  const base = document.body.dataset.base;
  const csrf = document.body.dataset.csrf;
  const GAP = 2000; // at most one request per panel in this time
  const RETRY = 5000; // for panels that say they are late
  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const typing = (target) => target.closest("input, textarea, select, [contenteditable]");

  // ---- the browser's time zone, for pages that show local times ----
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (/^[A-Za-z0-9_+\-/]{1,64}$/.test(zone || "")) {
    document.cookie = `tl-tz=${zone}; Path=${base}; Max-Age=31536000; SameSite=Strict`;
  }

  // ---- requests of htmx carry the value that forms carry as a field ----
  document.addEventListener("htmx:config:request", (event) => {
    const headers = event.detail.ctx?.request?.headers;
    if (headers && csrf) headers["X-Trunkline-Csrf"] = csrf;
  });

  // ---- stale panels ----
  const live = find("[data-pause]");
  const asked = new WeakMap();
  const later = new WeakMap();
  let paused = false;

  const idle = () => paused || document.hidden;
  const busy = (panel) => panel.contains(document.activeElement) && typing(document.activeElement);

  function refresh(panel) {
    if (idle() || busy(panel) || find("details[open]", panel)) {
      panel.dataset.stale = "";
      return;
    }
    const wait = (asked.get(panel) ?? -GAP) + GAP - performance.now();
    if (wait > 0) {
      if (!later.has(panel)) {
        later.set(panel, setTimeout(() => { later.delete(panel); if (panel.isConnected) refresh(panel); }, wait));
      }
      return;
    }
    delete panel.dataset.stale;
    asked.set(panel, performance.now());
    panel.dispatchEvent(new CustomEvent("stale"));
  }

  function matches(panel, dirty) {
    return panel.dataset.keys.split(" ").some((key) => key && dirty.some((one) => one === key || one.startsWith(key + "/")));
  }

  function apply(dirty) {
    for (const panel of all("[data-keys]")) if (matches(panel, dirty)) refresh(panel);
  }

  function catchUp() {
    for (const panel of all("[data-keys][data-stale]")) refresh(panel);
  }

  setInterval(() => {
    for (const late of all("[data-keys] > .late")) refresh(late.parentElement);
    catchUp();
  }, RETRY);

  // ---- one event stream per browser: the tab with the lock opens it and passes the events on ----
  let last = null;
  const channel = "BroadcastChannel" in window ? new BroadcastChannel(`trunkline-live ${base}`) : null;

  function heard(event) {
    last = event.n;
    apply(event.dirty);
  }

  function stream() {
    return new Promise((ended) => {
      const address = `${base}/live` + (last === null ? "" : `?since=${last}`);
      const source = new EventSource(address);
      source.onmessage = (message) => {
        const event = JSON.parse(message.data);
        channel.postMessage(event);
        heard(event);
      };
      source.onopen = () => live?.classList.add("on");
      source.onerror = () => {
        live?.classList.remove("on");
        if (source.readyState === EventSource.CLOSED) setTimeout(ended, RETRY);
      };
    });
  }

  async function poll() {
    if (!idle()) {
      try {
        const answer = await fetch(`${base}/changes` + (last === null ? "" : `?since=${last}`));
        if (answer.ok) {
          heard(await answer.json());
          live?.classList.add("on");
        } else live?.classList.remove("on");
      } catch {
        live?.classList.remove("on");
      }
    }
    setTimeout(poll, RETRY);
  }

  if (live) {
    live.hidden = false;
    if (channel && navigator.locks && window.EventSource) {
      channel.onmessage = (message) => { live.classList.add("on"); heard(message.data); };
      navigator.locks.request(`trunkline-live ${base}`, async () => { for (;;) await stream(); });
    } else poll();
    live.addEventListener("click", toggle);
    document.addEventListener("visibilitychange", () => { if (!document.hidden) catchUp(); });
  }

  function toggle() {
    paused = !paused;
    live.setAttribute("aria-pressed", String(paused));
    find("span", live).textContent = paused ? "Paused" : "Live";
    live.classList.toggle("off", paused);
    if (!paused) catchUp();
  }

  // ---- following a topic: rows come as markup of the server ----
  const tail = find("[data-tail]");
  const TAIL_ROWS = 200;
  let following = null;

  function follow() {
    const button = find("[data-tail-toggle]", tail);
    if (following) {
      following.close();
      following = null;
    } else {
      const body = find("tbody", tail);
      let shown = 0;
      find("#tail-rows").hidden = false;
      following = new EventSource(tail.dataset.tail);
      const count = (event) => { find("#tail-count").textContent = `${shown} of ${event.lastEventId}`; };
      following.onmessage = (event) => {
        const row = find("tr", new DOMParser().parseFromString(`<table>${event.data}</table>`, "text/html"));
        body.prepend(document.adoptNode(row));
        while (body.children.length > TAIL_ROWS) body.lastElementChild.remove();
        shown += 1;
        count(event);
      };
      following.addEventListener("passed", count);
      following.onopen = () => { tail.dataset.open = ""; };
    }
    button.setAttribute("aria-pressed", String(Boolean(following)));
    button.textContent = following ? "Stop" : "Follow";
  }

  if (tail?.dataset.tail) {
    tail.hidden = false;
    find("[data-tail-toggle]", tail).addEventListener("click", follow);
  }

  // ---- copy; on plain http there is no clipboard but the selection ----
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "sr";
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  // ---- dialogs: a page without this script, a layer with it ----
  const layer = find("#dialog");

  async function open(link) {
    const answer = await fetch(link.href, { headers: { "HX-Request": "true", Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const form = find("form.dialog", page);
    if (!answer.ok || !form) {
      location.href = link.href;
      return;
    }
    layer.replaceChildren(document.adoptNode(form));
    layer.showModal();
  }

  function toast(text) {
    const box = document.createElement("div");
    box.className = "toast";
    box.append(Object.assign(document.createElement("span"), { textContent: text }));
    const toasts = find("#toasts");
    toasts.append(box);
    while (toasts.children.length > 3) toasts.firstElementChild.remove();
    setTimeout(() => box.remove(), 4000);
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) {
      const box = button.closest(".code, .cmd");
      const done = await copy((find("pre", box) || find("code", box)).textContent);
      toast(done ? "Copied." : "The browser does not allow to copy.");
      return;
    }
    const link = event.target.closest("a[data-dialog]");
    if (link && layer && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      open(link);
      return;
    }
    if (event.target.closest("[data-close]") && layer?.open) {
      event.preventDefault();
      layer.close();
      return;
    }
    for (const menu of all("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  // what a page reports about an action goes after a minute, and is not reported again by a reload
  for (const report of all("main .toasts")) {
    setTimeout(() => report.remove(), 60000);
    const here = new URL(location.href);
    here.searchParams.delete("did");
    history.replaceState(null, "", here);
  }

  // the button for what is gone for good works when the name is typed
  document.addEventListener("input", (event) => {
    const wanted = event.target.dataset.confirm;
    if (wanted === undefined) return;
    const armed = event.target.value === wanted;
    for (const button of all(".btn.final", event.target.form)) {
      button.classList.toggle("armed", armed);
      button.disabled = !armed;
    }
  });
  for (const input of all("[data-confirm]")) input.dispatchEvent(new Event("input", { bubbles: true }));

  // ---- keys ----
  const PLACES = { o: "", t: "/topics", g: "/groups", q: "/queues", d: "/dead", j: "/jobs", s: "/schedules", e: "/endpoints", p: "/pipelines", y: "/system" };
  const KEYS = "g then o t g q d j s e p y: pages. /: filter. Ctrl-K: find. j k: rows. Enter: open. Space: pause. c: copy as.";
  let going = 0;
  let row = -1;

  function step(by) {
    const links = all("main tbody th a, main tbody td:first-child a");
    if (!links.length) return;
    row = Math.min(links.length - 1, Math.max(0, row + by));
    links[row].focus();
  }

  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      find("#find")?.focus();
      find("#find")?.select();
      return;
    }
    if (event.key === "Escape") for (const menu of all("details.menu[open]")) menu.open = false;
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || layer?.open) return;
    if (going && performance.now() - going < 1500 && event.key in PLACES) {
      going = 0;
      const link = find(`.nav a[href="${base}${PLACES[event.key]}"]`);
      if (link) location.href = link.href;
      return;
    }
    going = 0;
    const button = event.target.closest("button, summary, a");
    if (event.key === "g") going = performance.now();
    else if (event.key === "/") { event.preventDefault(); (find("#filter") || find("#find"))?.focus(); }
    else if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === " " && live && !button) { event.preventDefault(); toggle(); }
    else if (event.key === "c") { const menu = find("main details.menu"); if (menu) { menu.open = true; find("summary", menu).focus(); } }
    else if (event.key === "?") toast(KEYS);
  });
})();
