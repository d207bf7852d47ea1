"use strict";
// Words and tables around the charts: findings, breakdowns, the chosen block, the overview of
// several cards.

const findingId = (explanation, i) => `finding-${data.explanations.indexOf(explanation)}-${i}`;

function findingsOf(explanation, search) {
  const find = finding => explanation.charts.length
    ? el("button", { class: "small", onclick: () => search(finding.site.split(" ")[0]) },
        "find it in the charts")
    : null;
  const whereOf = finding => el("p", { class: "soft" }, "Where: ", el("code", {}, finding.site),
    " ", find(finding));
  const adviceItem = ({ text, setting }) => el("li", {}, text, " ",
    setting ? [el("code", {}, setting), " ", copyButton(setting, "copy " + setting)]
      : copyButton(text, "copy this advice"));
  const evidenceItem = ({ text, site }) => el("li", {}, text,
    site ? [" ", el("code", {}, site)] : null);
  const evidenceOf = evidence => el("details", {},
    el("summary", { class: "soft" }, `Evidence (${evidence.length})`),
    el("ul", {}, evidence.map(evidenceItem)));
  return explanation.findings.map((finding, i) => el("div",
    { class: "finding" + (finding.primary ? " primary" : ""), id: findingId(explanation, i) },
    el("h3", {}, finding.title), el("p", {}, finding.text),
    finding.site ? whereOf(finding) : null,
    finding.advice.length ? el("ol", {}, finding.advice.map(adviceItem)) : null,
    finding.evidence.length ? evidenceOf(finding.evidence) : null));
}

function breakdownTable(label, rows, sums) {
  const total = sums.length ? sums[sums.length - 1][1] : 0;
  return table(label, [["category"], ["bytes", 1], ["share", 1]], [
    ...rows.map(
      row => el("tr", {},
        el("td", {}, swatch(row.category), TITLES[row.category] || row.category,
          row.note ? el("span", { class: "soft note" }, row.note) : null),
        bytesCell(row.bytes),
        el("td", { class: "n" }, total ? (100 * row.bytes / total).toFixed(1) + " %" : ""))),
    ...sums.map(
      ([name, bytes]) => el("tr", { class: "sum" }, el("td", {}, name), bytesCell(bytes), el("td")))
  ]);
}
function peakBreakdown(breakdown) {
  const rows = breakdown.rows.map(row => ({
    category: row.category,
    bytes: row.bytes,
    note: row.modelled     ? "modelled"
      : row.inferred_bytes ? (row.inferred_bytes === row.bytes ? "inferred" : "partly inferred") +
        `, ${Math.round(100 * row.confidence)} % sure`
                           : ""
  }));
  const sums = [["allocated", breakdown.allocated_bytes], ["reserved", breakdown.reserved_bytes]];
  if (breakdown.total_is_device) sums.push(["device", breakdown.total_bytes]);
  return breakdownTable("Memory at the peak by category", rows, sums);
}
function pointBreakdown(series, at) {
  const rows = CATEGORIES.filter(name => series.by_category[name] && series.by_category[name][at])
                 .map(category => ({ category, bytes: series.by_category[category][at] }));
  const sums = [["allocated", series.allocated[at]], ["reserved", series.reserved[at]]];
  if (series.reserved[at] > series.allocated[at])
    rows.push({ category: "cached", bytes: series.reserved[at] - series.allocated[at] });
  if (series.device) {
    if (series.device[at] > series.reserved[at])
      rows.push({
        category: "other",
        bytes: series.device[at] - series.reserved[at],
        note: "with the CUDA context"
      });
    sums.push(["device", series.device[at]]);
  }
  return breakdownTable("Memory at this moment by category", rows, sums);
}
// Of an event between two points of the chart, from the lives of the blocks.
function exactBreakdown(model, event) {
  const { byCategory, allocated, reserved } = model.sumsAt(event);
  const rows = CATEGORIES.filter(name => byCategory[name])
                 .map(category => ({ category, bytes: byCategory[category] }));
  if (reserved > allocated) rows.push({ category: "cached", bytes: reserved - allocated });
  return breakdownTable(
    "Memory at this moment by category", rows, [["allocated", allocated], ["reserved", reserved]]);
}

