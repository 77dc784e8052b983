// The live picture as a graph: nodes, the links between them, and their rates. Pure.
//
// A node: {key, column, title, detail, level, mark, filter}. Columns are 0 clients, 1 programs that
// accept, 2 agents or what takes their place, 3 targets. An edge: {key, from, to,
// toTarget, toClient, level, filter}.

import { ofAgents, ofLink, ofNetwork, ofSource } from "./filters.js";
import { other, PARTS } from "./graph_programs.js";
import { rateOf } from "./order.js";
import { byName, plural, roundTrip } from "./units.js";
import {
  agents,
  isByAgents,
  known,
  nameOf,
  networks,
  readiness,
  standing,
  tunnels,
} from "./views.js";

/** The graph of all sources, with at most so many nodes in each column. */
export function graphOf(state, most) {
  const graph = new Graph(state);
  for (const source of state.sources.values()) {
    if (source.lost) graph.missing(source);
    else if (source.known) (PARTS[source.snapshot.kind] ?? other)(graph, source);
  }
  graph.addAgents(most);
  return graph.done(most);
}

class Graph {
  nodes = new Map();
  edges = new Map();
  state;

  constructor(state) {
    this.state = state;
    this.networks = networks(state);
  }

  node(key, column, parts) {
    const node = { key, column, level: "ok", detail: "", ...parts };
    if (!this.nodes.has(key)) this.nodes.set(key, node);
    return key;
  }

  edge(from, to, { toTarget = 0, toClient = 0, level = "ok", filter = null }) {
    const key = `${from} ${to}`;
    const one = this.edges.get(key);
    if (!one) {
      this.edges.set(key, { key, from, to, toTarget, toClient, level, filter });
      return;
    }
    one.toTarget += toTarget;
    one.toClient += toClient;
    if (level !== "ok") one.level = level;
  }

  clients() {
    return this.node("clients", 0, { title: "Clients", level: "end" });
  }

  /** A program that cannot be reached: a node without traffic. */
  missing(source) {
    const { level, text, mark } = readiness(source);
    const column = source.program === "agent" ? 2 : 1;
    const detail = [source.program, text].filter(Boolean).join(" · ");
    const parts = { title: nameOf(source), detail, level, mark, filter: null };
    this.node(`program ${source.id}`, column, parts);
  }

  /** A program that accepts connections. */
  front(source) {
    const { level, text, mark } = readiness(source);
    const title = nameOf(source);
    const detail = `${source.program} · ${text}`;
    const filter = ofSource(source, title);
    const key = this.node(`program ${source.id}`, 1, { title, detail, level, mark, filter });
    this.edge(this.clients(), key, { ...source.rates, level: "ok", filter });
    return key;
  }

  /** The targets of an agent. */
  targets(name) {
    const one = this.networks.find((network) => network.name === name);
    if (one) return this.network(one, 3, ofNetwork(this.state, name));
    return this.node("targets", 3, { title: "Targets", level: "end" });
  }

  /** A network: behind its agents, or in their column if it has none. */
  network({ name, way, agents: number }, column, filter) {
    const detail = isByAgents({ way }) ? plural(number, "agent") : way;
    const parts = { title: name, detail: `network · ${detail}`, level: "end", filter };
    return this.node(`network ${name}`, column, parts);
  }

  /** The agents, or their zones if there are too many agents, with links and networks. */
  addAgents(most) {
    const all = agents(this.state);
    const groups = grouped(all, most);
    const groupOf = new Map();
    for (const group of groups) {
      for (const agent of group.agents) groupOf.set(agent.id, group.key);
      this.node(group.key, 2, group);
      for (const agent of group.agents) {
        const flow = { toTarget: agent.toTarget, toClient: agent.toClient };
        this.edge(group.key, this.targets(agent.network), { ...flow, filter: group.filter });
      }
    }
    for (const source of known(this.state)) {
      if (source.program !== "server") continue;
      for (const link of source.links.values()) {
        const to = groupOf.get(link.peerId);
        if (!to) continue;
        const { level } = standing(link);
        const group = groups.find((it) => it.key === to);
        const filter = group.many ? group.filter : ofLink(source, link.peerId);
        this.edge(`program ${source.id}`, to, { ...link, level, filter });
      }
    }
  }

