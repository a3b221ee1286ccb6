// tests/store/arena_sizes.h: sizes of blocks that share an arena.
#pragma once

#include <cstddef>

namespace kv {

inline constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;
inline constexpr std::size_t kMixedSizes[] = {4 * kKiB, 196 * kKiB, 1153434 /* 1.1 MiB */,
                                              2 * kMiB, 32 * kMiB,  80 * kMiB};

}  // namespace kv
