// The other ends of the links: a server's agents, or an agent's servers.

import { byId, setText } from "./dom.js";
import { ofAgents, ofServerLink } from "./filters.js";
import { figure, PlainTable, said, stands } from "./plain_table.js";
import { byName, bytes, count, duration, plural, rate, roundTrip } from "./units.js";
import { agents, known, standing } from "./views.js";

const MOST = 100;

const AGENTS = [
  said("Agent", (it) => it.id, (it) => it.identity),
  stands("State", standing),
  said("Zone", (it) => it.zone || "–", (it) => (it.network ? `network ${it.network}` : "")),
  said("Serves", (it) => it.identifiers.join(", ") || "–"),
  figure("Tunnels", (it) => count(it.tunnels)),
  figure("Links", (it) => count(it.links)),
  figure("Round trip", (it) => roundTrip(it.rttSeconds)),
  figure("To targets", (it) => rate(it.toTarget)),
  figure("To clients", (it) => rate(it.toClient)),
  said("Version", (it) => it.version || "–"),
];

/** On a page of several servers an agent also has those it is linked to. */
const AGENTS_OF_SEVERAL = [
  ...AGENTS.slice(0, 2),
  said("Linked to", (it) => [...new Set(it.servers)].sort(byName).join(", ")),
  ...AGENTS.slice(2),
];

const SERVERS = [
  said("Server", (it) => it.peerId || "–", (it) => it.peerAddress),
  stands("State", standing),
  said("Carrier", (it) => it.carrier),
  figure("Streams", (it) => count(it.streams)),
  figure("Round trip", (it) => roundTrip(it.rttSeconds)),
  figure("To targets", (it) => rate(it.toTarget)),
  figure("To clients", (it) => rate(it.toClient)),
  figure("Held", (it) => bytes(it.heldBytes)),
  figure("Window growth", (it) => bytes(it.windowGrowthBytes)),
  figure("Linked for", (it) => duration(performance.now() / 1000 - it.bornAt)),
];

export class Peers {
  #state;
  #table;

  constructor(state, { filter }) {
    this.#state = state;
    this.#table = new PlainTable(byId("peers-table"), (it) => filter(filterOf(it)));
  }

  draw() {
    const sources = known(this.#state);
    const hasServer = sources.some((source) => source.program === "server");
    const links = sources.flatMap((source) => [...source.links.values()]);
    const has = sources.some(({ program }) => program === "server" || program === "agent");
    byId("peers-panel").hidden = !has;
    const all = hasServer ? agents(this.#state) : links;
    setText(byId("peers-title").firstChild, hasServer ? "Agents " : "Servers ");
    const expected = sources.reduce((sum, source) => sum + (source.snapshot.knownServers ?? 0), 0);
    setText(byId("peers-count"), hasServer ? count(all.length) : `${all.length} of ${expected}`);
    const several = sources.filter(({ program }) => program === "server").length > 1;
    this.#table.columns(hasServer ? (several ? AGENTS_OF_SEVERAL : AGENTS) : SERVERS);
    this.#table.show(all.slice(0, MOST), (it) => (hasServer ? it.id : `${it.source.id}/${it.id}`));
    const more = all.length - MOST;
    const rest = `${plural(more, "more agent")} not listed; isthmus agents lists all`;
    const none = all.length ? "" : `No ${hasServer ? "agent" : "server"} linked.`;
    setText(byId("peers-more"), more > 0 ? rest : none);
  }
}

function filterOf(it) {
  return it.source ? ofServerLink(it) : ofAgents(`agent ${it.id}`, `agent ${it.id}`, [it]);
}
