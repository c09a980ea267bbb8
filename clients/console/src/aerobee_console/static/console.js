/* The console's own script: times, keys, live pages. Every page also works without it. */
"use strict";

(() => {
  const REFRESH_MS = 5000;
  const KEY_PAUSE_MS = 1200;
  const content = () => document.getElementById("content");

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

  function clockOf(seconds) {
    const at = new Date(seconds * 1000);
    const two = (number) => String(number).padStart(2, "0");
    const tail = at.getSeconds() ? `:${two(at.getSeconds())}` : "";
    return `${two(at.getHours())}:${two(at.getMinutes())}${tail}`;
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
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range: (plot, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, space: 80, values: (plot, ticks) => ticks.map(clockOf) }, { ...axis, size: 56 }],
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

  function resizePlots() {
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

  function go(address) {
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
    else if (event.key === "r") refresh(true);
    else if (event.key === "?") go("/keys");
  }

  // ---- live pages: ask again, and change only what differs ----

  let asking = false;

  function isBusy() {
    const active = document.activeElement;
    return (active && isTyping(active)) || content().querySelector("form[method=post]") !== null;
  }

  function report(lost) {
    const place = document.getElementById("connection");
    place.classList.toggle("lost", lost);
    const text = lost ? "connection lost, retrying" : "";
    if (place.textContent !== text) place.textContent = text;
  }

  // A search by text reads the messages of a topic, so it is repeated only by hand.
  const isSearch = () => location.pathname === "/messages" && new URLSearchParams(location.search).get("text");

  async function refresh(always) {
    if (asking || document.hidden || isBusy() || (!always && (!document.getElementById("age") || isSearch()))) return;
    asking = true;
    const address = location.href;
    try {
      const answer = await fetch(address, { headers: { "X-Refresh": "yes" } });
      const text = await answer.text();
      if (location.href !== address || isBusy()) return;
      const page = new DOMParser().parseFromString(text, "text/html");
      const fresh = page.getElementById("content");
      if (!fresh) throw new Error("no content");
      showTimes(page);
      page.querySelectorAll("tr").forEach((row) => row.classList.remove("chosen"));
      Idiomorph.morph(content(), fresh, {
        ignoreActiveValue: true,
        callbacks: {
          beforeNodeMorphed: (node) => !(node.dataset && node.dataset.plot),
          beforeAttributeUpdated: (name, node) => !(name === "class" && node.tagName === "TR"),
        },
      });
      showPlots();
      const footer = document.querySelector("footer time");
      const asked = page.querySelector("footer time");
      if (footer && asked) footer.replaceWith(asked);
      askedAt = Date.now();
      report(false);
    } catch {
      report(true);
    } finally {
      asking = false;
    }
  }

  // ---- start ----

  function prepare() {
    chosen = -1;
    askedAt = Date.now();
    showTimes(document);
    showPlots();
    showAge();
    const tab = document.querySelector("div.bar nav [aria-current]");
    if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.offsetLeft - 60;
  }

  document.addEventListener("keydown", onKey);
  document.addEventListener("htmx:afterSettle", prepare);
  document.addEventListener("htmx:sendError", () => report(true));
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful) report(false);
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh(false);
  });
  window.addEventListener("resize", resizePlots);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    plots.forEach((plot) => plot.destroy());
    plots.clear();
    showPlots();
  });
  setInterval(showAge, 1000);
  setInterval(() => refresh(false), REFRESH_MS);
  prepare();
})();
