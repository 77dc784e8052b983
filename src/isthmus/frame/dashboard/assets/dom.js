// Makes elements. Text from peers enters the page here, and only as text: nothing in these files
// parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element: `text` becomes textContent, `class` the class, `on` listeners, all else attributes.
 * The names of attributes come from this code, never from data.
 */
export function el(tag, options = {}, ...children) {
  return filled(document.createElement(tag), options, children);
}

/** The same for SVG. */
export function svg(tag, options = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), options, children);
}

function filled(node, { text, on, class: names, ...attributes }, children) {
  if (names) node.setAttribute("class", names);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) setAttr(node, name, value);
  for (const [name, hear] of Object.entries(on ?? {})) node.addEventListener(name, hear);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Text from a peer, isolated so that its writing direction affects nothing else. */
export function peerText(text, names = "") {
  return el("bdi", { class: `peer ${names}`.trim(), text, title: text });
}

/** Write a text only if it changed: an unchanged page needs no layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Write text from a peer into a `peerText`. */
export function setPeer(node, text) {
  setText(node, text);
  setAttr(node, "title", text);
}

/** Set an attribute if it changed; null and false remove it. */
export function setAttr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else {
    const text = value === true ? "" : String(value);
    if (node.getAttribute(name) !== text) node.setAttribute(name, text);
  }
}

/** Set the class if it changed. */
export function setClass(node, names) {
  setAttr(node, "class", names);
}

/**
 * Make the children of a parent match the items: one child for each key, in order. A child that
 * stays is the same element, so focus, hover and selection survive an update.
 */
export function keyed(parent, items, keyOf, make, fill) {
  const had = parent.keyedChildren ?? new Map();
  const has = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (has.has(key)) continue; // peers' names may not be unique
    const child = had.get(key) ?? make(item);
    fill?.(child, item);
    has.set(key, child);
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
  }
  for (const [key, child] of had) if (has.get(key) !== child) child.remove();
  parent.keyedChildren = has;
}

/** The element with this id; index.html has them all. */
export function byId(id) {
  return document.getElementById(id);
}

/** The mark of a level: a shape beside the colour, for readers who do not see the colour. */
const MARKS = { ok: "●", warn: "▲", bad: "✕", idle: "○", half: "◐", drain: "◇" };

/** A state as text, with its mark and colour. */
export function badge(level, text, mark = MARKS[level]) {
  return el(
    "span",
    { class: `badge ${level}` },
    el("span", { class: "mark", "aria-hidden": "true", text: mark }),
    el("span", { class: "badge-text", text }),
  );
}

/** Update a badge if it changed. */
export function setBadge(node, level, text, mark = MARKS[level]) {
  setClass(node, `badge ${level}`);
  setText(node.firstChild, mark);
  setText(node.lastChild, text);
}
