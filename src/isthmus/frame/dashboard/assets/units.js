// Formats numbers for people: bytes, rates, durations, days. Pure.

const STEPS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const [MINUTE, HOUR, DAY] = [60, 3600, 86400];

/** "512B", "1.5KiB", "23MiB": as the commands write bytes, see text/units.py. */
export function bytes(count) {
  let value = Math.max(0, count || 0);
  let step = 0;
  while (value >= 1023.5 && step < STEPS.length - 1) {
    value /= 1024;
    step += 1;
  }
  return `${value.toFixed(step > 0 && value < 9.95 ? 1 : 0)}${STEPS[step]}`;
}

/** Bytes per second: "0B/s", "1.5KiB/s"; a dash where the rate is unknown. */
export function rate(perSecond) {
  return perSecond === null || perSecond === undefined ? "-" : `${bytes(perSecond)}/s`;
}

/** "0.4", "12", "1,204": events a second. */
export function perSecond(value) {
  return `${value > 0 && value < 9.95 ? value.toFixed(1) : count(Math.round(value || 0))}/s`;
}

/** "12,041". */
export function count(value) {
  return (value || 0).toLocaleString("en-US");
}

/** "1 agent", "2 agents". */
export function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** "45s", "5m12s", "3h", "12d": an age as kubectl writes it, in two units at most. */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds || 0));
  if (whole < 2 * MINUTE) return `${whole}s`;
  if (whole < 10 * MINUTE) return two(whole, MINUTE, "m", 1, "s");
  if (whole < 3 * HOUR) return `${Math.floor(whole / MINUTE)}m`;
  if (whole < 8 * HOUR) return two(whole, HOUR, "h", MINUTE, "m");
  if (whole < 2 * DAY) return `${Math.floor(whole / HOUR)}h`;
  if (whole < 8 * DAY) return two(whole, DAY, "d", HOUR, "h");
  return `${Math.floor(whole / DAY)}d`;
}

function two(whole, large, name, small, restName) {
  const rest = Math.floor((whole % large) / small);
  return `${Math.floor(whole / large)}${name}${rest ? `${rest}${restName}` : ""}`;
}

/** How long something took: "40µs", "1.5ms", "350ms", "1.5s", "2m10s". */
export function roundTrip(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 0.0001) return `${(Math.max(0, seconds) * 1e6).toFixed(0)}µs`;
  if (seconds < 0.00995) return `${(seconds * 1e3).toFixed(1)}ms`;
  if (seconds < 0.9995) return `${(seconds * 1e3).toFixed(0)}ms`;
  return seconds < 9.95 ? `${seconds.toFixed(1)}s` : duration(seconds);
}

/** "14:03:22" in the reader's own time zone. */
export function clock(when) {
  const date = new Date(when);
  if (Number.isNaN(date.getTime())) return "";
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

const LEVELS = new Set(["ok", "warn", "bad"]);

/**
 * The state of a certificate: the time left in words, and the level, which is the program's own
 * verdict (`standing`). "isthmus doctor" follows the same rule (net/rules_expiry.py): what is
 * "bad" here, and red, fails there. There is no second rule in this page.
 */
export function expiry({ notBefore, notAfter, standing }, now = Date.now()) {
  const days = (Date.parse(notAfter) - now) / 86400000;
  const level = LEVELS.has(standing) ? standing : "idle";
  if (Number.isNaN(days)) return { level, text: "unknown" };
  if (days < 0) return { level, text: `expired ${duration(-days * 86400)} ago` };
  if (Date.parse(notBefore) > now) return { level, text: "not valid yet" };
  const left = days < 1 ? duration(days * 86400) : plural(Math.floor(days), "day");
  return { level, text: `${left} left` };
}

/** The lowest of 1, 2, 4, 6, 8, 10, 20, … that is at least a value: the top of an axis. */
export function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((top) => top >= value * 0.9999);
}

/** The lowest power of two that is at least a number of bytes: the top of an axis of KiB and MiB. */
export function niceTopOfBytes(value) {
  return 2 ** Math.ceil(Math.log2(Math.max(1, value)));
}

/** "node-2" before "node-10". */
export const byName = new Intl.Collator("en", { numeric: true }).compare;

function pad(value) {
  return String(value).padStart(2, "0");
}
