"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page"), tip = document.getElementById("tip");
  const NAMES = { parameters: "parameters", buffers: "buffers", gradients: "gradients", optimizer_state: "optimizer state", activations: "activations", inputs: "inputs",
    workspaces: "workspaces", temporaries: "temporaries", unknown: "unknown", rounding: "rounding", cached: "cached by PyTorch", other: "not PyTorch's", context: "CUDA context" };
  const PROSE = new Set(["h1", "h3", "p", "li"]);
  const PALE = new Set(["buffers", "inputs", "temporaries", "context", "gradients"]);
  const STATES = ["free", "live", "freed, another stream may still use it"];
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim() || "#888";

  // A number stays with its unit.
  const tied = text => text.replace(/(\d) ([KMG]iB|B|%)(?!\w)/g, "$1\u00a0$2");
  // All text goes in as text nodes: nothing from the data is ever read as HTML.
  function el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (key === "style") Object.assign(node.style, value);
      else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
    }
    const text = child => PROSE.has(tag) ? tied(String(child)) : String(child);
    node.append(...children.flat().filter(child => child !== null && child !== undefined).map(child => child instanceof Node ? child : text(child)));
    return node;
  }
  function size(bytes) {
    if (bytes === null || bytes === undefined) return "–";
    const GiB = 2 ** 30, MiB = 2 ** 20, KiB = 1024;
    if (bytes >= GiB) return (bytes / GiB).toFixed(2) + " GiB";
    if (bytes >= MiB) return (bytes / MiB).toFixed(1) + " MiB";
    if (bytes >= KiB) return (bytes / KiB).toFixed(1) + " KiB";
    return bytes + " B";
  }
  const exact = bytes => bytes === null || bytes === undefined ? "" : bytes.toLocaleString("en-US") + " B";
  const bytesCell = bytes => el("td", { class: "n", title: exact(bytes) }, size(bytes));
  const duration = ns => ns >= 1e9 ? (ns / 1e9).toFixed(2) + " s" : ns >= 1e6 ? (ns / 1e6).toFixed(1) + " ms" : (ns / 1e3).toFixed(0) + " µs";
  const swatch = name => el("span", { class: "swatch", style: { background: `var(--${name})` } });
  const table = (heads, rows) => el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map(([text, numeric]) => el("th", { class: numeric ? "n" : null, scope: "col" }, text)))), el("tbody", {}, rows)));
  function place(site) {
    const at = site && (site.user_line || site.line);
    return at ? at.file.split("/").pop() + (at.line ? ":" + at.line : "") + (at.function ? " in " + at.function : "") : "";
  }
  const siteText = site => site ? [place(site), site.module, site.op].filter(Boolean).join(" · ") : "";
  function showTip(event, text) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 6)) + "px";
    tip.style.top = Math.max(4, event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18) + "px";
  }
  const hideTip = () => { tip.hidden = true; };

  function findings(explanation) {
    return explanation.findings.map(finding => el("div", { class: "finding" + (finding.primary ? " primary" : "") },
      el("h3", {}, finding.title), el("p", {}, finding.text),
      finding.site ? el("p", { class: "soft" }, "Where: ", el("code", {}, finding.site)) : null,
      finding.advice.length ? el("ol", {}, finding.advice.map(advice => el("li", {}, advice.text, advice.setting ? [" ", el("code", {}, advice.setting)] : null))) : null,
      finding.evidence.length ? el("details", {}, el("summary", { class: "soft" }, `Evidence (${finding.evidence.length})`),
        el("ul", {}, finding.evidence.map(entry => el("li", {}, entry.text, entry.site ? [" ", el("code", {}, entry.site)] : null)))) : null));
  }

  function breakdownTable(rows, sums) {
    const total = sums.length ? sums[sums.length - 1][1] : 0;
    return table([["category"], ["bytes", 1], ["share", 1], [""]], [
      ...rows.map(row => el("tr", {}, el("td", {}, swatch(row.category), NAMES[row.category] || row.category), bytesCell(row.bytes),
        el("td", { class: "n" }, total ? (100 * row.bytes / total).toFixed(1) + " %" : ""), el("td", { class: "soft" }, row.note || ""))),
      ...sums.map(([name, bytes]) => el("tr", { class: "sum" }, el("td", {}, name), bytesCell(bytes), el("td", { class: "n" }, ""), el("td")))]);
  }
  function peakBreakdown(breakdown) {
    const rows = breakdown.rows.map(row => ({ category: row.category, bytes: row.bytes, note: row.modelled ? "modelled" :
      row.inferred_bytes ? (row.inferred_bytes === row.bytes ? "inferred" : "partly inferred") + `, ${Math.round(100 * row.confidence)} % sure` : "" }));
    const sums = [["allocated", breakdown.allocated_bytes], ["reserved", breakdown.reserved_bytes]];
    if (breakdown.total_is_device) sums.push(["device", breakdown.total_bytes]);
    return breakdownTable(rows, sums);
  }

  function pointBreakdown(series, at) {
    const rows = Object.entries(series.by_category).map(([category, values]) => ({ category, bytes: values[at] })).filter(row => row.bytes);
    const sums = [["allocated", series.allocated[at]], ["reserved", series.reserved[at]]];
    if (series.reserved[at] > series.allocated[at]) rows.push({ category: "cached", bytes: series.reserved[at] - series.allocated[at] });
    if (series.device) {
      if (series.device[at] > series.reserved[at]) rows.push({ category: "other", bytes: series.device[at] - series.reserved[at], note: "with the CUDA context" });
      sums.push(["device", series.device[at]]);
    }
    return breakdownTable(rows, sums);
  }

  const stepAt = (series, event) => { const step = series.steps.find(([, end]) => event < end); return step ? step[0] : null; };

  function timeline(series, device, explanation, onMove) {
    const holder = el("div", { class: "chart", tabindex: 0, role: "application",
      "aria-label": "Timeline of allocated memory by category. Arrow keys move the cursor, plus and minus zoom, 0 shows all." });
    let byTime = false, plot = null, pinned = -1;
    const names = Object.keys(series.by_category);
    // The same peak may come again in every step: the one that the report names, where the chart has it.
    const named = device.peak_allocated ? device.peak_allocated.moment.event : 0;
    const peakIndex = series.allocated.reduce((best, value, i) => value > series.allocated[best] || (value === series.allocated[best] && Math.abs(series.event[i] - named) < Math.abs(series.event[best] - named)) ? i : best, 0);
    const last = series.event.length - 1;
    const xs = () => byTime ? series.time_ns.map(ns => ns / 1e9) : series.event;
    function build() {
      const sums = new Array(series.event.length).fill(0), stacked = [];
      for (const name of names) stacked.push(series.by_category[name].map((bytes, i) => (sums[i] += bytes)));
      const path = uPlot.paths.linear();
      // Drawn from the top of the stack down, so each opaque area covers what lies under it.
      const order = names.map((name, i) => i).reverse();
      const lines = [["reserved", series.reserved, "reserved"]];
      if (series.device) lines.push(["device", series.device, "other"]);
      const capacity = device.total_bytes;
      const largest = Math.max(...series.reserved, ...(series.device || [0]), ...series.allocated);
      const ink = colour("soft"), grid = { stroke: colour("line"), width: 1 }, marks = series.steps;
      const options = {
        width: Math.max(300, holder.clientWidth - 14), height: 330, legend: { show: false }, padding: [8, 10, 0, 0],
        scales: { x: { time: false }, y: { range: () => [0, (capacity && largest > capacity / 2 ? Math.max(capacity, largest) : largest) * 1.1 || 1] } },
        axes: [{ stroke: ink, grid: { show: false }, ticks: grid, space: 90, size: 34, values: (u, values) => values.map(v => byTime ? v + " s" : v.toLocaleString("en-US")) },
          { stroke: ink, grid, ticks: grid, size: 78, values: (u, values) => values.map(size),
            splits: (u, i, low, high) => { let step = 2 ** Math.floor(Math.log2(Math.max(high / 5, 1))); const out = []; for (let v = 0; v <= high; v += step) out.push(v); return out; } }],
        series: [{}, ...order.map(i => ({ label: names[i], stroke: colour(names[i]), fill: colour(names[i]), width: 1, paths: path, points: { show: false } })),
          ...lines.map(([label, , tint]) => ({ label, stroke: colour(tint), width: 1.5, dash: label === "device" ? [4, 4] : undefined, paths: path, points: { show: false } }))],
        cursor: { drag: { x: true, y: false, setScale: true }, points: { show: false }, focus: { prox: -1 } },
        hooks: {
          setCursor: [u => { if (u.cursor.idx !== null && u.cursor.idx !== undefined && pinned < 0) onMove(u.cursor.idx, false); }],
          draw: [u => {
            const { ctx, bbox } = u;
            ctx.save();
            ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
            const vertical = (x, tint, dash) => { const at = u.valToPos(x, "x", true); ctx.strokeStyle = tint; ctx.setLineDash(dash); ctx.beginPath(); ctx.moveTo(at, bbox.top); ctx.lineTo(at, bbox.top + bbox.height); ctx.stroke(); return at; };
            ctx.lineWidth = devicePixelRatio; ctx.font = 11 * devicePixelRatio + "px sans-serif"; ctx.fillStyle = colour("soft");
            let free = -Infinity;
            const all = xs();
            for (const [number, end] of marks) {
              let i = lower(series.event, end);
              const at = vertical(byTime ? all[Math.min(i, last)] : end, colour("soft"), [2, 4]);
              if (at - free > 52 * devicePixelRatio) { const text = "step " + number; ctx.fillText(text, at - ctx.measureText(text).width - 3, bbox.top + 12 * devicePixelRatio); free = at; }
            }
            for (const oom of device.out_of_memory || []) vertical(byTime ? oom.moment.time_ns / 1e9 : oom.moment.event, colour("bad"), []);
            vertical(all[peakIndex], colour("fg"), [6, 3]);
            if (pinned >= 0) vertical(all[pinned], colour("accent"), []);
            if (capacity) { const y = u.valToPos(capacity, "y", true); ctx.strokeStyle = colour("bad"); ctx.setLineDash([8, 4]); ctx.beginPath(); ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y); ctx.stroke(); }
            ctx.restore();
          }] } };
      if (plot) plot.destroy();
      plot = new uPlot(options, [xs(), ...order.map(i => stacked[i]), ...lines.map(([, values]) => values)], holder);
      plot.over.addEventListener("click", () => { if (plot.cursor.idx != null) pin(plot.cursor.idx); });
    }
    function lower(values, wanted) { let a = 0, b = values.length; while (a < b) { const m = (a + b) >> 1; if (values[m] < wanted) a = m + 1; else b = m; } return a; }
    function pin(index) {
      pinned = Math.max(0, Math.min(last, index));
      onMove(pinned, true);
      const x = xs()[pinned], { min, max } = plot.scales.x;
      if (x < min || x > max) plot.setScale("x", { min: x - (max - min) / 2, max: x + (max - min) / 2 });
      plot.redraw(false);
    }
    function reset() { const all = xs(); plot.setScale("x", { min: all[0], max: all[last] }); }
    function zoom(factor) {
      const { min, max } = plot.scales.x, all = xs(), centre = pinned >= 0 ? all[pinned] : (min + max) / 2, half = (max - min) * factor / 2;
      plot.setScale("x", { min: Math.max(all[0], centre - half), max: Math.min(all[last], centre + half) });
    }
    const keys = { ArrowLeft: e => pin((pinned < 0 ? peakIndex : pinned) - (e.shiftKey ? 20 : 1)), ArrowRight: e => pin((pinned < 0 ? peakIndex : pinned) + (e.shiftKey ? 20 : 1)),
      Home: () => pin(0), End: () => pin(last), p: () => pin(peakIndex), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: reset,
      Escape: () => { pinned = -1; plot.redraw(false); onMove(peakIndex, true); reset(); } };
    holder.addEventListener("keydown", e => { if (e.ctrlKey || e.altKey || e.metaKey || !keys[e.key]) return; e.preventDefault(); keys[e.key](e); });
    const axis = el("button", { "aria-pressed": "false", onclick: () => { byTime = !byTime; axis.setAttribute("aria-pressed", String(byTime)); build(); } }, "by time");
    const bar = el("div", { class: "bar" },
      el("button", { onclick: () => zoom(0.5) }, "zoom in"), el("button", { onclick: () => zoom(2) }, "zoom out"), el("button", { onclick: reset }, "show all"),
      el("button", { onclick: () => pin(peakIndex) }, "peak"), axis,
      el("span", { class: "soft" }, "drag to zoom, click to hold a moment; keys: ", ...["←", "→", "+", "−", "0", "p", "Esc"].flatMap(key => [el("kbd", {}, key), " "])));
    const legend = el("div", { class: "legend" }, [...names].reverse().map(name => el("span", {}, swatch(name), NAMES[name])),
      el("span", {}, el("i", { class: "rule", style: { borderColor: "var(--reserved)" } }), "reserved"),
      series.device ? el("span", {}, el("i", { class: "rule", style: { borderColor: "var(--other)", borderTopStyle: "dashed" } }), "device") : null,
      el("span", {}, el("i", { class: "rule", style: { borderColor: "var(--fg)", borderTopStyle: "dashed" } }), "peak"));
    return { nodes: [bar, holder, legend], start() { build(); onMove(peakIndex, true); }, build, pinEvent: event => pin(lower(series.event, event)), peakIndex };
  }

  function icicle(tree, label) {
    const box = el("div", { class: "icicle" }), path = el("div", { class: "bar" });
    function draw(trail) {
      const focus = trail[trail.length - 1], rows = [];
      (function layout(node, depth, left, width) {
        // A frame that only hands everything on to one other shares its row with it.
        (rows[depth] = rows[depth] || []).push([node, left, width]);
        let at = left;
        for (const child of node.k || []) { const share = width * child.b / (node.b || 1); if (share > 0.0008) layout(child, depth + 1, at, share); at += share; }
      })(focus, 0, 0, 1);
      const find = target => { const seen = []; (function walk(node) { seen.push(node); if (node === target) return true; for (const child of node.k || []) if (walk(child)) return true; seen.pop(); return false; })(tree); return seen; };
      box.replaceChildren(...rows.map(cells => el("div", { class: "row" }, cells.map(([node, left, width]) => el("button", { class: PALE.has(node.g) ? "cell pale" : "cell",
        style: { left: 100 * left + "%", width: 100 * width + "%", background: `var(--${node.g})` }, tabindex: width > 0.02 ? 0 : -1, "aria-label": `${node.n}, ${size(node.b)}`,
        onclick: () => draw(find(node)), onmousemove: e => showTip(e, `${node.n}\n${size(node.b)} (${(100 * node.b / tree.b).toFixed(1)} % of allocated) in ${node.c.toLocaleString("en-US")} allocations\nmostly ${NAMES[node.g]}`), onmouseleave: hideTip },
        width > 0.03 ? node.n + "  " + size(node.b) : "")))));
      path.replaceChildren(...(trail.length > 1 ? [el("button", { onclick: () => draw([tree]) }, "whole"), el("button", { onclick: () => draw(trail.slice(0, -1)) }, "up")] : []), el("span", { class: "soft" }, trail.length > 1 ? focus.n : label));
      hideTip();
    }
    draw([tree]);
    return [path, box];
  }

  function segmentMap(chart, pick, categories) {
    const canvas = el("canvas", { class: "map", role: "img", "aria-label": "Segments of the caching allocator and the blocks in them" }), note = el("p", { class: "soft" });
    // held: the event chosen in the timeline. Its own map is made where the lives of the blocks are in the page, else the nearest stored one is shown.
    let map = chart.maps[0], boxes = [], held = null;
    const lives = new Map();
    const livesOf = process => { if (!lives.has(process)) lives.set(process, segmentLives.read(chart.lives.find(entry => entry.process === process))); return lives.get(process); };
    const several = new Set(chart.maps.map(entry => entry.process)).size > 1, heldOption = el("option", { value: "held" });
    function draw() {
      const width = canvas.parentNode ? canvas.parentNode.clientWidth : 1200, ratio = devicePixelRatio || 1, rowHeight = 16, gap = 4;
      const segments = [...map.segments].sort((a, b) => b.bytes - a.bytes);
      // Rows share one scale; a segment that is longer than a row goes on in the next.
      const total = segments.reduce((sum, s) => sum + s.bytes, 0) || 1, perRow = Math.max(total / 28, 2 ** 21);
      const scale = (width - 2) / perRow;
      boxes = [];
      let x = 0, y = 0;
      for (const segment of segments) {
        if (x > 0 && x + segment.bytes * scale > width) { x = 0; y += rowHeight + gap; }
        let at = 0;
        for (const block of segment.blocks) {
          let rest = block[0];
          while (rest > 0) {
            const room = (width - x) / scale;
            const part = Math.min(rest, Math.max(room, 1));
            boxes.push([x, y, part * scale, segment, block, at]);
            x += part * scale; rest -= part;
            if (width - x < 0.01 && rest > 0) { x = 0; y += rowHeight + gap; }
          }
          at += block[0];
        }
        x += 3;
        if (x >= width) { x = 0; y += rowHeight + gap; }
      }
      const height = y + rowHeight + 2;
      canvas.width = width * ratio; canvas.height = Math.min(height * ratio, 16000); canvas.style.height = height + "px";
      const ctx = canvas.getContext("2d");
      ctx.scale(ratio, ratio);
      const tints = {};
      for (const name of Object.keys(NAMES)) tints[name] = colour(name);
      for (const [bx, by, bw, , block] of boxes) {
        ctx.fillStyle = block[1] === 0 ? tints.cached : tints[block[2] || "unknown"];
        ctx.globalAlpha = block[1] === 2 ? 0.45 : 1;
        ctx.fillRect(bx, by, Math.max(bw - (bw > 3 ? 0.6 : 0), 0.4), rowHeight);
      }
      ctx.globalAlpha = 1;
      const apart = held === null || chart.lives ? 0 : map.event - held;
      note.className = apart ? "warn" : "soft";
      note.textContent = tied((apart ? `Not the moment held in the timeline (event ${held.toLocaleString("en-US")}) but the nearest with a map: event ${map.event.toLocaleString("en-US")}, ${Math.abs(apart).toLocaleString("en-US")} events ${apart < 0 ? "earlier" : "later"}. ` : `After event ${map.event.toLocaleString("en-US")}: `) +
        `${map.segments.length} segments, ${size(map.reserved)} reserved: ${size(map.requested)} requested, ${size(map.rounding)} rounding, ${size(map.pending)} waiting for another stream, ` +
        `${size(map.cached)} in free segments, ${size(map.pinned)} in free pieces beside live blocks.` + (map.merged ? " Small neighbours in the same state are drawn as one." : ""));
      draw.rowHeight = rowHeight;
    }
    canvas.addEventListener("mousemove", e => {
      const box = canvas.getBoundingClientRect(), px = e.clientX - box.left, py = e.clientY - box.top;
      const hit = boxes.find(([x, y, w]) => px >= x && px < x + Math.max(w, 1) && py >= y && py < y + draw.rowHeight);
      if (!hit) return hideTip();
      const [, , , segment, block, at] = hit;
      showTip(e, `${block[3] > 1 ? block[3] + " blocks, " : ""}${size(block[0])} ${STATES[block[1]]}${block[1] && block[2] ? ", " + NAMES[block[2]] : ""}${block[4] >= 0 ? "\n" + chart.sites[block[4]] : ""}\n` +
        `segment ${segment.address} + ${exact(at)}: ${size(segment.bytes)}${segment.expandable ? ", expandable" : segment.small ? ", small pool" : ""}, stream ${segment.stream}; free ${size(segment.free)}, largest piece ${size(segment.largest_free)}`);
    });
    canvas.addEventListener("mouseleave", hideTip);
    chart.maps.forEach((entry, i) => pick.append(el("option", { value: i }, entry.label + (several ? `, process ${entry.process}` : "") + ` (event ${entry.event.toLocaleString("en-US")})`)));
    pick.addEventListener("change", () => {
      const process = map.process;
      if (pick.value === "held") return show(held, process);
      map = chart.maps[Number(pick.value)]; draw();
    });
    function show(event, process) {
      map = { ...segmentLives.mapAt(livesOf(process), event, categories, data.map_blocks), event, label: "held" };
      heldOption.textContent = `held in the timeline${several ? `, process ${process}` : ""} (event ${event.toLocaleString("en-US")})`;
      if (!heldOption.isConnected) pick.prepend(heldOption);
      pick.value = "held";
      if (canvas.isConnected) draw();
    }
    function at(event) {
      held = event;
      if (chart.lives) return show(event, map.process);
      const nearest = chart.maps.reduce((best, entry, i) => Math.abs(entry.event - event) < Math.abs(chart.maps[best].event - event) ? i : best, 0);
      map = chart.maps[nearest];
      pick.value = nearest;
      if (canvas.isConnected) draw();
    }
    return { nodes: [note, canvas], draw, at };
  }

  function deviceSection(explanation, device, chart, redraws) {
    const nodes = [], peak = device.peak_allocated || device.peak_device;
    nodes.push(el("h2", {}, `Device ${device.index}${device.name ? ": " + device.name : ""}`));
    const facts = [];
    if (device.verdict === "fits") facts.push(el("span", { class: "good" }, `Fits: ${size(device.headroom_bytes)} to spare`));
    if (device.verdict === "does_not_fit") facts.push(el("span", { class: "bad" }, "Does not fit"));
    for (const [name, value] of [["allocated", device.peak_allocated], ["reserved", device.peak_reserved], ["device", device.peak_device]])
      if (value) facts.push(el("span", { title: exact(value.bytes) }, `peak ${name} ${size(value.bytes)}`));
    if (device.total_bytes) facts.push(el("span", { title: exact(device.total_bytes) }, `card ${size(device.total_bytes)}`));
    nodes.push(el("div", { class: "bar" }, facts.flatMap((fact, i) => i ? [el("span", { class: "soft" }, "·"), fact] : [fact])));

    let line = null, segments = null;
    if (chart && chart.series.event.length) {
      const heading = el("h3"), holder = el("div");
      line = timeline(chart.series, device, explanation, (index, held) => {
        const event = chart.series.event[index], step = stepAt(chart.series, event);
        heading.textContent = `${held ? "At" : "Under the cursor:"} event ${event.toLocaleString("en-US")}${step ? ", step " + step : ""}${chart.series.time_ns[index] ? ", " + duration(chart.series.time_ns[index]) : ""}`;
        holder.replaceChildren(pointBreakdown(chart.series, index));
        if (held && segments) segments.at(event);
      });
      nodes.push(...line.nodes);
      nodes.push(el("div", { class: "split", style: { marginTop: "14px" } },
        peak ? el("div", {}, el("h3", {}, `At the peak of ${device.peak_allocated ? "allocated" : "the device"}: event ${peak.moment.event.toLocaleString("en-US")}${peak.moment.step ? ", step " + peak.moment.step : ""}, ${peak.moment.phase}`), peakBreakdown(peak.breakdown),
          el("p", { class: "soft" }, siteText(peak.moment.site))) : el("div"),
        el("div", {}, heading, holder)));
      redraws.push(() => line.build());
    } else if (peak) nodes.push(peakBreakdown(peak.breakdown));

    if (chart && chart.by_stack && chart.by_stack.b) {
      nodes.push(el("h2", {}, "Live memory at the peak, by stack"), ...icicle(chart.by_stack, "From the outermost call down; colour: what most of it is for. Click to look closer."));
      if (chart.by_module) nodes.push(el("h2", {}, "Live memory at the peak, by module"), ...icicle(chart.by_module, "By the module that made or owns it. Click to look closer."));
    }
    if (chart && chart.maps.length) {
      const pick = el("select", { "aria-label": "Moment of the segment map" }), map = segments = segmentMap(chart, pick, explanation.category_order);
      nodes.push(el("h2", {}, "Segments"), el("div", { class: "bar" }, pick, el("span", { class: "soft" }, "colours as above, ", swatch("cached"), chart.lives ? "free; a moment that is held in the timeline shows its own map" : "free")));
      if (!chart.lives) nodes.push(el("p", { class: "warn" }, `The page does not hold every moment of this history (it is too long, or its events contradict each other): maps of ${new Set(chart.maps.map(entry => entry.event)).size} moments are stored, and a moment that is held in the timeline shows the nearest of them.`));
      nodes.push(el("div", {}, map.nodes));
      redraws.push(map.draw);
    }
    if (device.largest.length) nodes.push(el("h2", {}, "Largest at the peak"), table([["each", 1], ["count", 1], ["together", 1], ["category"], ["name"], ["where"]],
      device.largest.map(group => el("tr", {}, bytesCell(group.size_bytes), el("td", { class: "n" }, group.count), bytesCell(group.size_bytes * group.count),
        el("td", {}, swatch(group.category), NAMES[group.category] + (group.inferred ? " (inferred)" : "")), el("td", { class: "mono" }, group.name || group.kind || ""), el("td", { class: "mono" }, siteText(group.site))))));
    if (device.steps.length) nodes.push(el("h2", {}, "Steps"), table([["step"], ["peak allocated", 1], ["peak reserved", 1], ["peak device", 1], ["allocated after", 1], ["time", 1], ["launches", 1]],
      device.steps.map(step => {
        const mark = chart && chart.series.steps.find(([number]) => number === step.step);
        return el("tr", { class: mark && line ? "link" : null, onclick: () => mark && line && line.pinEvent(mark[1] - 1) }, el("td", {}, step.complete ? step.step : "after the last"), bytesCell(step.peak_allocated_bytes), bytesCell(step.peak_reserved_bytes),
          bytesCell(step.peak_device_bytes), bytesCell(step.allocated_after_bytes), el("td", { class: "n" }, step.duration_ns ? duration(step.duration_ns) : "–"), el("td", { class: "n" }, step.launches === null ? "–" : step.launches.toLocaleString("en-US")));
      })));
    redraws.starts = redraws.starts || [];
    if (line) redraws.starts.push(() => line.start());
    return nodes;
  }

  let redraws = [];
  function show(explanation) {
    redraws = []; redraws.starts = [];
    const report = explanation.report, nodes = [];
    if (data.explanations.length > 1) {
      const pick = el("select", { "aria-label": "Source", onchange: () => show(data.explanations[Number(pick.value)]) },
        data.explanations.map((other, i) => el("option", { value: i, selected: other === explanation }, other.source)));
      nodes.push(pick);
    }
    // The first sentence says what happened; the rest is to be read, not seen.
    const end = explanation.summary.search(/\.( |$)/) + 1, first = end ? explanation.summary.slice(0, end) : explanation.summary;
    nodes.push(el("h1", {}, first), explanation.summary.length > first.length ? el("p", {}, explanation.summary.slice(first.length).trim()) : null, el("p", { class: "soft mono" }, [explanation.source, report && report.torch_version ? "PyTorch " + report.torch_version : "", report ? report.events.toLocaleString("en-US") + " events" : "", report && report.alloc_conf].filter(Boolean).join(" · ")));
    nodes.push(...findings(explanation));
    for (const device of report ? report.devices : []) nodes.push(...deviceSection(explanation, device, explanation.charts.find(chart => chart.index === device.index), redraws));
    const notes = [...explanation.limits, ...explanation.notes, ...(report ? report.messages.map(message => message.text + (message.count > 1 ? ` (${message.count} times)` : "")) : [])];
    if (notes.length) nodes.push(el("h2", {}, "Notes"), el("ul", {}, [...new Set(notes)].map(text => el("li", {}, text))));
    page.replaceChildren(...nodes.filter(Boolean));
    for (const start of redraws.starts) start();
    for (const draw of redraws) draw();
  }
  let pending = 0;
  const later = () => { clearTimeout(pending); pending = setTimeout(() => { for (const draw of redraws) draw(); }, 120); };
  addEventListener("resize", later);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  addEventListener("scroll", hideTip, { passive: true });
  show(data.explanations[0]);
})();
