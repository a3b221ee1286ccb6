// client/c/gpu_c_paging.cc: kvstore_paging.h's pools, sequences and masks. Exceptions stop here.
#include <memory>
#include <span>
#include <vector>

#include "client/c/gpu_c_arguments.h"
#include "client/kvstore_paging.h"
#include "gpu/paging/packed_mask.h"
#include "gpu/paging/paged_cache.h"

// Shared: a pool may be freed before its caches, in a garbage collector's order.
struct kvs_page_pool {
  std::shared_ptr<kv::PagePool> pool;
};
struct kvs_paged_cache {
  kvs_paged_cache(std::shared_ptr<kv::PagePool> pages, const kv::GroupConfig& config, std::uint32_t group_number)
      : pool(std::move(pages)), group(config), number(group_number), cache(*pool, config) {}

  // Before `cache`, which borrows it.
  const std::shared_ptr<kv::PagePool> pool;
  const kv::GroupConfig group;
  const std::uint32_t number;
  kv::PagedCache cache;
};

namespace kv {
namespace {

using namespace c_api;

/// Far beyond every cache; multiplied by the tokens of a block, it does not overflow.
constexpr std::size_t kTokensMax = std::size_t{1} << 40;
constexpr std::size_t kBlockTokensMax = std::size_t{1} << 31;
constexpr std::size_t kGroupsMax = 64;

[[noreturn]] void refuse_size(const char* field, std::size_t value, const char* allowed) {
  refuse(KVS_BAD_REQUEST, std::string(field) + ": " + std::to_string(value) + " is not " + allowed);
}

std::vector<BlockName> names_of(const kvs_hash* hashes, std::size_t count, std::uint32_t group) {
  std::vector<BlockName> names(count);
  for (std::size_t i = 0; i < count; ++i) {
    static_assert(sizeof hashes[i].bytes == sizeof names[i].hash);
    std::memcpy(names[i].hash.data(), hashes[i].bytes, sizeof hashes[i].bytes);
    names[i].group = group;
  }
  return names;
}

void check_sequence(const kvs_paged_cache* cache, kvs_sequence sequence) {
  if (cache == nullptr) refuse(KVS_BAD_REQUEST, "cache is NULL");
  if (!cache->cache.has(SequenceId{sequence})) refuse_size("sequence", sequence, "open in this cache");
}

void check_prefix_call(const kvs_hash* hashes, std::size_t hash_count, std::size_t token_count) {
  if (hashes == nullptr && hash_count > 0) refuse(KVS_BAD_REQUEST, "hashes is NULL");
  if (hash_count > kTokensMax) refuse_size("hash_count", hash_count, "at most 2^40");
  if (token_count > kTokensMax) refuse_size("token_count", token_count, "at most 2^40");
}

/// Holds the pages of prefixes: pages taken by one group must not be those that another group has hit.
class HeldPrefixes {
 public:
  HeldPrefixes(PagePool& pool, std::span<const CachedPrefix> prefixes) : pool_(pool), prefixes_(prefixes) {
    // All prefixes before any sequence: opening the first group may take free pages that hold the second group's hits.
    for (const CachedPrefix& each : prefixes_) pool_.touch(each.pages);
  }
  ~HeldPrefixes() {
    for (const CachedPrefix& each : prefixes_) pool_.release(each.pages);
  }
  HeldPrefixes(const HeldPrefixes&) = delete;
  HeldPrefixes& operator=(const HeldPrefixes&) = delete;

