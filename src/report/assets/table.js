"use strict";
// Every allocation of a device as a table: sorted, filtered, and only the rows in sight are
// elements.
function allocationTable(view) {
  const { series } = view.chart, model = view.model(), { rows, origins, categories } = model,
                 HEIGHT = 24, MOST = 8e6;  // browsers limit how high an element may be
  const rank = values => {                 // texts by their order
    const order = Array.from(values.keys())
                    .sort((a, b) => values[a] < values[b] ? -1
                        : values[a] > values[b]           ? 1
                                                          : 0),
          out = new Float64Array(values.length);
    order.forEach((site, i) => {
      out[site] = i > 0 && values[order[i - 1]] === values[site] ? out[order[i - 1]] : i;
    });
    return out;
  };
  const sites = Array.from({ length: origins.total }, (_, site) => site), ranks = {};
  const bySite = (key, text) => row => {
    ranks[key] = ranks[key] || rank(sites.map(text));
    return rows.site[row] < 0 ? -1 : ranks[key][rows.site[row]];
  };
  const what = site => origins.name(site) || origins.module(site);
  const moment = event => {
    const step = stepAt(series, event);
    return count(event) + (step ? ` (step ${step})` : "");
  };
  const columns = [
    {
      name: "size",
      key: row => rows.bytes[row],
      text: row => size(rows.bytes[row]),
      title: row => exact(rows.bytes[row]),
      numeric: true,
      descending: true
    },
    {
      name: "category",
      key: row => rows.category[row],
      text: row => [swatch(categories[rows.category[row]]), TITLES[categories[rows.category[row]]]]
    },
    {
      name: "name or module",
      key: bySite("what", what),
      text: row => what(rows.site[row]),
      mono: true
    },
    {
      name: "where",
      key: bySite("where", origins.text),
      text: row => origins.text(rows.site[row]),
      mono: true
    },
    {
      name: "operator",
      key: bySite("op", origins.op),
      text: row => origins.op(rows.site[row]),
      mono: true
    },
    { name: "made at event", key: null, text: row => moment(rows.from[row]), numeric: true }, {
      name: "freed at",
      key: row => rows.freed[row],
      text: row => Number.isFinite(rows.freed[row]) ? moment(rows.freed[row]) : "never",
      numeric: true
    },
    {
      name: "events alive",
      key: row => rows.freed[row] - rows.from[row],
      text: row =>
        Number.isFinite(rows.freed[row]) ? count(rows.freed[row] - rows.from[row]) : "to the end",
      numeric: true,
      descending: true
    }
  ];
  let sort = columns[0], descending = true, onlyLive = false, order = new Uint32Array(0),
      current = 0;

  const note = el("p", { class: "soft", role: "status" }), body = el("div", { class: "body" }),
        space = el("div", { class: "space" }, body);
  const head = el("div", { class: "line head", role: "row" }, columns.map((column, i) => {
    const button = el("button", {
      onclick: () => {
        descending = sort === column ? !descending : Boolean(column.descending);
        sort = column;
        update();
      }
    },
      column.name);
    return el(
      "div", { role: "columnheader", class: "c" + i + (column.numeric ? " n" : "") }, button);
  }));
  const scroller = el("div", {
    class: "grid",
    role: "grid",
    tabindex: 0,
    "aria-label": "All allocations. Arrow keys move, Enter shows the stack.",
    "aria-colcount": columns.length
  },
    head, space);
  const filter = el("input", { type: "checkbox" });
  filter.addEventListener("change", () => { onlyLive = filter.checked; update(); });
  const bar = el("div", { class: "bar" },
    el("label", {}, filter, " alive at the held moment (or the peak)"),
    el("span", { class: "soft" },
      "the search above and the legend filter the rows; ",
      "click a heading to sort, a row to see its stack"));

  const visible = () =>
    Math.max(1, Math.floor((scroller.clientHeight - head.offsetHeight) / HEIGHT));
  const full = () => order.length * HEIGHT;
  const first = () => full() <= MOST
    ? Math.floor(scroller.scrollTop / HEIGHT)
    : Math.round(scroller.scrollTop / Math.max(1, MOST - visible() * HEIGHT) *
        Math.max(0, order.length - visible()));
  function draw() {
    const from = Math.max(0, Math.min(first(), order.length - 1)),
          end = Math.min(order.length, from + visible() + 3);
    const lines = [];
    for (let at = from; at < end; ++at) {
      const row = order[at];
      lines.push(el("div", {
        class: "line" + (row === view.selected.get() ? " chosen" : "") +
          (at === current ? " current" : ""),
        role: "row",
        id: `${view.id}-row-${at}`,
        "aria-rowindex": at + 2,
        "aria-selected": String(row === view.selected.get()),
        onclick: () => {
          current = at;
          view.select(row);
        }
      },
        columns.map((column, i) => el("div", {
          role: "gridcell",
          class: "c" + i + (column.numeric ? " n" : "") + (column.mono ? " mono" : ""),
          title: column.title ? column.title(row)
            : column.mono     ? column.text(row)
                              : null
        },
                      column.text(row)))));
    }
    body.style.top = (full() <= MOST ? from * HEIGHT
                                     : Math.min(scroller.scrollTop, MOST - lines.length * HEIGHT)) +
      "px";
    body.replaceChildren(...lines);
    if (current >= from && current < end)
      scroller.setAttribute("aria-activedescendant", `${view.id}-row-${current}`);
    else scroller.removeAttribute("aria-activedescendant");
  }
  function update() {
    const hidden = view.hidden.get(), match = view.found.get(),
          hiddenCategories = categories.map(name => hidden.has(name));
    const peak = view.device.peak_allocated || view.device.peak_device,
          event = view.held.get() !== null ? view.held.get()
      : peak                               ? peak.moment.event
                                           : 0;
    const wanted = row => !hiddenCategories[rows.category[row]] && (!match || match(row)) &&
      (!onlyLive || (rows.from[row] <= event && event < rows.freed[row]));
    order = pageModel.sorted(rows.total, wanted, sort.key, descending);
    current = 0;
    let bytes = 0;
    for (const row of order) bytes += rows.bytes[row];
    note.textContent = tied(`${count(order.length)} of ${count(rows.total)} allocations` +
      (onlyLive ? `, ${size(bytes)} alive after event ${count(event)}` : "") +
      (model.complete || !rows.pytorch ? "."
        : ". The history is too long for the page. It has the largest allocations; " +
          "--csv writes all."));
    columns.forEach((column, i) => head.children[i].setAttribute("aria-sort",
                      column !== sort ? "none"
                        : descending  ? "descending"
                                      : "ascending"));
    scroller.setAttribute("aria-rowcount", order.length + 1);
    space.style.height = Math.min(full(), MOST) + "px";
    scroller.scrollTop = 0;
    draw();
  }
  function go(to) {
    current = Math.max(0, Math.min(order.length - 1, to));
    const top = first();
    if (current < top || current >= top + visible())
      scroller.scrollTop = full() <= MOST
        ? (current < top ? current : current - visible() + 1) * HEIGHT
        : current / Math.max(1, order.length - visible()) * (MOST - visible() * HEIGHT);
    draw();
  }
  scroller.addEventListener("scroll", draw, { passive: true });
  scroller.addEventListener("keydown", e => {
    if (e.target !== scroller) return;
    const moves = {
      ArrowDown: current + 1,
      ArrowUp: current - 1,
      PageDown: current + visible(),
      PageUp: current - visible(),
      Home: 0,
      End: order.length - 1
    };
    if (e.key === "Enter" && order.length) view.select(order[current]);
    else if (e.key in moves && !e.ctrlKey && !e.altKey && !e.metaKey) go(moves[e.key]);
    else return;
    e.preventDefault();
    e.stopPropagation();
  });
  for (const followed of [view.hidden, view.found]) followed.follow(update);
  view.held.follow(() => { if (onlyLive) update(); });
  view.selected.follow(draw);
  return { nodes: [bar, note, scroller], update };
}
