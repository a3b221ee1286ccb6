// tests/sim/sim_workers.h: what workers do with chains and with sets, and how every answer is checked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "index/name_groups.h"
#include "tests/sim/sim_setting.h"

namespace kv::sim {

inline constexpr std::size_t kChainBytesMax = 400'000;  ///< Of one call, or one block if that is larger.
inline constexpr std::size_t kMemoryBytes = 1 << 20;    ///< Lent by a worker.

/// Of a set, where a name may have one of several contents, and keeps the one that came first: each has a length of its
/// own, and the bytes are those of name and length.
inline BlockHash content_of(const BlockHash& hash, std::size_t length) {
  BlockHash content = hash;
  for (std::size_t i = 0; i < sizeof length; ++i) content.bytes[i] ^= std::byte(length >> 8 * i);
  return content;
}

inline bool block_is_right(const NamespaceId& space, const BlockHash& hash, std::span<const std::byte> bytes) {
  std::vector<std::byte> right(bytes.size());
  fill_block(space, hash, right);
  return std::memcmp(right.data(), bytes.data(), bytes.size()) == 0;
}

class Workers : public Setting {
 public:
  using Setting::Setting;

 protected:
  struct Worker {
    std::unique_ptr<Client> client;
    std::vector<Space> spaces;  ///< By record.
    std::vector<bool> open;
    std::map<std::size_t, Space> sets;  ///< By number, once open.
    std::span<std::byte> set_memory;    ///< Lent for RDMA.
    Lease set_lease{};
  };

  /// What is known of a block: once a drop of it was answered, and not "until restart", nobody may find it before it is
  /// put again, whatever happens to the nodes.
  struct Fate {
    std::uint64_t put_count = 0, unfinished_puts = 0;
    bool is_dropped = false;
  };
  /// Whether no put of the block was under way at any moment in between: one might store it after the drop.
  static bool is_untouched_by_puts(const Fate& before, const Fate& after) {
    return before.put_count == after.put_count && before.unfinished_puts == 0 && after.unfinished_puts == 0;
  }
  struct Gone {
    std::size_t position;
    std::uint64_t put_count;
  };