 private:
  PagePool& pool_;
  std::span<const CachedPrefix> prefixes_;
};

/// A sequence in each cache, or an error and none.
int open_groups(std::span<kvs_paged_cache* const> caches, std::span<const std::span<const BlockName>> names,
                std::size_t token_count, kvs_sequence* sequences, std::size_t* cached) {
  PagePool& pool = *caches.front()->pool;
  std::vector<GroupConfig> groups;
  for (const kvs_paged_cache* each : caches) groups.push_back(each->group);
  const auto prefixes = caches.size() == 1
                            ? std::vector{find_cached_prefix(pool, groups.front(), names.front(), token_count)}
                            : find_cached_prefix(pool, groups, names, token_count);
  KV_ASSERT(prefixes.size() == caches.size());
  std::vector<SequenceId> opened;
  const HeldPrefixes held(pool, prefixes);
  for (std::size_t g = 0; g < caches.size(); ++g) {
    const auto sequence = caches[g]->cache.open(prefixes[g], token_count);
    if (!sequence) {
      // The prefixes are still held, so cached blocks stay cached after a failure for want of pages.
      for (std::size_t i = opened.size(); i-- > 0;) caches[i]->cache.close(opened[i]);
      return fail(sequence.error());
    }
    opened.push_back(*sequence);
  }
  // Written last: a failed call leaves the caller without partial results.
  for (std::size_t g = 0; g < caches.size(); ++g) sequences[g] = static_cast<kvs_sequence>(opened[g]);
  KV_ASSERT(opened.size() == caches.size() && prefixes.front().token_count <= token_count);
  *cached = prefixes.front().token_count;
  return KVS_OK;
}

}  // namespace
}  // namespace kv

using namespace kv;

int kvs_page_pool_create(size_t page_count, kvs_on_block_removed on_removed, void* context, kvs_page_pool** pool) {
  return gpu_call([&] {
    if (pool == nullptr) refuse(KVS_BAD_REQUEST, "pool is NULL");
    *pool = nullptr;
    // At least one page besides the reserved one; page numbers are engines' 32-bit ones.
    if (page_count < 2 || page_count >= std::size_t{0x7FFFFFFF}) {
      refuse_size("page_count", page_count, "from 2 to 2^31 - 2");
    }
    std::function<void(const BlockName&)> tell;
    if (on_removed != nullptr) {
      // Called in the middle of a pool operation: must not call back into the pool (kvstore_paging.h).
      tell = [on_removed, context](const BlockName& name) {
        kvs_hash hash;
        std::memcpy(hash.bytes, name.hash.data(), sizeof hash.bytes);
        on_removed(context, &hash, name.group);
      };
    }
    *pool = new kvs_page_pool{std::make_shared<PagePool>(page_count, std::move(tell))};
  });
}

void kvs_page_pool_free(kvs_page_pool* pool) { delete pool; }

int kvs_page_pool_free_count(const kvs_page_pool* pool, size_t* count) {
  return gpu_call([&] {
    if (pool == nullptr || count == nullptr) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    *count = pool->pool->free_count();
  });
}

int kvs_page_pool_forget(kvs_page_pool* pool) {
  return gpu_call([&] {
    if (pool == nullptr) refuse(KVS_BAD_REQUEST, "pool is NULL");
    if (!pool->pool->forget_all_names()) refuse(KVS_BUSY, "pool: sequences still use pages of it");
  });
}

int kvs_paged_cache_create(kvs_page_pool* pool, const kvs_group* given, kvs_paged_cache** cache) {
  return gpu_call([&] {
    if (cache == nullptr) refuse(KVS_BAD_REQUEST, "cache is NULL");
    *cache = nullptr;
    if (pool == nullptr) refuse(KVS_BAD_REQUEST, "pool is NULL");
    const auto from = read_struct(given);
    if (from.block_tokens < 1 || from.block_tokens > kBlockTokensMax) {
      refuse_size("group: block_tokens", from.block_tokens, "from 1 to 2^31");
    }
    if (from.window_tokens > kTokensMax) refuse_size("group: window_tokens", from.window_tokens, "at most 2^40");
    const GroupConfig group{from.block_tokens, from.window_tokens, from.drops_last_block != 0};
    *cache = new kvs_paged_cache(pool->pool, group, from.number);
  });
}

void kvs_paged_cache_free(kvs_paged_cache* cache) { delete cache; }

int kvs_paged_find(const kvs_paged_cache* cache, const kvs_hash* hashes, size_t hash_count, size_t token_count,
                   size_t* cached) {
  return gpu_call([&] {
    if (cache == nullptr || cached == nullptr) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    check_prefix_call(hashes, hash_count, token_count);
    *cached = cache->cache.find(names_of(hashes, hash_count, cache->number), token_count).token_count;
  });
}