// What is known of the chosen block.
function blockPanel(view) {
  const panel = el("section",
    { class: "block", hidden: true, "aria-live": "polite", "aria-label": "The chosen block" });
  view.selected.follow(row => {
    panel.hidden = row < 0;
    if (row < 0) return;
    const { rows, origins, categories } = view.model(), site = rows.site[row],
                                      frames = origins.framesOf(site).reverse();
    const name = categories[rows.category[row]], when = event => {
      const step = stepAt(view.chart.series, event);
      return `event ${count(event)}` + (step ? `, step ${step}` : "");
    };
    const freed = Number.isFinite(rows.freed[row]),
          lines = frames.map(
            frame => `${frame.file}${frame.line ? ":" + frame.line : ""} in ${frame.function}`);
    const facts = [
      origins.name(site) && ["name", origins.name(site)],
      origins.module(site) && ["module", origins.module(site)],
      origins.op(site) && ["operator", origins.op(site)],
      [
        "bytes",
        `${exact(rows.bytes[row])} (${count(rows.bytes[row] - rows.rounding[row])} requested)`
      ],
      ["address", "0x" + rows.address[row].toString(16) + ", process " + rows.process[row]],
      ["made", when(rows.from[row])], ["freed", freed ? when(rows.freed[row]) : "never"]
    ].filter(Boolean);
    panel.replaceChildren(
      el("div", { class: "bar" },
        el("h3", {}, swatch(name), `${size(rows.bytes[row])} ${TITLES[name]}`),
        el("button", { class: "small", onclick: () => view.hold(rows.from[row]) },
          "hold where it was made"),
        freed ? el("button", { class: "small", onclick: () => view.hold(rows.freed[row] - 1) },
                  "hold just before it was freed")
              : null,
        origins.text(site)
          ? el("button",
              { class: "small", onclick: () => view.search(origins.text(site).split(" ")[0]) },
              "find others of this line")
          : null,
        lines.length ? copyButton(() => lines.join("\n"), "copy the stack") : null,
        el("button", { class: "small", onclick: () => view.select(-1) }, "close")),
      el("dl", {}, facts.map(([term,
        text]) => el("div", {}, el("dt", {}, term), el("dd", { class: "mono" }, text)))),
      lines.length ? el("ol", { class: "stack mono", "aria-label": "Stack, innermost first" },
                       lines.map(line => el("li", {}, line)))
                   : el("p", { class: "soft" }, "No stack is known."));
  });
  return panel;
}

const classOf = name => name.startsWith("fits") ? "good"
                      : name === "does_not_fit" || name === "failed" ? "bad"
                                                                     : "";
function verdictOf(device) {
  if (device.verdict_text === null) return null;
  return el("span", { class: classOf(device.verdict) }, device.verdict_text);
}

// The course of allocated memory in a few pixels.
function sparkline(series, largest) {
  const canvas = el("canvas", {
    width: 160,
    height: 26,
    class: "spark",
    role: "img",
    "aria-label": "allocated memory over time"
  }),
        ctx = canvas.getContext("2d"), n = series.event.length;
  ctx.fillStyle = colour("activations");
  const last = series.event[n - 1] || 1;
  for (let x = 0; x < 160; ++x) {
    const from = Math.max(0, lower(series.event, last * x / 160 + 1) - 1),
          end = Math.max(from + 1, lower(series.event, last * (x + 1) / 160 + 1));
    let high = 0;
    for (let i = from; i < Math.min(end, n); ++i)
      high = Math.max(high, series.allocated[i] || (series.device || [])[i] || 0);
    ctx.fillRect(x, 26 - 26 * high / (largest || 1), 1, 26);
  }
  return canvas;
}
function categoryBar(peak, largest) {
  return el("div", {
    class: "strip",
    role: "img",
    "aria-label":
      peak.breakdown.rows.map(row => `${TITLES[row.category]} ${size(row.bytes)}`).join(", ")
  },
    peak.breakdown.rows.map(row => el("i", {
      title: `${TITLES[row.category]} ${size(row.bytes)}`,
      style: { width: 100 * row.bytes / (largest || 1) + "%", background: `var(--${row.category})` }
    })));
}
// One row for each card.
function devicesOverview(explanation, open) {
  const { devices } = explanation.report,
                  peak = device =>
                    device.peak_device || device.peak_reserved || device.peak_allocated;
  const largest =
          Math.max(...devices.map(device => Math.max(peak(device) ? peak(device).bytes : 0, 1))),
        chart = device => explanation.charts.find(one => one.index === device.index);
  return table("All cards",
    [
      ["card"], ["verdict"], ["allocated", 1], ["reserved", 1], ["device", 1], ["at the peak"],
      ["over time"]
    ],
    devices.map(
      device => el("tr", {},
        el("td", {},
          el(
            "button", { class: "small", onclick: () => open(device.index) }, `GPU ${device.index}`),
          " ", device.name || ""),
        el("td", {}, verdictOf(device)),
        ...[device.peak_allocated, device.peak_reserved, device.peak_device].map(
          value => bytesCell(value ? value.bytes : null)),
        el("td", { class: "wide" }, peak(device) ? categoryBar(peak(device), largest) : null),
        el("td", {},
          chart(device) && chart(device).series.event.length
            ? sparkline(chart(device).series, largest)
            : null))));
}