  asio::awaitable<void> work(std::size_t worker, std::size_t call_count) {
    auto& [client, spaces, open, sets, set_memory, set_lease] =
        workers_[worker];  // outlives us: the audit goes on with what it has learned
    client = make_client(worker);
    spaces.resize(records_.size());
    open.resize(records_.size(), false);
    std::vector<std::byte> own_memory;
    std::span<std::byte> lent;  // for RDMA
    Lease lease{};
    for (std::size_t i = 0; i < call_count && outcome_.failure.empty(); ++i) {
      if (chance(0.01)) {  // a worker restarts
        client.reset();
        client = make_client(worker);
        std::fill(open.begin(), open.end(), false);
        workers_[worker].sets.clear();
        workers_[worker].set_memory = {};
        workers_[worker].set_lease = Lease{};
        lease = Lease{};
        lent = {};
      }
      if (!sets_.empty() && chance(0.3)) {
        co_await work_on_set(workers_[worker]);
        continue;
      }
      const std::size_t which = pick(0, records_.size() - 1);
      const NamespaceRecord& record = records_[which];
      const auto deadline = std::chrono::microseconds(chance(0.3) ? pick(100, 3000) : pick(20'000, 400'000));
      const TimePoint began = clock_.now();
      if (!open[which]) {
        const auto opened = co_await client->open(record, deadline);
        check_deadline("open", began, deadline);
        if (!opened) continue;
        spaces[which] = *opened;
        open[which] = true;
        continue;
      }
      const Space space = spaces[which];
      const auto chain = random_chain(which);
      if (chain.empty()) continue;
      const std::size_t block_bytes = record.block_bytes();
      const std::vector<Gone> gone = gone_of(which, chain);  // from here on nobody may find them
      const std::span<std::byte> memory = memory_for(*client, chain.size() * block_bytes, lent, own_memory);
      switch (pick(0, 11)) {
        case 0:
        case 1: {
          const bool want_lease = chance(0.5);
          const auto match = co_await client->match(space, chain, {.deadline = deadline, .lease = want_lease});
          check_deadline("match", began, deadline);
          if (!match) break;
          if (match->block_count > chain.size()) fail("match: more blocks than hashes");
          check_gone("match", which, chain, match->block_count, gone);
          if (match->lease != Lease{}) {
            if (lease != Lease{}) client->release(lease);
            lease = match->lease;
          }
          note(match->block_count);
          break;
        }
        case 2: {
          const auto touched = co_await client->touch(space, chain, deadline);
          check_deadline("touch", began, deadline);
          (void)touched;
          break;
        }
        case 3: {
          const bool pins = chance(0.3), drops = chance(0.5) && !is_kept_[which], drops_all = drops && chance(0.2);
          Result<std::size_t> count(std::size_t{0});
          if (drops_all) {
            const std::span<const BlockHash> none;  // the whole namespace
            const auto dropped = co_await client->drop(space, none, deadline);
            static_cast<void>(dropped);
          } else if (drops) {
            const Fate before = fates_[{which, chain.back()}];
            const auto dropped = co_await client->drop(space, chain, deadline);
            Fate& fate = fates_[{which, chain.back()}];
            if (dropped && !dropped->until_restart && is_untouched_by_puts(before, fate)) {
              fate.is_dropped = true;
              ++outcome_.kept_drops;
            }
          } else if (pins) {
            count = co_await client->retain(space, chain, deadline);
          } else {
            count = co_await client->unretain(space, chain, deadline);
          }
          check_deadline("retain, unretain or drop", began, deadline);
          (void)count;
          break;
        }
        case 4:
        case 5:
        case 6:
        case 7: {
          // Memory is scribbled over before and after: a node or client that writes late is seen by the next reader.
          std::fill(memory.begin(), memory.end(), std::byte{0x5A});
          std::vector<std::span<std::byte>> blocks;
          for (std::size_t b = 0; b < chain.size(); ++b)
            blocks.emplace_back(memory.data() + b * block_bytes, block_bytes);
          std::vector<std::uint64_t> ends;
          if (block_bytes > kStripeBytes && chance(0.5)) ends = {kStripeBytes, block_bytes};
          GetOptions options{.deadline = deadline, .lease = lease, .segment_ends = ends};
          lease = Lease{};
          const auto got = co_await client->get(space, chain, blocks, options);
          check_deadline("get", began, deadline);
          if (!got) break;
          if (got->block_count > chain.size()) {
            fail("get: more blocks than hashes");
            break;
          }
          for (std::size_t b = 0; b < got->block_count; ++b) {
            if (!block_is_right(record.id(), chain[b], blocks[b])) {
              fail("get: wrong bytes in block " + std::to_string(b) + " of " + std::to_string(got->block_count) + " (" +
                   std::to_string(block_bytes) + " bytes, the first now " +
                   to_hex(blocks[b].first(std::min<std::size_t>(16, block_bytes))) + ")");
            }
          }
          check_gone("get", which, chain, got->block_count, gone);
          outcome_.hit_blocks += got->block_count;
          outcome_.corrupt_blocks += got->corrupt_count;
          check_frames("get", got->why);
          if (got->why == asio::error::timed_out) ++outcome_.missed_deadlines;
          note(got->block_count);
          break;
        }
        default: {
          std::vector<std::span<const std::byte>> blocks;
          for (std::size_t b = 0; b < chain.size(); ++b) {
            const std::span<std::byte> block(memory.data() + b * block_bytes, block_bytes);
            fill_block(record.id(), chain[b], block);
            blocks.push_back(block);
          }
          for (const BlockHash& hash : chain) {
            Fate& fate = fates_[{which, hash}];
            fate.is_dropped = false;
            ++fate.put_count;
            ++fate.unfinished_puts;
          }
          const auto put = co_await client->put(space, chain, blocks, {.deadline = deadline});
          check_deadline("put", began, deadline);
          if (put && !put->why) {  // else a node may yet take what has reached it
            for (const BlockHash& hash : chain) --fates_[{which, hash}].unfinished_puts;
          }
          if (!put) break;
          check_frames("put", put->why);
          if (put->stored + put->already_stored + put->refused != chain.size()) fail("put: counts do not add up");
          outcome_.stored_blocks += put->stored;
          note(put->stored);
          std::fill(memory.begin(), memory.end(), std::byte{0xA5});
          break;
        }
      }
      if (chance(0.3)) co_await sleep(std::chrono::microseconds(pick(1, 50'000)));
    }
  }

  std::vector<BlockHash> random_chain(std::size_t which) {
    const NamespaceRecord& record = records_[which];
    auto chain = chain_of(which, prompts_[pick(0, prompts_.size() - 1)]);
    // Few small Stores: keep one chain well below what all of them hold, but let many chains not fit.
    const std::size_t most = std::max<std::size_t>(1, kChainBytesMax / record.block_bytes());
    chain.resize(std::min(chain.size(), most));
    return chain;
  }

  /// For the blocks of a call: the worker's own, or for RDMA what it lends, given up where a node may still write to
  /// it.
  std::span<std::byte> memory_for(Client& client, std::size_t bytes, std::span<std::byte>& lent,
                                  std::vector<std::byte>& own) {
    if (!verbs_) {
      own.resize(bytes);
      return own;
    }
    if (!lent.empty() && client.is_quarantined(lent)) {
      if (!client.free_memory(lent)) fail("free_memory: refused");
      lent = {};
    }
    if (lent.empty()) lent = client.allocate(kMemoryBytes).value();
    return lent;
  }

  std::vector<Gone> gone_of(std::size_t which, std::span<const BlockHash> chain) {
    std::vector<Gone> gone;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      const auto it = fates_.find({which, chain[i]});
      if (it != fates_.end() && it->second.is_dropped) gone.push_back({i, it->second.put_count});
    }
    return gone;
  }

  void check_gone(const char* op, std::size_t which, std::span<const BlockHash> chain, std::size_t count,
                  std::span<const Gone> gone) {
    if (has_two_rules_ && node_count_ > 1) return;  // a drop by one rule does not look where the other one puts blocks
    for (const Gone& each : gone) {
      if (each.position < count && fates_[{which, chain[each.position]}].put_count == each.put_count)
        fail(std::string(op) + ": a block that was dropped is back, " + std::to_string(each.position) + " of " +
             std::to_string(count));
    }
  }

  // -- sets: names from a small pool, so that workers meet; the same in all sets

  static constexpr std::size_t kSetFates = 1000;  ///< Sets come behind chains in fates_.
  static BlockHash set_name(std::size_t number) {
    BlockHash hash;
    const std::uint64_t words[] = {mix(number), mix(number + 1000), mix(number + 2000), mix(number + 3000)};
    std::memcpy(hash.bytes.data(), words, sizeof words);
    return hash;
  }
  std::size_t set_length(std::size_t which, std::size_t number, std::size_t variant) const {
    const std::size_t most = sets_[which].block_bytes();
    const std::uint64_t drawn = mix(number * 2 + variant);
    return drawn % 7 == 0 ? most : 1 + drawn / 7 % (drawn % 2 == 0 ? most : std::min<std::size_t>(most, 500));
  }

  asio::awaitable<void> work_on_set(Worker& worker) {
    Client& client = *worker.client;
    const std::size_t which = pick(0, sets_.size() - 1);
    const NamespaceRecord& record = sets_[which];
    const auto deadline = std::chrono::microseconds(chance(0.3) ? pick(100, 3000) : pick(20'000, 400'000));
    const TimePoint began = clock_.now();
    if (!worker.sets.contains(which)) {
      const auto opened = co_await client.open(record, deadline);
      check_deadline("open", began, deadline);
      if (opened) worker.sets[which] = *opened;
      co_return;
    }
    const Space set = worker.sets[which];
    std::vector<std::size_t> numbers, variants;
    std::vector<BlockHash> hashes;
    std::size_t bytes = 0;
    // Other names: a group lies where its first name belongs, and a name alone where that one does.
    const bool has_groups = chance(0.4);
    std::vector<std::uint32_t> groups;
    for (std::size_t i = 0, count = pick(1, chance(0.2) ? 60 : 8); i < count; ++i) {
      const std::size_t first = has_groups ? 1000 + 4 * pick(0, 19) : pick(0, 79);
      const std::size_t size = has_groups ? 1 + first / 4 % 4 : 1;
      std::size_t room = 0;
      for (std::size_t k = 0; k < size; ++k)
        room += std::max(set_length(which, first + k, 0), set_length(which, first + k, 1));
      if (bytes + room > kChainBytesMax && i > 0) break;
      bytes += room;
      if (has_groups) groups.push_back(static_cast<std::uint32_t>(size));
      for (std::size_t k = 0; k < size; ++k) {
        numbers.push_back(first + k);
        variants.push_back(chance(0.1) ? 1 : 0);
        hashes.push_back(set_name(first + k));
      }
    }
    const std::size_t fate_key = kSetFates + which;
    const std::vector<Gone> gone = gone_of(fate_key, hashes);
    std::vector<std::byte> own_memory;
    const std::span<std::byte> memory = memory_for(client, bytes, worker.set_memory, own_memory);
    switch (pick(0, 9)) {
      case 0:
      case 1: {
        const MatchOptions options{.deadline = deadline, .lease = chance(0.5), .control = {}, .group_counts = groups};
        const auto match = co_await client.match_set(set, hashes, options);
        check_deadline("match_set", began, deadline);
        if (!match) break;
        check_whole_groups("match_set", groups, [&](std::size_t i) { return match->held[i] != Held::kNowhere; });
        for (std::size_t i = 0; i < hashes.size(); ++i) {
          if (match->held[i] == Held::kNowhere) continue;
          check_set_block("match_set", which, numbers[i], match->block_bytes[i]);
          check_set_gone("match_set", fate_key, hashes, i, gone);
        }
        if (match->lease != Lease{}) {
          if (worker.set_lease != Lease{}) client.release(worker.set_lease);
          worker.set_lease = match->lease;
        }
        note(match->held_count);
        break;
      }
      case 2: {
        Result<std::size_t> count(std::size_t{0});
        if (chance(0.5)) {
          count = co_await client.touch(set, hashes, deadline);
        } else if (chance(0.3)) {
          count = co_await client.retain(set, hashes, deadline);
        } else {
          count = co_await client.unretain(set, hashes, deadline);
        }
        check_deadline("touch, retain or unretain of a set", began, deadline);
        (void)count;
        break;
      }
      case 3: {
        const bool drops_all = chance(0.1);
        std::vector<BlockHash> names;  // of a group the first: then the group is gone
        for_each_group(groups, hashes.size(), [&](std::size_t first, std::size_t) { names.push_back(hashes[first]); });
        std::vector<Fate> before;
        for (const BlockHash& hash : names) before.push_back(fates_[{fate_key, hash}]);
        const std::span<const BlockHash> which_ones = drops_all ? std::span<const BlockHash>() : std::span(names);
        const auto dropped = co_await client.drop(set, which_ones, deadline);
        check_deadline("drop of a set", began, deadline);
        for (std::size_t i = 0; i < names.size() && !drops_all; ++i) {
          Fate& fate = fates_[{fate_key, names[i]}];
          if (!dropped || dropped->until_restart || !is_untouched_by_puts(before[i], fate)) continue;
          fate.is_dropped = true;
          ++outcome_.kept_drops;
        }
        break;
      }
      case 4:
      case 5:
      case 6: {
        std::fill(memory.begin(), memory.end(), std::byte{0x5A});
        std::vector<std::span<std::byte>> blocks;
        for (std::span<std::byte> rest = memory; const std::size_t number : numbers) {
          const std::size_t room = std::max(set_length(which, number, 0), set_length(which, number, 1));
          blocks.push_back(rest.first(chance(0.1) ? pick(0, room) : room));
          rest = rest.subspan(room);
        }
        const GetOptions options{.deadline = deadline,
                                 .lease = worker.set_lease,
                                 .memory_only = false,
                                 .control = {},
                                 .group_counts = groups};
        const auto got = co_await client.get_set(set, hashes, blocks, options);
        worker.set_lease = Lease{};
        check_deadline("get_set", began, deadline);
        if (!got) break;
        for_each_group(groups, hashes.size(), [&](std::size_t first, std::size_t count) {
          // All of a group for one that is too long. A request in which a length was flipped is refused as a whole.
          bool is_too_large = false, is_too_long = false;
          for (std::size_t i = first; i < first + count; ++i) {
            const SetGetBlock& block = got->blocks[i];
            is_too_large = is_too_large || block.why == Errc::kTooLarge;
            is_too_long =
                is_too_long || block.block_bytes > blocks[i].size() || (flips_bits_ && block.block_bytes == 0);
          }
          if (is_too_large && !is_too_long) fail("get_set: it has room");
        });
        outcome_.set_groups_got +=
            check_whole_groups("get_set", groups, [&](std::size_t i) { return got->blocks[i].has_landed; });
        for (std::size_t i = 0; i < hashes.size(); ++i) {
          const SetGetBlock& block = got->blocks[i];
          if (block.block_bytes > 0) check_set_block("get_set", which, numbers[i], block.block_bytes);
          outcome_.set_blocks_too_long += block.why == Errc::kTooLarge;
          if (!block.has_landed) continue;
          ++outcome_.set_blocks_got;
          if (!block_is_right(record.id(), content_of(hashes[i], block.block_bytes),
                              blocks[i].first(block.block_bytes)))
            fail("get_set: wrong bytes in block " + std::to_string(i));
          check_set_gone("get_set", fate_key, hashes, i, gone);
        }
        outcome_.corrupt_blocks += got->corrupt_count;
        check_frames("get_set", got->why);
        note(got->landed_count);
        break;
      }
      default: {
        std::vector<std::span<const std::byte>> blocks;
        std::span<std::byte> rest = memory;
        for (std::size_t i = 0; i < hashes.size(); ++i) {
          const std::span<std::byte> block = rest.first(set_length(which, numbers[i], variants[i]));
          fill_block(record.id(), content_of(hashes[i], block.size()), block);
          blocks.push_back(block);
          rest = rest.subspan(block.size());
          Fate& fate = fates_[{fate_key, hashes[i]}];
          fate.is_dropped = false;
          ++fate.put_count;
          ++fate.unfinished_puts;
        }
        const PutOptions options{.deadline = deadline, .control = {}, .group_counts = groups};
        const auto put = co_await client.put_set(set, hashes, blocks, options);
        check_deadline("put_set", began, deadline);
        if (put && !put->why) {  // else a node may yet take what has reached it
          for (const BlockHash& hash : hashes) --fates_[{fate_key, hash}].unfinished_puts;
        }
        if (!put) break;
        check_frames("put_set", put->why);
        if (put->stored + put->already_stored + put->conflicts + put->refused != hashes.size())
          fail("put_set: counts do not add up");
        check_stored_groups(groups, put->blocks);
        outcome_.set_blocks_stored += put->stored;
        outcome_.set_conflicts += put->conflicts;
        note(put->stored);
        std::fill(memory.begin(), memory.end(), std::byte{0xA5});
        break;
      }
    }
    if (chance(0.3)) co_await sleep(std::chrono::microseconds(pick(1, 50'000)));
  }

  /// Of each group all or none. How many are whole.
  template <class Predicate>
  std::size_t check_whole_groups(const char* op, std::span<const std::uint32_t> groups, Predicate is_there) {
    std::size_t first = 0, whole = 0;
    for (const std::uint32_t size : groups) {
      std::size_t count = 0;
      for (std::size_t i = first; i < first + size; ++i) count += is_there(i);
      if (count > 0 && count < size) fail(std::string(op) + ": a part of a group");
      whole += count == size;
      first += size;
    }
    return whole;
  }

  void check_stored_groups(std::span<const std::uint32_t> groups, std::span<const SetPutBlock> blocks) {
    for (std::size_t first = 0; const std::uint32_t size : groups) {
      const auto group = blocks.subspan(first, size);
      const auto has = [&](SetPutBlock result) { return std::ranges::find(group, result) != group.end(); };
      if (has(SetPutBlock::kStored) && (has(SetPutBlock::kRefused) || has(SetPutBlock::kConflict)))
        fail("put_set: stored a part of a group");
      first += size;
    }
  }

  void check_set_block(const char* op, std::size_t which, std::size_t number, std::size_t length) {
    if (length != set_length(which, number, 0) && length != set_length(which, number, 1))
      fail(std::string(op) + ": a block of " + std::to_string(length) + " bytes, that nobody put");
  }

  void check_set_gone(const char* op, std::size_t fate_key, std::span<const BlockHash> hashes, std::size_t i,
                      std::span<const Gone> gone) {
    for (const Gone& each : gone) {
      if (each.position == i && fates_[{fate_key, hashes[i]}].put_count == each.put_count)
        fail(std::string(op) + ": a block of a set that was dropped is back");
    }
  }

  std::vector<Worker> workers_;
  std::map<std::pair<std::size_t, BlockHash>, Fate> fates_;
};

}  // namespace kv::sim
