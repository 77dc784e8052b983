// The top of the page: the programs and their state, the connection to the feed, and the totals.

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
import { SLOW, STALLED } from "./filters.js";
import { bytes, count, duration, perSecond, plural, rate, roundTrip } from "./units.js";
import { beats, counted, nameOf, quantile, readiness, steps, totals, tunnels } from "./views.js";
import { spark } from "./charts.js";

const MOST_PROGRAMS = 8;
const RECENT_STEPS = 6; // dial times of the last minute
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
    byId("tile-slow").addEventListener("click", () => filter(SLOW));
  }

  /** Show the state of the feed. */
  live(status) {
    this.#status = status;
    this.drawLive();
  }

  drawLive() {
    const { state, why, retryAt } = this.#status;
    setClass(byId("live"), `live ${state}`);
    setText(byId("live-text"), LIVE[state]);
    byId("live-retry").hidden = !["lost", "reconnecting", "locked"].includes(state);
    setText(byId("live-retry"), state === "locked" ? "Enter token" : "Retry now");
    setAttr(document.body, "data-stale", ["lost", "reconnecting"].includes(state));
    const trouble = byId("trouble");
    trouble.hidden = state !== "lost";
    if (state !== "lost") return;
    const left = Math.max(0, Math.ceil((retryAt - performance.now()) / 1000));
    const then = left ? `Retrying in ${left} s.` : "Retrying.";
    setText(trouble, `Not connected: ${why}. The page shows the last known state. ${then}`);
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
    const live = counted(this.#state);
    if (!live.length) return;
    setText(byId("sum-tunnels"), count(all.length + sum.truncated));
    setText(byId("sum-tunnels-note"), `${count(sum.tunnelsEnded)} ended`);
    for (const [state, level] of [["stalled", "warn"], ["slow", "slow"]]) {
      const some = all.filter((it) => it.state === state).length;
      setText(byId(`sum-${state}`), count(some));
      setText(byId(`sum-${state}-note`), some ? "show them" : "none");
      setClass(byId(`tile-${state}`), some ? `tile ${level}` : "tile");
      setAttr(byId(`tile-${state}`), "aria-pressed", String(filterKey === state));
    }
    setText(byId("sum-target"), rate(sum.rates.toTarget));
    setText(byId("sum-target-note"), `${bytes(sum.bytesToTarget)} total`);
    setText(byId("sum-client"), rate(sum.rates.toClient));
    setText(byId("sum-client-note"), `${bytes(sum.bytesToClient)} total`);
    setText(byId("sum-dials"), perSecond(sum.rates.dials));
    setText(byId("sum-dials-note"), `${count(sum.dials)} total`);
    setText(byId("sum-failed"), perSecond(sum.rates.failed));
    setText(byId("sum-failed-note"), `${count(sum.dialsFailed)} total`);
    setClass(byId("tile-failed"), sum.rates.failed > 0 ? "tile warn" : "tile");
    const times = steps(this.#state).slice(-RECENT_STEPS).flatMap((it) => it.dialTimes);
    setText(byId("sum-dial-time"), roundTrip(quantile(times, 0.99)));
    setText(byId("sum-dial-time-note"), `p50 ${roundTrip(quantile(times, 0.5))}`);
    const left = sum.truncated ? `${count(sum.truncated)} more not listed` : "";
    setText(byId("tunnel-left"), left);
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
