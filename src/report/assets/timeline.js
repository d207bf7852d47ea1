"use strict";
// The course of memory: bands by category or by block, the held moment, zoom.

// The step that runs at the event; null after the last one or without steps.
const stepAt = (series, event) => {
  const step = series.steps.find(([, end]) => event < end);
  return step ? step[0] : null;
};

// The point of the chart that is nearest to the event.
function pointAt(series, event) {
  const at = Math.min(lower(series.event, event), series.event.length - 1);
  return at > 0 && event - series.event[at - 1] < series.event[at] - event ? at - 1 : at;
}

// Growth that findings tell of, as a line through the ends of the steps: [event, bytes] pairs and
// its text; null without any.
function growthLine(view) {
  const leaks = view.explanation.findings.filter(
    finding => finding.bytes_per_step && finding.device === view.device.index);
  const ends =
    view.device.steps.filter(step => step.complete && step.allocated_after_bytes)
      .map(step => [view.chart.series.steps.find(([number]) => number === step.step), step])
      .filter(([mark]) => mark);
  if (!leaks.length || ends.length < 2) return null;
  const perStep = leaks.reduce((sum, finding) => sum + finding.bytes_per_step, 0),
        skip = ends.length > 3 ? 1 : 0;
  const base = ends[skip][1], fails = leaks.map(finding => finding.fails_at_step).find(Boolean);
  return {
    points: ends.slice(skip).map(([mark,
      step]) => [mark[1] - 1, base.allocated_after_bytes + perStep * (step.step - base.step)]),
    text: `+${size(perStep)} a step` + (fails ? `, full at about step ${count(fails)}` : "")
  };
}

