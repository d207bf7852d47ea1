#include "report/html.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "analysis/analysis_builder.h"
#include "report/json.h"

namespace tonnage::report {
namespace {

using analysis::testing::EventKind;
using analysis::testing::kMiB;
using analysis::testing::RecordBuilder;
using nlohmann::json;

constexpr uint64_t kBase = 0x7f0000000000;
constexpr const char* kHostile = "</script><img src=x onerror=alert(1)>\xe2\x80\xa8'\"&";

analysis::Explanation hostile() {
  RecordBuilder b;
  b.record.source = kHostile;
  b.record.devices[0].name = kHostile;
  b.segment(kBase, 20 * kMiB);
  b.from(b.stack({{kHostile, 7, kHostile}})).op(kHostile).module(kHostile);
  b.alloc(kBase, 3 * kMiB + 1);
  b.alloc(kBase + 4 * kMiB, 2 * kMiB);
  b.release(kBase + 4 * kMiB, 2 * kMiB);
  return analysis::explain(std::make_shared<const record::Record>(b.record));
}

// The data as a browser would read it: up to the first end of a script.
json embedded(const std::string& page) {
  const std::string start = "id=\"data\">";
  const size_t from = page.find(start) + start.size();
  return json::parse(page.substr(from, page.find("</script", from) - from));
}

TEST(Html, HostileNamesStayText) {
  const std::string page = render_html({hostile()});
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(embedded(page)["explanations"][0]["source"], kHostile);
}

TEST(Html, EscapesWhatCouldEndAScript) {
  EXPECT_EQ(escape_for_script("\"</script>&\xe2\x80\xa9\xe2\x82\xac\""),
            "\"\\u003c/script\\u003e\\u0026\\u2029\xe2\x82\xac\"");
}

TEST(Html, AsksForNothingOutside) {
  const std::string page = render_html({hostile()});
  for (const char* request : {" src=\"", " href=\"", "url(", "@import", "fetch(", "XMLHttpRequest"})
    EXPECT_EQ(page.find(request), std::string::npos) << request;
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
}

// Numbers and names of categories are in records, reports and tables that people keep.
TEST(Html, CategoriesKeepTheirNumbersAndHaveTheirColours) {
  const std::vector<std::string> names = {
      "unknown", "parameters", "gradients",   "optimizer_state", "activations",
      "inputs",  "workspaces", "temporaries", "buffers",         "rounding",
      "cached",  "context",    "other"};
  ASSERT_GE(abi::kCategoryCount, names.size());
  const std::string page = render_html({hostile()});
  for (size_t number = 0; number < names.size(); ++number) {
    EXPECT_EQ(analysis::category_name(static_cast<abi::Category>(number)), names[number]);
    EXPECT_NE(page.find("--" + names[number] + ": #"), std::string::npos) << names[number];
  }
  EXPECT_EQ(embedded(page)["categories"].size(), abi::kCategoryCount);
}

TEST(Html, NumbersAreThoseOfTheJsonReport) {
  const auto explanation = hostile();
  const json data = embedded(render_html({explanation}))["explanations"][0];
  EXPECT_EQ(data["report"], json::parse(to_json(*explanation.report)));
  const json& chart = data["charts"][0];
  const uint64_t peak = data["report"]["devices"][0]["peak_allocated"]["bytes"];
  EXPECT_GT(peak, 5 * kMiB);
  EXPECT_EQ(chart["by_stack"]["b"], peak);
  uint64_t highest = 0;
  for (size_t i = 0; i < chart["series"]["event"].size(); ++i) {
    uint64_t sum = 0;
    for (const auto& [name, values] : chart["series"]["by_category"].items())
      sum += values[i].get<uint64_t>();
    EXPECT_EQ(sum, chart["series"]["allocated"][i]);
    highest = std::max(highest, sum);
  }
  EXPECT_EQ(highest, peak);
  uint64_t mapped = 0;
  for (const json& segment : chart["maps"][0]["segments"])
    for (const json& block : segment["blocks"]) mapped += block[0].get<uint64_t>();
  EXPECT_EQ(mapped, chart["maps"][0]["reserved"]);
}

}  // namespace
}  // namespace tonnage::report
