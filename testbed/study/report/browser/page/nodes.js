// One bar per node: requested caps, or shares of guests that compete by shares, stacked by guest, with the achieved CPU
// use inside each. Only visible rows are updated.

import { jobColour, onJobColour } from "./colours.js";
import { cores, make, memory, setText, shareCores } from "./format.js";

export class Nodes {
  constructor(tell) {
    this.tell = tell;
    this.list = document.getElementById("nodes");
    this.sum = document.getElementById("nodes-sum");
    this.rows = [];
    this.values = [];
    this.due = new Set();
    this.watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const row = this.rows[Number(target.dataset.node)];
        if (!row || row.item !== target) continue;
        row.seen = isIntersecting;
        if (isIntersecting) this.due.add(Number(target.dataset.node));
      }
    }, { root: this.list, rootMargin: "80px" });
    this.list.addEventListener("keydown", (event) => this.#key(event));
    for (const kind of ["pointerover", "focusin"]) this.list.addEventListener(kind, (event) => this.#details(event.target));
    for (const kind of ["pointerleave", "focusout"]) this.list.addEventListener(kind, () => this.tell(null));
  }

  reset(head) {
    this.name(head);
    this.watch.disconnect();
    this.values = [];
    this.due.clear();
    this.rows = head.names.map((name, index) => this.#make(name, index));
    this.list.replaceChildren(...this.rows.map((row) => row.item));
    for (const row of this.rows) this.watch.observe(row.item);
  }

  /** Process the head of the page; it says whether guests compete by shares, which their first sample shows. */
  name(head) {
    this.head = head;
    setText(document.getElementById("key-cap"), head.shares ? "share of the node, by job" : "CPU cap requested, by job");
    setText(document.getElementById("key-use"), head.shares ? "used" : "achieved");
  }

  take(nodes) {
    for (const [index, value] of Object.entries(nodes)) {
      this.values[index] = value;
      this.due.add(Number(index));
    }
  }

  /** Called at every frame: draw visible rows whose values changed. */
  frame() {
    if (!this.due.size) return;
    for (const index of this.due) {
      const row = this.rows[index];
      if (row && !row.seen) continue;
      this.due.delete(index);
      if (row && this.values[index]) this.#draw(row, this.values[index], index);
    }
  }

  /** Called several times per second: show sums over all nodes. */
  total() {
    const known = this.values.filter(Boolean);
    const sum = (of) => known.reduce((total, value) => total + of(value), 0);
    const cap = sum((value) => value.guests.reduce((total, guest) => total + guest[2], 0));
    const used = sum((value) => value.guests.reduce((total, guest) => total + (guest[3] ?? 0), 0));
    const cpus = (this.head?.cpus ?? []).reduce((total, one) => total + one, 0);
    const lost = known.filter((value) => !value.online).length;
    const banks = known.flatMap((value) => value.banks ?? []);
    const banked = banks.length ? `, ${banks.length} ${banks.length === 1 ? "bank has" : "banks have"} ${shareCores(banks.reduce((total, [, one]) => total + one, 0))} cores` : "";
    const kind = this.head?.shares ? "in shares" : "requested";
    setText(this.sum, cpus ? `${lost ? `${lost} lost, ` : ""}${cores(cap)} of ${cores(cpus)} cores ${kind}, ${cores(used)} used${banked}` : "");
  }

  #make(name, index) {
    const cpu = make("div", { className: "cpu" });
    const coresText = make("div", { className: "cores" });
    const held = make("span");
    const fill = make("i");
    const mibText = make("div", { className: "mib" }, held, make("div", { className: "memory" }, fill));
    const title = make("span", { textContent: name }), slot = make("small");
    const label = make("div", { className: "name" }, title, slot);
    const item = make("li", { className: "node", tabIndex: index ? -1 : 0 }, label, cpu, coresText, mibText);
    item.dataset.node = index;
    return { item, name: title, slot, cpu, coresText, held, fill, seen: index < 20, guests: [] };
  }

  #draw(row, value, index) {
    const cpus = this.head.cpus[index] || 1;
    const guests = value.guests;
    const cap = guests.reduce((total, guest) => total + guest[2], 0);
    const used = guests.reduce((total, guest) => total + (guest[3] ?? 0), 0);
    const wide = Math.max(cap, cpus);
    while (row.guests.length < guests.length) {
      const mark = make("b"), text = make("span"), bar = make("i", {}, text, mark);
      row.cpu.append(bar);
      row.guests.push({ bar, mark, text });
    }
    while (row.guests.length > guests.length) row.guests.pop().bar.remove();
    let left = 0;
    guests.forEach(([job, , share, use, verb], at) => {
      const { bar, mark, text } = row.guests[at];
      bar.style.left = `${left / wide * 100}%`;
      bar.style.width = `${share / wide * 100}%`;
      bar.style.backgroundColor = jobColour(job);
      bar.style.color = onJobColour(job);
      if (verb && verb !== "cap") bar.dataset.busy = verb; else delete bar.dataset.busy;
      const label = share / wide > 0.09 ? String(job) : "";
      setText(text, label);
      mark.style.width = `${share > 0 && use !== null ? Math.min(1, use / share) * 100 : 0}%`;
      left += share;
    });
    const total = this.head.memory_mib[index];
    const text = this.head.shares ? shareCores : cores;
    row.coresText.replaceChildren(`${text(used)} `, make("small", { textContent: `/ ${text(cap)}` }));
    const [held, of] = memory(value.held_mib, total);
    row.held.replaceChildren(held, make("small", { textContent: of }));
    row.fill.style.transform = `scaleX(${total ? Math.min(1, value.held_mib / total) : 0})`;
    row.item.classList.toggle("lost", !value.online);
    setText(row.name, `${this.head.names[index]}${value.drained ? " (drained)" : ""}`);
    setText(row.slot, value.slot ?? ""); // under XGE
    if (value.slot) row.item.dataset.slot = value.slot; else delete row.item.dataset.slot;
    row.item.setAttribute("aria-label", this.#words(index).join(", "));
  }

  #words(index) {
    const value = this.values[index];
    if (!value) return [this.head.names[index], "no data yet"];
    const busy = (verb) => (verb && verb !== "cap" ? `, ${verb}` : "");
    return [
      `${this.head.names[index]}${value.online ? (value.drained ? " (drained)" : "") : " (lost)"}`,
      ...(value.slot ? [`slot: ${value.slot}`] : []),
      ...value.guests.slice(0, 8).map(([job, task, cap, used, verb]) => (this.head.shares
        ? `job ${job} task ${task}: share ${shareCores(cap)}, used ${shareCores(used)} cores${busy(verb)}`
        : `job ${job} task ${task}: cap ${cores(cap)}, achieved ${cores(used)} cores${busy(verb)}`)),
      ...(value.guests.length > 8 ? [`and ${value.guests.length - 8} more`] : []),
      ...(value.guests.length ? [] : ["no guest"]),
      ...(value.banks ?? []).map(([job, has]) => `bank of job ${job}: has ${shareCores(has)} cores`),
      `memory held ${memory(value.held_mib, this.head.memory_mib[index]).join("")}`,
      ...(value.cpu_frac === null ? [] : [`machine: ${Math.round(value.cpu_frac * 100)} % CPU busy, ${Math.round(value.used_mib)} MiB in use`]),
    ];
  }

  #details(target) {
    const item = target.closest?.(".node");
    if (!item) return;
    const box = item.getBoundingClientRect();
    this.tell(this.#words(Number(item.dataset.node)), box.left + 120, box.bottom + 2);
  }

  #key(event) {
    const item = event.target.closest(".node");
    const next = { ArrowDown: item?.nextSibling, ArrowUp: item?.previousSibling, Home: this.list.firstChild, End: this.list.lastChild }[event.key];
    if (!item || !next) return;
    event.preventDefault();
    item.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }
}
