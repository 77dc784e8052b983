// All servers of the installation as the programs on this page know them: those that are shown, and
// those known only from a Lease, a flag or a link, of which this page says what it does not know.
//
// A page asks nobody but the programs it came from, so it needs no credentials of other servers.

import { byId, setText } from "./dom.js";
import { figure, PlainTable, said, stands } from "./plain_table.js";
import { byName, count, plural, roundTrip } from "./units.js";
import { agents, nameOf, once, readiness, standing } from "./views.js";

const MOST = 100;
const KNOWN_BY = { __proto__: null, lease: "Lease", flag: "--peer-server" };

/**
 * {servers, agents, missing}: a server is {id, address, source, link, reported, workers, knownBy}.
 * `source` is null for one that is not on this page, `reported` the number of agents it says it
 * has, or null. `missing` servers are counted by somebody, and nobody knows their ids.
 */
export const installation = once((state) => {
  const found = new Map();
  let expected = 0;
  // Workers are servers to agents and to other servers; here they are their program.
  const programOf = new Map();
  for (const { snapshot } of state.sources.values()) {
    for (const { serverId, knownBy } of snapshot.otherServers ?? []) {
      if (knownBy === "worker") programOf.set(serverId, snapshot.serverId);
    }
  }
  const server = (said) => {
    const id = programOf.get(said) ?? said;
    const fresh = { id, address: "", source: null, link: null, reported: null, workers: 0 };
    if (!found.has(id)) found.set(id, { ...fresh, knownBy: new Set() });
    return found.get(id);
  };
  for (const source of state.sources.values()) {
    if (source.program === "server" || source.snapshot.kind === "ServerSnapshot") {
      const { serverId, serverCount = 0, otherServers = [], relays = [] } = source.snapshot;
      const own = server(serverId ?? nameOf(source));
      own.source = source;
      own.address ||= source.address;
      own.knownBy.add("this page");
      if (source.lost) continue;
      expected = Math.max(expected, serverCount);
      own.workers = otherServers.filter((it) => it.knownBy === "worker").length;
      for (const it of otherServers.filter(({ knownBy }) => knownBy !== "worker")) {
        const other = server(it.serverId);
        other.address ||= it.address;
        other.knownBy.add(KNOWN_BY[it.knownBy] ?? it.knownBy);
      }
      for (const relay of relays) addRelay(server(relay.serverId), relay);
    } else if (source.program === "agent" && !source.lost) {
      for (const link of source.links.values()) {
        if (!link.peerId) continue;
        const other = server(link.peerId);
        other.link ??= link;
        other.knownBy.add("agent link");
      }
    }
  }
  const servers = [...found.values()].sort((a, b) => byName(a.id, b.id));
  // The count has workers as servers of their own.
  const rows = servers.reduce((sum, it) => sum + Math.max(1, it.workers), 0);
  return { servers, agents: agents(state).length, missing: Math.max(0, expected - rows) };
});

function addRelay(other, relay) {
  other.knownBy.add("relay link");
  if (relay.direction !== "to") return;
  other.link = relay;
  other.reported = Math.max(other.reported ?? 0, relay.agentCount ?? 0);
}

/** Whether the page has the server's own data. */
function isSeen({ source }) {
  return source !== null && source.known && !source.lost;
}

function stateOf(it) {
  return it.source ? readiness(it.source) : { level: "idle", text: "known, not seen" };
}

function agentsOf(it) {
  if (isSeen(it)) return count(it.source.snapshot.agents?.length ?? 0);
  return it.reported === null ? "unknown" : count(it.reported);
}

function linkOf({ link }) {
  if (!link) return "–";
  const { level, text } = standing(link);
  return level === "ok" ? roundTrip(link.rttSeconds) : text;
}

const COLUMNS = [
  said("Server", (it) => it.id || "–", (it) => it.source?.lost || it.address),
  stands("State", stateOf),
  said("Known from", (it) => [...it.knownBy].join(", ")),
  figure("Agents", agentsOf),
  said("Agents from", (it) => (isSeen(it) ? "this page" : it.reported === null ? "–" : "its report")),
  said("Link to it", linkOf),
];

/** What the page does not know, in sentences. Names of peers stay in the table. */
export function unknown({ servers, missing }) {
  const parts = [];
  const unseen = servers.filter((it) => !isSeen(it));
  if (missing) parts.push(`${plural(missing, "more server")} counted, with unknown name.`);
  if (unseen.length) {
    const whose = unseen.length === 1 ? "That server is" : "Those servers are";
    parts.push(`${plural(unseen.length, "server")} not seen.`);
    parts.push(`${whose} not asked: tunnels, certificates and names of agents there are unknown.`);
    parts.push("To see several servers on one page, run: isthmus dashboard --admin=URL --admin=URL");
  }
  if (unseen.some((it) => it.reported)) {
    parts.push("Agents in a server's report may be linked to other servers, too.");
  }
  return parts.join(" ");
}

export class Installation {
  #state;
  #table = new PlainTable(byId("installation-table"));

  constructor(state) {
    this.#state = state;
  }

  draw() {
    const all = installation(this.#state);
    const { servers } = all;
    byId("installation").hidden = !servers.some((it) => it.source);
    const seen = servers.filter(isSeen).length;
    const known = `${seen} of ${plural(servers.length + all.missing, "server")} seen`;
    setText(byId("installation-count"), `${known}, ${plural(all.agents, "agent")} linked`);
    this.#table.columns(COLUMNS);
    this.#table.show(servers.slice(0, MOST), (it) => it.id);
    const more = servers.length - MOST;
    const rest = more > 0 ? `${plural(more, "more server")} not listed. ` : "";
    setText(byId("installation-unknown"), rest + unknown(all));
  }
}
