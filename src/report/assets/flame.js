"use strict";
// Live memory as an icicle: of the peak or of the held moment, by stack or by module.
function flameView(view) {
  const box = el("div", { class: "icicle", role: "group" }), path = el("div", { class: "bar" }),
        note = el("p", { class: "soft" });
  const modes = [["stack", "by stack"], ...(view.chart.by_module ? [["module", "by module"]] : [])];
  const mode = el("select", { "aria-label": "Flame view", onchange: () => show() },
    modes.map(([value, text]) => el("option", { value }, text)));
  let tree = null, shownEvent = null;
  function draw(trail) {
    const focus = trail[trail.length - 1], rows = [];
    (function layout(node, depth, left, width) {
      (rows[depth] = rows[depth] || []).push([node, left, width]);
      let at = left;
      for (const child of node.k || []) {
        const share = width * child.b / (node.b || 1);
        if (share > 0.0008) layout(child, depth + 1, at, share);
        at += share;
      }
    })(focus, 0, 0, 1);
    const find = target => {
      const seen = [];
      (function walk(node) {
        seen.push(node);
        if (node === target) return true;
        for (const child of node.k || [])
          if (walk(child)) return true;
        seen.pop();
        return false;
      })(tree);
      return seen;
    };
    const share = node => (100 * node.b / (tree.b || 1)).toFixed(1) + " %";
    const says = node => `${node.n}\n${size(node.b)} (${share(node)} of the memory shown) ` +
      `in ${count(node.c)} allocations\nmostly ${TITLES[node.g]}`;
    const cell = ([node, left, width], first) => el("button", {
      class: isPale(node.g) ? "cell pale" : "cell",
      tabindex: first ? 0 : -1,
      style: { left: 100 * left + "%", width: 100 * width + "%", background: `var(--${node.g})` },
      "aria-label": `${node.n}, ${size(node.b)}`,
      onclick: () => {
        draw(find(node));
        box.querySelector("button").focus();
      },
      onmousemove: e => showTip(e, says(node)),
      onmouseleave: hideTip,
      onfocus: e => say(e.target.getAttribute("aria-label"))
    },
      width > 0.03 ? node.n + "  " + size(node.b) : "");
    box.replaceChildren(...rows.map((cells, depth) => el("div", { class: "row" },
                                      cells.map((one, i) => cell(one, depth === 0 && i === 0)))));
    const deeper = trail.length > 1;
    const back = [
      el("button", { onclick: () => draw([tree]) }, "whole"),
      el("button", { onclick: () => draw(trail.slice(0, -1)) }, "up"),
    ];
    const guide = "Outermost call first. The colour shows what most of the memory is for. " +
      "Click to zoom in; arrow keys move.";
    path.replaceChildren(mode, ...(deeper ? back : []),
      el("span", { class: "soft" }, deeper ? focus.n : guide));
    hideTip();
  }
  // One stop of the Tab key; arrows move between the cells.
  box.addEventListener("keydown", e => {
    const cell = document.activeElement, row = cell && cell.parentNode, rows = [...box.children],
          depth = rows.indexOf(row);
    if (depth < 0) return;
    const middle = node => parseFloat(node.style.left) + parseFloat(node.style.width) / 2;
    const nearest = other => other &&
      [...other.children].reduce((best, node) => Math.abs(middle(node) - middle(cell)) <
            Math.abs(middle(best) - middle(cell))
          ? node
          : best);
    const next = {
      ArrowLeft: () => cell.previousSibling,
      ArrowRight: () => cell.nextSibling,
      ArrowDown: () => nearest(rows[depth + 1]),
      ArrowUp: () => nearest(rows[depth - 1])
    }[e.key];
    if (!next) return;
    e.preventDefault();
    e.stopPropagation();
    const target = next();
    if (target) {
      cell.tabIndex = -1;
      target.tabIndex = 0;
      target.focus();
    }
  });

  function show() {
    const { chart, device } = view,
                          peak = device.peak_allocated ? device.peak_allocated.moment.event : null,
                          held = view.held.get(), match = view.found.get(),
                          hidden = view.hidden.get();
    const plain = !hidden.size && !match, event = held === null ? peak : held;
    const anyMoment = view.hasBlocks && view.model().complete;
    if (anyMoment && !(plain && event === peak)) {
      const { rows, categories } = view.model();
      tree = view.model().treeAt(event, mode.value,
        row => !hidden.has(categories[rows.category[row]]) && (!match || match(row)));
      shownEvent = event;
    } else {
      tree = mode.value === "module" ? chart.by_module : chart.by_stack;
      shownEvent = peak;
    }
    const step = stepAt(chart.series, shownEvent);
    note.textContent =
      tied(`After event ${count(shownEvent)}` + (step ? ", step " + step : "") +
        (shownEvent === peak ? " (the peak of allocated memory)" : "") +
        `: ${size(tree.b)} in ${count(tree.c)} allocations` +
        (plain || !anyMoment ? "." : ", of the categories and lines that are shown.") +
        (held !== null && !anyMoment && held !== peak
            ? " The page does not hold other moments of this history."
            : ""));
    box.setAttribute("aria-label", note.textContent);
    draw([tree]);
  }
  for (const followed of [view.held, view.hidden, view.found]) followed.follow(show);
  return { nodes: [note, path, box], show };
}
