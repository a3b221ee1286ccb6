// index/record_differences.h: in which fields two namespace records differ.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "index/namespace_record.h"

namespace kv {

struct FieldDifference {
  std::string field, here, there;  ///< Empty: that record does not have the field.
  bool is_secret() const { return field == "salt"; }
};

/// Sorted by field. Cost: O(bytes of both texts).
std::vector<FieldDifference> record_differences(const NamespaceRecord& here, const NamespaceRecord& there);
/// Of two canonical texts; ends with the first difference beyond `count_max`.
std::vector<FieldDifference> record_differences(std::string_view here, std::string_view there, std::size_t count_max);
/// "dtype (here bfloat16, there float16), revision (here none, there 3fa9)": for people; what a salt is stays untold.
std::string differences_text(const std::vector<FieldDifference>& differences);

}  // namespace kv
