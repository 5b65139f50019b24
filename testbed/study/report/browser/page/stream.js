// The stream of updates, which reconnects automatically.

const SILENCE_MS = 12000;
const AGAIN_MS = 1000;

/** Call `on(kind, data)` for each message, and `onLink("live" | "lost" | "shut out")` for each state of the connection. */
export function listen(on, onLink) {
  let source = null, heard = performance.now(), again = 0;

  function open() {
    clearTimeout(again);
    source?.close();
    heard = performance.now();
    source = new EventSource("/events");
    for (const kind of ["snapshot", "update", "beat"]) {
      source.addEventListener(kind, (event) => {
        heard = performance.now();
        onLink("live");
        on(kind, JSON.parse(event.data));
      });
    }
    source.onerror = lost;
  }

  async function lost() {
    onLink("lost");
    if (source.readyState !== EventSource.CLOSED) return;  // the browser reconnects by itself
    clearTimeout(again);
    again = setTimeout(open, AGAIN_MS);
    const answer = await fetch("/style.css", { cache: "no-store" }).catch(() => null);
    if (answer?.status === 401) onLink("shut out");
  }

  setInterval(() => {
    if (performance.now() - heard < SILENCE_MS) return;
    onLink("lost");
    open();
  }, 2000);
  addEventListener("pagehide", () => source?.close());
  addEventListener("pageshow", (event) => event.persisted && open());
  open();
}
