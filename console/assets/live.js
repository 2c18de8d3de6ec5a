// Everything here is in addition: each page reads and acts without it.

const button = document.getElementById("live");
const page = location.pathname.split("/").pop() + location.search;
let source, heard = Date.now(), paused = false;
const waiting = new Map();

try { paused = sessionStorage.getItem("paused") === "yes"; } catch { /* no storage: live */ }

// A region that somebody works in waits until that is over.
function busy(region) {
  const active = document.activeElement;
  if (active && active !== document.body && region.contains(active) && active.matches("input, select, textarea, button")) return true;
  if (region.querySelector(":active")) return true; // a press ends where it began
  const selected = document.getSelection();
  if (selected && !selected.isCollapsed && selected.anchorNode && region.contains(selected.anchorNode)) return true;
  return region.querySelector("details[open], input:checked") !== null;
}

function put(id, html) {
  const region = document.getElementById(id);
  if (!region) return;
  if (paused || busy(region)) { waiting.set(id, html); return; }
  waiting.delete(id);
  const active = document.activeElement;
  const link = active && region.contains(active) ? active.getAttribute("href") : null;
  const row = [...region.querySelectorAll("tbody tr")].findIndex((r) => r.classList.contains("chosen"));
  const scrolled = [...region.querySelectorAll(".scroll")].map((s) => s.scrollLeft);
  const holder = document.createElement("template");
  holder.innerHTML = html;
  const next = holder.content.firstElementChild;
  reveal(next);
  region.replaceWith(next);
  next.querySelectorAll(".scroll").forEach((s, i) => { s.scrollLeft = scrolled[i] || 0; });
  if (row >= 0) next.querySelectorAll("tbody tr")[row]?.classList.add("chosen");
  if (link) [...next.querySelectorAll("a")].find((a) => a.getAttribute("href") === link)?.focus({ preventScroll: true });
}

function label() {
  if (!button) return;
  const silent = Math.round((Date.now() - heard) / 1000);
  const text = paused ? (waiting.size ? `Paused, ${waiting.size} waiting` : "Paused") : silent > 20 ? `No news for ${silent} s` : "Live";
  if (button.textContent !== text) button.textContent = text;
  button.classList.toggle("paused", paused);
  button.classList.toggle("lost", !paused && silent > 20);
  document.body.classList.toggle("silent", !paused && silent > 20);
}

function connect() {
  if (source || paused || document.hidden || !document.querySelector("main[data-of]")) return;
  heard = Date.now();
  source = new EventSource("live?of=" + encodeURIComponent(page));
  source.onopen = () => { heard = Date.now(); };
  source.addEventListener("put", (event) => {
    heard = Date.now();
    for (const [id, html] of Object.entries(JSON.parse(event.data))) put(id, html);
    label();
  });
  source.onerror = () => { if (source && source.readyState === EventSource.CLOSED) { source = undefined; setTimeout(connect, 5000); } };
}

function disconnect() { source?.close(); source = undefined; }

function pause() {
  paused = !paused;
  try { sessionStorage.setItem("paused", paused ? "yes" : "no"); } catch { /* it holds for this page */ }
  if (paused) disconnect();
  else { for (const [id, html] of [...waiting]) put(id, html); connect(); }
  label();
}

async function copy(button) {
  const text = button.dataset.copy;
  let done = false;
  try { await navigator.clipboard.writeText(text); done = true; } catch {
    const area = document.createElement("textarea");
    area.value = text;
    (button.closest("dialog") || document.body).append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = done ? "Copied" : "Select it by hand";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

function reveal(root) { root.querySelectorAll("[data-copy], .hint, #live").forEach((e) => { e.hidden = false; }); }

// A page that asks before something is done is shown above this one.
async function ask(link) {
  let text;
  try {
    const answer = await fetch(link.href, { headers: { Accept: "text/html" } });
    text = await answer.text();
  } catch { location.href = link.href; return; }
  const other = new DOMParser().parseFromString(text, "text/html").querySelector(".proposal");
  if (!other) { location.href = link.href; return; }
  const dialog = document.createElement("dialog");
  const title = other.querySelector("h1");
  title.id = "dialog-title";
  dialog.setAttribute("aria-labelledby", title.id);
  dialog.append(document.adoptNode(other));
  reveal(dialog);
  document.body.append(dialog);
  dialog.addEventListener("close", () => { dialog.remove(); link.isConnected ? link.focus() : document.getElementById("main").focus(); });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) { event.preventDefault(); dialog.close(); }
  });
  dialog.showModal();
  (dialog.querySelector("input[required]:not([type=hidden]), select[required]") || dialog.querySelector("[data-close]"))?.focus();
}

document.addEventListener("click", (event) => {
  if (!(event.target instanceof Element)) return;
  const copying = event.target.closest("[data-copy]");
  if (copying) { copy(copying); return; }
  const asking = event.target.closest("a[data-dialog]");
  if (asking && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) { event.preventDefault(); ask(asking); }
});

// A form is sent once, however often its button is pressed.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.sent) { event.preventDefault(); return; }
  if (form.method === "post") form.dataset.sent = "yes";
});

let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
  if (event.target.matches("input, textarea, select")) { if (event.key === "Escape") event.target.blur(); return; }
  if (document.querySelector("dialog[open]")) return;
  const rows = [...document.querySelectorAll("main tbody tr")].filter((r) => r.querySelector("a"));
  const at = rows.findIndex((r) => r.classList.contains("chosen"));
  const choose = (i) => {
    rows[at]?.classList.remove("chosen");
    const row = rows[Math.max(0, Math.min(rows.length - 1, i))];
    row?.classList.add("chosen");
    row?.querySelector("a")?.focus();
    row?.scrollIntoView({ block: "nearest" });
  };
  const was = before;
  before = "";
  if (was === "g") {
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { link.click(); event.preventDefault(); }
    return;
  }
  switch (event.key) {
    case "g": before = "g"; return;
    case "j": choose(at + 1); break;
    case "k": choose(at < 0 ? 0 : at - 1); break;
    case "/": (document.querySelector("main form.filter input, main form.filter select") || document.querySelector("nav a")).focus(); break;
    case "?": location.href = "help"; break;
    case "p": pause(); break;
    case "y": document.querySelector("main [data-copy]")?.click(); break;
    default: return;
  }
  event.preventDefault();
});

document.addEventListener("visibilitychange", () => { document.hidden ? disconnect() : connect(); });
addEventListener("pagehide", disconnect);
addEventListener("pageshow", connect);
button?.addEventListener("click", pause);
reveal(document);
if (!document.querySelector("main[data-of]") && button) button.hidden = true;
setInterval(label, 1000);
label();
connect();
