// node page_model.js MODEL_JS PAGE...: what a page works out of the lives of blocks against what the report says of the peak.
const fs = require("fs"), assert = require("assert"), [, , code, ...pages] = process.argv, model = require(code);
let checked = 0;
for (const file of pages) {
  const page = fs.readFileSync(file, "utf8"), start = page.indexOf('id="data">') + 10;
  const data = JSON.parse(page.slice(start, page.indexOf("</script", start)));
  for (const explanation of data.explanations) for (const chart of explanation.charts) {
    const read = model.read(explanation, chart), { rows } = read, device = explanation.report.devices.find(one => one.index === chart.index);
    const peak = device.peak_allocated, event = peak.moment.event;
    assert.deepStrictEqual(read.treeAt(event, "stack"), chart.by_stack, file);
    if (chart.by_module) assert.deepStrictEqual(read.treeAt(event, "module"), chart.by_module, file);
    const sums = read.sumsAt(event);
    assert.strictEqual(sums.allocated, peak.bytes);
    assert.strictEqual(sums.reserved, peak.breakdown.reserved_bytes);
    for (const { category, bytes } of peak.breakdown.rows) if (category in sums.byCategory) assert.strictEqual(sums.byCategory[category], bytes, category);
    // All rows together are the chart's line of allocated memory.
    assert.deepStrictEqual(read.seriesOf(row => row < rows.pytorch, chart.series.event), chart.series.allocated);
    // A point in a band of the chart is a block of that category that is alive.
    const bands = data.categories.map(({ name }) => name).filter(name => chart.series.by_category[name]), at = chart.series.event.indexOf(event);
    let below = 0;
    for (const name of bands) {
      const height = at < 0 ? 0 : chart.series.by_category[name][at], row = height ? read.blockAt(event, bands, below + height / 2) : -1;
      below += height;
      if (!height || name === "rounding") continue;
      assert.strictEqual(read.categories[rows.category[row]], name);
      assert(rows.from[row] <= event && event < rows.freed[row]);
    }
    // A search finds by line, and a word that stands nowhere finds nothing.
    const text = read.origins.text(rows.site[0]).split(" ")[0];
    assert(read.origins.search(text).includes(1) && !read.origins.search("no such line").includes(1));
    const order = model.sorted(rows.total, () => true, row => rows.bytes[row], true);
    for (let i = 1; i < order.length; ++i) assert(rows.bytes[order[i - 1]] >= rows.bytes[order[i]]);
    checked++;
  }
}
console.log(checked);
