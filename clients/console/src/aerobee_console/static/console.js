/* The console's own script: times, keys, live pages. Every page also works without it. */
"use strict";

(() => {
  const LOST_MS = 6000; // the console sends an event each second
  const KEY_PAUSE_MS = 1200;
  const content = () => document.getElementById("content");
  const base = () => document.body.dataset.base; // the path of the console below its host

  // ---- times: local, with UTC on hover ----

  const clock = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "2-digit", day: "2-digit",
    hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false,
  });

  function showTimes(root) {
    for (const time of root.querySelectorAll("time:not([data-local])")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const parts = Object.fromEntries(clock.formatToParts(at).map((p) => [p.type, p.value]));
      time.textContent = `${parts.year}-${parts.month}-${parts.day} ${parts.hour}:${parts.minute}:${parts.second}`;
      time.dataset.local = "";
    }
  }

  let askedAt = Date.now();

  function showAge() {
    const place = document.getElementById("age");
    const seconds = Math.round((Date.now() - askedAt) / 1000);
    if (place) place.textContent = seconds < 2 ? "" : `, ${seconds} s ago`;
  }

  // ---- charts: the numbers of a table ----

  const plots = new Map();

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // "14:05", with seconds if it has some; "11-28 14:00" in a history of more than a day.
  function clockOf(seconds, span) {
    const at = new Date(seconds * 1000);
    const two = (number) => String(number).padStart(2, "0");
    const day = span > 86400 ? `${two(at.getMonth() + 1)}-${two(at.getDate())} ` : "";
    const tail = at.getSeconds() ? `:${two(at.getSeconds())}` : "";
    return `${day}${two(at.getHours())}:${two(at.getMinutes())}${tail}`;
  }

  function numbersOf(table) {
    const all = [...table.tBodies[0].rows];
    const times = all.map((row) => Number(row.dataset.at) / 1000);
    const columns = [...table.tHead.rows[0].cells].slice(1).map((_, column) =>
      all.map((row) => {
        const value = row.cells[column + 1].dataset.value;
        return value === "" ? null : Number(value);
      }));
    return [times, ...columns];
  }

  function newPlot(place, data) {
    const axis = { stroke: color("--soft"), grid: { stroke: color("--grid"), width: 1 }, ticks: { show: false } };
    const strokes = [color("--retry"), color("--dead")];
    return new uPlot({
      width: place.clientWidth,
      height: 170,
      padding: [null, 28, null, null],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range: (plot, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, size: 30, space: (plot, side, min, max) => (max - min > 86400 ? 100 : 70), values: (plot, ticks) => ticks.map((each) => clockOf(each, plot.scales.x.max - plot.scales.x.min)) }, { ...axis, size: 56 }],
      series: [{}, ...data.slice(1).map((_, index) => ({ stroke: strokes[index % 2], width: 2, spanGaps: false, points: { show: false } }))],
    }, data, place);
  }

  function showPlots() {
    for (const [place, plot] of plots) {
      if (!place.isConnected || !place.firstChild) {
        plot.destroy();
        plots.delete(place);
      }
    }
    for (const place of document.querySelectorAll("[data-plot]")) {
      const data = numbersOf(document.getElementById(place.dataset.plot));
      const known = plots.get(place);
      if (known && known.series.length === data.length) known.setData(data);
      else {
        place.replaceChildren();
        plots.set(place, newPlot(place, data));
      }
    }
  }

  function resize() {
    showTab();
    for (const [place, plot] of plots) plot.setSize({ width: place.clientWidth, height: 170 });
  }

  // ---- rows: j, k, Enter ----

  let chosen = -1;
  const rows = () => [...content().querySelectorAll("table.rows tbody tr")].filter((row) => row.querySelector("a"));

  function choose(step) {
    const all = rows();
    if (!all.length) return;
    chosen = Math.max(0, Math.min(all.length - 1, chosen + step));
    all.forEach((row, index) => row.classList.toggle("chosen", index === chosen));
    const link = all[chosen].querySelector("a");
    link.focus({ preventScroll: true });
    all[chosen].scrollIntoView({ block: "nearest" });
  }

  // ---- keys ----

  let before = "";
  let beforeAt = 0;

  function isTyping(target) {
    return target.closest("input, select, textarea, [contenteditable]") !== null;
  }

  function go(path) {
    const address = base() + path;
    const link = document.querySelector(`div.bar nav a[href="${address}"]`);
    if (link) link.click();
    else location.assign(address);
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && isTyping(event.target)) {
      event.target.blur();
      return;
    }
    if (isTyping(event.target)) return;
    if (before === "g" && Date.now() - beforeAt < KEY_PAUSE_MS) {
      const link = document.querySelector(`div.bar nav a[data-key="${CSS.escape(event.key)}"]`);
      before = "";
      if (link) {
        event.preventDefault();
        link.click();
      }
      return;
    }
    before = event.key;
    beforeAt = Date.now();
    if (event.key === "/") {
      const field = document.querySelector("[data-search]");
      if (field) {
        event.preventDefault();
        field.focus();
        field.select();
      }
    } else if (event.key === "j") choose(1);
    else if (event.key === "k") choose(-1);
    else if (event.key === "r") refresh();
    else if (event.key === "?") go("/keys");
  }

  // ---- live pages: an event stream, of which only the differences are shown ----

  let stream = null;
  let heardAt = 0;

  function report(lost, problem = "connection lost, retrying") {
    const place = document.getElementById("connection");
    place.classList.toggle("lost", lost);
    const text = lost ? problem : "";
    if (place.textContent !== text) place.textContent = text;
  }

  function isEdited(field) {
    if (field.type === "checkbox") return field.checked !== field.defaultChecked;
    if (field.tagName === "SELECT") return [...field.options].some((each) => each.defaultSelected) && !field.options[field.selectedIndex]?.defaultSelected;
    return field.value !== field.defaultValue;
  }

  // A form that somebody fills in stays as it is, and so do the chosen rows.
  function mayMorph(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) return true;
    if (old.dataset.plot) return false;
    if (old.matches("input[type=checkbox]")) return old.value !== fresh.value;
    if (!old.matches("form.filter, form.form")) return true;
    return !old.contains(document.activeElement) && ![...old.elements].some((each) => each.type !== "hidden" && isEdited(each));
  }

  // Rows are matched by what they are chosen by, or else link to, so that focus and ticks go along.
  function nameRows(root) {
    const known = new Map();
    root.querySelectorAll("table.rows").forEach((table, number) => {
      for (const row of table.tBodies[0].rows) {
        const own = row.querySelector("td.choose input")?.value ?? row.querySelector("a")?.getAttribute("href");
        const name = `row-${number}-${own ?? ""}`;
        known.set(name, (known.get(name) ?? 0) + 1);
        row.id = `${name}-${known.get(name)}`;
      }
    });
  }

  function show(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    const fresh = page.getElementById("content");
    if (!fresh) throw new Error("no content");
    showTimes(page);
    nameRows(content());
    nameRows(fresh);
    Idiomorph.morph(content(), fresh, {
      callbacks: {
        beforeNodeMorphed: mayMorph,
        beforeAttributeUpdated: (name, node) => !(name === "class" && node.tagName === "TR") && !(name === "open" && node.tagName === "DETAILS"),
      },
    });
    showPlots();
  }

  function showRates(event) {
    for (const place of content().querySelectorAll("[data-rate]")) {
      const value = event.rates[place.dataset.rate];
      if (value !== undefined && place.textContent !== value) place.textContent = value;
    }
    const time = document.querySelector("footer time");
    if (!time || !event.asked || event.asked === askedAt) return;
    askedAt = event.asked;
    const fresh = document.createElement("time");
    fresh.dateTime = new Date(askedAt).toISOString();
    fresh.title = fresh.dateTime.replace("T", " ").replace(/\..*/, " UTC");
    time.replaceWith(fresh);
    showTimes(document);
  }

  function silence() {
    if (stream) stream.close();
    stream = null;
  }

  function listen() {
    silence();
    heardAt = Date.now();
    if (document.hidden || !content().hasAttribute("data-live")) return;
    const opened = new EventSource(`${base()}/live?page=${encodeURIComponent(location.pathname.slice(base().length) + location.search)}`);
    const hear = (act, problem) => (event) => {
      if (opened !== stream) return;
      heardAt = Date.now();
      report(Boolean(problem), problem);
      act(JSON.parse(event.data));
    };
    opened.addEventListener("page", hear((event) => show(event.content)));
    opened.addEventListener("rates", hear(showRates));
    opened.addEventListener("stale", hear(() => {}, "this page is old: the console cannot read it, retrying"));
    opened.addEventListener("ended", () => location.reload());
    opened.onerror = () => {
      if (opened === stream) report(true);
    };
    stream = opened;
  }

  function watchStream() {
    showAge();
    if (!stream || Date.now() - heardAt < LOST_MS) return;
    report(true);
    listen();
  }

  // The key r: ask now, also on a page that has no stream.
  async function refresh() {
    const address = location.href;
    try {
      const answer = await fetch(address);
      const text = await answer.text();
      if (location.href !== address || content().querySelector("form[method=post]")) return;
      show(text);
      askedAt = Date.now();
      report(false);
    } catch {
      report(true);
    }
  }

  // ---- start ----

  function prepare() {
    chosen = -1;
    askedAt = Date.now();
    showTimes(document);
    showPlots();
    showAge();
    listen();
    showTab();
  }

  // After a link or a form: the next Tab begins in the new content, and not at a link of the menu.
  function arrive() {
    prepare();
    if (document.activeElement.closest("form.filter")) return;
    (document.getElementById("problem") ?? content()).focus({ preventScroll: true });
  }

  function showTab() {
    const tab = document.querySelector("div.bar nav [aria-current]");
    if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.offsetLeft - 60;
  }

  document.addEventListener("keydown", onKey);
  document.addEventListener("htmx:beforeSwap", silence); // the former page may still arrive
  document.addEventListener("htmx:afterSettle", arrive);
  document.addEventListener("htmx:sendError", () => report(true));
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful) report(false);
  });
  document.addEventListener("visibilitychange", listen);
  window.addEventListener("pagehide", silence);
  window.addEventListener("pageshow", (event) => event.persisted && listen());
  window.addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    plots.forEach((plot) => plot.destroy());
    plots.clear();
    showPlots();
  });
  setInterval(watchStream, 1000);
  prepare();
})();
