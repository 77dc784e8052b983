// Selects and sorts the tunnels to show. Pure.

import { byName } from "./units.js";

const STATES = { stalled: 0, slow: 1, "half-closed": 2, open: 3 };

/** The sort keys: how two tunnels compare, and the order of a first click. */
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

/** The tunnels that contain every word of a search and pass the filter. */
export function sift(tunnels, search, filter) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length && !filter) return tunnels;
  return tunnels.filter(
    (tunnel) =>
      words.every((word) => tunnel.words.includes(word)) && (!filter || filter.test(tunnel)),
  );
}

/** Sorted; equal tunnels are ordered by key, so that rows keep their places. */
export function sorted(tunnels, { by, way }) {
  const { compare } = SORTS[by];
  const sign = way === "ascending" ? 1 : -1;
  return [...tunnels].sort((a, b) => sign * compare(a, b) || byKey(a, b));
}

/** The previous order, with new tunnels at its end: nothing moves under a pointer. */
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
