// The state of the page: the sources of the feed, each with tunnels, links, history and records.
//
// Does not touch the DOM. Times are seconds of the page's own clock, by which ages advance.

const SMOOTH = 0.5; // the weight of the newest second in a rate
const QUIET_S = 2.5; // without an event for this long, rates are zero
const MOST_STEPS = 360;
const MOST_RECORDS = 200;
const MOST_BEATS = 60; // seconds of the sparklines in the header

const now = () => performance.now() / 1000;

/** One program: its entry in `hello`, and its last known state. */
class Source {
  snapshot = {};
  tunnels = new Map();
  links = new Map();
  history = [];
  audit = { enabled: false, records: [] };
  lost = "";
  known = false; // a full event has come
  rates = { toTarget: 0, toClient: 0, dials: 0, failed: 0 };
  beats = []; // the last seconds: {toTarget, toClient, tunnels}
  bornAt = 0;
  heardAt = 0;
  #atMs = 0;

  constructor({ id, program, instance, address, canEnd }) {
    Object.assign(this, { id, program, instance, address, canEnd });
  }

  full({ at, snapshot, history, audit }) {
    const { tunnels = [], links = [], ...rest } = snapshot;
    this.tunnels.clear();
    this.links.clear();
    this.snapshot = {};
    this.#head(rest);
    for (const tunnel of tunnels) this.#setTunnel(tunnel);
    for (const link of links) this.#setLink(link);
    this.history = history ?? [];
    this.audit = { enabled: audit?.enabled ?? false, records: [...(audit?.records ?? [])] };
    this.bornAt = now() - (rest.uptimeSeconds ?? 0);
    this.lost = "";
    this.known = true;
    this.#atMs = Date.parse(at);
    this.heardAt = now();
    this.#beat();
  }

  delta({ at, snapshot, tunnels = {}, links = {}, history = [], audit = [] }) {
    const seconds = Math.max(0.05, (Date.parse(at) - this.#atMs) / 1000);
    this.#atMs = Date.parse(at);
    const before = this.snapshot.totals ?? {};
    this.#head(snapshot ?? {});
    this.#totalRates(before, seconds);
    this.#lines(tunnels, this.tunnels, (it) => this.#setTunnel(it), moveTunnel, seconds);
    this.#lines(links, this.links, (it) => this.#setLink(it), moveLink, seconds);
    this.history = [...this.history, ...history].slice(-MOST_STEPS);
    this.audit.records = [...this.audit.records, ...audit].slice(-MOST_RECORDS);
    this.heardAt = now();
    this.#beat();
  }

  /** A second has passed: rates of a silent source become zero. */
  tick() {
    if (!this.known || now() - this.heardAt < QUIET_S) return;
    for (const line of [...this.tunnels.values(), ...this.links.values(), this.rates]) still(line);
    this.rates.dials = this.rates.failed = 0;
    this.#beat();
  }

  #head(changed) {
    const { recentEndings = [], nodeTraffic } = changed;
    for (const entry of [...recentEndings, ...(nodeTraffic?.recentFailures ?? [])]) {
      entry.at = now() - entry.ageSeconds;
    }
    Object.assign(this.snapshot, changed);
  }

  #setTunnel(tunnel) {
    const before = this.tunnels.get(tunnel.id);
    this.tunnels.set(tunnel.id, {
      ...tunnel,
      source: this,
      key: `${this.id}/${tunnel.id}`,
      bornAt: now() - tunnel.ageSeconds,
      toTarget: before?.toTarget ?? 0,
      toClient: before?.toClient ?? 0,
      // The text that the search looks through, in lower case.
      words: [tunnel.requester, tunnel.target, tunnel.agentId, tunnel.frontend, tunnel.state]
        .concat(tunnel.stalled, tunnel.slow, tunnel.connectionId, tunnel.relay, this.instance)
        .join("\n")
        .toLowerCase(),
    });
  }

  #setLink(link) {
    const before = this.links.get(link.id);
    this.links.set(link.id, {
      ...link,
      source: this,
      bornAt: now() - link.ageSeconds,
      toTarget: before?.toTarget ?? 0,
      toClient: before?.toClient ?? 0,
    });
  }

  /** Update tunnels or links, and their rates: the rate of what did not move falls. */
  #lines({ set = [], moved = [], gone = [] }, lines, add, move, seconds) {
    const before = new Map();
    const remember = (id) => lines.has(id) && before.set(id, flows(lines.get(id), this));
    for (const line of set) {
      remember(line.id);
      add(line);
    }
    for (const [id, ...values] of moved) {
      remember(id);
      if (lines.has(id)) move(lines.get(id), values);
    }
    for (const id of gone) lines.delete(id);
    for (const [id, line] of lines) {
      const [toTarget, toClient] = flows(line, this);
      const [oldTarget, oldClient] = before.get(id) ?? [toTarget, toClient];
      line.toTarget = smooth(line.toTarget, (toTarget - oldTarget) / seconds);
      line.toClient = smooth(line.toClient, (toClient - oldClient) / seconds);
    }
  }

  #totalRates(before, seconds) {
    const after = this.snapshot.totals ?? {};
    const per = (key) => Math.max(0, (after[key] ?? 0) - (before[key] ?? 0)) / seconds;
    const rates = this.rates;
    rates.toTarget = smooth(rates.toTarget, per("bytesToTarget"));
    rates.toClient = smooth(rates.toClient, per("bytesToClient"));
    rates.dials = smooth(rates.dials, per("dials"), 0.05);
    rates.failed = smooth(rates.failed, per("dialsFailed"), 0.05);
  }

  #beat() {
    const { toTarget, toClient } = this.rates;
    this.beats.push({ toTarget, toClient, tunnels: this.tunnels.size });
    if (this.beats.length > MOST_BEATS) this.beats.shift();
  }
}

/** All sources, as the feed describes them. */
export class State {
  version = "";
  sources = new Map();
  moment = 0; // counts changes: views of the same moment are the same

  /** Take one event of the feed; false if it is unknown. */
  take(name, data) {
    this.moment += 1;
    if (name === "hello") {
      this.version = data.version;
      this.sources = new Map(data.sources.map((source) => [source.id, new Source(source)]));
      return true;
    }
    const source = this.sources.get(data.source);
    if (!source) return false;
    if (name === "full") source.full(data);
    else if (name === "delta") source.delta(data);
    else if (name === "lost") source.lost = data.why;
    else return false;
    return true;
  }

  tick() {
    this.moment += 1;
    for (const source of this.sources.values()) source.tick();
  }
}

// A tunnel counts bytes by direction. A link counts what this side sent and received; a server
// sends towards targets.
function flows(line, source) {
  if ("bytesToTarget" in line) return [line.bytesToTarget, line.bytesToClient];
  const { sentBytes, receivedBytes } = line;
  return source.program === "agent" ? [receivedBytes, sentBytes] : [sentBytes, receivedBytes];
}

function moveTunnel(tunnel, [toTarget, toClient]) {
  tunnel.bytesToTarget = toTarget;
  tunnel.bytesToClient = toClient;
}

function moveLink(link, [sent, received, streams, held, rtt]) {
  Object.assign(link, { sentBytes: sent, receivedBytes: received, streams, heldBytes: held });
  link.rttSeconds = rtt;
}

function smooth(old, fresh, least = 1) {
  const value = old * (1 - SMOOTH) + Math.max(0, fresh) * SMOOTH;
  return value < least ? 0 : value;
}

function still(line) {
  line.toTarget = line.toClient = 0;
}
