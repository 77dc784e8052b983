// Which tunnels are shown, and in which order. Pure.

import { byName } from "./units.js";

const STATES = { stalled: 0, slow: 1, "half-closed": 2, open: 3 };

/** By what tunnels can be sorted: how two compare, and which way round a first click sorts. */
export const SORTS = {
  requester: { compare: (a, b) => byName(a.requester, b.requester), first: "ascending" },
  target: { compare: (a, b) => byName(a.target, b.target), first: "ascending" },
  agent: { compare: (a, b) => byName(a.agentId, b.agentId), first: "ascending" },
  age: { compare: (a, b) => b.bornAt - a.bornAt, first: "ascending" },
  toTarget: { compare: (a, b) => a.bytesToTarget - b.bytesToTarget, first: "descending" },
  toClient: { compare: (a, b) => a.bytesToClient - b.bytesToClient, first: "descending" },
  rate: { compare: (a, b) => rateOf(a) - rateOf(b), first: "descending" },
  state: { compare: (a, b) => STATES[a.state] - STATES[b.state], first: "ascending" },
};

export function rateOf(tunnel) {
  return tunnel.toTarget + tunnel.toClient;
}

/** Those that hold every word of a search, and that a filter lets through. */
export function sift(tunnels, search, filter) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length && !filter) return tunnels;
  return tunnels.filter(
    (tunnel) =>
      words.every((word) => tunnel.words.includes(word)) && (!filter || filter.test(tunnel)),
  );
}

/** Sorted; what compares alike keeps the order of its key, so that rows do not dance. */
export function sorted(tunnels, { by, way }) {
  const { compare } = SORTS[by];
  const sign = way === "ascending" ? 1 : -1;
  return [...tunnels].sort((a, b) => sign * compare(a, b) || byKey(a, b));
}

/** The order that was, with what came since at its end: nothing moves under a pointer. */
export function held(order, tunnels) {
  const left = new Map(tunnels.map((tunnel) => [tunnel.key, tunnel]));
  const kept = [];
  for (const { key } of order) {
    const tunnel = left.get(key);
    if (!tunnel) continue;
    kept.push(tunnel);
    left.delete(key);
  }
  return [...kept, ...left.values()];
}

function byKey(a, b) {
  return a.source.id === b.source.id ? b.id - a.id : byName(a.source.id, b.source.id);
}
