// node segment_maps.js SEGMENTS_JS PAGE...: every map that a page stores against the one that it makes of the lives of its blocks.
const fs = require("fs"), assert = require("assert"), [, , code, ...pages] = process.argv, lives = require(code);
let checked = 0;
for (const file of pages) {
  const page = fs.readFileSync(file, "utf8"), start = page.indexOf('id="data">') + 10;
  const data = JSON.parse(page.slice(start, page.indexOf("</script", start)));
  for (const explanation of data.explanations) for (const chart of explanation.charts) for (const { label, event, ...stored } of chart.maps) {
    const read = lives.read(chart.lives.find(entry => entry.process === stored.process));
    assert.deepStrictEqual(lives.mapAt(read, event, explanation.category_order, data.map_blocks), stored, `${file}, ${label}, event ${event}`);
    const whole = lives.mapAt(read, event, explanation.category_order, Infinity);
    assert.strictEqual(whole.segments.reduce((sum, segment) => sum + segment.blocks.reduce((bytes, block) => bytes + block[0], 0), 0), stored.reserved);
    checked++;
  }
}
console.log(checked);
