#include "index/namespace_record.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/text/printable.h"
#include "base/text/quantity.h"

namespace kv {
namespace {

constexpr std::size_t kKeyBytesMax = 64;
constexpr std::size_t kValueBytesMax = 1024;
constexpr std::size_t kFieldCountMax = 64;
constexpr std::size_t kTextBytesMax = 16 * 1024;
constexpr std::size_t kBlockSizeMax = 65536;  // tokens
constexpr std::size_t kBlockBytesMax = std::size_t{1} << 30;

/// docs/namespace-record.md explains each. Adding a key is compatible. Renaming or removing one is not: every namespace
/// with that key would become another namespace.
constexpr std::array<std::string_view, 19> kKeys = {
    "block_bytes", "block_bytes_max", "block_size",   "cache_group", "dtype",        "hash",     "head_range", "kind",
    "layer_range", "layout",          "lora",         "model",       "quantization", "revision", "rope",       "salt",
    "share",       "tenant",          "weights_epoch"};
static_assert(std::is_sorted(kKeys.begin(), kKeys.end()));

using Fields = std::map<std::string, std::string>;

/// A value as part of a message: quoted, on one line, and of bounded length for any input.
std::string quoted(std::string_view value) {
  constexpr std::size_t kShown = 80;
  std::string text = "\"" + printable(value.substr(0, kShown)) + "\"";
  if (value.size() > kShown) text += "... (" + std::to_string(value.size()) + " bytes)";
  return text;
}

Failure refuse(const std::string& message) { return {Errc::kBadRequest, "namespace record: " + message}; }

bool is_key_char(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.'; }

/// Whether a node, not a caller, adds the field.
bool is_of_node(std::string_view key) {
  return key == NamespaceRecord::kNodeSalt || key == NamespaceRecord::kNodeTenant;
}

bool is_known(std::string_view key) {
  return is_of_node(key) || std::binary_search(kKeys.begin(), kKeys.end(), key) ||
         (key.size() > 2 && key.starts_with("x."));
}

std::string known_keys() {
  std::string list;
  for (const std::string_view key : kKeys) list.append(key).append(", ");
  return list + "x.*";
}

/// The fault of a field, or an empty string.
std::string field_problem(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kKeyBytesMax || !std::all_of(key.begin(), key.end(), is_key_char)) {
    return "key " + quoted(key) + " is not allowed: 1 to 64 of a-z, 0-9, '_' and '.'";
  }
  if (!is_known(key)) return "key " + quoted(key) + " is unknown; allowed: " + known_keys();
  if (value.size() > kValueBytesMax) {
    return "field " + quoted(key) + ": value " + quoted(value) + " is too long; allowed: at most 1024 bytes";
  }
  if (!std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~'; })) {
    return "field " + quoted(key) + ": value " + quoted(value) + " holds other bytes than printable ASCII";
  }
  return {};
}

/// The fault in the field `kind`, or a field of the other kind; an empty string without one. `kind=chain` is never
/// written, and a set has no chain fields: one namespace has one text.
std::string kind_problem(const Fields& fields) {
  const auto kind = fields.find("kind");
  if (kind != fields.end() && kind->second != "set") {
    return "field \"kind\": value " + quoted(kind->second) + " is not allowed; allowed: \"set\", or no such field";
  }
  const auto foreign = [&](const char* key, const char* allowed) {
    return "field " + quoted(key) + " is not allowed here; " + allowed;
  };
  constexpr const char* kOfSet = "allowed in a set: \"block_bytes_max\"";
  if (kind == fields.end()) {
    return fields.contains("block_bytes_max") ? foreign("block_bytes_max", "allowed without \"kind\": \"block_bytes\"")
                                              : "";
  }
  for (const char* key : {"block_bytes", "block_size"})
    if (fields.contains(key)) return foreign(key, kOfSet);
  return {};
}

/// The value of a required decimal field; or 0, with the reason in `problem`. Leading zeros are refused: two spellings
/// of a number would give a namespace two ids.
std::size_t parse_count(const Fields& fields, const std::string& key, std::size_t max, std::string& problem) {
  const auto field = fields.find(key);
  const std::string allowed = "a decimal number from 1 to " + std::to_string(max) + " without leading zeros";
  if (field == fields.end()) {
    problem = "field " + quoted(key) + " is missing; allowed: " + allowed;
    return 0;
  }
  const std::string& value = field->second;
  const auto count = parse_number<std::size_t>(value);
  if (!count || value[0] == '0' || *count > max) {
    problem = "field " + quoted(key) + ": value " + quoted(value) + " is not allowed; allowed: " + allowed;
    return 0;
  }
  return *count;
}

}  // namespace

Result<NamespaceRecord, Failure> NamespaceRecord::parse(std::string_view text) {
  if (text.size() > kTextBytesMax) {
    return refuse("the text has " + std::to_string(text.size()) + " bytes; allowed: at most 16384");
  }
  Fields fields;
  // Only sorted lines are accepted: an unsorted text would have another digest than the same fields sorted.
  std::string_view previous;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    if (end == rest.npos) return refuse("the last line " + quoted(rest) + " does not end with a newline");
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);