function timelineView(view) {
  const { series } = view.chart, { device } = view, last = series.event.length - 1;
  const names = CATEGORIES.filter(name => series.by_category[name]);
  // The same peak may come again in every step: the one that the report names, where the chart has
  // it.
  const named = device.peak_allocated ? device.peak_allocated.moment.event : 0;
  const peakIndex = series.allocated.reduce((best, value, i) => value > series.allocated[best] ||
        (value === series.allocated[best] &&
          Math.abs(series.event[i] - named) < Math.abs(series.event[best] - named))
      ? i
      : best,
    0);
  const growth = growthLine(view);
  const holder = el("div", {
    class: "chart",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "timeline",
    id: view.id + "-timeline",
    "aria-label":
      `Timeline of GPU ${device.index}: allocated memory by category, ` +
      `${count(series.event.length)} points. Largest ${size(series.allocated[peakIndex])} ` +
      `at event ${count(series.event[peakIndex])}. Left and right move the held moment, ` +
      "comma and full stop by one event, plus and minus zoom, 0 shows all, p goes to the peak, " +
      "Escape releases the moment."
  });
  let byTime = false, byBlock = false, plot = null, matched = null, columns = null;
  const xs = () => byTime ? series.time_ns.map(ns => ns / 1e9) : series.event;
  const xOf = event => byTime ? series.time_ns[pointAt(series, event)] / 1e9 : event;
  const shown = () => names.filter(name => !view.hidden.get().has(name));

  function axes() {
    const ink = colour("soft"), grid = { stroke: colour("line"), width: 1 };
    const splits = (u, i, low, high) => {
      const step = 2 ** Math.floor(Math.log2(Math.max(high / 5, 1))), out = [];
      for (let v = 0; v <= high; v += step) out.push(v);
      return out;
    };
    return [
      {
        stroke: ink,
        grid: { show: false },
        ticks: grid,
        space: 90,
        size: 34,
        values: (u, values) => values.map(v => byTime ? v + " s" : count(v))
      },
      { stroke: ink, grid, ticks: grid, size: 74, values: (u, values) => values.map(size), splits }
    ];
  }
  function drawMarks(u) {
    const { ctx, bbox } = u, ratio = devicePixelRatio;
    ctx.save();
    ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
    const vertical = (x, tint, dash) => {
      const at = u.valToPos(x, "x", true);
      ctx.strokeStyle = tint; ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      return at;
    };
    ctx.lineWidth = ratio; ctx.font = 11 * ratio + "px sans-serif"; ctx.fillStyle = colour("soft");
    let free = -Infinity;
    for (const [number, end] of series.steps) {
      const text = "step " + number, width = ctx.measureText(text).width,
            at = vertical(xOf(end), colour("soft"), [2, 4]);
      if (at - free > width + 8 * ratio) {
        ctx.fillText(text, at - width - 3, bbox.top + 12 * ratio);
        free = at;
      }
    }
    for (const oom of device.out_of_memory || [])
      vertical(byTime ? oom.moment.time_ns / 1e9 : oom.moment.event, colour("bad"), []);
    vertical(xOf(series.event[peakIndex]), colour("fg"), [6, 3]);
    if (device.total_bytes) {
      const y = u.valToPos(device.total_bytes, "y", true);
      ctx.strokeStyle = colour("bad"); ctx.setLineDash([8, 4]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    if (growth) {
      const points = growth.points.map(([event,
        bytes]) => [u.valToPos(xOf(event), "x", true), u.valToPos(bytes, "y", true)]),
            [x, y] = points[points.length - 1];
      ctx.strokeStyle = ctx.fillStyle = colour("bad");
      ctx.lineWidth = 2 * ratio;
      ctx.setLineDash([]);
      ctx.beginPath();
      points.forEach(([px, py], i) => i ? ctx.lineTo(px, py) : ctx.moveTo(px, py));
      ctx.stroke();
      ctx.font = "bold " + ctx.font;
      ctx.fillText(growth.text,
        Math.max(bbox.left + 4,
          Math.min(x, bbox.left + bbox.width) - ctx.measureText(growth.text).width - 4),
        Math.max(y - 8 * ratio, bbox.top + 26 * ratio));
    }
    const selected = view.selected.get();
    if (selected >= 0) {  // how long the chosen block was there
      const { rows } = view.model(), from = u.valToPos(xOf(rows.from[selected]), "x", true);
      const to = Number.isFinite(rows.freed[selected])
        ? u.valToPos(xOf(rows.freed[selected]), "x", true)
        : bbox.left + bbox.width;
      ctx.fillStyle = colour("accent");
      ctx.fillRect(
        from, bbox.top + bbox.height - 6 * ratio, Math.max(to - from, 2 * ratio), 6 * ratio);
    }
    if (view.held.get() !== null) {
      ctx.lineWidth = 2 * ratio;
      vertical(xOf(view.held.get()), colour("accent"), []);
    }
    ctx.restore();
  }

  // By block: for each column of pixels the live blocks of the share's peak, in the order of the
  // bands.
  function columnsOf() {
    const model = view.model(), { rows } = model, out = series.event.map(() => []);
    for (const name of shown()) {
      const category = model.categories.indexOf(name);
      for (let i = 0; i < rows.pytorch; ++i) {
        if (rows.category[i] !== category) continue;
        const end = lower(series.event, rows.freed[i]);
        for (let at = lower(series.event, rows.from[i]); at < end; ++at) out[at].push(i);
      }
    }
    return out;
  }
  function drawBlocks(u) {
    columns = columns || columnsOf();
    const { ctx, bbox } = u, { rows, categories } = view.model(), tints = categories.map(colour),
                      edge = colour("bg"), all = xs();
    const { min, max } = u.scales.x, first = Math.max(0, lower(all, min) - 1),
                     end = Math.min(all.length, lower(all, max) + 1),
                     selected = view.selected.get();
    ctx.save();
    ctx.beginPath(); ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height); ctx.clip();
    const bottom = u.valToPos(0, "y", true), perByte = bottom - u.valToPos(1, "y", true);
    const step = Math.max(1, Math.floor((end - first) / bbox.width));  // points of one column
    for (let at = first; at < end; at += step) {
      let best = at;
      for (let i = at; i < Math.min(end, at + step); ++i)
        if (series.allocated[i] > series.allocated[best]) best = i;
      const left = u.valToPos(all[at], "x", true),
            right = at + step < all.length ? u.valToPos(all[at + step], "x", true)
                                           : bbox.left + bbox.width,
            width = Math.max(right - left, 1);
      let y = bottom, pending = 0, tint = -1;
      const flush = () => {
        if (pending > 0) {
          ctx.fillStyle = tints[tint];
          ctx.fillRect(left, y - pending, width + 0.5, pending);
          y -= pending;
          pending = 0;
        }
      };
      for (const row of columns[best]) {
        const height = (rows.bytes[row] - rows.rounding[row]) * perByte;
        if (rows.category[row] !== tint || height > 2) { flush(); tint = rows.category[row]; }
        pending += height;
        if (height > 2) {
          const mine = row === selected;
          flush();
          if (mine) {
            ctx.fillStyle = colour("accent");
            ctx.fillRect(left, y, width + 0.5, height);
          }
          ctx.fillStyle = edge; ctx.fillRect(left, y, width + 0.5, 0.5);
        }
      }
      flush();
    }
    ctx.restore();
  }

  function build() {
    const bands = shown(), sums = new Array(series.event.length).fill(0);
    const stacked =
      bands.map(name => series.by_category[name].map((bytes, i) => (sums[i] += bytes)));
    const path = uPlot.paths.stepped({ align: 1 }), none = () => null;
    // Drawn from the top of the stack down, so each opaque area covers what lies under it.
    const order = bands.map((name, i) => i).reverse();
    const lines = [["reserved", series.reserved, "reserved"]];
    if (series.device) lines.push(["device", series.device, "other"]);
    if (matched) lines.push(["found", matched, "fg"]);
    const capacity = device.total_bytes,
          largest = Math.max(view.largest || 0, series.reserved.reduce((a, b) => Math.max(a, b), 0),
            (series.device || []).reduce((a, b) => Math.max(a, b), 0), series.allocated[peakIndex]);
    const options = {
      width: Math.max(260, holder.clientWidth - 14),
      height: innerWidth < 600 ? 240 : 330,
      legend: { show: false },
      padding: [8, 10, 0, 0],
      scales: {
        x: { time: false },
        y: {
          range: () => [0,
            (capacity && largest > capacity / 2 ? Math.max(capacity, largest) : largest) * 1.1 || 1]
        }
      },
      axes: axes(),
      series: [
        {}, ...order.map(i => ({
          label: bands[i],
          stroke: colour(bands[i]),
          fill: colour(bands[i]),
          width: 1,
          paths: byBlock ? none : path,
          points: { show: false }
        })),
        ...lines.map(([label, , tint]) => ({
          label,
          stroke: colour(tint),
          width: label === "found" ? 2 : 1.5,
          dash: label === "device" ? [4, 4] : undefined,
          paths: path,
          points: { show: false }
        }))
      ],
      cursor: {
        drag: { x: true, y: false, setScale: true },
        points: { show: false },
        focus: { prox: -1 }
      },
      hooks: {
        setCursor: [u => {
          if (u.cursor.idx !== null && u.cursor.idx !== undefined) view.hover(u.cursor.idx);
        }],
        drawAxes: [u => {
          if (byBlock) drawBlocks(u);
        }],
        draw: [drawMarks]
      }
    };
    const range = plot ? { min: plot.scales.x.min, max: plot.scales.x.max } : null;
    if (plot) plot.destroy();
    plot = new uPlot(
      options, [xs(), ...order.map(i => stacked[i]), ...lines.map(([, values]) => values)], holder);
    if (range && range.byTime === byTime) plot.setScale("x", range);
    let pressed = 0;
    plot.over.addEventListener("mousedown", e => { pressed = e.clientX; });
    plot.over.addEventListener("click", e => {
      if (plot.cursor.idx === null || plot.cursor.idx === undefined ||
        Math.abs(e.clientX - pressed) > 3)
        return;
      const event = series.event[plot.cursor.idx], bytes = plot.posToVal(plot.cursor.top, "y");
      view.hold(event);
      if (view.hasBlocks) view.select(view.model().blockAt(event, bands, bytes));
    });
    plot.over.addEventListener("mousemove", e => {
      const i = plot.cursor.idx;
      if (i === null || i === undefined) return;
      const step = stepAt(series, series.event[i]);
      showTip(e,
        `event ${count(series.event[i])}${step ? ", step " + step : ""}` +
          `\nallocated ${size(series.allocated[i])}\nreserved ${size(series.reserved[i])}` +
          (series.device ? `\ndevice ${size(series.device[i])}` : "") +
          (matched ? `\nfound ${size(matched[i])}` : ""));
    });
    plot.over.addEventListener("mouseleave", hideTip);
  }
  function reset() { const all = xs(); plot.setScale("x", { min: all[0], max: all[last] }); }
  function zoom(factor) {
    const { min, max } = plot.scales.x, all = xs(),
                     centre = view.held.get() !== null ? xOf(view.held.get()) : (min + max) / 2,
                     half = (max - min) * factor / 2;
    plot.setScale(
      "x", { min: Math.max(all[0], centre - half), max: Math.min(all[last], centre + half) });
  }
  const now = () => view.held.get() === null ? peakIndex : pointAt(series, view.held.get());
  const hold = index => view.hold(series.event[Math.max(0, Math.min(last, index))]);
  const exactly = by => view.hold(
    Math.max(0, (view.held.get() === null ? series.event[peakIndex] : view.held.get()) + by));
  const keys = {
    ArrowLeft: e => hold(now() - (e.shiftKey ? 20 : 1)),
    ArrowRight: e => hold(now() + (e.shiftKey ? 20 : 1)),
    Home: () => hold(0),
    End: () => hold(last),
    p: () => hold(peakIndex),
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    0: reset,
    ",": () => exactly(-1),
    ".": () => exactly(1),
    Escape: () => {
      view.hold(null);
      view.select(-1);
      reset();
    }
  };
  // True: the key was one of the chart's.
  function key(e) {
    if (e.ctrlKey || e.altKey || e.metaKey || !keys[e.key]) return false;
    e.preventDefault();
    keys[e.key](e);
    return true;
  }
  holder.addEventListener("keydown", e => { if (key(e)) e.stopPropagation(); });

  const toggle = (text, action, extra) => {
    const button = el("button", {
      "aria-pressed": "false",
      ...extra,
      onclick: () => button.setAttribute("aria-pressed", String(action()))
    },
      text);
    return button;
  };
  const bar = el("div", { class: "bar", role: "group", "aria-label": "Timeline" },
    el("button", { onclick: () => zoom(0.5) }, "zoom in"),
    el("button", { onclick: () => zoom(2) }, "zoom out"),
    el("button", { onclick: reset }, "show all"),
    el("button", { onclick: () => hold(peakIndex) }, "peak"),
    toggle("by time",
      () => {
        byTime = !byTime;
        plot.destroy();
        plot = null;
        build();
        return byTime;
      }),
    view.hasBlocks ? toggle("each block",
                       () => {
                         byBlock = !byBlock;
                         build();
                         return byBlock;
                       },
                       { title: "Draw every block instead of bands by category" })
                   : null,
    el("span", { class: "soft keys" },
      "drag to zoom; click to hold a moment" + (view.hasBlocks ? " and see the block there" : "") +
        "; keys: ",
      ["←", "→", ",", ".", "+", "−", "0", "p", "Esc"].map(name => [el("kbd", {}, name), " "])));
  const rule = (tint, style, text) => el("span", {},
    el("i", { class: "rule", style: { borderColor: `var(--${tint})`, borderTopStyle: style } }),
    text);
  const legend = el("div",
    { class: "legend", role: "group", "aria-label": "Categories: press to hide or show" },
    [...names].reverse().map(name => {
      const button = el("button",
        { class: "legend-item", "aria-pressed": "true", onclick: () => view.toggle(name) },
        swatch(name), TITLES[name]);
      view.hidden.follow(hidden => button.setAttribute("aria-pressed", String(!hidden.has(name))));
      return button;
    }),
    rule("reserved", "solid", "reserved"), series.device ? rule("other", "dashed", "device") : null,
    rule("fg", "dashed", "peak"), growth ? rule("bad", "solid", "growth") : null);

  const again = () => { columns = null; if (plot) build(); };
  const redraw = () => { if (plot) plot.redraw(false); };
  view.hidden.follow(again);
  view.found.follow(match => {
    matched =
      match && view.hasBlocks ? view.model().seriesOf(row => match(row), series.event) : null;
    again();
  });
  view.selected.follow(redraw);
  view.held.follow(event => {
    if (!plot) return;
    if (event !== null) {
      const x = xOf(event), { min, max } = plot.scales.x;
      if (x < min || x > max)
        plot.setScale("x", { min: x - (max - min) / 2, max: x + (max - min) / 2 });
    }
    redraw();
  });
  return { nodes: [holder, bar, legend], build, key, holder, peakIndex };
}