  /** Nodes in columns and edges between them; a long column is cut, and its rest counted. */
  done(most) {
    const columns = [0, 1, 2, 3].map((column) => {
      const all = [...this.nodes.values()].filter((node) => node.column === column);
      // The agents fit already; networks without agents come below them.
      if (column === 2) return all.sort((a, b) => Boolean(b.agents) - Boolean(a.agents));
      return fold(all, most, (node) => this.#into(node));
    });
    const left = new Set(columns.flat().map((node) => node.key));
    const edges = [...this.edges.values()].filter((it) => left.has(it.from) && left.has(it.to));
    return { columns: columns.filter((nodes) => nodes.length), edges };
  }

  #into({ gone, key }) {
    for (const edge of [...this.edges.values()]) {
      const from = gone.has(edge.from) ? key : edge.from;
      const to = gone.has(edge.to) ? key : edge.to;
      if (from === edge.from && to === edge.to) continue;
      this.edges.delete(edge.key);
      this.edge(from, to, { ...edge, filter: null });
    }
  }
}

function fold(nodes, most, into) {
  if (nodes.length <= most) return nodes;
  const kept = nodes.slice(0, most - 1);
  const gone = new Set(nodes.slice(most - 1).map((node) => node.key));
  const { column } = nodes[0];
  const title = `${gone.size} more`;
  const more = { key: `more ${column}`, column, title, detail: "", level: "end" };
  into({ gone, key: more.key });
  return [...kept, more];
}

/** Agents one by one if they fit, else by zone, else the first of them and the number of the rest. */
function grouped(all, most) {
  if (all.length <= most) return all.map(single);
  const zones = Map.groupBy(all, (agent) => agent.zone);
  if (zones.size > 1 && zones.size <= most) {
    const named = [...zones].sort(([a], [b]) => byName(a, b));
    const called = (zone) => (zone ? `zone ${zone}` : "no zone");
    return named.map(([zone, some]) => group(`zone ${zone}`, called(zone), some));
  }
  const shown = all.slice(0, most - 1);
  const rest = all.slice(most - 1);
  return [...shown.map(single), group("more agents", `${rest.length} more`, rest)];
}

function single(agent) {
  const { level, mark, text } = standing(agent);
  const load = plural(agent.tunnels, "tunnel");
  const rest = level === "ok" ? roundTrip(agent.rttSeconds) : text;
  return {
    key: `agent ${agent.id}`,
    title: agent.id,
    detail: `${load} · ${rest}`,
    level,
    mark,
    agents: [agent],
    filter: ofAgents(`agent ${agent.id}`, `agent ${agent.id}`, [agent]),
  };
}

function group(key, title, some) {
  const bad = some.filter((agent) => standing(agent).level !== "ok");
  const load = plural(some.reduce((sum, agent) => sum + agent.tunnels, 0), "tunnel");
  const detail = bad.length
    ? `${plural(some.length, "agent")}, ${bad.length} unhealthy`
    : `${plural(some.length, "agent")} · ${load}`;
  const level = bad.length ? "warn" : "ok";
  const filter = ofAgents(key, title, some);
  return { key, title, detail, level, agents: some, many: true, filter };
}

/** A summary of the picture for screen readers. */
export function inWords(state) {
  const all = agents(state);
  const moving = tunnels(state).filter((tunnel) => rateOf(tunnel) > 0).length;
  const bad = all.filter((agent) => standing(agent).level !== "ok").length;
  const not = bad ? `, ${bad} unhealthy` : "";
  const programs = plural(known(state).length, "program");
  return `${programs}, ${plural(all.length, "agent")}${not}, ${plural(moving, "tunnel")} moving`;
}
