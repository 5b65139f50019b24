// The page: it processes the stream, runs the clock, and draws at most once per frame.

import { clock, make, setText } from "./format.js";
import { Gantt } from "./gantt.js";
import { Nodes } from "./nodes.js";
import { Actions, Queue, addLog, showPenalties } from "./panels.js";
import { listen } from "./stream.js";

const SILENT_MS = 15000;
const get = (id) => document.getElementById(id);
const STATE_WORDS = {
  running: "Running", finished: "Finished", aborted: "Aborted", preparing: "Preparing", "no run yet": "No run yet", paused: "Paused", resuming: "Resuming", recovering: "Recovering", stopping: "Stopping", silent: "No new data",
};
let head = null, now_s = 0, skew_ms = 0, news_ms = 0, eta = null, ticked = 0, shutOut = false, linked = true;

const serverNow = () => Date.now() + skew_ms;
const silent = () => head?.state === "running" && serverNow() - news_ms > SILENT_MS;

/** Return the wall seconds since the replay began; they advance between messages while the run goes on. */
function now() {
  if (head?.state !== "running" || head.zero_unix_ms === null || silent() || !linked) return now_s;
  return Math.max(now_s, (serverNow() - head.zero_unix_ms) / 1000);
}

function tell(words, x = 0, y = 0) {
  const tip = get("tip");
  tip.hidden = !words;
  if (!words) return;
  const [title, ...lines] = words;
  tip.replaceChildren(make("strong", { textContent: title }), ...lines.map((line) => make("div", { textContent: line })));
  const left = Math.min(Math.max(8, x), innerWidth - tip.offsetWidth - 8);
  const top = y + tip.offsetHeight + 8 > innerHeight ? y - tip.offsetHeight - 34 : y;
  tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(Math.max(8, top))}px)`;
}

const gantt = new Gantt(now, tell);
const nodes = new Nodes(tell);
const queue = new Queue();
const actions = new Actions(now);

function showHead() {
  setText(get("scenario"), head.scenario || (head.run ? head.run : "Waiting for a run"));
  setText(get("policy"), head.policy ? `${head.policy}  ·  ${head.run}` : "This page shows the next run as soon as it begins.");
  document.title = head.scenario ? `${STATE_WORDS[head.state] ?? head.state}: ${head.scenario}` : "testbed";
}

function showState() {
  const state = silent() ? "silent" : head.state;
  const pill = get("state");
  pill.dataset.state = state;
  const since = silent() ? ` for ${clock((serverNow() - news_ms) / 1000)}` : "";
  setText(pill, `${STATE_WORDS[state] ?? state}${since}${head.state === "aborted" && head.reason ? `: ${head.reason}` : ""}`);
}

function take(kind, data) {
  const skew = data.unix_ms - Date.now();
  if (kind === "snapshot" || Math.abs(skew - skew_ms) > 1000) skew_ms = skew;
  news_ms = data.news_unix_ms;
  if (kind === "beat") return;
  const fresh = kind === "snapshot";
  now_s = data.now_s ?? 0;
  if (data.head) {
    const named = fresh || JSON.stringify(head?.names) !== JSON.stringify(data.head.names);
    head = { names: [], cpus: [], memory_mib: [], kinds: [], time_scale: 1, zero_unix_ms: null, ...data.head };
    showHead();
    if (fresh) gantt.reset(head, data.kept_spans ?? 1000);
    gantt.head = head;
    if (named) nodes.reset(head);
    else nodes.name(head);
  }
  if (data.queue || fresh) eta = queue.take(data.queue ?? { total: 0, counts: { coming: 0, waiting: 0, running: 0, paused: 0, done: 0, failed: 0 }, waiting: [], paused: [], eta_s: null });
  if (data.nodes) nodes.take(data.nodes);
  gantt.spans.take(data.closed, data.open, data.gone);
  if (data.closed || data.open || data.gone || data.head) gantt.change();
  if (data.actions || fresh) actions.take(data.actions ?? { count: 0, rows: [] }, head.names);
  if (data.reschedulings || fresh) showPenalties(data.reschedulings ?? { counts: {}, penalty_s: 0, phases: [], last: [] });
  if (data.log || fresh) addLog(data.log ?? [], head.time_scale, fresh);
  ticked = 0;
}

function showLink(link) {
  shutOut = link === "shut out" || (shutOut && link === "lost");
  linked = link === "live";
  setText(get("link"), linked ? "" : shutOut ? "the token has changed: open the address that testbed dashboard printed" : "reconnecting…");
}

function tick() {
  if (!head) return;
  showState();
  const at_s = Math.max(0, now());
  const begun = head.zero_unix_ms !== null;
  setText(get("trace-clock"), begun ? clock(at_s * head.time_scale) : "–");
  setText(get("wall-clock"), begun ? clock(at_s) : "–");
  setText(get("eta"), eta === null || head.state !== "running" ? "–" : `≈ ${clock(eta)}`);
  nodes.total();
  actions.tick();
}

function frame(time) {
  requestAnimationFrame(frame);
  gantt.frame();
  nodes.frame();
  if (time - ticked < 250) return;
  ticked = time;
  tick();
}

listen(take, showLink);
requestAnimationFrame(frame);
