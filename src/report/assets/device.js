"use strict";
// One card: its facts, its chart with the held moment, its flame view, segments, allocations and
// tables.
function deviceView(explanation, device, shared) {
  const chart = explanation.charts.find(one => one.index === device.index);
  let model = null, hoverIndex = null;
  const view = {
    explanation,
    device,
    chart,
    id: `${shared.id}-gpu${device.index}`,
    largest: shared.largest,
    search: shared.search,
    hidden: shared.hidden,
    held: signal(null),
    selected: signal(-1),
    found: signal(null),
    foundSites: signal(null),
    hasBlocks: Boolean(chart &&
      ((chart.lives && chart.lives.length) || (chart.largest_lives && chart.largest_lives.length) ||
        chart.other_lives.length)),
    model: () => (model = model || pageModel.read(explanation, chart)),
    hold(event) {
      view.held.set(event);
      shared.onHold(view, event);
    },
    select: row => view.selected.set(row),
    hover(index) {
      if (view.held.get() === null && index !== hoverIndex) {
        hoverIndex = index;
        showMoment();
      }
    },
    toggle: shared.toggle,
  };
  const nodes = [], sections = [], peak = device.peak_allocated || device.peak_device, draws = [],
        starts = [];
  const heading = (text, id) => {
    const node = el("h2", { id: `${view.id}-${id}`, tabindex: -1 }, text);
    sections.push([text, node.id]);
    return node;
  };
  nodes.push(heading(
    `${shared.prefix || ""}GPU ${device.index}${device.name ? ": " + device.name : ""}`, "top"));
  const facts = [verdictOf(device)];
  for (const [name, value] of [["allocated", device.peak_allocated],
         ["reserved", device.peak_reserved], ["device", device.peak_device]])
    if (value)
      facts.push(el("span", { title: exact(value.bytes) }, `peak ${name} ${size(value.bytes)}`));
  if (device.total_bytes)
    facts.push(
      el("span", { title: exact(device.total_bytes) }, `card ${size(device.total_bytes)}`));
  nodes.push(el("div", { class: "bar facts" },
    facts.filter(Boolean).flatMap(
      (fact, i) => i ? [el("span", { class: "soft" }, "·"), fact] : [fact])));

  // The figures of the held moment, or of what is under the cursor, or of the peak.
  const momentTitle = el("h3"), momentTable = el("div"), momentSite = el("p", { class: "soft" });
  const eventField = el("input", {
    type: "number",
    min: 0,
    "aria-label": "Hold the moment after this event",
    onchange: () => {
      if (eventField.value !== "") view.hold(Math.max(0, Math.floor(Number(eventField.value))));
    }
  });
  const link =
    el("span", { hidden: true }, copyButton(() => location.href, "copy a link to this moment"), " ",
      el("button", { class: "small", onclick: () => view.hold(null) }, "let go"));
  let line = null;
  function showMoment() {
    const { series } = chart, held = view.held.get(),
                   event = held !== null ? held
      : hoverIndex !== null              ? series.event[hoverIndex]
      : peak                             ? peak.moment.event
                                         : 0;
    const at = pointAt(series, event), onPoint = series.event[at] === event,
          isPeak = peak && event === peak.moment.event && device.peak_allocated,
          step = stepAt(series, event), ns = onPoint ? series.time_ns[at] : 0;
    momentTitle.textContent =
      tied((held !== null ? "Held: "
               : hoverIndex !== null
               ? "Under the cursor: "
               : `Peak of ${device.peak_allocated ? "allocated memory" : "the device"}: `) +
        `event ${count(event)}${step ? ", step " + step : ""}${ns ? ", " + duration(ns) : ""}`);
    momentTable.replaceChildren(isPeak ? peakBreakdown(peak.breakdown)
        : onPoint || !view.hasBlocks || !view.model().complete || !view.model().rows.pytorch
        ? pointBreakdown(series, at)
        : exactBreakdown(view.model(), event));
    momentSite.textContent = isPeak ? siteText(peak.moment.site) : "";
    eventField.value = event;
    link.hidden = held === null;
    if (held !== null) say(momentTitle.textContent);
  }
  const used = chart &&
    [chart.series.allocated, chart.series.reserved, chart.series.device || []].some(
      values => values.some(Boolean));
  if (used) {
    line = timelineView(view);
    view.held.follow(() => { hoverIndex = null; showMoment(); });
    nodes.push(
      el("div", { class: "split" + (shared.narrow ? " narrow" : "") }, el("div", {}, line.nodes),
        el("div", { class: "moment" }, el("div", { class: "bar" }, momentTitle),
          el("div", { class: "bar" }, el("label", {}, "event ", eventField), link), momentTable,
          momentSite)),
      blockPanel(view));
    draws.push(() => line.build());
    starts.push(showMoment);
  } else
    nodes.push(peak && peak.bytes ? peakBreakdown(peak.breakdown)
                                  : el("p", { class: "soft" }, "Nothing was put on this card."));

  if (device.beside_pytorch.length) {
    const title = "Beside PyTorch, at the peak of the device";
    const rowOf = group => {
      const times = group.count > 1 ? ` (${count(group.count)} of ${size(group.size_bytes)})` : "";
      const where = [group.name, siteText(group.site)].filter(Boolean).join("  ");
      return el("tr", {}, el("td", {}, swatch(group.category), TITLES[group.category] + times),
                bytesCell(group.count * group.size_bytes), el("td", { class: "mono wide" }, where));
    };
    nodes.push(heading(title, "beside"),
               table(title, [["what"], ["size", 1], ["kernel or line"]],
                     device.beside_pytorch.map(rowOf)));
  }
  if (chart && chart.by_stack && chart.by_stack.b) {
    const flame = flameView(view);
    nodes.push(heading("Live memory", "flame"), ...flame.nodes);
    draws.push(() => flame.show());
  }
  if (chart && chart.maps.length) {
    const map = segmentMapView(view);
    nodes.push(heading("Segments", "segments"), ...map.nodes.filter(Boolean));
    draws.push(() => map.draw());
  }
  if (view.hasBlocks) {
    const holder = el("div", { class: "allocations" });
    nodes.push(heading("Allocations", "allocations"), holder);
    starts.push(() => {  // made when it comes into sight: reading a long history takes a moment
      new IntersectionObserver((entries, observer) => {
        if (!entries.some(entry => entry.isIntersecting)) return;
        observer.disconnect();
        const made = allocationTable(view);
        holder.replaceChildren(...made.nodes);
        made.update();
      }, { rootMargin: "300px" }).observe(holder);
    });
  }
  if (device.largest.length)
    nodes.push(heading("Largest at the peak", "largest"),
      table("Largest at the peak",
        [["each", 1], ["count", 1], ["together", 1], ["category"], ["name"], ["where"]],
        device.largest.map(
          group => el("tr", {}, bytesCell(group.size_bytes), el("td", { class: "n" }, group.count),
            bytesCell(group.size_bytes * group.count),
            el("td", {}, swatch(group.category),
              TITLES[group.category] + (group.inferred ? " (inferred)" : "")),
            el("td", { class: "mono" }, group.name || group.kind || ""),
            el("td", { class: "mono" }, siteText(group.site))))));
  if (device.steps.length && (used || peak && peak.bytes))
    nodes.push(heading("Steps", "steps"),
      table("Steps",
        [
          ["step"], ["peak allocated", 1], ["peak reserved", 1], ["peak device", 1],
          ["allocated after", 1], ["time", 1], ["launches", 1]
        ],
        device.steps.map(step => {
          const mark = chart && chart.series.steps.find(([number]) => number === step.step),
                name = step.complete ? String(step.step) : "after the last";
          return el("tr", {},
            el("td", {},
              mark && line ? el("button", {
                class: "small",
                "aria-label": "hold the end of step " + name,
                onclick: () => view.hold(mark[1] - 1)
              },
                               name)
                           : name),
            bytesCell(step.peak_allocated_bytes), bytesCell(step.peak_reserved_bytes),
            bytesCell(step.peak_device_bytes), bytesCell(step.allocated_after_bytes),
            el("td", { class: "n" }, step.duration_ns ? duration(step.duration_ns) : "–"),
            el("td", { class: "n" }, step.launches === null ? "–" : count(step.launches)));
        })));

  // query: null without one.
  function find(query) {
    const sites = query && chart ? view.model().origins.search(query) : null,
          { site } = sites ? view.model().rows : {};
    view.foundSites.set(sites);
    view.found.set(sites ? row => site[row] >= 0 && sites[site[row]] === 1 : null);
    if (!sites) return null;
    const { rows } = view.model();
    let number = 0;
    for (let row = 0; row < rows.total; ++row) if (view.found.get()(row)) ++number;
    return number;
  }
  return {
    view,
    nodes,
    sections,
    find,
    line,
    start() {
      for (const act of [...draws, ...starts]) act();
    },
    redraw() {
      for (const draw of draws) draw();
    }
  };
}