int kvs_paged_open(kvs_paged_cache* cache, const kvs_hash* hashes, size_t hash_count, size_t token_count,
                   kvs_sequence* sequence, size_t* cached) {
  return kvs_paged_open_groups(&cache, 1, &hashes, &hash_count, token_count, sequence, cached);
}

int kvs_paged_open_groups(kvs_paged_cache* const* caches, size_t group_count, const kvs_hash* const* hashes,
                          const size_t* hash_counts, size_t token_count, kvs_sequence* sequences, size_t* cached) {
  return gpu_call([&]() -> int {
    if (caches == nullptr || hashes == nullptr || hash_counts == nullptr || sequences == nullptr || cached == nullptr) {
      refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    }
    if (group_count < 1 || group_count > kGroupsMax) refuse_size("group_count", group_count, "from 1 to 64");
    std::vector<std::vector<BlockName>> names;
    for (std::size_t g = 0; g < group_count; ++g) {
      if (caches[g] == nullptr) refuse(KVS_BAD_REQUEST, "cache is NULL");
      if (caches[g]->pool != caches[0]->pool) refuse_size("caches: the pool of group", g, "that of group 0");
      check_prefix_call(hashes[g], hash_counts[g], token_count);
      names.push_back(names_of(hashes[g], hash_counts[g], caches[g]->number));
    }
    const std::vector<std::span<const BlockName>> spans(names.begin(), names.end());
    return open_groups({caches, group_count}, spans, token_count, sequences, cached);
  });
}

int kvs_paged_append(kvs_paged_cache* cache, kvs_sequence sequence, size_t token_count, int64_t (*pairs)[2],
                     size_t capacity, size_t* pair_count) {
  return gpu_call([&]() -> int {
    check_sequence(cache, sequence);
    // Checked before: with an unreported copy, two sequences would write the same bytes.
    if (pairs == nullptr || pair_count == nullptr) refuse(KVS_BAD_REQUEST, "pairs or pair_count is NULL");
    if (capacity < 1) refuse_size("capacity", capacity, "1 or more");
    const std::size_t before = cache->cache.token_count(SequenceId{sequence});
    // Both: the sum of two allowed sizes cannot wrap.
    if (token_count > kTokensMax || before + token_count > kTokensMax) {
      refuse_size("token_count", token_count, "within 2^40 tokens of one sequence");
    }
    const auto copies = cache->cache.append(SequenceId{sequence}, token_count);
    if (!copies) return fail(copies.error());
    KV_ASSERT(copies->size() <= capacity && cache->cache.token_count(SequenceId{sequence}) == before + token_count);
    *pair_count = copies->size();
    for (std::size_t i = 0; i < copies->size(); ++i) {
      pairs[i][0] = static_cast<std::int64_t>((*copies)[i].from);
      pairs[i][1] = static_cast<std::int64_t>((*copies)[i].to);
    }
    return KVS_OK;
  });
}

int kvs_paged_fork(kvs_paged_cache* cache, kvs_sequence sequence, kvs_sequence* fork) {
  return gpu_call([&] {
    if (fork == nullptr) refuse(KVS_BAD_REQUEST, "fork is NULL");
    check_sequence(cache, sequence);
    *fork = static_cast<kvs_sequence>(cache->cache.fork(SequenceId{sequence}));
  });
}

int kvs_paged_crop(kvs_paged_cache* cache, kvs_sequence sequence, size_t token_count) {
  return gpu_call([&] {
    check_sequence(cache, sequence);
    const std::size_t before = cache->cache.token_count(SequenceId{sequence});
    if (cache->cache.crop(SequenceId{sequence}, token_count)) return;
    // The cache reports only "bad request"; the counts tell which limit it was.
    refuse_size("token_count", token_count,
                token_count > before ? "within the sequence" : "behind what the window has left behind");
  });
}

int kvs_paged_close(kvs_paged_cache* cache, kvs_sequence sequence) {
  return gpu_call([&] {
    check_sequence(cache, sequence);
    cache->cache.close(SequenceId{sequence});
  });
}

