// Draws the live picture: lines as SVG, and a button for each node.
//
// Buttons rather than SVG text, because they take focus, cut long names, and isolate the writing
// direction of peers' text. Wide pages have columns from left to right, narrow ones layers.

import {
  badge,
  byId,
  el,
  keyed,
  setAttr,
  setBadge,
  setClass,
  setText,
  svg,
} from "./dom.js";
import { graphOf, inWords } from "./graph.js";
import { place } from "./picture_layout.js";
import { rate } from "./units.js";

const WIDE = 600;
const MOST = { wide: 7, narrow: 6 };
const FLAT_ROWS = 2;

export class Picture {
  #state;
  #filter;
  #refresh;
  #box = byId("picture");
  #ways = svg("svg", { class: "ways", role: "group", "aria-label": "Links" });
  #nodes = el("div", { class: "nodes" });
  #words = el("p", { class: "hidden-text" });
  #width = 0;
  #room = 0; // the height of the panel without the picture's own needs
  #height = 0;
  #rows = 0;
  #drawnFor = "";

  constructor(state, { filter, refresh }) {
    this.#state = state;
    this.#filter = filter;
    this.#refresh = refresh;
    this.#box.append(this.#words, this.#ways, this.#nodes);
    new ResizeObserver(([{ contentRect }]) => {
      this.#width = Math.round(contentRect.width);
      this.#room = Math.round(contentRect.height);
      this.draw(this.#drawnFor);
    }).observe(this.#box);
  }

  draw(filterKey) {
    this.#drawnFor = filterKey;
    if (!this.#width) return;
    const wide = this.#width >= WIDE;
    const graph = graphOf(this.#state, wide ? MOST.wide : MOST.narrow);
    const placed = place(graph, { width: this.#width, room: this.#room, wide });
    const { nodes, edges, height } = placed;
    // The picture grows and never shrinks: what is below must not move when an agent leaves.
    this.#height = wide ? Math.max(this.#height, height) : height;
    this.#rows = Math.max(this.#rows, placed.rows);
    // With few rows the charts come below, so that the panel is as high as what is in it.
    setAttr(byId("upper"), "data-flat", this.#rows <= FLAT_ROWS);
    setClass(this.#box, wide ? "picture" : "picture layers");
    this.#box.style.setProperty("min-height", `${this.#height}px`);
    setAttr(this.#ways, "width", this.#width);
    setAttr(this.#ways, "height", Math.max(this.#height, this.#room));
    for (const { filter } of nodes) if (filter) this.#refresh(filter);
    const keyOf = (it) => it.key;
    const makeWay = () => this.#makeWay();
    const makeNode = () => this.#makeNode();
    keyed(this.#ways, edges, keyOf, makeWay, (way, it) => fillWay(way, it, filterKey));
    keyed(this.#nodes, nodes, keyOf, makeNode, (node, it) => fillNode(node, it, filterKey));
    setText(this.#words, inWords(this.#state));
  }

  #makeWay() {
    const way = svg(
      "g",
      { class: "way" },
      svg("title"),
      svg("path", { class: "hit" }),
      svg("path", { class: "base" }),
      svg("path", { class: "flow to-target" }),
      svg("path", { class: "flow to-client" }),
    );
    const choose = () => way.filter && this.#filter(way.filter);
    way.addEventListener("click", choose);
    way.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose();
    });
    return way;
  }

  #makeNode() {
    const parts = {
      badge: badge("ok", ""),
      title: longName(),
      detail: el("span", { class: "detail" }),
    };
    const node = el("button", { type: "button", class: "node" }, ...Object.values(parts));
    node.parts = parts;
    node.addEventListener("click", () => node.filter && this.#filter(node.filter));
    return node;
  }
}

/** A name of which the beginning and the distinguishing end stay in sight, however long it is. */
function longName() {
  const parts = ["front", "tail", "rest"].map((name) => el("span", { class: name }));
  return el("bdi", { class: "title" }, ...parts);
}

function setLongName(node, text) {
  setAttr(node, "title", text);
  // Names of pods differ at the end of their first label; the domain after it is shared.
  const [label] = text.split(".");
  const cut = label.length > 12 && /\p{L}/u.test(label) ? label.length - 5 : text.length;
  const [front, tail, rest] = node.children;
  setText(front, text.slice(0, cut));
  setText(tail, cut < text.length ? text.slice(cut, label.length) : "");
  setText(rest, cut < text.length ? text.slice(label.length) : "");
}

function fillNode(node, it, filterKey) {
  const { title, detail, badge: mark } = node.parts;
  node.filter = it.filter;
  const chosen = Boolean(it.filter) && it.filter.key === filterKey;
  setClass(node, `node ${it.level}${it.many ? " many" : ""}`);
  setAttr(node, "aria-pressed", it.filter ? String(chosen) : null);
  setAttr(node, "disabled", !it.filter);
  setLongName(title, it.title);
  setText(detail, it.detail);
  setBadge(mark, it.level, "", it.level === "end" ? "" : it.mark);
  for (const [name, value] of [["left", it.x], ["top", it.y], ["width", it.width]]) {
    node.style.setProperty(name, `${Math.round(value)}px`);
  }
}

function fillWay(way, it, filterKey) {
  const [title, hit, base, toTarget, toClient] = way.children;
  const chosen = it.filter && it.filter.key === filterKey;
  way.filter = it.filter;
  setClass(way, `way ${it.level}${chosen ? " chosen" : ""}`);
  const flow = `${rate(it.toTarget)} to targets, ${rate(it.toClient)} to clients`;
  const said = it.filter ? `${it.filter.label}: ${flow}` : flow;
  setText(title, said);
  // A link can be selected by keys, too; the ends of other lines are buttons already.
  const isLink = it.filter?.key.startsWith("link ") ?? false;
  setAttr(way, "tabindex", isLink ? "0" : null);
  setAttr(way, "role", isLink ? "button" : null);
  setAttr(way, "aria-label", isLink ? said : null);
  for (const path of [hit, base]) setAttr(path, "d", it.d);
  setAttr(base, "stroke-width", widthOf(it.toTarget + it.toClient));
  setAttr(toTarget, "d", it.lanes[0]);
  setAttr(toClient, "d", it.lanes[1]);
  setClass(toTarget, `flow to-target ${speedOf(it.toTarget)}`);
  setClass(toClient, `flow to-client ${speedOf(it.toClient)}`);
}

/** A hundred times the rate is 2.5 pixels more: one scale from a ping to a backup. */
function widthOf(perSecond) {
  if (perSecond < 1) return 2;
  return Math.round(Math.min(12, 3 + Math.max(0, Math.log10(perSecond / 100)) * 1.25) * 2) / 2;
}

/** Few speeds rather than one for each rate: a new duration would restart the animation. */
function speedOf(perSecond) {
  if (perSecond < 1) return "still";
  if (perSecond < 10_000) return "slow";
  return perSecond < 10_000_000 ? "quick" : "fast";
}
