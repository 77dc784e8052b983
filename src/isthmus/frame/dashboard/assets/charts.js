// Traffic, tunnels, dial times and failed dials over time, drawn as SVG from the history.

import { COLUMNS, HEIGHT, round, SHAPES, y } from "./chart_shapes.js";
import { byId, el, keyed, setAttr, setText, svg } from "./dom.js";
import { bytes, clock, count, roundTrip } from "./units.js";
import { quantile, steps } from "./views.js";

const STEP_S = 10;
const SPARK = { width: 100, height: 24 };
/** Reasons in stacking order; one that is not listed counts as "other", which comes last. */
const REASONS = [
  "connection refused",
  "timed out",
  "network or host unreachable",
  "name not resolved",
  "denied by policy",
  "no agent available",
  "agent lost",
  "too many open connections",
  "internal error",
];

/** A sparkline: the last values without axes, as wide as their element. */
export function spark(place, values) {
  const { width, height } = SPARK;
  const top = Math.max(1, ...values);
  const x = (index) => width - (values.length - 1 - index) * (width / 59);
  const points = values.map((value, index) => `${round(x(index))},${y(value, top, height)}`);
  setAttr(place, "viewBox", `0 0 ${width} ${height}`);
  setAttr(place, "preserveAspectRatio", "none");
  const line = points.length > 1 ? `M${points.join("L")}` : "";
  const area = line ? `${line}V${height}H${round(x(0))}Z` : "";
  if (!place.firstChild) {
    place.append(svg("path", { class: "area" }), svg("path", { class: "line" }));
  }
  setAttr(place.firstChild, "d", area);
  setAttr(place.lastChild, "d", line);
}

/** The four charts, with one time range for all. */
export class Charts {
  #state;
  #range = 900;
  #charts;

