// The layout of the live picture. Pure: takes a graph and a width, gives positions and paths.

const NODE = { height: 40, gap: 5, least: 96, most: 230 };
const LINE = { height: 34, gap: 6 }; // a node in a layer: one line of text
const END = 100; // clients and targets have short texts
const NETWORK = 150;
const WAY = 44; // the least space for lines between two columns
const MARGIN = 2;
const LANE = 2.5; // how far the two directions are from the middle of a way

/** {nodes: with x, y, width; edges: with d and lanes; height: the least it needs; rows}. */
export function place(graph, { width, room, wide }) {
  return wide ? inColumns(graph, width, room) : inLayers(graph, width);
}

function inColumns({ columns, edges }, width, room) {
  const rows = Math.max(1, ...columns.map((nodes) => nodes.length));
  const least = rows * (NODE.height + NODE.gap) + NODE.gap;
  const height = Math.max(least, room);
  const widths = widthsOf(columns, width - 2 * MARGIN);
  const taken = widths.reduce((sum, one) => sum + one, 0);
  const gap = Math.max(0, width - 2 * MARGIN - taken) / Math.max(1, columns.length - 1);
  const places = new Map();
  let x = MARGIN;
  columns.forEach((nodes, index) => {
    const step = Math.min((height - NODE.gap) / nodes.length, 72);
    const top = (height - step * nodes.length) / 2 + (step - NODE.height) / 2;
    nodes.forEach((node, row) => {
      places.set(node.key, { ...node, x, y: top + row * step, width: widths[index] });
    });
    x += widths[index] + gap;
  });
  const drawn = edges.map((edge) => {
    const from = places.get(edge.from);
    const to = places.get(edge.to);
    const start = [from.x + from.width, from.y + NODE.height / 2];
    const same = from.x === to.x; // one server relays through another
    const end = [same ? start[0] : to.x, to.y + NODE.height / 2];
    const draw = same ? bow : curve;
    const at = (off) => draw([start[0], start[1] + off], [end[0], end[1] + off]);
    return { ...edge, d: at(0), lanes: [at(-LANE), at(LANE)] };
  });
  return { nodes: [...places.values()], edges: drawn, height: least, rows };
}

/** Ends are narrow; the other columns share what the lines leave. */
function widthsOf(columns, width) {
  const fixed = columns.map((nodes) => {
    if (nodes.some((node) => node.level !== "end")) return 0;
    return Math.min(nodes.some((node) => node.filter) ? NETWORK : END, width / 6);
  });
  const ends = fixed.reduce((sum, one) => sum + one, 0);
  const others = fixed.filter((one) => !one).length;
  const left = width - ends - WAY * (columns.length - 1);
  const own = Math.min(NODE.most, Math.max(NODE.least, left / Math.max(1, others)), width * 0.26);
  return fixed.map((one) => one || own);
}

function curve([x1, y1], [x2, y2]) {
  const bend = (x2 - x1) * 0.45;
  return `M${n(x1)},${n(y1)}C${n(x1 + bend)},${n(y1)} ${n(x2 - bend)},${n(y2)} ${n(x2)},${n(y2)}`;
}

/** A line between two nodes of one column, to the right of both. */
function bow([x1, y1], [x2, y2]) {
  const out = x1 + WAY * 0.8;
  return `M${n(x1)},${n(y1)}C${n(out)},${n(y1)} ${n(out)},${n(y2)} ${n(x2)},${n(y2)}`;
}

/**
 * Layers from top to bottom, one node a row. The lines of a layer run down its left side, enter
 * each node from there, and leave to the next layer on the right.
 */
function inLayers({ columns, edges }, width) {
  const inset = 30;
  const places = new Map();
  let y = MARGIN;
  columns.forEach((nodes, layer) => {
    if (layer) y += 16;
    for (const node of nodes) {
      places.set(node.key, { ...node, layer, x: inset, y, width: width - 2 * inset });
      y += LINE.height + LINE.gap;
    }
  });
  const drawn = edges.map((edge) => {
    const from = places.get(edge.from);
    const to = places.get(edge.to);
    const right = from.layer % 2 === 1;
    const at = (off) => trunk(from, to, right ? width - 12 + off : 12 + off, off, right);
    return { ...edge, d: at(0), lanes: [at(-LANE), at(LANE)] };
  });
  return { nodes: [...places.values()], edges: drawn, height: y, rows: Infinity };
}

function trunk(from, to, x, off, right) {
  const edge = (node) => (right ? node.x + node.width : node.x);
  const middle = (node) => node.y + LINE.height / 2 + off;
  const [y1, y2] = [middle(from), middle(to)];
  const turn = Math.min(10, Math.abs(y2 - y1) / 2) * Math.sign(y2 - y1 || 1);
  const back = right ? -10 : 10;
  return (
    `M${n(edge(from))},${n(y1)}H${n(x + back)}Q${n(x)},${n(y1)} ${n(x)},${n(y1 + turn)}` +
    `V${n(y2 - turn)}Q${n(x)},${n(y2)} ${n(x + back)},${n(y2)}H${n(edge(to))}`
  );
}

function n(value) {
  return Math.round(value * 10) / 10;
}
