"use strict";
// Puts the page together: the bar with search, held moment and contents; one card at a time; the
// address of a moment.
(() => {
  const page = document.getElementById("page"), hidden = signal(new Set());
  const wanted =
    new URLSearchParams(location.hash.slice(1));  // #t=EVENT&gpu=INDEX&run=INDEX&q=WORDS
  let devices = [], active = null, query = wanted.get("q") || "";

  function writeAddress() {
    const parts = new URLSearchParams(), held = active ? active.view.held.get() : null;
    if (held !== null) parts.set("t", held);
    if (active && active.view.explanation.report.devices.length > 1)
      parts.set("gpu", active.view.device.index);
    const run = active ? data.explanations.indexOf(active.view.explanation) : 0;
    if (run > 0) parts.set("run", run);
    if (query) parts.set("q", query);
    const text = parts.toString();
    try {
      history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
    } catch (_) { /* some viewers do not allow it */
    }
  }

  const found = el("span", { class: "soft", role: "status" }), field = el("input", {
    type: "search",
    id: "search",
    placeholder: "search: line, module, operator, name",
    "aria-label": "Search lines, modules, operators and names"
  });
  let waiting = 0;
  function find() {
    let number = 0;
    for (const one of devices) number += one.find(query) || 0;
    found.textContent = query ? `${count(number)} allocation${number === 1 ? "" : "s"}` : "";
    writeAddress();
  }
  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      query = field.value.trim();
      find();
    }, 200);
  });
  const search = text => {
    field.value = query = text;
    find();
    if (active && active.line) active.line.holder.scrollIntoView({ block: "center" });
  };
  const toggle = name => {
    const next = new Set(hidden.get());
    if (!next.delete(name)) next.add(name);
    hidden.set(next);
  };
  const contents = el("details", { class: "contents" });
  const jump = (text, id) => el("li", {}, el("button", { class: "jump", onclick: () => {
    contents.open = false;
    const target = document.getElementById(id);
    target.scrollIntoView({ block: "start" });
    target.focus({ preventScroll: true });
  } }, text));
  function fillContents(extra) {
    contents.replaceChildren(el("summary", {}, "contents"),
      el("ul", {}, extra.map(([text, id]) => jump(text, id)),
        devices.map(
          one => one.sections.map(([text, id], i) => el("li", { class: i ? "deeper" : null },
                                    jump(text, id).firstChild)))));
  }
  const skip = el("a", {
    class: "skip",
    href: "#",
    onclick: e => {
      e.preventDefault();
      if (active && active.line) {
        active.line.holder.scrollIntoView({ block: "center" });
        active.line.holder.focus();
      }
    }
  },
    "Go to the timeline");
  const onHold = view => {
    active = devices.find(one => one.view === view) || active;
    writeAddress();
  };
  const shared = more => ({ id: "d", hidden, toggle, search, onHold, ...more });

  const notesOf = explanation => {
    const { report } = explanation;
    const textOf = ({ text, count }) => text + (count > 1 ? ` (${count} times)` : "");
    const notes = [
      ...explanation.limits, ...explanation.notes,
      ...(report ? report.messages.map(textOf) : [])
    ];
    if (!notes.length) return [];
    return [
      el("h2", { id: "notes", tabindex: -1 }, "Notes"),
      el("ul", {}, [...new Set(notes)].map(text => el("li", {}, text))),
    ];
  };
  const facts = ({ source, report }) => el("p", { class: "soft mono" }, [
    source, report && report.torch_version ? "PyTorch " + report.torch_version : "",
    report ? count(report.events) + " events" : "", report && report.alloc_conf
  ].filter(Boolean).join(" · "));
  // Remedies begin with "+" (enough) or "-".
  const needOf = lines => lines.length ? [
    el("h2", { id: "need", tabindex: -1 }, "What it needs"),
    el("ul", {}, lines.map(text => el("li", { class: text.startsWith("+ ") ? "good" : "" },
                                      text.replace(/^[+-] /, "")))),
  ] : [];
  // The first sentence says what happened. The rest is left out where a finding says the same.
  function headline({ summary, findings, verdict }) {
    if (verdict) {
      return [
        el("h1", { class: classOf(verdict.name) }, verdict.headline),
        ...verdict.main_finding.map(text => el("p", {}, text)),
        ...needOf(verdict.need),
        el("p", {}, summary),
      ];
    }
    const end = summary.search(/\.( |$)/) + 1, first = end ? summary.slice(0, end) : summary;
    const plain = text => text.toLowerCase().replace(/[^a-z0-9]+/g, " ").trim();
    const told =
      plain(findings.map(finding => `${finding.title}. ${finding.text} ${finding.site}`).join(" "));
    const rest = summary.slice(first.length)
                   .trim()
                   .split(/(?<=\.) (?=[A-Z])/)
                   .filter(sentence => sentence && !told.includes(plain(sentence)))
                   .join(" ");
    return [el("h1", {}, first), rest ? el("p", {}, rest) : null];
  }

  function showDevice(explanation, holder, index, extra, held) {
    const device = explanation.report.devices.find(one => one.index === index);
    active = deviceView(explanation, device, shared({}));
    devices = [active];
    holder.replaceChildren(...active.nodes.filter(Boolean));
    fillContents(extra);
    active.start();
    if (query) find();
    if (held !== null) active.view.hold(held);
    writeAddress();
  }
  function showRun(explanation, first) {
    const report = explanation.report, cards = report ? report.devices : [],
          held =
            first && wanted.has("t") ? Math.max(0, Math.floor(Number(wanted.get("t"))) || 0) : null;
    const holder = el("div"), notes = notesOf(explanation), many = cards.length > 1, extra = [];
    let index = cards.length ? cards[0].index : null;
    if (first && cards.some(card => card.index === Number(wanted.get("gpu")) && wanted.has("gpu")))
      index = Number(wanted.get("gpu"));
    explanation.findings.forEach(
      (finding, i) => extra.push([finding.title, findingId(explanation, i)]));
    if (many) extra.push(["All cards", "overview"]);
    if (notes.length) extra.push(["Notes", "notes"]);
    const tabs = many
      ? el("div", { class: "bar tabs", role: "group", "aria-label": "Card" },
          cards.map(
            card => el("button",
              { "aria-pressed": String(card.index === index), onclick: () => open(card.index) },
              `GPU ${card.index}`)))
      : null;
    function open(next) {
      [...tabs.children].forEach(
        (tab, i) => tab.setAttribute("aria-pressed", String(cards[i].index === next)));
      showDevice(explanation, holder, next, extra, active ? active.view.held.get() : null);
      tabs.scrollIntoView({ block: "start" });
    }
    const pick = data.explanations.length > 1
      ? el("select", {
          "aria-label": "Source",
          onchange: () => showRun(data.explanations[Number(pick.value)], false)
        },
          data.explanations.map((other, i) => el("option",
                                  { value: i, selected: other === explanation }, other.source)))
      : null;
    const bar = el("div", { class: "top", role: "search" }, skip, pick,
      cards.length ? [field, found] : null, contents);
    page.replaceChildren(
      ...[bar, ...headline(explanation), facts(explanation), ...findingsOf(explanation, search),
        many ? el("h2", { id: "overview", tabindex: -1 }, "All cards") : null,
        many ? devicesOverview(explanation, open) : null, tabs, holder, ...notes]
        .filter(Boolean));
    active = null; devices = [];
    if (index !== null)
      showDevice(explanation, holder, index, extra, held);
    else
      fillContents(extra);
  }

  function showDifference() {
    const { diff, explanations } = data, columns = [], names = ["before", "after"],
                               held = wanted.has("t") ? Number(wanted.get("t")) : null;
    const indices =
            [
              ...new Set(
                explanations.flatMap(one => one.report.devices.map(device => device.index)))
            ].sort((a, b) => a - b),
          pairs = [];
    for (const index of indices) {
      const largest = Math.max(...explanations.map(one => {
        const device = one.report.devices.find(d => d.index === index);
        return device
          ? Math.max(...[device.peak_device, device.peak_reserved, device.peak_allocated].map(
              peak => peak ? peak.bytes : 0))
          : 0;
      }));
      pairs.push(el("div", { class: "pair" }, explanations.map((explanation, i) => {
        const device = explanation.report.devices.find(d => d.index === index);
        if (!device) return el("div", {}, el("h2", {}, `${names[i]}: GPU ${index} was not used`));
        const one = deviceView(explanation, device,
          shared({ id: names[i], prefix: names[i] + ", ", largest, narrow: true }));
        columns.push(one);
        return el("div", { class: "side" }, one.nodes.filter(Boolean));
      })));
    }
    devices = columns; active = columns[0] || null;
    const sources = el("p", { class: "mono soft" }, `before: ${diff.before || "–"}`, el("br"),
            `after: ${diff.after || "–"}`),
          peak = diff.devices.flatMap(device => device.metrics)
                   .filter(metric => metric.before !== null && metric.after !== null)
                   .pop();
    const changeOf = ({ before, after }) => after === before ? "is the same"
      : after > before ? `grew by ${size(after - before)}` : `fell by ${size(before - after)}`;
    const title = peak ? `The ${METRICS[peak.name] || peak.name} ${changeOf(peak)}: ` +
        `${size(peak.before)} before, ${size(peak.after)} after.`
      : "Two runs, side by side.";
    page.replaceChildren(el("div", { class: "top", role: "search" }, skip, field, found, contents),
      el("h1", {}, title), sources, ...differenceNodes(diff), ...pairs);
    fillContents(diff.devices.map(
      device => [`GPU ${device.device}: what changed`, `difference-${device.device}`]));
    for (const one of columns) one.start();
    if (query) find();
    if (held !== null && active) active.view.hold(held);
  }

  let pending = 0;
  const later = () => {
    clearTimeout(pending);
    pending = setTimeout(() => {
      for (const one of devices) one.redraw();
    }, 120);
  };
  addEventListener("resize", later);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  addEventListener("scroll", hideTip, { passive: true });
  // Keys of the timeline work wherever nothing else has the focus; "/" searches.
  addEventListener("keydown", e => {
    if (e.ctrlKey || e.altKey || e.metaKey ||
      (document.activeElement && document.activeElement !== document.body))
      return;
    if (e.key === "/") {
      e.preventDefault();
      field.focus();
    } else if (active && active.line && e.key !== "Home" && e.key !== "End")
      active.line.key(e);
  });
  addEventListener("hashchange", () => {
    const parts = new URLSearchParams(location.hash.slice(1));
    if (parts.has("t") && active && Number(parts.get("t")) !== active.view.held.get())
      active.view.hold(Number(parts.get("t")));
  });

  field.value = query;
  const run = Number(wanted.get("run")) || 0;
  if (data.diff) showDifference();
  else if (data.explanations.length) showRun(data.explanations[run] || data.explanations[0], true);
})();
