// index/record_differences.h: the fields in which two namespace records differ.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "index/namespace_record.h"

namespace kv {

struct FieldDifference {
  std::string field, here, there;  ///< Empty: the field is absent from that record.
  bool is_secret() const { return field == "salt"; }
};

/// Sorted by field. Cost: O(bytes of both texts).
std::vector<FieldDifference> record_differences(const NamespaceRecord& here, const NamespaceRecord& there);
/// For two canonical texts; ends with the first difference beyond `count_max`.
std::vector<FieldDifference> record_differences(std::string_view here, std::string_view there, std::size_t count_max);
/// "dtype (here bfloat16, there float16), revision (here none, there 3fa9)": for people; hides the values of salts.
std::string differences_text(const std::vector<FieldDifference>& differences);

}  // namespace kv
