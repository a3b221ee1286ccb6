#include "index/record_differences.h"

#include <cstddef>

namespace kv {
namespace {

/// Walks the lines of a canonical text, which are sorted by key.
class FieldLines {
 public:
  explicit FieldLines(std::string_view text) : rest_(text) { next(); }
  bool is_at_end() const { return key_.empty(); }
  std::string_view key() const { return key_; }
  std::string_view value() const { return value_; }
  void next() {
    const std::size_t end = rest_.find('\n');
    const std::string_view line = rest_.substr(0, end);
    rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
    const std::size_t equals = line.find('=');
    key_ = line.substr(0, equals);
    value_ = equals == std::string_view::npos ? std::string_view() : line.substr(equals + 1);
  }

 private:
  std::string_view rest_, key_, value_;
};

std::string shown(const std::string& value) { return value.empty() ? "none" : value; }

}  // namespace

std::vector<FieldDifference> record_differences(const NamespaceRecord& here, const NamespaceRecord& there) {
  return record_differences(here.text(), there.text(), std::string_view::npos);
}

std::vector<FieldDifference> record_differences(std::string_view here, std::string_view there, std::size_t count_max) {
  std::vector<FieldDifference> differences;
  FieldLines a(here), b(there);
  while ((!a.is_at_end() || !b.is_at_end()) && differences.size() <= count_max) {
    const bool only_a = b.is_at_end() || (!a.is_at_end() && a.key() < b.key());
    const bool only_b = a.is_at_end() || (!b.is_at_end() && b.key() < a.key());
    if (only_a) {
      differences.push_back({std::string(a.key()), std::string(a.value()), ""});
    } else if (only_b) {
      differences.push_back({std::string(b.key()), "", std::string(b.value())});
    } else if (a.value() != b.value()) {
      differences.push_back({std::string(a.key()), std::string(a.value()), std::string(b.value())});
    }
    if (!only_b) a.next();
    if (!only_a) b.next();
  }
  return differences;
}

std::string differences_text(const std::vector<FieldDifference>& differences) {
  std::string text;
  for (const FieldDifference& each : differences) {
    if (!text.empty()) text += ", ";
    text += each.field;
    if (!each.is_secret()) text += " (here " + shown(each.here) + ", there " + shown(each.there) + ")";
  }
  return text;
}

}  // namespace kv
