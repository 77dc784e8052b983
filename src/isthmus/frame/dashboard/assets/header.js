// The top of the page: which programs, how they stand, whether we hear them, and the sums.

import {
  badge,
  byId,
  el,
  keyed,
  peerText,
  setAttr,
  setBadge,
  setClass,
  setPeer,
  setText,
} from "./dom.js";
import { STALLED } from "./filters.js";
import { bytes, count, duration, perSecond, plural, rate } from "./units.js";
import { beats, counted, nameOf, readiness, totals, tunnels } from "./views.js";
import { spark } from "./charts.js";

const MOST_PROGRAMS = 8;
const LIVE = {
  connecting: "connecting",
  live: "live",
  reconnecting: "reconnecting",
  lost: "lost",
  resting: "resting",
  locked: "locked",
};

export class Header {
  #state;
  #status = { state: "connecting", why: "" };

  constructor(state, { retry, filter }) {
    this.#state = state;
    byId("live-retry").addEventListener("click", retry);
    byId("tile-tunnels").addEventListener("click", () => filter(null));
    byId("tile-stalled").addEventListener("click", () => filter(STALLED));
  }

  /** How the feed stands. */
  live(status) {
    this.#status = status;
    this.drawLive();
  }

  drawLive() {
    const { state, why, retryAt } = this.#status;
    setClass(byId("live"), `live ${state}`);
    setText(byId("live-text"), LIVE[state]);
    byId("live-retry").hidden = !["lost", "reconnecting", "locked"].includes(state);
    setText(byId("live-retry"), state === "locked" ? "Enter the token" : "Try now");
    setAttr(document.body, "data-stale", ["lost", "reconnecting"].includes(state));
    const trouble = byId("trouble");
    trouble.hidden = state !== "lost";
    if (state !== "lost") return;
    const left = Math.max(0, Math.ceil((retryAt - performance.now()) / 1000));
    const then = left ? `Trying again in ${left} s.` : "Trying again.";
    setText(trouble, `Not connected: ${why}. What you see is how it was. ${then}`);
  }

  draw(filterKey) {
    const sources = [...this.#state.sources.values()];
    this.#programs(sources);
    this.#title(sources);
    this.#tiles(filterKey);
  }

  #programs(sources) {
    const shown = sources.slice(0, MOST_PROGRAMS);
    keyed(byId("programs"), shown, (it) => it.id, makeProgram, fillProgram);
    const more = sources.length - shown.length;
    setAttr(byId("programs"), "data-more", more > 0 ? `and ${more} more` : null);
  }

  #title(sources) {
    const [first] = sources;
    const one = first ? `${first.program} ${first.instance || first.address}`.trim() : "";
    const name = sources.length > 1 ? plural(sources.length, "program") : one;
    const title = name ? `${name} · Isthmus` : "Isthmus";
    if (document.title !== title) document.title = title;
  }

  #tiles(filterKey) {
    const sum = totals(this.#state);
    const all = tunnels(this.#state);
    const stalled = all.filter((it) => it.state === "stalled").length;
    const live = counted(this.#state);
    if (!live.length) return;
    setText(byId("sum-tunnels"), count(all.length + sum.truncated));
    setText(byId("sum-tunnels-note"), `${count(sum.tunnelsEnded)} ended`);
    setText(byId("sum-stalled"), count(stalled));
    setText(byId("sum-stalled-note"), stalled ? "show them" : "nothing waits");
    setClass(byId("tile-stalled"), stalled ? "tile warn" : "tile");
    setAttr(byId("tile-stalled"), "aria-pressed", String(filterKey === "stalled"));
    setText(byId("sum-target"), rate(sum.rates.toTarget));
    setText(byId("sum-target-note"), `${bytes(sum.bytesToTarget)} in all`);
    setText(byId("sum-client"), rate(sum.rates.toClient));
    setText(byId("sum-client-note"), `${bytes(sum.bytesToClient)} in all`);
    setText(byId("sum-dials"), perSecond(sum.rates.dials));
    setText(byId("sum-dials-note"), `${count(sum.dials)} in all`);
    setText(byId("sum-failed"), perSecond(sum.rates.failed));
    setText(byId("sum-failed-note"), `${count(sum.dialsFailed)} in all`);
    setClass(byId("tile-failed"), sum.rates.failed > 0 ? "tile warn" : "tile");
    setText(
      byId("tunnel-left"),
      sum.truncated ? `and ${count(sum.truncated)} more that are not listed` : "",
    );
    const curve = beats(this.#state);
    spark(byId("spark-target"), curve.map((beat) => beat.toTarget));
    spark(byId("spark-client"), curve.map((beat) => beat.toClient));
  }
}

function makeProgram() {
  const parts = {
    program: el("span", { class: "kind" }),
    instance: peerText("", "instance"),
    stands: badge("idle", ""),
    note: el("span", { class: "note" }),
  };
  const item = el("li", {}, parts.program, parts.instance, parts.stands, parts.note);
  item.parts = parts;
  return item;
}

function fillProgram(item, source) {
  const { program, instance, stands, note } = item.parts;
  const { level, text, mark } = readiness(source);
  setText(program, source.program);
  setPeer(instance, nameOf(source));
  setBadge(stands, level, text, mark);
  setAttr(item, "title", source.lost || source.address || null);
  const up = duration(performance.now() / 1000 - source.bornAt);
  setText(note, source.lost || (source.known ? `${source.snapshot.version} · up ${up}` : ""));
}
