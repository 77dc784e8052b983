// Several sources as one: the views of a State that the panels draw. Pure.

import { byName } from "./units.js";

/** Compute a view once for each moment, however many panels use it. */
export function once(view) {
  let made = null;
  return (state) => {
    if (made?.state !== state || made.moment !== state.moment) {
      made = { state, moment: state.moment, value: view(state) };
    }
    return made.value;
  };
}

/** The sources whose current state is known; the data of a lost one is out of date. */
export function known(state) {
  return [...state.sources.values()].filter((source) => source.known && !source.lost);
}

/** The name of a source. */
export function nameOf(source) {
  return source.instance || source.address || source.program;
}

/**
 * The sources whose figures are added up. Agents count the bytes of their server's tunnels again,
 * so with servers on the page only theirs count.
 */
export function counted(state) {
  const all = known(state);
  const servers = all.filter((source) => source.program === "server");
  return servers.length ? servers : all;
}

/**
 * Every tunnel once: a tunnel of a server is left out of the agent that carries it, and of the
 * other server that relays it.
 */
export const tunnels = once((state) => {
  const all = known(state);
  const servers = all.filter((source) => source.program === "server");
  const others = all.filter((source) => source.program !== "server");
  const shown = servers.flatMap((source) => [...source.tunnels.values()]);
  const relayed = new Set(shown.filter((it) => it.relay).map((it) => it.connectionId));
  const found = shown.filter((it) => it.frontend !== "relay" || !relayed.has(it.connectionId));
  const ids = new Set(found.map((tunnel) => tunnel.connectionId));
  ids.delete("");
  for (const source of others) {
    for (const tunnel of source.tunnels.values()) {
      if (!ids.has(tunnel.connectionId)) found.push(tunnel);
    }
  }
  return found;
});

/** The sums for the header. */
export function totals(state) {
  const sum = { dials: 0, dialsFailed: 0, tunnelsEnded: 0, bytesToTarget: 0, bytesToClient: 0 };
  const rates = { toTarget: 0, toClient: 0, dials: 0, failed: 0 };
  let left = 0;
  for (const source of counted(state)) {
    for (const key of Object.keys(sum)) sum[key] += source.snapshot.totals?.[key] ?? 0;
    for (const key of Object.keys(rates)) rates[key] += source.rates[key];
    left += source.snapshot.truncated ?? 0;
  }
  return { ...sum, rates, truncated: left };
}

/** The values of the sparklines: the last seconds of all sources, newest last. */
export function beats(state) {
  const rows = counted(state).map((source) => source.beats);
  const length = Math.max(0, ...rows.map((row) => row.length));
  return Array.from({ length }, (_, back) => {
    const beat = { toTarget: 0, toClient: 0, tunnels: 0 };
    for (const row of rows) {
      const one = row[row.length - length + back];
      for (const key of Object.keys(beat)) beat[key] += one?.[key] ?? 0;
    }
    return beat;
  });
}

/**
 * Agents by id, each once, however many servers it is linked to: {id, version, zone, network,
 * identity, identifiers, draining, tunnels, links, rttSeconds, state, toTarget, toClient, servers}.
 */
export const agents = once((state) => {
  const found = new Map();
  for (const source of known(state)) {
    for (const agent of source.snapshot.agents ?? []) {
      const one = found.get(agent.id) ?? freshAgent(agent);
      found.set(agent.id, one);
      one.tunnels += agent.tunnels;
      one.links += agent.links;
      one.draining ||= agent.draining;
      one.rttSeconds = least(one.rttSeconds, agent.rttSeconds);
      one.servers.push(source.instance);
    }
    if (source.program !== "server") continue;
    for (const link of source.links.values()) {
      const one = found.get(link.peerId);
      if (!one) continue;
      one.toTarget += link.toTarget;
      one.toClient += link.toClient;
      one.stuck ||= link.state === "stuck";
    }
  }
  return [...found.values()].sort((a, b) => byName(a.id, b.id));
});

function freshAgent(agent) {
  const none = { tunnels: 0, links: 0, draining: false, rttSeconds: null };
  const { network = "", zone = "" } = agent;
  return { ...agent, ...none, network, zone, servers: [], toTarget: 0, toClient: 0, stuck: false };
}

function least(a, b) {
  return a === null || a === undefined ? b : b === null || b === undefined ? a : Math.min(a, b);
}

