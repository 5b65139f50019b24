// Formatting of numbers, and elements from text: names from a run never become markup.

const pad = (value) => String(value).padStart(2, "0");

/** Return seconds as 1:02:03, after days if there are any. */
export function clock(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  const sign = seconds < 0 ? "−" : "";
  const whole = Math.floor(Math.abs(seconds));
  const days = Math.floor(whole / 86400);
  const text = `${Math.floor(whole / 3600) % 24}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`;
  return sign + (days ? `${days} d ` : "") + text;
}

/** Return a duration as text, with fewer digits for longer ones. */
export function length(seconds) {
  if (seconds >= 3600) return `${clock(seconds)} h`;
  if (seconds >= 100) return `${Math.round(seconds)} s`;
  return `${seconds.toFixed(seconds >= 10 ? 1 : 2)} s`;
}

export const cores = (value) => (value === null ? "–" : value.toFixed(2));

/** Shares are often less than a hundredth of a core. */
export const shareCores = (value) => (value === null ? "–" : value.toFixed(3));

/** Return an amount of memory as [part, " / total unit"], in GiB if the total is large. */
export function memory(partMib, totalMib) {
  const large = totalMib >= 10240;
  const text = (value) => (large ? (value / 1024).toFixed(1) : String(Math.round(value)));
  return [text(partMib ?? 0), ` / ${text(totalMib)} ${large ? "GiB" : "MiB"}`];
}

/** Return an element with a tag, properties and children; strings become text. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Set a text only if it differs, so that the browser does no work for unchanged elements. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
