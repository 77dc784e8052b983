// Numbers as people read them: bytes, rates, durations, days. Pure.

const STEPS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** "812 B", "1.24 MB": three digits that matter, so that a column of them keeps its width. */
export function bytes(count) {
  let value = Math.max(0, count || 0);
  let step = 0;
  while (value >= 999.5 && step < STEPS.length - 1) {
    value /= 1000;
    step += 1;
  }
  const digits = step === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)} ${STEPS[step]}`;
}

/** Bytes a second; a dash where nothing moves, which is quieter than a zero. */
export function rate(perSecond) {
  return perSecond >= 0.5 ? `${bytes(perSecond)}/s` : "–";
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

/** "4s", "3m 07s", "5h 12m", "2d 4h": the two units that matter. */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds || 0));
  if (whole < 60) return `${whole}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${pad(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${pad(Math.floor(whole / 60) % 60)}m`;
  return `${Math.floor(whole / 86400)}d ${Math.floor(whole / 3600) % 24}h`;
}

/** A round trip: "0.21 ms", "14 ms", "1.2 s". */
export function roundTrip(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const ms = seconds * 1000;
  if (ms >= 1000) return `${seconds.toFixed(1)} s`;
  return `${ms < 1 ? ms.toFixed(2) : ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
}

/** "14:03:22" in the reader's own time zone. */
export function clock(when) {
  const date = new Date(when);
  if (Number.isNaN(date.getTime())) return "";
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

const LEVELS = new Set(["ok", "warn", "bad"]);

/**
 * How a certificate stands: what is left, in words, and how bad that is, which its program judges by
 * its lifetime (`standing`); older programs do not, and days count.
 */
export function expiry({ notAfter, standing }, now = Date.now()) {
  const days = (Date.parse(notAfter) - now) / 86400000;
  if (Number.isNaN(days)) return { level: "idle", text: "unknown" };
  if (days < 0) return { level: "bad", text: `expired ${duration(-days * 86400)} ago` };
  const left = days < 1 ? duration(days * 86400) : plural(Math.floor(days), "day");
  const byDays = days < 7 ? "bad" : days < 30 ? "warn" : "ok";
  return { level: LEVELS.has(standing) ? standing : byDays, text: `${left} left` };
}

/** The next of 1, 2, 4, 6, 8, 10, 20, … that is not below a value: the top of an axis. */
export function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((top) => top >= value * 0.9999);
}

/** "node-2" before "node-10". */
export const byName = new Intl.Collator("en", { numeric: true }).compare;

function pad(value) {
  return String(value).padStart(2, "0");
}