/** The state of an agent or a link: a level, a word and, if not the level's own, a mark. */
export function standing({ stuck, draining, state }) {
  if (stuck || state === "stuck") return { level: "bad", text: "stuck" };
  if (draining || state === "draining") return { level: "warn", text: "draining", mark: "◇" };
  if (state === "greeting") return { level: "idle", text: "greeting" };
  return { level: "ok", text: "linked" };
}

/** The state of a program. */
export function readiness(source) {
  if (source.lost) return { level: "bad", text: "not reached" };
  if (!source.known) return { level: "idle", text: "waiting" };
  if (source.snapshot.draining) return { level: "warn", text: "draining", mark: "◇" };
  const open = [...source.links.values()].some((link) => link.state === "open");
  const { kind, networks } = source.snapshot;
  if (kind === "ServerSnapshot" && !open && needsAgents(networks)) {
    if (relaysTo(source).some(canHelp)) return { level: "ok", text: "ready by relay" };
    return { level: "warn", text: "no agent" };
  }
  if (kind === "AgentSnapshot" && !open) return { level: "warn", text: "no server" };
  return { level: "ok", text: "ready" };
}

/** The links a server dials other servers' agents by; programs of older versions have none. */
export function relaysTo(source) {
  return (source.snapshot.relays ?? []).filter((relay) => relay.direction === "to");
}

function canHelp({ state, agents: some }) {
  return state === "open" && some;
}

function needsAgents(networks) {
  return !networks?.length || networks.some(isByAgents);
}

/** Whether a network is reached through agents, rather than directly or by another server. */
export function isByAgents(network) {
  return /^agents?$/.test(network.way ?? "agents");
}

/** The networks of all sources by name, with the largest number of agents any of them reports. */
export const networks = once((state) => {
  const found = new Map();
  for (const source of known(state)) {
    for (const network of source.snapshot.networks ?? []) {
      const one = found.get(network.name) ?? { name: network.name, way: network.way, agents: 0 };
      one.agents = Math.max(one.agents, network.agents ?? 0);
      found.set(network.name, one);
    }
  }
  return [...found.values()].sort((a, b) => byName(a.name, b.name));
});

/** The history of the counted sources, step by step on one clock, newest last. */
export const steps = once((state) => {
  const found = new Map();
  for (const source of counted(state)) {
    const newest = source.history.at(-1);
    for (const step of source.history) {
      // By number, not time: two steps, one early and one late, would share a slot and leave a
      // hole beside it.
      const slot = Math.round(Date.parse(newest.time) / 10_000) - (newest.number - step.number);
      const sum = found.get(slot);
      // Programs of older versions have no dial times.
      const dialTimes = [...(step.dialTimes ?? [])];
      if (!sum) found.set(slot, { ...step, failures: { ...step.failures }, dialTimes, slot });
      else addStep(sum, step);
    }
  }
  return [...found.values()].sort((a, b) => a.slot - b.slot);
});

function addStep(sum, step) {
  const keys = ["dials", "bytesToTarget", "bytesToClient", "tunnels", "agents", "links"];
  for (const key of keys) sum[key] += step[key];
  for (const [reason, number] of Object.entries(step.failures)) {
    sum.failures[reason] = (sum.failures[reason] ?? 0) + number;
  }
  sum.dialTimes.push(...(step.dialTimes ?? []));
}

/**
 * An estimate of a quantile of dial times, in seconds: inside its histogram bucket a time is taken
 * in proportion, as Prometheus' histogram_quantile does. `buckets` are [above, upTo, count] of any
 * number of programs and steps; null without a dial. A time in the last bucket, which has no upper
 * bound, is that bucket's lower bound.
 */
export function quantile(buckets, share) {
  const sorted = [...buckets].sort((a, b) => (a[1] ?? Infinity) - (b[1] ?? Infinity));
  const all = sorted.reduce((sum, [, , count]) => sum + count, 0);
  if (!all) return null;
  let rest = share * all;
  for (let at = 0; at < sorted.length; ) {
    // The same bucket of several steps is one.
    const [above, upTo] = sorted[at];
    let count = 0;
    for (; at < sorted.length && sorted[at][1] === upTo; at += 1) count += sorted[at][2];
    if (rest <= count || at === sorted.length) {
      return upTo === null ? above : above + (upTo - above) * Math.min(1, rest / count);
    }
    rest -= count;
  }
  return null;
}

/** One list of all sources' snapshots, each entry with its source. */
export function listed(state, key) {
  return known(state).flatMap((source) =>
    (source.snapshot[key] ?? []).map((entry) => ({ ...entry, source })),
  );
}
