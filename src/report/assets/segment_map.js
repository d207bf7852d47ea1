"use strict";
// Segments of the caching allocator and the blocks in them, of any moment that the page holds.
function segmentMapView(view) {
  const { chart } = view, ROW = 16, GAP = 4;
  const canvas = el("canvas", { class: "map", role: "img", tabindex: 0 }),
        note = el("p", { class: "soft" });
  const pick = el("select", { "aria-label": "Moment of the segment map" });
  const several = new Set(chart.maps.map(entry => entry.process)).size > 1,
        heldOption = el("option", { value: "held" });
  // held: the event chosen in the timeline. Its own map is made where the lives of the blocks are
  // in the page, else the nearest stored one is shown.
  let map = chart.maps[0], boxes = [], held = null, at = -1;

  function layout(width) {
    const segments = [...map.segments].sort((a, b) => b.bytes - a.bytes);
    // Rows share one scale; a segment that is longer than a row goes on in the next.
    const total = segments.reduce((sum, s) => sum + s.bytes, 0) || 1,
          perRow = Math.max(total / 28, 2 ** 21), scale = (width - 2) / perRow;
    boxes = [];
    let x = 0, y = 0;
    const next = () => { x = 0; y += ROW + GAP; };
    for (const segment of segments) {
      if (x > 0 && x + segment.bytes * scale > width) next();
      let offset = 0;
      for (const block of segment.blocks) {
        let rest = block[0];
        while (rest > 0) {
          const part = Math.min(rest, Math.max((width - x) / scale, 1));
          boxes.push([x, y, part * scale, segment, block, offset]);
          x += part * scale; rest -= part;
          if (width - x < 0.01 && rest > 0) next();
        }
        offset += block[0];
      }
      x += 3;
      if (x >= width) next();
    }
    return y + ROW + 2;
  }
  function draw() {
    if (!canvas.isConnected) return;
    const width = canvas.parentNode.clientWidth, ratio = devicePixelRatio || 1,
          height = layout(width);
    canvas.width = width * ratio;
    canvas.height = Math.min(height * ratio, 16000);
    canvas.style.height = height + "px";
    const ctx = canvas.getContext("2d"), hidden = view.hidden.get(), sites = view.foundSites.get(),
          tints = Object.fromEntries(CATEGORIES.map(name => [name, colour(name)]));
    ctx.scale(ratio, ratio);
    for (const [bx, by, bw, , block] of boxes) {
      const name = block[2] || "unknown",
            faint =
              block[1] && (hidden.has(name) || (sites && !(block[4] >= 0 && sites[block[4]])));
      ctx.fillStyle = block[1] === 0 ? tints.cached : tints[name];
      ctx.globalAlpha = faint ? 0.12 : block[1] === 2 ? 0.45 : 1;
      ctx.fillRect(bx, by, Math.max(bw - (bw > 3 ? 0.6 : 0), 0.4), ROW);
    }
    ctx.globalAlpha = 1;
    if (at >= 0 && boxes[at]) {
      ctx.strokeStyle = colour("accent"); ctx.lineWidth = 2;
      ctx.strokeRect(boxes[at][0], boxes[at][1], Math.max(boxes[at][2], 2), ROW);
    }
    const apart = held === null || chart.lives ? 0 : map.event - held;
    note.className = apart ? "warn" : "soft";
    note.textContent =
      tied((apart ? `Not the moment held in the timeline (event ${count(held)}) ` +
          `but the nearest with a map: event ${count(map.event)}, ` +
          `${count(Math.abs(apart))} events ${apart < 0 ? "earlier" : "later"}. `
        : `After event ${count(map.event)}: `) +
        `${map.segments.length} segments, ${size(map.reserved)} reserved: ` +
        `${size(map.requested)} requested, ${size(map.rounding)} rounding, ` +
        `${size(map.pending)} waiting for another stream, ` +
        `${size(map.cached)} in free segments, ` +
        `${size(map.pinned)} in free pieces beside live blocks.` +
        (map.merged ? " Small neighbouring blocks in the same state are drawn as one." : ""));
    canvas.setAttribute("aria-label",
      "Segment map. " + note.textContent +
        " Arrow keys move from block to block, Enter shows the stack of one.");
  }
  const site = block => block[4] >= 0 ? view.model().origins.whole(block[4]) : "";
  const saysBlock = block => (block[3] > 1 ? block[3] + " blocks, " : "") +
    `${size(block[0])} ${STATES[block[1]]}` +
    (block[1] && block[2] ? ", " + TITLES[block[2]] : "") +
    (site(block) ? "\n" + site(block) : "");
  const kindOf = segment => segment.expandable ? ", expandable"
    : segment.small ? ", small pool" : "";
  const says = ([, , , segment, block, offset]) => saysBlock(block) +
    `\nsegment ${segment.address} + ${exact(offset)}: ${size(segment.bytes)}${kindOf(segment)}, ` +
    `stream ${segment.stream}; free ${size(segment.free)}, ` +
    `largest piece ${size(segment.largest_free)}`;
  function hit(e) {
    const box = canvas.getBoundingClientRect(), px = e.clientX - box.left, py = e.clientY - box.top;
    return boxes.findIndex(
      ([x, y, w]) => px >= x && px < x + Math.max(w, 1) && py >= y && py < y + ROW);
  }
  function choose(index) {
    at = index;
    draw();
    const [, , , segment, block, offset] = boxes[index];
    if (!block[1] || !view.hasBlocks) return view.select(-1);
    view.select(view.model().rowAt(map.process, Number(segment.address) + offset, map.event));
  }
  canvas.addEventListener("mousemove", e => {
    const found = hit(e);
    if (found < 0)
      hideTip();
    else
      showTip(e, says(boxes[found]));
  });
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("click", e => { const found = hit(e); if (found >= 0) choose(found); });
  canvas.addEventListener("keydown", e => {
    if (e.key === "Enter" && at >= 0) { choose(at); return; }
    if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(e.key) || !boxes.length)
      return;
    e.preventDefault();
    e.stopPropagation();
    if (e.key === "ArrowLeft" || e.key === "ArrowRight")
      at = Math.max(0, Math.min(boxes.length - 1, at + (e.key === "ArrowLeft" ? -1 : 1)));
    else {
      const [x, y] = boxes[Math.max(at, 0)], row = y + (e.key === "ArrowUp" ? -1 : 1) * (ROW + GAP);
      const found = boxes.findIndex(box => box[1] === row && box[0] + box[2] > x);
      if (found >= 0) at = found;
    }
    draw();
    say(says(boxes[at]));
  });
  chart.maps.forEach((entry, i) => pick.append(el("option", { value: i },
                       entry.label + (several ? `, process ${entry.process}` : "") +
                         ` (event ${count(entry.event)})`)));
  function show(event, process) {
    const lives = view.model().lives.find(part => part.process === process);
    map = {
      ...segmentLives.mapAt(lives, event, view.explanation.category_order, data.map_blocks),
      event,
      label: "held"
    };
    heldOption.textContent =
      `held in the timeline${several ? `, process ${process}` : ""} (event ${count(event)})`;
    if (!heldOption.isConnected) pick.prepend(heldOption);
    pick.value = "held";
    draw();
  }
  pick.addEventListener("change", () => {
    at = -1;
    if (pick.value === "held") return show(held, map.process);
    map = chart.maps[Number(pick.value)];
    draw();
  });
  view.held.follow(event => {
    held = event;
    at = -1;
    if (event === null) {
      heldOption.remove();
      pick.value = "0";
      map = chart.maps[0];
      return draw();
    }
    if (chart.lives) return show(event, map.process);
    const nearest = chart.maps.reduce(
      (best, entry, i) =>
        Math.abs(entry.event - event) < Math.abs(chart.maps[best].event - event) ? i : best,
      0);
    map = chart.maps[nearest];
    pick.value = nearest;
    draw();
  });
  view.hidden.follow(draw);
  view.found.follow(draw);
  const bar = el("div", { class: "bar" }, pick,
    el("span", { class: "soft" }, "colours as above, ", swatch("cached"),
      "free; click a block for its stack"));
  const moments = new Set(chart.maps.map(entry => entry.event)).size;
  const warning = chart.lives
    ? null
    : el("p", { class: "warn" },
        "The page does not hold every moment of this history (it is too long, or its events " +
          `contradict each other): maps of ${moments} moments are stored, and a moment that is ` +
          "held in the timeline shows the nearest of them.");
  return { nodes: [bar, warning, note, el("div", {}, canvas)], draw };
}