  constructor(state) {
    this.#state = state;
    this.#charts = [
      new Chart("Traffic", (columns) => traffic(columns)),
      new Chart("Tunnels open", (columns) => open(columns)),
      new Chart("Dial time", (columns) => dialTimes(columns)),
      new Chart("Failed dials", (columns) => failures(columns)),
    ];
    byId("charts").append(...this.#charts.map((chart) => chart.element));
    for (const button of document.querySelectorAll("[data-range]")) {
      button.addEventListener("click", () => this.#choose(Number(button.dataset.range)));
    }
  }

  draw() {
    const columns = columnsOf(steps(this.#state), this.#range);
    for (const chart of this.#charts) chart.draw(columns, this.#range);
  }

  #choose(range) {
    this.#range = range;
    for (const button of document.querySelectorAll("[data-range]")) {
      setAttr(button, "aria-pressed", String(Number(button.dataset.range) === range));
    }
    this.draw();
  }
}

/** Group steps into columns, newest last; null where there is no data. */
function columnsOf(all, range) {
  const each = range / COLUMNS / STEP_S;
  const columns = new Array(COLUMNS).fill(null);
  const newest = Math.floor((all.at(-1)?.slot ?? 0) / each);
  for (const step of all) {
    const index = COLUMNS - 1 - (newest - Math.floor(step.slot / each));
    if (index < 0) continue;
    const one = (columns[index] ??= freshColumn());
    one.steps += 1;
    one.dialTimes.push(...step.dialTimes);
    one.time = step.time;
    one.dials += step.dials;
    one.toTarget += step.bytesToTarget / STEP_S;
    one.toClient += step.bytesToClient / STEP_S;
    one.tunnels = Math.max(one.tunnels ?? 0, step.tunnels);
    for (const [reason, number] of Object.entries(step.failures)) {
      const known = REASONS.includes(reason) ? reason : "other";
      one.failures[known] = (one.failures[known] ?? 0) + number;
    }
  }
  for (const one of columns) {
    if (!one) continue;
    one.toTarget /= one.steps;
    one.toClient /= one.steps;
  }
  return columns;
}

function freshColumn() {
  return { steps: 0, dials: 0, toTarget: 0, toClient: 0, failures: {}, dialTimes: [] };
}

function traffic(columns) {
  return {
    series: [
      { name: "to targets", class: "to-target", values: columns.map((it) => it?.toTarget ?? null) },
      { name: "to clients", class: "to-client", values: columns.map((it) => it?.toClient ?? null) },
    ],
    shape: "mirror",
    say: (value) => `${bytes(value)}/s`,
    sum: (some) => `peak ${bytes(Math.max(...some))}/s`,
  };
}

function open(columns) {
  const values = columns.map((it) => it?.tunnels ?? null);
  return {
    series: [{ name: "open", class: "plain", values }],
    shape: "area",
    say: (value) => count(value),
    sum: (some) => `peak ${count(Math.max(...some))}`,
  };
}

/** p50 and p99 of dials that succeeded. At rest the legend has those of the whole range. */
function dialTimes(columns) {
  const all = columns.flatMap((it) => it?.dialTimes ?? []);
  const series = [["p99", 0.99], ["p50", 0.5]].map(([name, share]) => ({
    name,
    class: name,
    values: columns.map((it) => (it ? quantile(it.dialTimes, share) : null)),
    whole: roundTrip(quantile(all, share)),
  }));
  return { series, shape: "durations", say: roundTrip, sum: () => "–" };
}

function failures(columns) {
  const series = [...REASONS, "other"].map((name, index) => ({
    name,
    class: `fail-${index}`,
    values: columns.map((it) => (it ? (it.failures[name] ?? 0) : null)),
  }));
  return {
    series: series.filter(({ values }) => values.some((value) => value)),
    shape: "columns",
    say: (value) => count(value),
    sum: (some) => count(some.reduce((sum, value) => sum + value, 0)),
    none: "no failed dials",
  };
}

/** One chart: a title, the time it shows, the drawing, and a legend with values. */
class Chart {
  #read;
  #width = 320;
  #columns = [];
  #range = 900;
  #at = null; // the column under the pointer or chosen by keys
  #drawing = svg("svg", { class: "drawing", height: HEIGHT, "aria-hidden": "true" });
  #legend = el("ul", { class: "legend" });
  #when = el("span", { class: "when" });
  #box;

  constructor(title, read) {
    this.#read = read;
    this.#box = el("div", { class: "chart-box", tabindex: "0", role: "img" }, this.#drawing);
    const head = el("div", { class: "chart-head" }, el("h3", { text: title }), this.#when);
    this.element = el("div", { class: "chart" }, head, this.#box, this.#legend);
    this.title = title;
    this.#box.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    this.#box.addEventListener("pointerleave", () => this.#readAt(null));
    this.#box.addEventListener("blur", () => this.#readAt(null));
    this.#box.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(([{ contentRect }]) => {
      this.#width = Math.max(120, Math.round(contentRect.width));
      this.draw(this.#columns, this.#range);
    }).observe(this.#box);
  }

  draw(columns, range) {
    this.#columns = columns;
    this.#range = range;
    if (!columns.length) return;
    const what = this.#read(columns);
    const shape = SHAPES[what.shape](what.series, this.#width);
    setAttr(this.#drawing, "viewBox", `0 0 ${this.#width} ${HEIGHT}`);
    setAttr(this.#drawing, "width", this.#width);
    const { rules, ticks } = axes(shape, what, this.#width);
    const marks = [...rules, ...shape.paths, ...ticks, ...this.#cursor()];
    keyed(this.#drawing, marks, (it) => it.key, makeMark, fillMark);
    this.#say(what);
  }

  #cursor() {
    if (this.#at === null) return [];
    const x = (this.#at + 0.5) * (this.#width / COLUMNS);
    return [{ key: "cursor", class: "cursor", d: `M${round(x)},0V${HEIGHT}` }];
  }

  #say(what) {
    const column = this.#at === null ? null : this.#columns[this.#at];
    const back = this.#range === 900 ? "last 15 minutes" : "last hour";
    setText(this.#when, this.#at === null ? back : column ? clock(column.time) : "no data");
    const told = what.series.map(({ name, class: names, values, whole }) => ({
      name,
      names,
      value: this.#at === null && whole !== undefined ? whole : this.#figure(what, values),
    }));
    if (!told.length) told.push({ name: what.none, names: "none", value: "" });
    keyed(this.#legend, told, (it) => it.name, makeLegend, fillLegend);
    const said = told.map(({ name, value }) => `${name} ${value}`.trim()).join(", ");
    // A value that the reader asked for is read out; the passing of time is not.
    setAttr(this.#legend, "aria-live", this.#at === null ? null : "polite");
    setAttr(this.#box, "aria-label", `${this.title}, ${this.#when.textContent}: ${said}`);
  }

  /** The value of a series in the chosen column, or a summary of all columns. */
  #figure({ say, sum }, values) {
    const some = this.#at === null ? values.filter((value) => value !== null) : [values[this.#at]];
    if (!some.length || some[0] === null) return "–";
    return this.#at === null ? sum(some) : say(some[0]);
  }

  #point(x) {
    this.#readAt(Math.min(COLUMNS - 1, Math.max(0, Math.floor(x / (this.#width / COLUMNS)))));
  }

  #key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.#readAt(Math.min(COLUMNS - 1, Math.max(0, (this.#at ?? COLUMNS) + by)));
  }

  #readAt(index) {
    this.#at = index;
    this.draw(this.#columns, this.#range);
  }
}

/** The lines behind the drawing, and their labels in front of it. */
function axes({ lines }, { say }, width) {
  const rules = lines.map(([at, value], index) => ({
    key: `line-${index}`,
    class: value === null ? "zero" : "rule",
    d: `M0,${at}H${width}`,
  }));
  const named = lines.filter(([, value], index) => value !== null && index < 2);
  const ticks = named.map(([at, value], index) => ({
    key: `text-${index}`,
    class: "tick",
    text: say(value),
    x: 4,
    y: at + 11,
  }));
  return { rules, ticks };
}

function makeMark({ text }) {
  return svg(text === undefined ? "path" : "text");
}

function fillMark(node, { class: names, d, text, x, y: at }) {
  setAttr(node, "class", names);
  if (text === undefined) {
    setAttr(node, "d", d);
    return;
  }
  setAttr(node, "x", x);
  setAttr(node, "y", at);
  setText(node, text);
}

function makeLegend() {
  const parts = [el("span", { class: "swatch" }), el("span", { class: "what" }), el("b")];
  return el("li", {}, ...parts);
}

function fillLegend(item, { name, names, value }) {
  const [swatch, what, figure] = item.children;
  setAttr(swatch, "class", `swatch ${names}`);
  setText(what, name);
  setText(figure, value);
}
