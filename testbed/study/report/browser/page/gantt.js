// The Gantt chart: a canvas that draws only visible spans, and only when a pixel would change.

import { HATCHED, ON_YIELDS, SHADES, YIELDS, hatch, shade, theme } from "./colours.js";
import { clock, length, make } from "./format.js";
import { BEGIN, END, JOB, KIND, LANE, NODE, Spans, TASK, YIELD } from "./spans.js";

const AXIS_PX = 26, GAP_PX = 3, MOST_PX = 460;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
const WINDOWS = [["1 min", 60], ["5 min", 300], ["30 min", 1800], ["All", null]];
const WORDS = {
  run: "runs", start: "is started", save: "is saved", wait: "waits for its restore", transfer: "is transferred",
  restore: "is restored", live: "migrates live",
};
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

export class Gantt {
  constructor(now, tell) {
    this.now = now;  // function: present wall seconds since the replay began
    this.tell = tell;  // function: show details at a position
    this.spans = new Spans(1000);
    this.head = null;
    this.span_s = null;
    this.end_s = null;  // null: the chart follows the clock
    this.chosen = null;
    this.dirty = true;
    this.drawn = { t0: 0, t1: 1, now: -1 };
    this.slow = matchMedia("(prefers-reduced-motion: reduce)");
    this.canvas = document.getElementById("gantt");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.view = document.getElementById("gantt-view");
    this.scroll = document.getElementById("gantt-scroll");
    this.size = document.getElementById("gantt-size");
    this.live = document.getElementById("gantt-live");
    this.buckets = Array.from({ length: SHADES }, () => []);
    this.#controls();
    this.#pointer();
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.canvas.addEventListener("blur", () => this.#choose(null));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.retheme());
    new ResizeObserver(() => this.layout()).observe(this.view);
    this.retheme();
  }

  /** Start again with a whole page. */
  reset(head, kept) {
    this.head = head;
    this.spans = new Spans(kept);
    this.chosen = null;
    this.end_s = null;
    this.rows = 0;
  }

  change() {
    this.dirty = true;
  }

  retheme() {
    this.colours = theme();
    this.ratio = 0;
    this.layout();
    this.#legend();
  }

  /** Fit the row height to the number of nodes: few rows are tall, many rows are low and scroll. */
  layout() {
    const nodes = this.head?.names.length ?? 0;
    const lanes = this.spans.nodes.reduce((most, node) => Math.max(most, node.owners.length), 1);
    this.width = this.view.clientWidth;
    const ratio = devicePixelRatio || 1;
    const tall = nodes > 16 ? Math.max(18, Math.min(8, lanes) * 5 + GAP_PX) : Math.min(72, Math.max(34, 210 / (nodes || 1), lanes * 13));
    this.row = Math.round(tall);
    const height = AXIS_PX + Math.max(90, Math.min(MOST_PX, this.row * nodes));
    this.gutter = this.width < 560 ? 62 : 96;
    if (this.height !== height) this.view.style.height = `${height}px`;
    this.size.style.height = `${this.row * nodes}px`;
    if (this.height !== height || this.ratio !== ratio || this.canvas.width !== Math.round(this.width * ratio)) {
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.patterns = Object.fromEntries(HATCHED.map((kind) => [kind, hatch(this.context, kind, this.colours, ratio)]));
    }
    this.height = height;
    this.ratio = ratio;
    this.lanes = lanes;
    this.dirty = true;
  }

  /** Return the visible time range in wall seconds: [from, to]. */
  range() {
    const now = this.now();
    const end = this.end_s ?? Math.max(now, 0);
    const first = this.spans.first;
    if (this.span_s === null) return [first, Math.max(end, first + 10)];
    const begin = this.end_s === null ? Math.max(first, end - this.span_s) : end - this.span_s;
    return [begin, begin + this.span_s];
  }

  /** Called at every frame: draw if something would look different. */
  frame() {
    const [t0, t1] = this.range();
    const now = this.now();
    const moved_s = Math.max(Math.abs(t1 - this.drawn.t1), Math.abs(t0 - this.drawn.t0), Math.min(now, t1) - this.drawn.now);
    const shift_px = moved_s / (t1 - t0) * this.width;
    const patient = this.slow.matches && performance.now() - (this.drawn.at ?? 0) < 1000;
    if (!this.dirty && (shift_px < 1 || patient)) return false;
    const most = this.spans.nodes.reduce((many, node) => Math.max(many, node.owners.length), 1);
    if (most > this.lanes || this.rows !== this.head?.names.length) {
      this.rows = this.head?.names.length;
      this.layout();
    }
    this.dirty = false;
    this.drawn = { t0, t1, now: Math.min(now, t1), at: performance.now() };
    this.#draw(t0, t1);
    return true;
  }

  #draw(t0, t1) {
    const pen = this.context, { width, height, gutter, row, colours } = this;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.fillStyle = colours.card;
    pen.fillRect(0, 0, width, height);
    if (!this.head) return;
    const scale = (width - gutter - 1) / (t1 - t0);
    this.#axis(pen, t0, t1, scale);
    const top = this.scroll.scrollTop;
    const first = Math.max(0, Math.floor(top / row));
    const last = Math.min(this.head.names.length - 1, Math.floor((top + height - AXIS_PX) / row));
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS_PX, width, height - AXIS_PX);
    pen.clip();
    this.#names(pen, first, last, top);
    pen.beginPath();
    pen.rect(gutter, AXIS_PX, width - gutter, height - AXIS_PX);
    pen.clip();
    const labels = [], hatched = [];
    for (let index = first; index <= last; index++) this.#collect(index, top, t0, t1, scale, labels, hatched);
    this.#fill(pen, labels, hatched);
    if (this.chosen) this.#mark(pen, this.chosen, t0, t1, scale, top);
    pen.restore();
  }

  #axis(pen, t0, t1, scale) {
    const { width, height, gutter, colours } = this;
    const rate = this.head.time_scale;
    const step = STEPS_S.find((one) => one / rate * scale >= 84) ?? 86400 * Math.ceil(84 / scale * rate / 86400);
    pen.fillStyle = colours.plot;
    pen.fillRect(gutter, AXIS_PX, width - gutter, height - AXIS_PX);
    pen.font = `11px ${FONT}`;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.fillStyle = colours.muted;
    pen.fillText(width < 560 ? "Trace" : "Trace time", 0, 11);
    for (let at = Math.ceil(t0 * rate / step) * step; at <= t1 * rate; at += step) {
      const x = gutter + (at / rate - t0) * scale;
      pen.fillStyle = colours["plot-line"];
      pen.fillRect(Math.round(x), AXIS_PX, 1, height - AXIS_PX);
      const text = clock(at), wide = pen.measureText(text).width;
      if (at < 0 || x + wide / 2 > width || x - wide / 2 < gutter - 8) continue;
      pen.fillStyle = colours.muted;
      pen.fillText(text, x - wide / 2, 11);
    }
  }

  #names(pen, first, last, top) {
    const { width, gutter, row, colours } = this;
    pen.font = `${row < 20 ? 11 : 12}px ${FONT}`;
    for (let index = first; index <= last; index++) {
      const y = AXIS_PX + index * row - top;
      pen.fillStyle = colours.line;
      pen.fillRect(0, Math.round(y + row) - 1, width, 1);
      pen.fillStyle = colours.text;
      pen.fillText(this.#short(pen, this.head.names[index]), 0, y + row / 2);
    }
  }

  #short(pen, name) {
    const most = this.gutter - 8;
    if (pen.measureText(name).width <= most) return name;
    let end = name.length - 1;
    while (end > 1 && pen.measureText(`${name.slice(0, end)}…`).width > most) end--;
    return `${name.slice(0, end)}…`;
  }

  /** Return the position of a lane of a node: [top, height]. */
  #place(index, lane, top) {
    const count = this.#laneCount(index);
    const high = (this.row - GAP_PX - 1) / count;
    return [AXIS_PX + index * this.row - top + 1.5 + lane * high, Math.max(1.5, high - (high > 6 ? 1 : 0.5))];
  }

  #laneCount(index) {
    return Math.max(1, this.spans.nodes[index]?.owners.length ?? 1);
  }

  #collect(index, top, t0, t1, scale, labels, hatched) {
    const node = this.spans.nodes[index];
    if (!node) return;
    const reached = new Array(node.owners.length).fill(-Infinity);
    const kinds = this.head.kinds;
    const add = (rowOfSpan, end) => {
      if (rowOfSpan[BEGIN] > t1 || end < t0) return;
      const x = this.gutter + Math.max(-4, (rowOfSpan[BEGIN] - t0) * scale);
      const right = this.gutter + (Math.min(end, t1) - t0) * scale;
      const kind = kinds[rowOfSpan[KIND]];
      const lane = rowOfSpan[LANE];
      if (right - reached[lane] < 0.5 && kind === "run") return;  // within a pixel that is drawn already
      reached[lane] = right;
      const [y, high] = this.#place(index, lane, top);
      const wide = Math.max(kind === "run" ? 1 : 2, right - x - (right - x > 3 ? 0.75 : 0));
      if (kind !== "run") hatched.push([kind, x, y, wide, high]);
      else this.buckets[shade(rowOfSpan[YIELD])].push(x, y, wide, high);
      if (high >= 11 && wide > 26) labels.push([rowOfSpan, kind, x, y, wide, high]);
    };
    const { closed } = node;
    for (let at = Spans.from(closed, t0); at < closed.length; at++) add(closed[at], closed[at][END]);
    const now = this.now();
    for (const open of node.open.values()) add(open, now);
  }

  #fill(pen, labels, hatched) {
    this.buckets.forEach((rectangles, index) => {
      if (!rectangles.length) return;
      pen.beginPath();
      for (let at = 0; at < rectangles.length; at += 4) {
        pen.rect(rectangles[at], rectangles[at + 1], rectangles[at + 2], rectangles[at + 3]);
      }
      pen.fillStyle = YIELDS[index];
      pen.fill();
      if (this.row > 20) {
        pen.strokeStyle = this.colours["span-edge"];
        pen.lineWidth = 0.5;
        pen.stroke();
      }
      rectangles.length = 0;
    });
    for (const [kind, x, y, wide, high] of hatched) {
      pen.fillStyle = this.patterns[kind];
      pen.fillRect(x, y, wide, high);
      if (high > 6) {
        pen.strokeStyle = this.colours.hatch;
        pen.lineWidth = 0.75;
        pen.strokeRect(x + 0.4, y + 0.4, Math.max(0.5, wide - 0.8), high - 0.8);
      }
    }
    pen.font = `600 11px ${FONT}`;
    for (const [span, kind, x, y, wide, high] of labels) {
      if (kind !== "run") continue;
      const from = Math.max(x, this.gutter) + 5;
      const text = String(span[JOB]);
      if (from + pen.measureText(text).width > x + wide - 2) continue;
      pen.fillStyle = ON_YIELDS[shade(span[YIELD])];
      pen.fillText(text, from, y + high / 2 + 0.5);
    }
  }

  #mark(pen, span, t0, t1, scale, top) {
    const [y, high] = this.#place(span[NODE], span[LANE], top);
    const x = this.gutter + (span[BEGIN] - t0) * scale;
    const right = this.gutter + (Math.min(span[END] ?? this.now(), t1) - t0) * scale;
    pen.strokeStyle = this.colours.focus;
    pen.lineWidth = 2.5;
    pen.strokeRect(x - 1, y - 1, Math.max(3, right - x + 2), high + 2);
  }

  /** Return the span at a position of the view, or null. */
  at(x, y) {
    const { t0, t1 } = this.drawn;
    const index = Math.floor((y - AXIS_PX + this.scroll.scrollTop) / this.row);
    const node = this.spans.nodes[index];
    if (!node || x < this.gutter || y < AXIS_PX) return null;
    const time = t0 + (x - this.gutter) / (this.width - this.gutter - 1) * (t1 - t0);
    const slack = 2 * (t1 - t0) / this.width;
    const lane = Math.floor((y - AXIS_PX + this.scroll.scrollTop - index * this.row - 1.5) / ((this.row - GAP_PX - 1) / this.#laneCount(index)));
    const fits = (span) => span[LANE] === lane && span[BEGIN] - slack <= time && (span[END] ?? this.now()) + slack >= time;
    for (const span of node.open.values()) if (fits(span)) return span;
    for (let near = Spans.from(node.closed, time - slack); near < node.closed.length; near++) {
      if (fits(node.closed[near])) return node.closed[near];
    }
    return null;
  }

  /** Return the description of a span: a title and lines. */
  words(span) {
    const kind = this.head.kinds[span[KIND]];
    const end = span[END] ?? this.now();
    const rate = this.head.time_scale;
    return [
      `Job ${span[JOB]}, task ${span[TASK]} ${WORDS[kind]}`,
      `on ${this.head.names[span[NODE]] ?? span[NODE]}${span[YIELD] > 0 ? `, yield ${span[YIELD].toFixed(2)}` : ""}`,
      `${length(Math.max(0, end - span[BEGIN]))} wall${span[END] === null ? " so far" : ""}, from trace ${clock(span[BEGIN] * rate)}`,
    ];
  }

  #choose(span) {
    this.chosen = span;
    this.dirty = true;
    if (!span) return this.tell(null);
    const words = this.words(span);
    const box = this.canvas.getBoundingClientRect();
    const { t0, t1 } = this.drawn;
    const x = this.gutter + (Math.max(t0, span[BEGIN]) - t0) / (t1 - t0) * (this.width - this.gutter);
    const [y, high] = this.#place(span[NODE], span[LANE], this.scroll.scrollTop);
    this.live.textContent = words.join(", ");
    this.tell(words, box.left + x, box.top + y + high);
  }

  #key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "+" || event.key === "=" || event.key === "-") this.zoom(event.key === "-" ? 2 : 0.5);
    else if (event.key === "Escape") this.#choose(null);
    else if (event.key === "Home") this.#show(null, null);
    else if (moves[event.key] && this.head) this.#step(...moves[event.key]);
    else return;
    event.preventDefault();
  }

  /** Move the selection to the next span of the node, or to the node above or below at the same time. */
  #step(along, across) {
    const names = this.head.names.length;
    const from = this.chosen;
    const [t0, t1] = this.range();
    const list = (index) => {
      const node = this.spans.nodes[index];
      if (!node) return [];
      return [...node.closed.slice(Spans.from(node.closed, t0)), ...node.open.values()]
        .filter((span) => span[BEGIN] <= t1).sort((a, b) => a[BEGIN] - b[BEGIN] || a[LANE] - b[LANE]);
    };
    if (from && along) {
      const all = list(from[NODE]);
      const at = all.findIndex((span) => span[BEGIN] === from[BEGIN] && span[JOB] === from[JOB] && span[TASK] === from[TASK]);
      return this.#choose(all[Math.min(all.length - 1, Math.max(0, at + along))] ?? null);
    }
    let index = from ? from[NODE] + across : Math.floor(this.scroll.scrollTop / this.row);
    while (index >= 0 && index < names && !list(index).length) index += across || 1;
    if (index < 0 || index >= names) return undefined;
    const top = index * this.row, seen = this.height - AXIS_PX;
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    if (top + this.row > this.scroll.scrollTop + seen) this.scroll.scrollTop = top + this.row - seen;
    const all = list(index);
    const time = from ? from[BEGIN] : t1;
    return this.#choose(all.findLast((span) => span[BEGIN] <= time) ?? all[0]);
  }

  zoom(factor, around = null) {
    const [t0, t1] = this.range();
    const long = Math.min(30 * 86400, Math.max(2, (t1 - t0) * factor));
    const end = around === null ? this.end_s : around + (t1 - around) / (t1 - t0) * long;
    this.#show(long, end !== null && end >= this.now() ? null : end);
  }

  #show(span_s, end_s) {
    this.span_s = span_s;
    this.end_s = end_s;
    this.dirty = true;
    for (const button of document.querySelectorAll("#windows button")) {
      button.setAttribute("aria-pressed", String(end_s === null && button.value === String(span_s)));
    }
  }

  #controls() {
    const group = document.getElementById("windows");
    for (const [label, seconds] of WINDOWS) {
      const button = make("button", { type: "button", value: String(seconds), textContent: label, title: `show ${label.toLowerCase()} of wall time` });
      button.setAttribute("aria-pressed", String(seconds === this.span_s));
      button.addEventListener("click", () => this.#show(seconds, null));
      group.append(button);
    }
  }

  #pointer() {
    const area = this.scroll;
    let from = null;
    const place = (event) => {
      const box = this.view.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    area.addEventListener("scroll", () => this.change(), { passive: true });
    area.addEventListener("pointerdown", (event) => {
      const [t0, t1] = this.range();
      from = event.offsetX < area.clientWidth ? { x: event.clientX, t0, t1, id: event.pointerId } : null;
    });
    area.addEventListener("pointermove", (event) => {
      if (from && event.buttons && Math.abs(event.clientX - from.x) > 4) {
        area.setPointerCapture(from.id);
        area.classList.add("drags");
        const long = from.t1 - from.t0;
        const end = from.t1 - (event.clientX - from.x) / (this.width - this.gutter) * long;
        this.#show(long, end >= this.now() ? null : Math.max(end, this.spans.first + long / 4));
        return;
      }
      const span = this.at(...place(event));
      this.chosen = span;
      this.dirty = true;
      this.tell(span && this.words(span), event.clientX, event.clientY + 14);
    });
    const done = () => { from = null; area.classList.remove("drags"); };
    area.addEventListener("pointerup", done);
    area.addEventListener("pointercancel", done);
    area.addEventListener("pointerleave", () => { this.chosen = null; this.dirty = true; this.tell(null); });
    area.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const [t0, t1] = this.range();
      const [x] = place(event);
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, t0 + (x - this.gutter) / (this.width - this.gutter) * (t1 - t0));
    }, { passive: false });
  }

  #legend() {
    const box = document.getElementById("legend");
    const draw = (width, paint) => {
      const canvas = make("canvas", { width: width * 2, height: 24 });
      canvas.style.width = `${width}px`;
      canvas.style.height = "12px";
      canvas.setAttribute("aria-hidden", "true");
      const pen = canvas.getContext("2d");
      pen.scale(2, 2);
      paint(pen);
      return canvas;
    };
    const ramp = draw(120, (pen) => YIELDS.forEach((colour, index) => {
      pen.fillStyle = colour;
      pen.fillRect(index * 120 / SHADES, 0, 120 / SHADES + 1, 12);
    }));
    box.replaceChildren(make("span", {}, "Yield 0", ramp, "1"), ...HATCHED.map((kind) => make("span", {}, draw(18, (pen) => {
      pen.fillStyle = hatch(pen, kind, this.colours, 2);
      pen.fillRect(0, 0, 18, 12);
    }), kind === "live" ? "live migration" : kind)));
  }
}
