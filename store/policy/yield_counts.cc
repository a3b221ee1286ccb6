#include "store/policy/yield_counts.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "base/assert.h"
#include "index/block_hash.h"

namespace kv {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kYieldMagic = "KVYC";
constexpr std::uint8_t kYieldFormat = 1;
constexpr std::string_view kLearnedMagic = "KVLC";
constexpr std::uint32_t kLearnedFormat = 1;

std::uint64_t learned_checksum(std::string_view bytes) { return hash_prefix(sha256(std::as_bytes(std::span(bytes)))); }

template <class T>
void append(std::string& bytes, T value) {
  char raw[sizeof value];
  std::memcpy(raw, &value, sizeof value);
  bytes.append(raw, sizeof value);
}

template <class T>
bool take(std::string_view& bytes, T& value) {
  if (bytes.size() < sizeof value) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return true;
}

bool is_empty(const YieldTable::Counts& counts, std::size_t age) {
  return counts.hits[age] <= 0 && counts.time[age] <= 0;
}

Failure yield_failure(const std::string& text) { return {Errc::kBadRequest, "yield counts: " + text}; }

bool is_within(double value, double most) { return std::isfinite(value) && value >= 0 && value <= most; }

}  // namespace

double YieldCounts::uses() const {
  double uses = 0;
  for (const YieldTable::Counts& of_class : classes)
    for (const double hits : of_class.hits) uses += hits;
  return uses;
}

std::string write_yield_counts(const YieldCounts& counts) {
  KV_ASSERT(counts.classes.size() <= YieldTable::kClassCount);
  std::string body;
  std::uint16_t class_count = 0;
  for (std::size_t i = 0; i < counts.classes.size(); ++i) {
    const YieldTable::Counts& each = counts.classes[i];
    std::size_t first = 0, end = YieldTable::kAges;
    while (first < end && is_empty(each, first)) ++first;
    while (end > first && is_empty(each, end - 1)) --end;
    if (first == end) continue;
    ++class_count;
    append(body, static_cast<std::uint16_t>(i));
    append(body, static_cast<std::uint8_t>(first));
    append(body, static_cast<std::uint8_t>(end - first));
    for (std::size_t age = first; age < end; ++age) {
      append(body, static_cast<float>(each.hits[age]));
      append(body, static_cast<float>(each.time[age]));
    }
  }
  std::string bytes(kYieldMagic);
  append(bytes, kYieldFormat);
  append(bytes, static_cast<std::uint8_t>(YieldTable::kAges));
  append(bytes, class_count);
  bytes.append(reinterpret_cast<const char*>(counts.instance.data()), counts.instance.size());
  append(bytes, counts.unit);
  append(bytes, counts.clock);
  bytes += body;
  KV_ASSERT(bytes.size() <= kYieldCountsBytesMax);
  return bytes;
}

Result<YieldCounts, Failure> read_yield_counts(std::string_view bytes) {
  if (bytes.size() > kYieldCountsBytesMax)
    return yield_failure(std::to_string(bytes.size()) + " bytes, at most " + std::to_string(kYieldCountsBytesMax));
  if (!bytes.starts_with(kYieldMagic)) return yield_failure("not in this form");
  bytes.remove_prefix(kYieldMagic.size());
  std::uint8_t format = 0, ages = 0;
  std::uint16_t class_count = 0;
  YieldCounts counts;
  if (!take(bytes, format) || !take(bytes, ages) || !take(bytes, class_count) || !take(bytes, counts.instance) ||
      !take(bytes, counts.unit) || !take(bytes, counts.clock)) {
    return yield_failure("cut off in the head");
  }
  if (format != kYieldFormat) return yield_failure("format " + std::to_string(format) + ", this node reads 1");
  if (ages != YieldTable::kAges)
    return yield_failure("ages " + std::to_string(ages) + ", must be " + std::to_string(YieldTable::kAges));
  if (!is_within(counts.unit, kYieldUnitMax) || (counts.unit < 1 && (counts.unit != 0 || class_count > 0)))
    return yield_failure("unit " + std::to_string(counts.unit) + ", must be 1..1e12");
  double uses = 0;
  int last = -1;
  for (std::uint16_t i = 0; i < class_count; ++i) {
    std::uint16_t of_class = 0;
    std::uint8_t first = 0, count = 0;
    if (!take(bytes, of_class) || !take(bytes, first) || !take(bytes, count)) return yield_failure("cut off");
    if (of_class >= YieldTable::kClassCount || of_class <= last)
      return yield_failure("class " + std::to_string(of_class) + " after " + std::to_string(last));
    if (count == 0 || first + count > YieldTable::kAges)
      return yield_failure("ages " + std::to_string(first) + " + " + std::to_string(count));
    last = of_class;
    counts.classes.resize(of_class + std::size_t{1});
    for (std::size_t age = first; age < std::size_t{first} + count; ++age) {
      float hits = 0, time = 0;
      if (!take(bytes, hits) || !take(bytes, time)) return yield_failure("cut off");
      if (!is_within(hits, kYieldUsesMax) || !is_within(time, kYieldTimeMax))
        return yield_failure("class " + std::to_string(of_class) + ", age " + std::to_string(age) + ": " +
                             std::to_string(hits) + " uses in " + std::to_string(time));
      counts.classes.back().hits[age] = hits;
      counts.classes.back().time[age] = time;
      uses += hits;
    }
  }
  if (!bytes.empty()) return yield_failure(std::to_string(bytes.size()) + " bytes too many");
  if (uses > kYieldUsesMax) return yield_failure(std::to_string(uses) + " uses in all");
  return counts;
}

std::string write_learned(const YieldCounts& counts) {
  const std::string body = write_yield_counts(counts);
  std::string bytes(kLearnedMagic);
  append(bytes, kLearnedFormat);
  append(bytes, static_cast<std::uint32_t>(body.size()));
  append(bytes, learned_checksum(body));
  return bytes + body;
}

Result<YieldCounts, Failure> read_learned(std::string_view bytes) {
  const auto failure = [](const std::string& text) { return Failure{Errc::kBadRequest, "learned: " + text}; };
  if (!bytes.starts_with(kLearnedMagic)) return failure("not in this form");
  bytes.remove_prefix(kLearnedMagic.size());
  std::uint32_t format = 0, size = 0;
  std::uint64_t checksum = 0;
  if (!take(bytes, format)) return failure("cut off in the head");
  if (format != kLearnedFormat) return failure("format " + std::to_string(format) + ", this node reads 1");
  if (!take(bytes, size) || !take(bytes, checksum)) return failure("cut off in the head");
  if (size != bytes.size())
    return failure(std::to_string(bytes.size()) + " bytes, of which there should be " + std::to_string(size));
  if (checksum != learned_checksum(bytes)) return failure("damaged: its checksum does not match");
  return read_yield_counts(bytes);
}

}  // namespace kv