    const std::size_t equals = line.find('=');
    if (equals == line.npos) return refuse("line " + quoted(line) + " is not of the form key=value");
    const std::string_view key = line.substr(0, equals), value = line.substr(equals + 1);
    if (value.empty()) return refuse("field " + quoted(key) + " has an empty value; leave the line out");
    if (!fields.empty() && key == previous) return refuse("field " + quoted(key) + " is given twice");
    if (key < previous) {
      return refuse("field " + quoted(key) + " comes after " + quoted(previous) + "; lines are sorted by key");
    }
    previous = key;
    fields.emplace(key, value);
  }
  return from_fields(std::move(fields));
}

/// An empty value means an absent field. Otherwise a caller that passes all keys, and one that passes only the keys it
/// uses, would name two namespaces.
Result<NamespaceRecord, Failure> NamespaceRecord::from_fields(Fields fields) {
  for (const auto& [key, value] : fields) {
    if (auto problem = field_problem(key, value); !problem.empty()) return refuse(problem);
  }
  std::erase_if(fields, [](const auto& field) { return field.second.empty(); });
  if (fields.size() > kFieldCountMax) {
    return refuse("there are " + std::to_string(fields.size()) + " fields; allowed: at most 64");
  }
  if (!fields.contains("model")) {
    return refuse("field \"model\" is missing; allowed: 1 to 1024 bytes of printable ASCII");
  }
  NamespaceRecord record;
  std::string problem = kind_problem(fields);
  if (problem.empty() && fields.contains("kind")) {
    record.kind_ = NamespaceKind::kSet;
    record.block_bytes_ = parse_count(fields, "block_bytes_max", kBlockBytesMax, problem);
  } else if (problem.empty()) {
    record.block_size_ = parse_count(fields, "block_size", kBlockSizeMax, problem);
    if (problem.empty()) record.block_bytes_ = parse_count(fields, "block_bytes", kBlockBytesMax, problem);
  }
  if (!problem.empty()) return refuse(problem);

  std::string callers_text;
  bool is_completed = false;
  for (const auto& [key, value] : fields) {
    record.text_.append(key).append("=").append(value).append("\n");
    is_completed = is_completed || is_of_node(key);
    if (!is_of_node(key)) callers_text.append(key).append("=").append(value).append("\n");
  }
  if (record.text_.size() > kTextBytesMax) {
    return refuse("the text has " + std::to_string(record.text_.size()) + " bytes; allowed: at most 16384");
  }
  record.fields_ = std::move(fields);
  KV_ASSERT(record.block_bytes_ > 0 && (record.block_size_ > 0) != record.is_set());
  record.digest_ = sha256(std::as_bytes(std::span(record.text_)));
  const BlockHash callers = is_completed ? sha256(std::as_bytes(std::span(callers_text))) : record.digest_;
  std::memcpy(record.callers_id_.bytes.data(), callers.bytes.data(), record.callers_id_.bytes.size());
  return record;
}

NamespaceId NamespaceRecord::id() const {
  NamespaceId id;
  std::memcpy(id.bytes.data(), digest_.bytes.data(), id.bytes.size());
  return id;
}

std::uint64_t NamespaceRecord::checksum_seed(const BlockHash& block, std::size_t length) const {
  return is_set() ? set_checksum_seed(callers_id_, block, length) : kv::checksum_seed(callers_id_, block);
}

Result<NamespaceRecord, Failure> NamespaceRecord::with(const std::map<std::string, std::string>& fields) const {
  Fields all = fields_;
  for (const auto& [key, value] : fields) all[key] = value;
  return from_fields(std::move(all));
}

std::string NamespaceRecord::owner() const {
  if (const auto share = field(kShare); !share.empty()) return "share:" + std::string(share);
  const auto found_out = field(kNodeTenant);
  return std::string(found_out.empty() ? field("tenant") : found_out);
}

NamespaceRecord NamespaceRecord::unsalted() const {
  if (field(kNodeSalt).empty()) return *this;
  auto without = with({{std::string(kNodeSalt), ""}});
  KV_ASSERT(without.has_value());  // removing a field is always valid
  return *std::move(without);
}

std::string NamespaceRecord::unsalted_text() const {
  const std::string line = std::string(kNodeSalt) + "=" + std::string(field(kNodeSalt)) + "\n";
  const std::size_t at = field(kNodeSalt).empty() ? std::string::npos : text_.find(line);
  return at == std::string::npos ? text_ : text_.substr(0, at) + text_.substr(at + line.size());
}

bool NamespaceRecord::has_own_chain() const { return field("hash").empty(); }

std::string_view NamespaceRecord::field(std::string_view key) const {
  const auto found = fields_.find(std::string(key));
  return found == fields_.end() ? std::string_view() : std::string_view(found->second);
}

}  // namespace kv
