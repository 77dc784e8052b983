// The table of tunnels: search, sort, filter, selection by pointer and by keys.

import { badge, byId, el, peerText, setAttr, setBadge, setClass, setPeer, setText } from "./dom.js";
import { held, rateOf, sift, sorted, SORTS } from "./order.js";
import { bytes, count, duration, rate } from "./units.js";
import { cell, VirtualRows } from "./virtual.js";
import { tunnels } from "./views.js";

const STATE = {
  __proto__: null, // a state comes from the feed, and may be any word
  open: { level: "ok", mark: "●" },
  "half-closed": { level: "idle", mark: "◐" },
  slow: { level: "slow", mark: "◔" },
  stalled: { level: "warn", mark: "▲" },
};

/** The level and the mark of a tunnel's state. */
export function stateOf(tunnel) {
  return STATE[tunnel.state] ?? { level: "idle", mark: "○" };
}

/** The agent of a tunnel, and the other server that has the agent if the tunnel is relayed. */
export function through({ agentId, relay }) {
  const agent = agentId || "–";
  return relay ? `${agent} via ${relay}` : agent;
}

const CERTIFICATE = "certificate:";

/**
 * The client in two lines: its name, and how it connected. A narrow column would show little more
 * than `certificate:`, so that is in the second line, which also tells a certificate named `uid:0`
 * from the uid.
 */
function asker({ requester = "", frontend }) {
  if (!requester.startsWith(CERTIFICATE)) return [requester || "–", frontend];
  return [requester.slice(CERTIFICATE.length), `cert · ${frontend}`];
}

/** `opened(tunnel | null)` is called on a selection, `asked(tunnel)` to end one. */
export class TunnelTable {
  #state;
  #opened;
  #asked;
  #rows;
  #order = [];
  #sort = { by: "age", way: "ascending" };
  #filter = null;
  #selected = null; // a key
  #pointed = false;
  #walked = false; // with keys, which hold the order like a pointer
  #grid = byId("tunnel-grid");
  #search = byId("search");

