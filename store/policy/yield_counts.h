// store/policy/yield_counts.h: the counts of repeated use that nodes exchange.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/policy/yield_table.h"

namespace kv {

/// One node's counts (YieldTable). Ages and times are in blocks that this node was offered.
struct YieldCounts {
  std::array<std::uint8_t, 16> instance{};  ///< Names the node's life, to detect its own reports.
  double unit = 0;                          ///< Of ages, in blocks. 0: the node does not count.
  std::uint64_t clock = 0;
  std::vector<YieldTable::Counts> classes;  ///< Class 0 and on; classes beyond the end have zero counts.

  double uses() const;
};

/// Bounds on accepted counts. For uses: twice the maximum that half-lives allow.
inline constexpr double kYieldUsesMax = 1 << 18, kYieldTimeMax = 1e18, kYieldUnitMax = 1e12;
inline constexpr std::size_t kYieldCountsBytesMax = 128 * 1024;

/// Form, all little endian (golden test):
///   "KVYC", format 1: u8, ages a class: u8, classes that follow: u16, instance: 16 bytes, unit: f64, clock: u64
///   for each class, in order: its number: u16, the first age and how many: u8 each, then uses and time: f32 each
/// Classes and ages with zero counts are left out. Some kilobytes, ten times as much with all hints.
std::string write_yield_counts(const YieldCounts& counts);
/// Parses another node's report, which is untrusted. Errors: kBadRequest; the text names field, value and range.
Result<YieldCounts, Failure> read_yield_counts(std::string_view bytes);

/// A node's own counts over a restart. Form, all little endian (golden test):
///   "KVLC", format 1: u32, bytes that follow the head: u32, their checksum: u64, then as write_yield_counts()
/// The checksum is the first 8 bytes of the SHA-256 of these: it detects files that were cut off or overwritten.
std::string write_learned(const YieldCounts& counts);
/// Errors: kBadRequest, with texts as those of read_yield_counts().
Result<YieldCounts, Failure> read_learned(std::string_view bytes);
inline constexpr std::size_t kLearnedBytesMax = kYieldCountsBytesMax + 64;

}  // namespace kv
