#include "report/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "analysis/analysis_builder.h"

namespace tonnage::report {
namespace {

using analysis::testing::EventKind;
using analysis::testing::kMiB;
using analysis::testing::RecordBuilder;
using nlohmann::json;

constexpr uint64_t kBase = 0x7f0000000000;

// No floating-point number may stand for bytes, and no figure may be negative.
void check_numbers(const json& value, const std::string& path) {
  if (value.is_object()) {
    for (const auto& [key, child] : value.items()) {
      if (key.ends_with("bytes") && child.is_number()) {
        EXPECT_TRUE(child.is_number_unsigned()) << path << "." << key;
      }
      check_numbers(child, path + "." + key);
    }
  } else if (value.is_array()) {
    for (const json& child : value) check_numbers(child, path + "[]");
  }
}

TEST(Json, HasASchemaAndExactBytes) {
  RecordBuilder b;
  b.add(EventKind::kContext, 0, 64 * kMiB);
  b.segment(kBase, 2 * kMiB);
  b.alloc(kBase, 1001);
  const json report = json::parse(to_json(analysis::make_report(b.record)));
  EXPECT_EQ(report["schema"], kJsonSchema);
  EXPECT_EQ(report["verdict"], "fits");
  const json& device = report["devices"][0];
  EXPECT_EQ(device["peak_allocated"]["bytes"], 1024u);
  EXPECT_EQ(device["peak_device"]["bytes"], 66 * kMiB);
  EXPECT_EQ(device["headroom_bytes"], (1024 - 66) * kMiB);
  uint64_t sum = 0;
  for (const json& row : device["peak_device"]["breakdown"]["rows"])
    sum += row["bytes"].get<uint64_t>();
  EXPECT_EQ(sum, 66 * kMiB);
  check_numbers(report, "");
}

TEST(Json, WhatIsNotKnownIsNull) {
  RecordBuilder b;
  b.record.kind = record::Record::Kind::kSnapshot;
  b.record.devices[0] = {0, "", 0, 0};
  b.add(EventKind::kSegmentAlloc, kBase, 2 * kMiB);
  b.alloc(kBase, 1001);
  const json report = json::parse(to_json(analysis::make_report(b.record)));
  const json& device = report["devices"][0];
  for (const char* key : {"name", "total_bytes", "headroom_bytes", "peak_device",
                          "context_bytes_modelled", "device_bytes_by_kind"})
    EXPECT_TRUE(device[key].is_null()) << key;
  EXPECT_TRUE(device["series"]["device_bytes"].is_null());
  EXPECT_TRUE(device["peak_allocated"]["moment"]["step"].is_null());
  EXPECT_TRUE(device["peak_allocated"]["moment"]["site"]["line"].is_null());
  EXPECT_TRUE(report["launches"].is_null());
  EXPECT_TRUE(report["torch_version"].is_null());
  EXPECT_EQ(report["verdict"], "unknown");
}

TEST(Json, LargeNumbersAndForeignBytesSurvive) {
  RecordBuilder b;
  b.record.devices[0].name = "caf\xe9";
  b.record.devices[0].total_bytes = UINT64_MAX;
  b.add(EventKind::kDeviceAlloc, kBase, (uint64_t{1} << 60) + 1);
  const json report = json::parse(to_json(analysis::make_report(b.record), -1));
  EXPECT_EQ(report["devices"][0]["total_bytes"].get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(report["devices"][0]["peak_device"]["bytes"].get<uint64_t>(), (uint64_t{1} << 60) + 1);
  EXPECT_EQ(to_json(analysis::make_report(b.record), -1).find('\n'), std::string::npos);
}

}  // namespace
}  // namespace tonnage::report
