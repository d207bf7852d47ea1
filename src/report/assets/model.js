"use strict";
// What the page works out of the lives of blocks: pure functions of the data, no elements (tests
// run them under Node).
const pageModel = (() => {
  const Lives = typeof segmentLives !== "undefined" ? segmentLives : require("./segments.js");

  // Strings, frames, stacks and sites (src/report/html_sites.h says how they are written).
  function readOrigins(tables, sites) {
    const { strings, frames, stacks } = tables, total = sites.text.length;
    const base = path => path.slice(path.lastIndexOf("/") + 1);
    const frame = index => ({
      function: strings[frames[3 * index]],
      file: strings[frames[3 * index + 1]],
      line: frames[3 * index + 2]
    });
    // As the tree of the peak names it.
    function frameText({ function: name, file, line }) {
      const at = file ? base(file) + (line > 0 ? ":" + line : "") : "";
      return [name, at].filter(Boolean).join("  ") || "(no name)";
    }
    // Outermost first.
    function framesOf(site) {
      const out = [];
      for (let node = site < 0 ? 0 : sites.stack[site]; node > 0; node = stacks[2 * node])
        out.push(frame(stacks[2 * node + 1]));
      return out.reverse();
    }
    const text = site => site < 0 ? "" : strings[sites.text[site]];
    const module = site => site < 0 ? "" : strings[sites.module[site]];
    const op = site => site < 0 ? "" : strings[sites.op[site]];
    const name = site => site < 0 ? "" : strings[sites.name[site]];
    const whole = site => [text(site), name(site) || module(site), op(site)]
                            .filter((part, i, all) => part && all.indexOf(part) === i)
                            .join(" · ");
    const stackTexts = new Map();
    function stackTextsOf(site) {
      const node = site < 0 ? 0 : sites.stack[site];
      if (!stackTexts.has(node)) stackTexts.set(node, framesOf(site).map(frameText));
      return stackTexts.get(node);
    }
    let searched = null;
    // 1 for each site in which all words of the query are found; null without a query.
    function search(query) {
      const words = query.toLowerCase().split(/\s+/).filter(Boolean);
      if (!words.length) return null;
      searched = searched ||
        Array.from({ length: total },
          (_, site) => [text(site), module(site), op(site), name(site),
            ...framesOf(site).map(f => `${f.function} ${f.file}:${f.line}`)]
                         .join("\n")
                         .toLowerCase());
      return Uint8Array.from(searched, hay => words.every(word => hay.includes(word)) ? 1 : 0);
    }
    return { total, framesOf, frameText, stackTextsOf, text, module, op, name, whole, search };
  }

  // One device. rows: every allocation that the page holds, PyTorch's of one process after the
  // other, then what is not PyTorch's.
  function read(explanation, chart) {
    const categories = explanation.category_order,
          origins = readOrigins(explanation.tables, chart.sites);
    const complete = Boolean(chart.lives),
          lives = (chart.lives || chart.largest_lives || []).map(Lives.read),
          others = chart.other_lives.map(Lives.read);
    const all = [...lives, ...others],
          total = all.reduce((sum, part) => sum + part.begun.length, 0);
    const rows = {
      total,
      pytorch: lives.reduce((sum, part) => sum + part.begun.length, 0),
      from: new Float64Array(total),
      freed: new Float64Array(total),
      gone: new Float64Array(total),
      address: new Float64Array(total),
      bytes: new Float64Array(total),
      rounding: new Float64Array(total),
      category: new Uint8Array(total),
      site: new Int32Array(total),
      process: new Uint32Array(total)
    };
    const parts = [];
    let at = 0;
    for (const part of all) {
      parts.push([at, at + part.begun.length, part]);
      rows.from.set(part.begun, at); rows.freed.set(part.freed, at); rows.gone.set(part.gone, at);
      for (const which of part.which) {
        const [address, bytes, rounding, category, site] = part.shapes[which];
        rows.address[at] = address;
        rows.bytes[at] = bytes;
        rows.rounding[at] = rounding;
        rows.category[at] = category;
        rows.site[at] = site;
        rows.process[at++] = part.process;
      }
    }
    // The rows that are alive after the event, in their order.
    function liveAt(event) {
      const found = [];
      for (const [first, end] of parts)
        for (let i = first; i < end && rows.from[i] <= event; ++i)
          if (event < rows.freed[i]) found.push(i);
      return found;
    }
    function sumsAt(event) {
      const byCategory = {}, add = (category, bytes) => {
        if (bytes) byCategory[category] = (byCategory[category] || 0) + bytes;
      };
      let allocated = 0, reserved = 0;
      for (const i of liveAt(event)) {
        if (i >= rows.pytorch) continue;
        allocated += rows.bytes[i];
        add(categories[rows.category[i]], rows.bytes[i] - rows.rounding[i]);
        add("rounding", rows.rounding[i]);
      }
      for (const part of lives)
        for (const segment of part.segments)
          if (segment.from <= event && event < segment.to) reserved += segment.bytes;
      return { byCategory, allocated, reserved };
    }

    const SMALLEST = 2000;  // as src/report/html_tree.cpp
    // The live memory after the event as a tree; wanted: which rows count.
    function treeAt(event, mode, wanted) {
      const make = () =>
        ({ b: 0, c: 0, by: new Float64Array(categories.length), children: new Map() });
      const root = make();
      function add(node, row) {
        node.b += rows.bytes[row];
        ++node.c;
        node.by[rows.category[row]] += rows.bytes[row];
        return node;
      }
      const child = (node, name) => {
        if (!node.children.has(name)) node.children.set(name, make());
        return node.children.get(name);
      };
      for (const row of liveAt(event)) {
        if ((rows.pytorch && row >= rows.pytorch) || (wanted && !wanted(row))) continue;
        const site = rows.site[row];
        let node = add(root, row);
        if (mode === "module") {
          const path = origins.name(site) || origins.module(site);
          for (const part of path ? path.split(".").slice(0, 100) : ["(no module)"])
            node = add(child(node, part), row);
          continue;
        }
        const frames = origins.stackTextsOf(site);
        for (const name of frames) node = add(child(node, name), row);
        if (!frames.length)
          node =
            add(child(node, rows.from[row] === 0 ? "(older than the history)" : "(no stack)"), row);
        if (origins.op(site)) add(child(node, origins.op(site)), row);
      }
      const byName = (a, b) => a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0;
      function value(name, node) {
        const most = node.by.reduce((best, bytes, i) => bytes > node.by[best] ? i : best, 0),
              out = { n: name, b: node.b, c: node.c, g: categories[most] }, k = [];
        let bytes = 0, number = 0;
        for (const [text, next] of [...node.children].sort(
               (a, b) => b[1].b - a[1].b || byName(a, b))) {
          if (next.b < Math.floor(root.b / SMALLEST)) {
            bytes += next.b;
            number += next.c;
          } else
            k.push(value(text, next));
        }
        if (number) k.push({ n: "(smaller ones)", b: bytes, c: number, g: "unknown" });
        if (k.length) out.k = k;
        return out;
      }
      return value("allocated", root);
    }

    // The bytes of the rows that match, at each of the events (ascending).
    function seriesOf(matches, events) {
      const change = new Float64Array(events.length + 1);
      for (let i = 0; i < rows.total; ++i) {
        if (!matches(i)) continue;
        const first = lowerOf(events, rows.from[i]), end = lowerOf(events, rows.freed[i]);
        if (first < end) { change[first] += rows.bytes[i]; change[end] -= rows.bytes[i]; }
      }
      let sum = 0;
      return Array.from(events, (_, i) => (sum += change[i]));
    }
    function lowerOf(values, wanted) {
      let a = 0, b = values.length;
      while (a < b) { const m = (a + b) >> 1; if (values[m] < wanted) a = m + 1; else b = m; }
      return a;
    }

    // In the stacked chart blocks of a category lie on each other in the order in which they were
    // made. names: the bands from below.
    function blockAt(event, names, bytes) {
      const live = liveAt(event).filter(i => i < rows.pytorch);
      for (const name of names) {
        const category = categories.indexOf(name);
        for (const i of live) {
          const height = name === "rounding" ? rows.rounding[i]
            : rows.category[i] === category  ? rows.bytes[i] - rows.rounding[i]
                                             : 0;
          if (height > bytes) return name === "rounding" ? -1 : i;
          bytes -= height;
        }
      }
      return -1;
    }
    // The row that a block of the segment map is.
    function rowAt(process, address, event) {
      for (const [first, end, part] of parts) {
        if (part.process !== process || first >= rows.pytorch) continue;
        for (let i = first; i < end && rows.from[i] <= event; ++i)
          if (rows.address[i] === address && event < rows.gone[i]) return i;
      }
      return -1;
    }
    return {
      complete,
      lives,
      rows,
      origins,
      categories,
      liveAt,
      sumsAt,
      treeAt,
      seriesOf,
      blockAt,
      rowAt
    };
  }

  // The indices of `total` rows that `wanted` takes, in the order of `key` (numbers; ties by
  // index).
  function sorted(total, wanted, key, descending) {
    const indices = new Uint32Array(total);
    let length = 0;
    for (let i = 0; i < total; ++i) if (wanted(i)) indices[length++] = i;
    const chosen = indices.subarray(0, length);
    if (!key) return descending ? chosen.reverse() : chosen;
    const keys = new Float64Array(total);
    for (const i of chosen) keys[i] = key(i);
    return chosen.sort(
      descending ? (a, b) => keys[b] - keys[a] || a - b : (a, b) => keys[a] - keys[b] || a - b);
  }
  return { read, sorted };
})();
if (typeof module !== "undefined") module.exports = pageModel;
