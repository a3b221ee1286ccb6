// store/yield_counts.h: what nodes tell one another of when blocks are used again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "store/yield_table.h"

namespace kv {

/// What one node has counted (YieldTable). Ages and times are in blocks that this node was offered.
struct YieldCounts {
  std::array<std::uint8_t, 16> instance{};  ///< Of the node's life: who finds its own has asked itself.
  double unit = 0;                          ///< Of ages, in blocks. 0: the node counts nothing.
  std::uint64_t clock = 0;                  ///< Blocks offered so far.
  std::vector<YieldTable::Counts> classes;  ///< Class 0 and on; beyond: nothing was counted.

  double uses() const;  ///< Over all classes and ages.
};

/// Bounds of what is believed. Of the uses: twice what half-lives let a node have.
inline constexpr double kYieldUsesMax = 1 << 18, kYieldTimeMax = 1e18, kYieldUnitMax = 1e12;
inline constexpr std::size_t kYieldCountsBytesMax = 128 * 1024;

/// Form, all little endian (golden test):
///   "KVYC", format 1: u8, ages a class: u8, classes that follow: u16, instance: 16 bytes, unit: f64, clock: u64
///   for each class, in order: its number: u16, the first age and how many: u8 each, then uses and time: f32 each
/// Classes and ages at which nothing was counted are left out. Some kilobytes, ten times as much with all hints.
std::string write_yield_counts(const YieldCounts& counts);
/// Of another node, which may say anything. Errors: kBadRequest; the words name field, value and what is allowed.
Result<YieldCounts, Failure> read_yield_counts(std::string_view bytes);

/// What a node keeps of its counts over a restart. Form, all little endian (golden test):
///   "KVLC", format 1: u32, bytes that follow the head: u32, their checksum: u64, then as write_yield_counts()
/// The checksum is the first 8 bytes of the SHA-256 of these. A file is cut off or overwritten more often than it lies.
std::string write_learned(const YieldCounts& counts);
/// Errors: kBadRequest, with words as those of read_yield_counts().
Result<YieldCounts, Failure> read_learned(std::string_view bytes);
inline constexpr std::size_t kLearnedBytesMax = kYieldCountsBytesMax + 64;

}  // namespace kv
