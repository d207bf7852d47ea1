"use strict";
// What all parts of the page use: elements, sizes, the tip, copying.
const data = JSON.parse(document.getElementById("data").textContent);
const TITLES = Object.fromEntries(data.categories.map(({ name, title }) => [name, title]));
const CATEGORIES = data.categories.map(({ name }) => name);  // in the order of the rows
const STATES = ["free", "live", "freed, another stream may still use it"];
const PROSE = new Set(["h1", "h3", "p", "li"]);

const colour = name =>
  getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim() || "#888";
// Whether dark text is read better on this category's colour.
function isPale(name) {
  const hex = colour(name);
  if (!/^#[0-9a-f]{6}$/i.test(hex)) return false;
  const [red, green, blue] = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 130;
}

// A number stays with its unit.
const tied = text => text.replace(/(\d) ([KMG]iB|B|%)(?!\w)/g, "$1\u00a0$2");
// All text goes in as text nodes: nothing from the data is ever read as HTML.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(node.style, value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(key, value === true ? "" : value);
  }
  const text = child => PROSE.has(tag) ? tied(String(child)) : String(child);
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined)
    .map(child => child instanceof Node ? child : text(child)));
  return node;
}

function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  if (bytes < 0) return "−" + size(-bytes);
  const GiB = 2 ** 30, MiB = 2 ** 20, KiB = 1024;
  if (bytes >= GiB) return (bytes / GiB).toFixed(2) + " GiB";
  if (bytes >= MiB) return (bytes / MiB).toFixed(1) + " MiB";
  if (bytes >= KiB) return (bytes / KiB).toFixed(1) + " KiB";
  return bytes + " B";
}
const count = number => number.toLocaleString("en-US");
const exact = bytes => bytes === null || bytes === undefined ? "" : count(bytes) + " B";
const duration = ns => ns >= 1e9 ? (ns / 1e9).toFixed(2) + " s"
  : ns >= 1e6                    ? (ns / 1e6).toFixed(1) + " ms"
                                 : (ns / 1e3).toFixed(0) + " µs";
const swatch = name => el("span", { class: "swatch", style: { background: `var(--${name})` } });
const bytesCell = bytes => el("td", { class: "n", title: exact(bytes) }, size(bytes));
const table = (label, heads, rows) =>
  el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    el("table", {}, el("thead", {}, el("tr", {}, heads.map(([text,
      numeric]) => el("th", { class: numeric ? "n" : null, scope: "col" }, text)))),
      el("tbody", {}, rows)));
// The first index whose value is not below the wanted one.
function lower(values, wanted) {
  let a = 0, b = values.length;
  while (a < b) { const m = (a + b) >> 1; if (values[m] < wanted) a = m + 1; else b = m; }
  return a;
}

function place(line) {
  return line ? line.file.split("/").pop() + (line.line ? ":" + line.line : "") +
      (line.function ? " in " + line.function : "")
              : "";
}
const siteText = site => site
  ? [place(site.user_line || site.line), site.module, site.op].filter(Boolean).join(" · ")
  : "";

const tip = document.getElementById("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const below = event.clientY + 18 + box.height <= innerHeight;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 6)) + "px";
  tip.style.top = Math.max(4, below ? event.clientY + 18 : event.clientY - box.height - 10) + "px";
}
const hideTip = () => { tip.hidden = true; };

// Says something to screen readers without moving the focus.
const say = text => { document.getElementById("said").textContent = text; };

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch (_) {  // not allowed for a file that was opened from the disk
    const area = el("textarea", { style: { position: "fixed", top: "0", opacity: "0" } });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("copied");
}
function copyButton(text, label) {
  const button = el("button", { class: "small", "aria-label": label, onclick: async () => {
    const focus = document.activeElement;
    await copyText(typeof text === "function" ? text() : text);
    if (focus) focus.focus();
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1200);
  } }, "copy");
  return button;
}

// A value that parts of the page follow.
function signal(value) {
  const followers = [];
  return {
    get: () => value,
    set(next, ...more) { value = next; for (const follower of followers) follower(next, ...more); },
    follow(follower) { followers.push(follower); },
  };
}
