// Colours: cividis for yields, Okabe-Ito for jobs, and a hatch for each kind of span that has no progress or moves live.

const CIVIDIS = ("#00224e,#002b62,#083370,#243c6e,#35456c,#434e6c,#4f576c,#5b606e,#666970,#727274,#7d7c78,#888578," +
  "#948e77,#a19975,#aea371,#bcae6c,#c8b866,#d6c35d,#e5cf52,#f3db42,#fee838").split(",").map((hex) =>
  [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const JOBS = ["#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#0072b2", "#d55e00"];
export const SHADES = 41;

export const HATCHED = ["start", "save", "wait", "transfer", "restore", "live"];
const LINES = {  // in a tile of 6 x 6
  start: [[0, 3, 6, 3]],
  save: [[-1, 1, 1, -1], [0, 6, 6, 0], [5, 7, 7, 5]],
  restore: [[-1, 5, 1, 7], [0, 0, 6, 6], [5, -1, 7, 1]],
  transfer: [[0, 6, 6, 0], [0, 0, 6, 6]],
  wait: [[1.5, 1.5, 2.5, 2.5], [4.5, 4.5, 5.5, 5.5]],
  live: [[3, 0, 3, 6]],
};

function mix(share) {
  const at = Math.min(1, Math.max(0, share)) * (CIVIDIS.length - 1);
  const low = Math.min(CIVIDIS.length - 2, Math.floor(at));
  return CIVIDIS[low].map((part, index) => Math.round(part + (CIVIDIS[low + 1][index] - part) * (at - low)));
}

const RAMP = Array.from({ length: SHADES }, (_, index) => mix(index / (SHADES - 1)));
export const YIELDS = RAMP.map((parts) => `rgb(${parts.join(" ")})`);
/** Text colours on the shades: white on dark ones, black on light ones. */
export const ON_YIELDS = RAMP.map(([red, green, blue]) => (0.3 * red + 0.59 * green + 0.11 * blue < 115 ? "#fff" : "#000"));

export const shade = (yieldFrac) => Math.round(Math.min(1, Math.max(0, yieldFrac)) * (SHADES - 1));

export const jobColour = (job) => JOBS[job % JOBS.length];
export const onJobColour = (job) => (JOBS[job % JOBS.length] === "#0072b2" ? "#fff" : "#000");

/** Return the present colours of the page, light or dark. */
export function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["text", "muted", "plot", "plot-line", "span-edge", "hatch", "hatch-back", "line", "card", "focus"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Return the hatch pattern of a kind of span, in the pixel ratio of the screen. */
export function hatch(context, kind, colours, ratio) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = Math.max(1, Math.round(6 * ratio));
  const pen = tile.getContext("2d");
  pen.scale(tile.width / 6, tile.width / 6);
  pen.fillStyle = colours["hatch-back"];
  pen.fillRect(0, 0, 6, 6);
  pen.strokeStyle = colours.hatch;
  pen.lineWidth = 1.1;
  for (const [x1, y1, x2, y2] of LINES[kind]) {
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
    pen.stroke();
  }
  const pattern = context.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(6 / tile.width));
  return pattern;
}
