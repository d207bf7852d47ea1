// What a byte is for: the rows of the report. All of it comes from the one list, categories.def.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tonnage::abi {

#define TONNAGE_CATEGORY(enumerator, number, ...) enumerator = number,
enum class Category : uint8_t {
#include "abi/categories.def"
};
#undef TONNAGE_CATEGORY

struct CategoryInfo {
  Category category;
  const char* name;   // in JSON, tables and traces: "optimizer_state"
  const char* title;  // as reports print it: "optimizer state"
  bool is_label;      // a program or the recorder may say it of a tensor
  const char* color_on_white;
  const char* color_on_black;
};

// In the order of the report's rows.
#define TONNAGE_CATEGORY(enumerator, number, name, title, label, terminal, white, black) \
  {Category::enumerator, name, title, label, white, black},
inline constexpr CategoryInfo kCategories[] = {
#include "abi/categories.def"
};
#undef TONNAGE_CATEGORY

// Numbers run from 0 to kCategoryCount - 1.
inline constexpr size_t kCategoryCount = sizeof kCategories / sizeof *kCategories;

// A number that nobody knows (a record from a later version) is kUnknown.
constexpr const CategoryInfo& category_info(Category category) {
  const CategoryInfo* unknown = kCategories;
  for (const CategoryInfo& info : kCategories) {
    if (info.category == category) return info;
    if (info.category == Category::kUnknown) unknown = &info;
  }
  return *unknown;
}

}  // namespace tonnage::abi
