// Spans by node, in lanes so that they do not overlap. A row is [job, task, node, begin s, end s or null, kind, yield].

export const JOB = 0, TASK = 1, NODE = 2, BEGIN = 3, END = 4, KIND = 5, YIELD = 6, LANE = 7;
const key = (row) => `${row[JOB]}/${row[TASK]}`;

class NodeSpans {
  constructor() {
    this.closed = [];  // in order of their ends
    this.open = new Map();
    this.owners = [];  // for each lane: its latest task, and the time at which that task left
  }

  /** Return the lane of a task: its present lane if it has one, else the first free lane. */
  lane(row) {
    const name = key(row);
    let found = this.owners.findIndex((owner) => owner.name === name);
    if (found < 0) found = this.owners.findIndex((owner) => owner.left <= row[BEGIN] + 1e-6);
    if (found < 0) found = this.owners.push({ name, left: Infinity }) - 1;
    this.owners[found].name = name;
    this.owners[found].left = row[END] ?? Infinity;
    return found;
  }
}

export class Spans {
  constructor(kept) {
    this.kept = kept;
    this.nodes = [];
    this.where = new Map();  // task with an open span -> its node
    this.count = 0;
    this.first = 0;  // earlier spans were dropped
  }

  node(index) {
    while (this.nodes.length <= index) this.nodes.push(new NodeSpans());
    return this.nodes[index];
  }

  /** Process closed rows, open rows, and tasks without an open row. */
  take(closed = [], open = [], gone = []) {
    for (const row of closed) this.leave(key(row));
    for (const [job, task] of gone) this.leave(`${job}/${task}`);
    for (const row of [...closed, ...open].sort((a, b) => a[BEGIN] - b[BEGIN])) {
      row[LANE] = this.node(row[NODE]).lane(row);
    }
    for (const row of closed) this.node(row[NODE]).closed.push(row);
    this.count += closed.length;
    for (const row of open) {
      this.leave(key(row));
      this.node(row[NODE]).open.set(key(row), row);
      this.where.set(key(row), row[NODE]);
    }
    if (this.count > this.kept * 1.1) this.forget();
  }

  leave(name) {
    const at = this.where.get(name);
    if (at === undefined) return;
    const node = this.nodes[at];
    const row = node.open.get(name);
    node.open.delete(name);
    this.where.delete(name);
    const owner = node.owners.find((one) => one.name === name);
    if (owner && owner.left === Infinity) owner.left = row[BEGIN];
  }

  /** Drop the oldest rows, so that memory does not grow with the length of the run. */
  forget() {
    const ends = this.nodes.flatMap((node) => node.closed.map((row) => row[END])).sort((a, b) => a - b);
    this.first = ends[this.count - this.kept];
    this.count = 0;
    for (const node of this.nodes) {
      node.closed = node.closed.filter((row) => row[END] > this.first);
      this.count += node.closed.length;
    }
  }

  /** Return the index of the first closed row that ends after a time. */
  static from(closed, time) {
    let low = 0, high = closed.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (closed[middle][END] > time) high = middle; else low = middle + 1;
    }
    return low;
  }
}
