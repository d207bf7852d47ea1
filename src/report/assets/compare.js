"use strict";
// Two runs side by side: what changed, then both charts on one scale.
const signed = bytes => bytes === 0 ? "no change" : (bytes > 0 ? "+" : "") + size(bytes);
const changeCell = (before, after) => {
  const known = before !== null && after !== null, change = known ? after - before : null;
  return el("td", {
    class: "n " +
      (change > 0      ? "bad"
          : change < 0 ? "good"
                       : "soft"),
    title: known ? exact(change) : null
  },
    known ? signed(change) : "–");
};
const METRICS = {
  allocated_peak: "allocated peak",
  reserved_peak: "reserved peak",
  device_peak: "device peak"
};

function differenceNodes(diff) {
  const nodes = [];
  for (const device of diff.devices) {
    const largest = Math.max(1, ...device.categories.map(row => Math.max(row.before, row.after)));
    const bar = (bytes, category) => el("div", { class: "strip" },
      el("i", { style: { width: 100 * bytes / largest + "%", background: `var(--${category})` } }));
    nodes.push(el("h2", { id: `difference-${device.device}`, tabindex: -1 },
                 `GPU ${device.device}: what changed`),
      table("Peaks", [["peak"], ["before", 1], ["after", 1], ["change", 1]],
        device.metrics.map(metric => el("tr", {}, el("td", {}, METRICS[metric.name] || metric.name),
                             bytesCell(metric.before), bytesCell(metric.after),
                             changeCell(metric.before, metric.after)))));
    if (device.categories.length)
      nodes.push(el("h3", { class: "above" }, "At the allocated peak, by category"),
        table("Categories",
          [["category"], ["before", 1], ["after", 1], ["change", 1], ["before and after"]],
          device.categories.map(
            row => el("tr", {}, el("td", {}, swatch(row.category), TITLES[row.category]),
              bytesCell(row.before), bytesCell(row.after), changeCell(row.before, row.after),
              el("td", { class: "wide" }, bar(row.before, row.category),
                bar(row.after, row.category))))));
    if (device.lines.length)
      nodes.push(el("h3", { class: "above" }, "By line, the largest change first"),
        table("Lines",
          [["change", 1], ["before", 1], ["after", 1], ["tensors", 1], ["category"], ["where"]],
          device.lines.map(
            row => el("tr", {}, changeCell(row.before, row.after), bytesCell(row.before),
              bytesCell(row.after),
              el("td", { class: "n" }, `${count(row.count_before)} → ${count(row.count_after)}`),
              el("td", {}, swatch(row.category), TITLES[row.category]),
              el("td", { class: "mono" }, siteText(row.site))))));
  }
  return nodes;
}
