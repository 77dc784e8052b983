// Reads /ui/events: reconnects by itself, and closes the stream while the tab is hidden.
//
// fetch() rather than EventSource, because a bearer token goes into a header.

// A tab hidden for this long closes its stream: a program serves at most 32 streams, and a browser
// opens six connections to a host for all of its tabs.
const HIDDEN_MS = 60_000;
const SILENT_MS = 40_000; // the feed sends at least ": alive" every 15 s
const WAITS_MS = [500, 1000, 2000, 4000, 8000, 15_000];
const LOST_AFTER = 3; // failed attempts until the state is "lost"
const MOST_CHARS = 64 * 1024 * 1024; // of one event

/** Splits a text stream into events: {event, data}. Comments and partial events give nothing. */
export class EventReader {
  #rest = "";

  take(text) {
    const parts = (this.#rest + text).split("\n\n");
    this.#rest = parts.pop();
    if (this.#rest.length > MOST_CHARS) throw new Error("an event of the feed is too long");
    return parts.map(readEvent).filter((event) => event !== null);
  }
}

function readEvent(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return data.length ? { name, data: JSON.parse(data.join("\n")) } : null;
}

/**
 * Keeps a stream open. `heard(name, data)` gets the events, `changed(status)` the status:
 * {state: "connecting" | "live" | "reconnecting" | "lost" | "resting" | "locked", why, retryAt}.
 * `token` is an object with `headers()`, `refused(hadOne)` (resolves when there is a new one).
 */
export class Feed {
  #heard;
  #changed;
  #token;
  #failures = 0;
  #running = null; // the AbortController of the open stream
  #wake = null; // ends a pause
  #hiding = null;

  constructor({ heard, changed, token }) {
    this.#heard = heard;
    this.#changed = changed;
    this.#token = token;
  }

  /** Read until the page is closed. */
  async start() {
    document.addEventListener("visibilitychange", () => this.#looked());
    for (;;) {
      if (this.#resting) await this.#rest();
      const why = await this.#listen();
      if (this.#resting) continue;
      if (why === null) this.#failures = 0; // a token was entered: retry at once
      else await this.#pause(why);
    }
  }

  /** Retry at once. */
  tryNow() {
    this.#wake?.();
  }

  #resting = false;

  #looked() {
    clearTimeout(this.#hiding);
    if (document.visibilityState === "hidden") {
      this.#hiding = setTimeout(() => {
        this.#resting = true;
        this.#running?.abort();
        this.#wake?.();
      }, HIDDEN_MS);
    } else if (this.#resting) {
      this.#resting = false;
      this.#failures = 0;
      this.#wake?.();
    }
  }

  #rest() {
    this.#changed({ state: "resting", why: "the page was hidden for a while" });
    return new Promise((resolve) => (this.#wake = resolve));
  }

  /** Read one stream to its end; returns why it ended, or null to retry at once. */
  async #listen() {
    if (!this.#failures) this.#changed({ state: "connecting", why: "" });
    const stream = (this.#running = new AbortController());
    const watch = new Watchdog(() => stream.abort());
    try {
      const headers = this.#token.headers();
      const asked = { headers, signal: stream.signal, cache: "no-store" };
      const reply = await fetch("events", asked);
      if (reply.status === 401) {
        watch.stop();
        this.#changed({ state: "locked", why: "the program requires a token" });
        await this.#token.refused("Authorization" in headers);
        return null;
      }
      if (!reply.ok) return sentence(await reply.text()) || `status ${reply.status}`;
      return await this.#read(reply.body, watch);
    } catch (error) {
      return stream.signal.aborted ? "no data for 40 seconds" : said(error);
    } finally {
      watch.stop();
      stream.abort(); // after a parse error the program is still sending
      this.#running = null;
    }
  }

  async #read(body, watch) {
    const events = new EventReader();
    const texts = body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { done, value } = await texts.read();
      if (done) return "the program ended the stream";
      watch.feed();
      for (const { name, data } of events.take(value)) {
        if (name === "hello") {
          this.#failures = 0;
          this.#changed({ state: "live", why: "" });
        }
        this.#heard(name, data);
      }
    }
  }

  #pause(why) {
    this.#failures += 1;
    const base = WAITS_MS[Math.min(this.#failures, WAITS_MS.length) - 1];
    // Jitter: not all pages of a restarted program reconnect at the same moment.
    const wait = base * (0.75 + Math.random() / 2);
    const state = this.#failures >= LOST_AFTER ? "lost" : "reconnecting";
    this.#changed({ state, why, retryAt: performance.now() + wait });
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, wait);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

class Watchdog {
  #bite;
  #timer = null;

  constructor(bite) {
    this.#bite = bite;
    this.feed();
  }

  feed() {
    this.stop();
    this.#timer = setTimeout(this.#bite, SILENT_MS);
  }

  stop() {
    clearTimeout(this.#timer);
  }
}

function sentence(text) {
  return text.trim().replace(/\.$/, "").slice(0, 200);
}

function said(error) {
  // A browser's text for a refused connection is "Failed to fetch".
  return error instanceof TypeError ? "the program is unreachable" : error.message;
}
