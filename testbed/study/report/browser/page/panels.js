// The panels of the queue, operations in progress, reschedulings and last events.

import { clock, length, make, setText } from "./format.js";

const get = (id) => document.getElementById(id);
const STATES = ["coming", "waiting", "running", "paused", "done", "failed"];
const PHASES = ["save", "wait", "transfer", "restore", "downtime", "first progress"];
const MARKS = { good: "✓", plain: "·", warning: "!", error: "×" };
const LINES = 100;

export class Queue {
  constructor() {
    this.values = {};
    this.parts = {};
    for (const state of STATES) {
      const value = make("dd", { textContent: "0" });
      const item = make("div", {}, make("dt", { textContent: state }), value);
      item.dataset.tint = state;
      get("queue").append(item);
      this.values[state] = value;
    }
    for (const state of ["done", "failed", "running", "paused", "waiting", "coming"]) {
      this.parts[state] = make("i");
      this.parts[state].dataset.tint = state;
      get("queue-bar").append(this.parts[state]);
    }
  }

  take({ total, counts, waiting, paused, eta_s }) {
    for (const state of STATES) {
      setText(this.values[state], String(counts[state]));
      this.parts[state].style.flexGrow = counts[state];
      this.parts[state].hidden = !counts[state];
      this.parts[state].title = `${counts[state]} ${state}`;
    }
    const ended = counts.done + counts.failed;
    const bar = get("queue-bar");
    bar.setAttribute("aria-valuemax", String(Math.max(total, 1)));
    bar.setAttribute("aria-valuenow", String(ended));
    bar.setAttribute("aria-valuetext", STATES.map((state) => `${counts[state]} ${state}`).join(", "));
    setText(get("ended"), total ? String(ended) : "–");
    setText(get("total"), total ? ` / ${total}` : "");
    const list = (word, ids, count) => (ids.length ? [`${word}: ${ids.join(", ")}${count > ids.length ? ", …" : ""}`] : []);
    setText(get("queue-ids"), [...list("Waiting", waiting, counts.waiting), ...list("Paused", paused, counts.paused)].join("   "));
    return eta_s;
  }
}

export class Actions {
  constructor(now) {
    this.now = now;
    this.begun = [];
  }

  take({ count, rows }, names) {
    const busy = rows.filter(([, verb]) => verb !== "cap");
    setText(get("actions-sum"), count ? String(count) : "");
    this.begun = [];
    const items = [...busy, ...rows.filter(([, verb]) => verb === "cap")].slice(0, 8).map(([, verb, job, nodes, many, yieldFrac, begin_s]) => {
      const where = nodes.slice(0, 3).map((node) => names[node] ?? `node ${node}`).join(", ") + (many > 3 ? ` and ${many - 3} more` : "");
      const time = make("span", { className: "time" });
      this.begun.push([time, begin_s]);
      return make("li", {},
        make("span", { className: "verb", textContent: verb }),
        make("span", { className: "what", textContent: `job ${job} on ${where}${yieldFrac ? ` at yield ${yieldFrac.toFixed(2)}` : ""}` }), time);
    });
    if (!items.length) items.push(make("li", { className: "none", textContent: "none" }));
    else if (count > items.length) items.push(make("li", { className: "none", textContent: `and ${count - items.length} more` }));
    get("actions").replaceChildren(...items);
    this.tick();
  }

  tick() {
    for (const [element, begin_s] of this.begun) setText(element, length(Math.max(0, this.now() - begin_s)));
  }
}

function bar(phases, scale, className) {
  const box = make("div", { className });
  phases.forEach((seconds, index) => {
    if (seconds <= 0) return;
    const part = make("i", { className: `phase-${index}`, title: `${PHASES[index]} ${length(seconds)}` });
    part.style.flex = `0 0 ${seconds / scale * 100}%`;
    box.append(part);
  });
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", phases.map((seconds, index) => `${PHASES[index]} ${length(seconds)}`).join(", "));
  return box;
}

export function showPenalties({ counts, penalty_s, phases, last }) {
  const many = Object.entries(counts).map(([reason, count]) => `${count} ${reason}${count === 1 ? "" : "s"}`);
  setText(get("penalty-sum"), many.length ? `${many.join(", ")}; penalty ${length(penalty_s)}` : "");
  if (!many.length) {
    get("penalty").replaceChildren(make("p", { className: "none", textContent: "none so far" }));
    return;
  }
  const list = make("dl", { className: "phase-list" });
  phases.forEach((seconds, index) => {
    if (seconds <= 0) return;
    list.append(make("div", {}, make("i", { className: `phase-${index}` }), make("dt", { textContent: PHASES[index] }), make("dd", { textContent: length(seconds) })));
  });
  const most = Math.max(...last.map((one) => one.penalty_s), 1e-9);
  const rows = last.slice(-6).reverse().map((one) => make("li", {},
    make("span", { textContent: `job ${one.job} ${one.reason}` }),
    bar(one.phases, most, "phases small"), make("span", { className: "value", textContent: length(one.penalty_s) })));
  const total = phases.reduce((sum, one) => sum + one, 0) || 1;
  get("penalty").replaceChildren(bar(phases, total, "phases"), list, make("ul", { className: "last" }, ...rows));
}

export function addLog(lines, rate, fresh) {
  const items = lines.slice(-LINES).reverse().map(([, at_s, level, text]) => {
    const item = make("li", {}, make("time", { textContent: clock(at_s * rate) }), make("b", { textContent: MARKS[level] ?? "·" }), make("span", { textContent: text }));
    item.dataset.level = level;
    return item;
  });
  const list = get("log");
  if (fresh) list.replaceChildren(...items);
  else list.prepend(...items);
  while (list.children.length > LINES) list.lastChild.remove();
}
