#include "report/schema.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "analysis/diagnosis/findings.h"
#include "analysis/timeline/breakdown.h"
#include "analysis/timeline/failures.h"
#include "analysis/verdict.h"
#include "report/explain_json.h"
#include "report/json.h"

namespace tonnage::report {
namespace {

using nlohmann::json;

void visit(const json& value, const std::function<void(const json&)>& look) {
  if (value.is_object()) look(value);
  if (!value.is_structured()) return;
  for (const json& part : value) visit(part, look);
}

TEST(Schema, EachIsWholeInItself) {
  for (const SchemaEntry& entry : schemas()) {
    const json schema = json::parse(schema_json(entry.name));
    EXPECT_EQ(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    EXPECT_TRUE(schema["$id"].get<std::string>().starts_with("urn:tonnage:schema:"));
    std::set<std::string> used;
    visit(schema, [&](const json& part) {
      if (part.contains("$ref") && part["$ref"].is_string()) used.insert(part["$ref"]);
      if (!part.contains("required") || !part["required"].is_array()) return;
      for (const json& name : part["required"]) EXPECT_TRUE(part["properties"].contains(name));
    });
    for (const std::string& reference : used)
      EXPECT_TRUE(schema.contains(json::json_pointer(reference.substr(1)))) << reference;
    const json parts = schema.value("$defs", json::object());
    for (const auto& [name, part] : parts.items())
      EXPECT_TRUE(used.count("#/$defs/" + name)) << entry.name << ": nobody uses " << name;
  }
  EXPECT_EQ(schema_json("nothing"), "");
}

// A field of the writer that the schema does not name, or the other way round: here for an empty
// report, in tests/e2e/test_reference.py for real ones.
TEST(Schema, NamesTheFieldsOfAnEmptyReport) {
  const json document = json::parse(to_json(analysis::Report{}));
  const json schema = json::parse(schema_json("report"));
  std::set<std::string> written, named;
  for (const auto& [name, value] : document.items()) written.insert(name);
  for (const auto& [name, value] : schema["properties"].items()) named.insert(name);
  EXPECT_EQ(written, named);
}

std::set<std::string> words_at(const char* name, const char* pointer) {
  const json words = json::parse(schema_json(name)).at(json::json_pointer(pointer)).at("x-words");
  return words.get<std::set<std::string>>();
}

TEST(Schema, HasTheWordsOfTheCode) {
  const auto verdicts = words_at("report", "/properties/verdict");
  for (const auto verdict :
       {analysis::Verdict::kUnknown, analysis::Verdict::kFits, analysis::Verdict::kFitsAtMost,
        analysis::Verdict::kDoesNotFit, analysis::Verdict::kFailed, analysis::Verdict::kCut,
        analysis::Verdict::kNothingUsed})
    EXPECT_TRUE(verdicts.count(analysis::verdict_name(verdict)));
  EXPECT_EQ(verdicts.size(), 7u);
  const auto categories =
      words_at("report", "/$defs/breakdown/properties/rows/items/properties/category");
  EXPECT_EQ(categories.size(), abi::kCategoryCount);
  const auto causes = words_at("explain", "/$defs/finding/properties/cause");
  for (const auto cause : {analysis::Cause::kUnknown, analysis::Cause::kFragmentation,
                           analysis::Cause::kLeak, analysis::Cause::kPrivatePool})
    EXPECT_TRUE(causes.count(analysis::cause_name(cause)));
  const auto frameworks = words_at("explain", "/$defs/message/properties/framework");
  for (const auto framework : {sources::LogFramework::kPyTorch, sources::LogFramework::kUnknown,
                               sources::LogFramework::kWarp})
    EXPECT_TRUE(frameworks.count(sources::log_framework_name(framework)));
}

}  // namespace
}  // namespace tonnage::report