  constructor(state, { opened, asked }) {
    this.#state = state;
    this.#opened = opened;
    this.#asked = asked;
    this.#rows = new VirtualRows({
      scroller: this.#grid,
      body: byId("tunnel-rows"),
      make: () => this.#makeRow(),
      fill: (row, tunnel, index) => this.#fillRow(row, tunnel, index),
    });
    this.#search.addEventListener("input", () => this.#again());
    this.#grid.addEventListener("pointerenter", () => (this.#pointed = true));
    this.#grid.addEventListener("pointerleave", () => (this.#pointed = false));
    this.#grid.addEventListener("focusout", () => (this.#walked = false));
    this.#grid.addEventListener("keydown", (event) => this.#key(event));
    byId("filter-off").addEventListener("click", () => this.filter(null));
    for (const head of this.#grid.querySelectorAll("[data-sort]")) {
      head.querySelector("button").addEventListener("click", () => this.#sortBy(head.dataset.sort));
    }
    this.#markSort();
  }

  /** Show only what matches a filter; null, or the same filter again, shows all. */
  filter(filter) {
    this.#filter = filter && filter.key !== this.#filter?.key ? filter : null;
    byId("filter").hidden = this.#filter === null;
    setPeer(byId("filter-label"), this.#filter?.label ?? "");
    this.#again();
  }

  /** Update the current filter: agents join a zone, and leave it. */
  refresh(filter) {
    if (filter.key === this.#filter?.key) this.#filter = filter;
  }

  get filterKey() {
    return this.#filter?.key ?? "";
  }

  /** The selected tunnel, or null; it may have ended since. */
  get selected() {
    return this.#order.find((tunnel) => tunnel.key === this.#selected) ?? null;
  }

  focus() {
    this.#grid.focus();
  }

  draw() {
    const all = tunnels(this.#state);
    const found = sift(all, this.#search.value, this.#filter);
    const hold = this.#pointed || this.#walked;
    this.#order = hold ? held(this.#order, found) : sorted(found, this.#sort);
    this.#show(all.length);
  }

  #again() {
    const pointed = this.#pointed;
    this.#pointed = this.#walked = false;
    this.draw();
    this.#pointed = pointed;
    this.#grid.scrollTop = 0;
  }

  #show(all) {
    const some = this.#order.length;
    setText(byId("tunnel-count"), some === all ? count(all) : `${count(some)} of ${count(all)}`);
    setAttr(this.#grid, "aria-rowcount", some + 1);
    const none = all === 0 ? "No open tunnels." : "No tunnels match.";
    byId("tunnel-none").hidden = some > 0;
    setText(byId("tunnel-none"), none);
    setClass(this.#grid, this.#state.sources.size > 1 ? "grid several" : "grid");
    this.#rows.show(this.#order);
    setAttr(this.#grid, "aria-activedescendant", this.#selectedRow()?.id ?? null);
  }

  #makeRow() {
    const parts = {
      state: badge("ok", ""),
      why: peerText("", "why"),
      requester: peerText("", "first"),
      frontend: peerText("", "second"),
      target: peerText("", "first"),
      id: peerText("", "second code"),
      agent: peerText("", "first"),
      source: peerText("", "second"),
      age: el("span"),
      toTarget: el("span"),
      toClient: el("span"),
      rate: el("span"),
    };
    const row = el(
      "div",
      { class: "row", role: "row", "aria-selected": "false" },
      cell("who", parts.requester, parts.frontend),
      cell("to", parts.target, parts.id),
      cell("via", parts.agent, parts.source),
      cell("age num", parts.age),
      cell("sent num", parts.toTarget),
      cell("got num", parts.toClient),
      cell("rate num", parts.rate),
      cell("state", parts.state, parts.why),
    );
    row.parts = parts;
    row.addEventListener("click", () => this.select(row.tunnel));
    return row;
  }

  #fillRow(row, tunnel, index) {
    const { parts } = row;
    const { level, mark } = stateOf(tunnel);
    row.tunnel = tunnel;
    setAttr(row, "id", `tunnel-row-${index}`);
    setAttr(row, "aria-rowindex", index + 2);
    setAttr(row, "aria-selected", String(tunnel.key === this.#selected));
    const [name, by] = asker(tunnel);
    setPeer(parts.requester, name);
    setPeer(parts.frontend, by);
    setPeer(parts.target, tunnel.target);
    setPeer(parts.id, tunnel.connectionId);
    setPeer(parts.agent, through(tunnel));
    setPeer(parts.source, tunnel.source.instance || tunnel.source.program);
    setText(parts.age, duration(performance.now() / 1000 - tunnel.bornAt));
    setText(parts.toTarget, bytes(tunnel.bytesToTarget));
    setText(parts.toClient, bytes(tunnel.bytesToClient));
    setText(parts.rate, rate(rateOf(tunnel)));
    setBadge(parts.state, level, tunnel.state, mark);
    setPeer(parts.why, tunnel.stalled || tunnel.slow);
    setClass(parts.why, `peer why ${level}`);
  }

  #sortBy(by) {
    const { first } = SORTS[by];
    const other = first === "ascending" ? "descending" : "ascending";
    const again = this.#sort.by === by && this.#sort.way === first;
    this.#sort = { by, way: again ? other : first };
    this.#markSort();
    this.#again();
  }

  #markSort() {
    for (const head of this.#grid.querySelectorAll("[data-sort]")) {
      const mine = head.dataset.sort === this.#sort.by;
      setAttr(head, "aria-sort", mine ? this.#sort.way : "none");
    }
  }

  /** Select a tunnel and show its details; null closes them. */
  select(tunnel) {
    this.#selected = tunnel?.key ?? null;
    this.draw();
    this.#opened(tunnel, this.#selectedRow());
  }

  #selectedRow() {
    return byId(`tunnel-row-${this.#order.findIndex(({ key }) => key === this.#selected)}`);
  }

  /** Move the selection by so many rows. */
  move(by) {
    if (!this.#order.length) return;
    const at = this.#order.findIndex((tunnel) => tunnel.key === this.#selected);
    // Without a selection the first step enters the list, from its top or from its foot.
    const next = at >= 0 ? at + by : by > 0 ? by - 1 : this.#order.length + by;
    const index = Math.min(this.#order.length - 1, Math.max(0, next));
    this.#selected = this.#order[index].key;
    this.#walked = document.activeElement === this.#grid;
    this.#rows.reveal(index);
    this.draw();
    this.#opened(this.#order[index], this.#selectedRow(), { quietly: true });
  }

  #key(event) {
    if (event.target !== this.#grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const { page } = this.#rows;
    const all = this.#order.length;
    const arrows = { ArrowDown: 1, ArrowUp: -1 };
    const steps = { ...arrows, PageDown: page, PageUp: -page, Home: -all, End: all };
    if (event.key in steps) this.move(steps[event.key]);
    else if (event.key === "Enter" && this.selected) this.select(this.selected);
    else if (event.key === "Delete" && this.selected) this.#asked(this.selected);
    else return;
    event.preventDefault();
  }
}
