// The shapes of charts: turns series of values into SVG paths. Pure.
//
// A shape takes series and a width, and gives {paths: [{key, class, d}], lines: [[y, value]]}; a
// line without a value is the zero.

import { niceTop, niceTopOfBytes } from "./units.js";

export const COLUMNS = 90;
export const HEIGHT = 72;
const LEAST_S = 0.0001;

export const SHAPES = {
  /** Bytes: one direction above the line, the other below it. */
  mirror([up, down], width) {
    const top = niceTopOfBytes(Math.max(...up.values, ...down.values, 1024));
    const middle = HEIGHT / 2;
    const paths = [up, down].map((series, index) => {
      const scale = (value) => round(middle + (index ? 1 : -1) * (value / top) * (middle - 2));
      const d = area(series.values, width, scale, middle);
      return { key: series.name, class: `area ${series.class}`, d };
    });
    return { paths, lines: [[2, top], [middle, null], [HEIGHT - 2, top]] };
  },
  area([series], width) {
    const top = niceTop(Math.max(...series.values, 4));
    const scale = (value) => y(value, top, HEIGHT);
    const d = area(series.values, width, scale, HEIGHT - 1);
    return { paths: [{ key: "area", class: "area plain", d }], lines: halves(top) };
  },
  /** Durations on a logarithmic scale from 0.1 ms; each series is drawn over the one before it. */
  durations(all, width) {
    const most = Math.max(0.01, ...all.flatMap(({ values }) => values));
    const top = 10 ** Math.ceil(Math.log10(most) - 1e-9);
    const decades = Math.log10(top / LEAST_S);
    const scale = (value) => y(Math.max(0, Math.log10(value / LEAST_S)), decades, HEIGHT);
    const paths = all.map(({ name, class: names, values }) => {
      return { key: name, class: `area ${names}`, d: area(values, width, scale, HEIGHT - 1) };
    });
    return { paths, lines: [[2, top], [round(HEIGHT / 2), Math.sqrt(top * LEAST_S)], [HEIGHT - 1, null]] };
  },
  columns(all, width) {
    const sums = new Array(COLUMNS).fill(0);
    for (const { values } of all) values.forEach((value, index) => (sums[index] += value ?? 0));
    const top = niceTop(Math.max(...sums, 4));
    const each = width / COLUMNS;
    const base = new Array(COLUMNS).fill(0);
    const paths = all.map(({ name, class: names, values }) => {
      let d = "";
      values.forEach((value, index) => {
        if (!value) return;
        const from = y(base[index], top, HEIGHT);
        base[index] += value;
        const to = y(base[index], top, HEIGHT);
        d += `M${round(index * each + 0.5)},${from}V${to}h${round(Math.max(1, each - 1))}V${from}Z`;
      });
      return { key: name, class: `column ${names}`, d };
    });
    return { paths, lines: halves(top) };
  },
};

const halves = (top) => [[2, top], [round(HEIGHT / 2), top / 2], [HEIGHT - 1, null]];

/** Steps, not slopes: a column is a mean over ten seconds or more, without values in between. */
function area(values, width, scale, zero) {
  const each = width / COLUMNS;
  let d = "";
  let open = false;
  values.forEach((value, index) => {
    if (value === null) {
      if (open) d += `V${zero}Z`;
      open = false;
      return;
    }
    d += open ? `V${scale(value)}` : `M${round(index * each)},${zero}V${scale(value)}`;
    d += `H${round((index + 1) * each)}`;
    open = true;
  });
  return open ? `${d}V${zero}Z` : d;
}

/** The vertical position of a value, between the bottom and the top. */
export function y(value, top, height) {
  return round(height - 1 - (value / top) * (height - 3));
}

/** Round to tenths of a pixel, for short paths. */
export function round(value) {
  return Math.round(value * 10) / 10;
}
