// JSON Schemas (draft 2020-12) of what the commands write with --json. docs/json.md has the
// promise.
//
// Beside the standard's words: "x-words" lists the words that a field has today (more may come),
// and "x-prose": true marks sentences for people, whose wording may change.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tonnage::report {

struct SchemaEntry {
  const char* name;   // of the command: "explain"
  const char* about;  // one line
};
const std::vector<SchemaEntry>& schemas();

// "": there is none of that name. `run` writes what `report` writes.
std::string schema_json(std::string_view name);

}  // namespace tonnage::report
