"use strict";
// The segment map of any moment, from the lives of blocks and segments (src/report/html_lives.h
// says how they are written).
const segmentLives = (() => {
  function numbers(base64) {
    const text = atob(base64), length = text.length;
    let at = 0;
    const next = () => {
      let value = 0, scale = 1, byte;
      do {
        byte = text.charCodeAt(at++);
        value += (byte & 127) * scale;
        scale *= 128;
      } while (byte > 127);
      return value;
    };
    return {
      more: () => at < length,
      next,
      signed: () => {
        const value = next();
        return value % 2 ? -(value + 1) / 2 : value / 2;
      }
    };
  }
  const until = (from, life) => life ? from + life - 1 : Infinity;

  function read(lives) {
    const unit = lives.unit, segments = [], shapes = [], input = numbers(lives.segments);
    let from = 0, address = 0;
    while (input.more()) {
      from += input.next();
      const to = until(from, input.next());
      address += input.signed();
      const size = input.next(), kind = input.next();
      segments.push({
        from,
        to,
        address: address * unit,
        bytes: size * unit,
        stream: lives.streams[Math.floor(kind / 2)],
        expandable: kind % 2 === 1
      });
      address += size;
    }
    const shape = numbers(lives.shapes);
    for (address = 0; shape.more();) {
      address += shape.signed();
      shapes.push(
        [address * unit, shape.next() * unit, shape.next(), shape.next(), shape.next() - 1]);
    }
    const block = numbers(lives.blocks), begun = [], freed = [], gone = [], which = [];
    let index = 0;
    for (from = 0; block.more();) {
      from += block.next();
      const end = until(from, block.next());
      begun.push(from); freed.push(end); gone.push(until(end, block.next()));
      which.push(index += block.signed());
    }
    return {
      process: lives.process,
      segments,
      shapes,
      begun: Float64Array.from(begun),
      freed: Float64Array.from(freed),
      gone: Float64Array.from(gone),
      which: Int32Array.from(which)
    };
  }

  // As the stored maps are. categories: their names, by index. Above `most` blocks, small
  // neighbours in the same state are drawn as one.
  function mapAt(lives, event, categories, most) {
    const ranges = lives.segments.filter(range => range.from <= event && event < range.to)
                     .sort((a, b) => a.address - b.address);
    const found = [], { begun, freed, gone, which, shapes } = lives;
    for (let i = 0; i < begun.length && begun[i] <= event; i++) if (event < gone[i]) found.push(i);
    found.sort((a, b) => shapes[which[a]][0] - shapes[which[b]][0]);
    const map = {
      process: lives.process,
      merged: false,
      reserved: 0,
      requested: 0,
      rounding: 0,
      pending: 0,
      cached: 0,
      pinned: 0,
      segments: []
    };
    let next = 0, count = 0;
    for (let i = 0; i < ranges.length;) {
      const first = ranges[i];
      let end = first.address;
      const joins = range => range.address === end && range.expandable === first.expandable &&
        (range === first || (range.expandable && range.stream === first.stream));
      while (i < ranges.length && joins(ranges[i])) end += ranges[i++].bytes;
      const bytes = end - first.address, blocks = [];
      const segment = {
        address: "0x" + first.address.toString(16),
        bytes,
        stream: first.stream,
        expandable: first.expandable,
        small: !first.expandable && bytes === 2 ** 21,
        live: 0,
        pending: 0,
        free: 0,
        largest_free: 0,
        blocks
      };
      let at = first.address;
      const hole = to => {
        if (to > at) {
          blocks.push([to - at, 0, "", 1, -1]);
          segment.free += to - at;
          segment.largest_free = Math.max(segment.largest_free, to - at);
        }
      };
      while (next < found.length && shapes[which[found[next]]][0] < first.address) next++;
      for (; next < found.length && shapes[which[found[next]]][0] < end; next++) {
        const [address, size, rounding, category, site] = shapes[which[found[next]]],
                                                  pending = freed[found[next]] <= event;
        hole(address);
        blocks.push([size, pending ? 2 : 1, categories[category], 1, site]);
        if (pending) segment.pending += size;
        else { segment.live += size; map.requested += size - rounding; map.rounding += rounding; }
        at = address + size;
      }
      hole(end);
      map.reserved += bytes; map.pending += segment.pending;
      if (segment.free === bytes) map.cached += bytes; else map.pinned += segment.free;
      count += blocks.length;
      map.segments.push(segment);
    }
    if (count > most) {
      const least = Math.floor(4 * map.reserved / most);
      map.merged = least > 0;
      for (const segment of map.segments) segment.blocks = segment.blocks.reduce((drawn, block) => {
        const last = drawn[drawn.length - 1];
        if (last && block[0] < least && last[0] < least && last[1] === block[1]) {
          last[0] += block[0];
          last[3]++;
          last[4] = -1;
        } else
          drawn.push(block);
        return drawn;
      }, []);
    }
    return map;
  }
  return { read, mapAt };
})();
if (typeof module !== "undefined") module.exports = segmentLives;