int kvs_paged_name_blocks(kvs_paged_cache* cache, kvs_sequence sequence, const kvs_hash* hashes, size_t hash_count) {
  return gpu_call([&] {
    check_sequence(cache, sequence);
    check_prefix_call(hashes, hash_count, 0);
    cache->cache.name_blocks(SequenceId{sequence}, names_of(hashes, hash_count, cache->number));
  });
}

int kvs_paged_token_count(const kvs_paged_cache* cache, kvs_sequence sequence, size_t* token_count) {
  return gpu_call([&] {
    if (token_count == nullptr) refuse(KVS_BAD_REQUEST, "token_count is NULL");
    check_sequence(cache, sequence);
    *token_count = cache->cache.token_count(SequenceId{sequence});
  });
}

int kvs_paged_pages(const kvs_paged_cache* cache, kvs_sequence sequence, int32_t* pages, size_t capacity,
                    size_t* count) {
  return gpu_call([&] {
    if (count == nullptr || (pages == nullptr && capacity > 0)) refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    check_sequence(cache, sequence);
    const auto table = cache->cache.page_table(SequenceId{sequence});
    *count = table.size();
    if (table.size() > capacity) refuse(KVS_TOO_LARGE, "capacity is too small");
    for (std::size_t i = 0; i < table.size(); ++i) pages[i] = static_cast<std::int32_t>(table[i]);
  });
}

int kvs_paged_slots(const kvs_paged_cache* cache, kvs_sequence sequence, size_t begin, size_t end, int64_t* slots) {
  return gpu_call([&] {
    check_sequence(cache, sequence);
    const std::size_t token_count = cache->cache.token_count(SequenceId{sequence});
    if (begin > end || end > token_count) {
      refuse(KVS_BAD_REQUEST, "begin, end: " + std::to_string(begin) + " to " + std::to_string(end) +
                                  " is not within " + std::to_string(token_count) + " tokens");
    }
    if (slots == nullptr && begin < end) refuse(KVS_BAD_REQUEST, "slots is NULL");
    const auto found = cache->cache.slot_mapping(SequenceId{sequence}, begin, end);
    KV_ASSERT(found.size() == end - begin);  // the size of the caller's list
    std::copy(found.begin(), found.end(), slots);
  });
}

int kvs_pack_masks(const int32_t* query_counts, const int32_t* kv_counts, size_t request_count, const uint8_t* mask,
                   uint8_t* packed, size_t capacity, size_t* bytes, int32_t* bit_indptr, int32_t* byte_indptr) {
  return gpu_call([&] {
    if (bytes == nullptr || (packed == nullptr && capacity > 0) ||
        (request_count > 0 && (query_counts == nullptr || kv_counts == nullptr))) {
      refuse(KVS_BAD_REQUEST, "a pointer is NULL");
    }
    if (request_count > kTokensMax) refuse_size("request_count", request_count, "at most 2^40");
    const MaskShape shape{{query_counts, request_count}, {kv_counts, request_count}};
    const auto needed = packed_mask_bytes(shape);
    if (!needed && needed.error() == Errc::kTooLarge) {
      refuse(KVS_TOO_LARGE, "query_counts, kv_counts: together 2^31 bits or more");
    }
    if (!needed) refuse(KVS_BAD_REQUEST, "query_counts, kv_counts: one is negative");
    *bytes = *needed;
    if (*needed > capacity) refuse(KVS_TOO_LARGE, "capacity is too small");
    std::size_t bits = 0;
    for (std::size_t r = 0; r < request_count; ++r) {
      bits += static_cast<std::size_t>(query_counts[r]) * static_cast<std::size_t>(kv_counts[r]);
    }
    // Engines want either or both; a missing one is an empty list for pack_masks().
    const auto list_of = [&](std::int32_t* indptr) {
      return std::span(indptr, indptr == nullptr ? 0 : request_count + 1);
    };
    const auto made = pack_masks({packed, *needed}, shape, {mask, mask == nullptr ? 0 : bits}, list_of(bit_indptr),
                                 list_of(byte_indptr));
    demand(made);
  });
}
