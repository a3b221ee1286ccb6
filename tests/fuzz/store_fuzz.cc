// Bytes as operations on a Store with several block sizes, and a set. Every stored byte is a function of its block's
// name; in a set, of its length too.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "store/store.h"
#include "tests/fuzz/input.h"

namespace kv {
namespace {

constexpr std::size_t kSizes[] = {4096, 8192, 69'632};
constexpr std::size_t kChains = 3, kBlocks = 10;

BlockHash name(std::size_t chain, std::size_t index) {
  BlockHash hash;
  std::memset(hash.bytes.data(), static_cast<int>(1 + chain * 40 + index), hash.bytes.size());
  return hash;
}
std::byte byte_of(const BlockHash& hash, std::size_t space) {
  return hash.bytes[0] ^ static_cast<std::byte>(space * 85);
}
constexpr std::size_t kSetBytesMax = 10'000;
std::byte byte_in_set(const BlockHash& hash, std::size_t length) {
  return hash.bytes[0] ^ static_cast<std::byte>(length * 37);
}

class Operations {
 public:
  Operations(Input& input, bool has_set) : input_(input), has_set_(has_set) {
    StoreConfig config;
    config.arena.capacity_bytes = 4096 * (20 + input_.below(60));
    config.arena.granule_bytes = 4096;
    config.arena.huge_pages = false;
    config.arena.touch = false;
    config.lease_count_per_session_max = 4;
    config.leased_fraction_max = static_cast<double>(1 + input_.below(4)) / 4;
    config.chain_blocks_max = 16;
    config.namespace_count_max = has_set_ ? 4 : 3;
    store_ = Store::create(config).value();
    for (const std::size_t bytes : kSizes) {
      const auto record =
          NamespaceRecord::from_fields({{"model", "m"}, {"block_size", "2"}, {"block_bytes", std::to_string(bytes)}});
      const auto space = store_->open(*record);
      if (space) spaces_.push_back({*space, record->id(), bytes, *record});
    }
  }

  void run() {
    for (int i = 0; !input_.empty(); ++i) {
      if (has_set_ && input_.flag()) {
        set_step();
      } else {
        step();
      }
      if (i % 16 == 0) KV_ASSERT(store_->check().empty());
    }
    KV_ASSERT(store_->check().empty());
    for (const auto& prefix : pinned_) unpin(prefix);
    pinned_.clear();  // open() below checks that nothing pinned is of a namespace that was forgotten
    for (const auto& set : pinned_sets_) unpin_set(set);
    pinned_sets_.clear();
    for (std::uint64_t session = 0; session < 3; ++session) store_->end_session(SessionId{session});
    puts_.clear();
    for (std::size_t i = 0; i < spaces_.size(); ++i) KV_ASSERT(store_->drop(open(i), {}));
    if (has_set_) KV_ASSERT(store_->drop(open_set(), {}));
    while (store_->is_dropping()) store_->drop_more(now_);
    KV_ASSERT(store_->check().empty());
    const StoreStats stats = store_->stats();
    KV_ASSERT(stats.allocated_bytes == 0 && stats.block_count == 0 && stats.incoming_count == 0 &&
              stats.lease_count == 0 && stats.leased_bytes == 0);
  }

 private:
  struct Space {
    SpaceId id;
    NamespaceId name;
    std::size_t block_bytes;
    NamespaceRecord record;
  };
  struct Put {
    std::size_t space;
    std::uint64_t session;
    std::vector<BlockHash> hashes;
    std::vector<IncomingBlock> incoming;
    std::size_t done = 0;
    bool is_set = false;
    bool has_groups = false;
  };
  struct Pinned {
    PinnedPrefix prefix;
    std::vector<BlockHash> hashes;
    std::size_t space;
  };

  std::vector<BlockHash> chain() {
    const std::size_t which = input_.below(kChains), shared = input_.below(kBlocks), count = input_.below(kBlocks + 1);
    std::vector<BlockHash> hashes;
    for (std::size_t i = 0; i < count; ++i) hashes.push_back(name(i < shared ? 0 : which, i));
    return hashes;
  }
  std::vector<std::uint32_t> tokens(std::size_t block_count) {
    std::vector<std::uint32_t> ids(2 * block_count);
    for (auto& id : ids) id = static_cast<std::uint32_t>(input_.below(3));
    return ids;
  }
  SessionId session() { return SessionId{input_.below(3)}; }

  void step() {
    if (spaces_.empty()) return void(input_.byte());
    now_ += std::chrono::milliseconds(input_.below(20));
    const std::size_t which = input_.below(spaces_.size());
    const SpaceId space = open(which);
    switch (input_.below(16)) {
      case 0:
      case 1:
      case 2: return offer(which);
      case 3:
      case 4:
      case 5: return commit();
      case 6: return end_put();
      case 7: {
        const auto hashes = chain();
        const auto ids = tokens(input_.below(8));
        ReadDesk::MatchOptions options;
        options.session = session();
        options.lease = input_.flag();
        options.token_ids = ids;
        std::vector<ExtraDigest> extras(input_.flag() ? hashes.size() + 1 : 0);
        for (auto& extra : extras) extra.bytes[0] = static_cast<std::byte>(input_.below(2));
        options.extras = extras;
        const auto match = store_->match(space, hashes, options, now_);
        KV_ASSERT(match && match->memory_block_count <= hashes.size());
        if (match->lease != LeaseId{}) leases_.emplace_back(options.session, match->lease);
        return;
      }
      case 8: return pin(which);
      case 9: {
        if (pinned_.empty()) return;
        const std::size_t at = input_.below(pinned_.size());
        unpin(pinned_[at]);
        pinned_.erase(pinned_.begin() + static_cast<std::ptrdiff_t>(at));
        return;
      }
      case 10: {
        if (leases_.empty()) return;
        const auto [owner, lease] = leases_[input_.below(leases_.size())];
        (void)store_->release(input_.flag() ? owner : session(), lease);
        return;
      }
      case 11: {
        (void)store_->touch(space, chain(), now_);
        return;
      }
      case 12: {
        if (input_.below(3) == 0) return context(space);
        (void)(input_.flag() ? store_->retain(space, chain()) : store_->unretain(space, chain()));
        return;
      }
      case 13: {
        const auto hashes = chain();
        (void)store_->drop(space, hashes);
        return;
      }
      case 14: {
        now_ += std::chrono::seconds(input_.below(20));
        store_->expire_leases(now_);
        for (const auto& news : store_->tend_contexts(now_)) KV_ASSERT(news.kept_count < news.wanted_count);
        return another_namespace();
      }
      default: {
        const SessionId ending = session();
        std::erase_if(puts_, [&](const auto& put) { return SessionId{put.second.session} == ending; });
        return store_->end_session(ending);
      }
    }
  }

  void context(SpaceId space) {
    const std::string owner = input_.flag() ? "" : "a", name = input_.flag() ? "x" : "y";
    const ContextLife life{std::chrono::seconds(input_.below(30)), input_.flag()};
    const std::size_t act = input_.below(4);
    if (act == 0) {
      (void)store_->delete_context(owner, name, now_);
    } else if (act == 1) {
      std::optional<std::uint8_t> priority;
      if (input_.flag()) priority = static_cast<std::uint8_t>(input_.below(11));
      (void)store_->extend_context(owner, name, life, now_, priority);
    } else {
      std::vector<std::uint32_t> counts(input_.below(3));
      for (auto& count : counts) count = static_cast<std::uint32_t>(input_.below(5));
      ContextDesk::Order order{.owner = owner, .name = name, .space = space, .hashes = chain(), .life = life};
      order.chain_counts = std::move(counts);
      order.priority = static_cast<std::uint8_t>(input_.below(11));
      const std::size_t wanted = order.hashes.size();
      const auto made = store_->create_context(std::move(order), now_);
      if (made) KV_ASSERT(made->wanted_count == wanted && made->kept_count <= wanted);
    }
    for (const auto& view : store_->list_contexts(owner, "", 10, now_)) KV_ASSERT(view.kept_count <= view.wanted_count);
  }

  /// The number of a namespace, which was forgotten perhaps: nothing of it may be in use then.
  SpaceId open(std::size_t which) {
    const SpaceId space = store_->open(spaces_[which].record).value();
    if (space == spaces_[which].id) return space;
    KV_ASSERT(store_->find_namespace(spaces_[which].id) == nullptr);
    for (const auto& [id, put] : puts_) KV_ASSERT(put.is_set || put.space != which);
    for (const Pinned& pinned : pinned_) KV_ASSERT(pinned.space != which || pinned.prefix.blocks.empty());
    return spaces_[which].id = space;
  }
  /// Takes the place of one that is idle.
  void another_namespace() {
    const std::string bytes = std::to_string(64 + 64 * input_.below(40));
    const auto opened =
        store_->open(*NamespaceRecord::from_fields({{"model", "other"}, {"block_size", "2"}, {"block_bytes", bytes}}));
    KV_ASSERT(opened || opened.error() == Errc::kBusy);
  }

  void offer(std::size_t which) {
    const auto hashes = chain();
    std::vector<std::uint32_t> positions;
    for (std::uint32_t i = 0; i < hashes.size() && input_.below(8) == 0; ++i) positions.push_back(i * 2);
    const auto ids = input_.flag() ? tokens(hashes.size()) : std::vector<std::uint32_t>();
    PutDesk::OfferOptions options;
    options.session = session();
    options.positions = positions;
    options.token_ids = ids;
    std::vector<ExtraDigest> extras(input_.flag() ? hashes.size() : 0);
    for (auto& extra : extras) extra.bytes[0] = static_cast<std::byte>(input_.below(2));
    options.extras = extras;
    auto plan = store_->offer(spaces_[which].id, hashes, options, now_);
    if (!plan) return;
    KV_ASSERT(plan->stored_count + plan->incoming.size() + plan->refused_count == hashes.size());
    if (plan->put == PutId{}) return;
    Put put{which, static_cast<std::uint64_t>(options.session), hashes, plan->incoming};
    if (plan->again) {
      const auto more = store_->offer_more(plan->put, now_);
      KV_ASSERT(more);
      put.incoming.insert(put.incoming.end(), more->incoming.begin(), more->incoming.end());
    }
    for (const auto& incoming : put.incoming) {
      KV_ASSERT(incoming.bytes.size() == spaces_[which].block_bytes);
      KV_ASSERT(incoming.seed == checksum_seed(spaces_[which].name, hashes[incoming.index]));
      std::memset(incoming.bytes.data(), static_cast<int>(byte_of(hashes[incoming.index], which)),
                  incoming.bytes.size());
    }
    puts_.emplace(plan->put, std::move(put));
  }
  void commit() {
    if (puts_.empty()) return;
    const auto at = std::next(puts_.begin(), static_cast<std::ptrdiff_t>(input_.below(puts_.size())));
    Put& put = at->second;
    if (put.done == put.incoming.size()) return;
    std::vector<std::uint64_t> sums;
    for (bool is_over = false; !is_over;) {
      KV_ASSERT(put.done < put.incoming.size());  // whole groups have slots
      const auto& incoming = put.incoming[put.done++];
      const BlockHash& hash = put.hashes[incoming.index];
      const std::byte due = put.is_set ? byte_in_set(hash, incoming.bytes.size()) : byte_of(hash, put.space);
      for (const std::byte each : incoming.bytes) KV_ASSERT(each == due);  // nobody else was given this slot
      std::vector<std::uint64_t> own(stripe_count(incoming.bytes.size()));
      block_checksums(incoming.seed, incoming.bytes, own);
      sums.insert(sums.end(), own.begin(), own.end());
      KV_ASSERT(put.has_groups || !incoming.completes_group);
      is_over = !put.has_groups || incoming.completes_group;
    }
    if (!put.has_groups) return (void)store_->commit(at->first, sums, now_);
    const auto statuses = store_->commit_group(at->first, sums, now_);
    const auto has = [&](CommitStatus status) { return std::ranges::find(statuses, status) != statuses.end(); };
    using enum CommitStatus;
    KV_ASSERT(!has(kStored) || !(has(kRefused) || has(kConflict)));
  }
  void end_put() {
    if (puts_.empty()) return;
    const auto at = std::next(puts_.begin(), static_cast<std::ptrdiff_t>(input_.below(puts_.size())));
    store_->end_put(at->first);
    puts_.erase(at);
  }
  void pin(std::size_t which) {
    const auto hashes = chain();
    const LeaseId lease = leases_.empty() || input_.flag() ? LeaseId{} : leases_[input_.below(leases_.size())].second;
    auto prefix = store_->pin_prefix(spaces_[which].id, hashes, {.session = session(), .lease = lease}, now_);
    KV_ASSERT(prefix && prefix->blocks.size() <= hashes.size());
    pinned_.push_back({std::move(*prefix), hashes, which});
    expect_intact(pinned_.back());
  }
  void expect_intact(const Pinned& pinned) const {
    for (std::size_t i = 0; i < pinned.prefix.blocks.size(); ++i) {
      const auto& block = pinned.prefix.blocks[i];
      KV_ASSERT(block.bytes.size() == spaces_[pinned.space].block_bytes);
      for (const std::byte each : block.bytes) KV_ASSERT(each == byte_of(pinned.hashes[i], pinned.space));
      KV_ASSERT(
          verify_block(checksum_seed(spaces_[pinned.space].name, pinned.hashes[i]), block.bytes, block.checksums));
    }
  }
  void unpin(const Pinned& pinned) {
    expect_intact(pinned);  // constant while pinned
    store_->unpin(pinned.prefix);
  }

  // -- the set

  struct PinnedSet {
    SetPinning::Pinned set;
    std::vector<BlockHash> hashes;
  };
  SpaceId open_set() {
    const SpaceId set = store_->open(set_record_).value();
    if (set == set_) return set;
    for (const auto& [id, put] : puts_) KV_ASSERT(!put.is_set);
    for (const PinnedSet& pinned : pinned_sets_) KV_ASSERT(pinned.set.pinned.blocks.empty());
    return set_ = set;
  }
  std::vector<BlockHash> names() {
    std::vector<BlockHash> hashes(input_.below(kBlocks + 1));
    for (BlockHash& hash : hashes) hash = name(input_.below(kChains), input_.below(kBlocks));
    return hashes;
  }
  /// The list cut into groups, most often; sometimes something that is not that.
  std::vector<std::uint32_t> groups_of(std::size_t count) {
    std::vector<std::uint32_t> groups;
    if (input_.flag()) return groups;
    for (std::size_t left = count; left > 0; left -= groups.back())
      groups.push_back(static_cast<std::uint32_t>(1 + input_.below(left)));
    if (input_.below(16) == 0) groups.push_back(static_cast<std::uint32_t>(input_.number(4)));
    return groups;
  }
  void set_step() {
    now_ += std::chrono::milliseconds(input_.below(20));
    const SpaceId set = open_set();
    switch (input_.below(9)) {
      case 0:
      case 1:
      case 2: return offer_set(set);
      case 3: return match_set(set);
      case 4:
      case 5: return pin_set(set);
      case 6: {
        if (pinned_sets_.empty()) return;
        const std::size_t at = input_.below(pinned_sets_.size());
        unpin_set(pinned_sets_[at]);
        pinned_sets_.erase(pinned_sets_.begin() + static_cast<std::ptrdiff_t>(at));
        return;
      }
      case 7: {
        const auto hashes = names();
        switch (input_.below(3)) {
          case 0: KV_ASSERT(store_->touch(set, hashes, now_)); return;
          case 1: (void)store_->retain(set, hashes); return;
          default: KV_ASSERT(store_->unretain(set, hashes));
        }
        return;
      }
      default: {
        const auto hashes = names();
        std::vector<DiskDrop> kept;
        KV_ASSERT(store_->erase(set, hashes, &kept, now_).has_value() == !hashes.empty());
        KV_ASSERT(kept.size() == hashes.size());
        const auto match = store_->match_set(set, hashes, {}, now_).value();
        for (const auto held : match.held) KV_ASSERT(held == ReadDesk::Held::kNowhere);
      }
    }
  }
  void match_set(SpaceId set) {
    const auto hashes = names();
    ReadDesk::SetMatchOptions options{.session = session(), .lease = input_.flag()};
    const std::size_t cut = input_.below(hashes.size() + 1);
    for (const auto part : {std::span(hashes).first(cut), std::span(hashes).subspan(cut)}) {
      const auto groups = groups_of(part.size());
      options.group_counts = groups;
      const auto match = store_->match_set(set, part, options, now_);
      KV_ASSERT(match.has_value() == are_groups_of(groups, part.size()));
      if (!match) break;
      KV_ASSERT(match->held.size() == part.size() && match->lengths.size() == part.size());
      for_each_group(groups, part.size(), [&](std::size_t first, std::size_t count) {
        const auto group = std::span(match->held).subspan(first, count);
        const auto missing = std::ranges::count(group, ReadDesk::Held::kNowhere);
        KV_ASSERT(missing == 0 || missing == static_cast<std::ptrdiff_t>(count));
      });
      for (std::size_t i = 0; i < part.size(); ++i) {
        KV_ASSERT((match->held[i] == ReadDesk::Held::kNowhere) == (match->lengths[i] == 0));
        KV_ASSERT(match->lengths[i] <= kSetBytesMax);
      }
      options.rest = match->lease;
      options.lease = options.lease && match->lease_error == Errc{};
    }
    if (options.rest != LeaseId{}) leases_.emplace_back(options.session, options.rest);
  }
  void offer_set(SpaceId set) {
    const auto hashes = names();
    std::vector<std::uint32_t> lengths(hashes.size());
    for (auto& length : lengths) length = static_cast<std::uint32_t>(1 + input_.below(kSetBytesMax));
    SetPuts::OfferOptions options{.session = session(), .lengths = lengths};
    const std::size_t cut = hashes.size() > 1 && input_.flag() ? 1 + input_.below(hashes.size() - 1) : 0;
    Put put{0, static_cast<std::uint64_t>(options.session), hashes, {}, 0, true};
    const auto groups = cut > 0 ? std::vector<std::uint32_t>() : groups_of(hashes.size());
    put.has_groups = !groups.empty();
    options.group_counts = groups;
    if (!check_groups(hashes, groups).empty()) {
      KV_ASSERT(are_groups_of(groups, hashes.size()) || !store_->offer_set(set, hashes, options, now_));
      return;  // a name twice in a group: nobody may ask for that
    }
    if (cut > 0) {
      options.lengths = std::span(lengths).first(cut);
      options.is_part = true;
      const auto plan = store_->offer_set(set, std::span(hashes).first(cut), options, now_).value();
      KV_ASSERT(plan.incoming.empty() && plan.stored_count + plan.wanted.size() == cut);
      options.put = plan.put;
      options.lengths = std::span(lengths).subspan(cut);
      options.first = static_cast<std::uint32_t>(cut);
      options.is_part = false;
    }
    auto plan = store_->offer_set(set, std::span(hashes).subspan(cut), options, now_);
    KV_ASSERT(plan.has_value() == !hashes.empty());
    if (!plan || plan->put == PutId{}) return;
    for (;;) {
      put.incoming.insert(put.incoming.end(), plan->incoming.begin(), plan->incoming.end());
      if (!plan->again) break;
      plan = store_->offer_more(plan->put, now_);
      KV_ASSERT(plan);
    }
    for (const auto& incoming : put.incoming) {
      const BlockHash& hash = hashes[incoming.index];
      KV_ASSERT(incoming.bytes.size() == lengths[incoming.index]);
      KV_ASSERT(incoming.seed == set_checksum_seed(set_record_.id(), hash, incoming.bytes.size()));
      std::memset(incoming.bytes.data(), static_cast<int>(byte_in_set(hash, incoming.bytes.size())),
                  incoming.bytes.size());
    }
    puts_.emplace(plan->put, std::move(put));
  }
  void pin_set(SpaceId set) {
    const auto hashes = names();
    std::vector<std::uint32_t> rooms(input_.flag() ? hashes.size() : 0);
    for (auto& room : rooms) room = static_cast<std::uint32_t>(input_.below(kSetBytesMax + 1));
    const LeaseId lease = leases_.empty() || input_.flag() ? LeaseId{} : leases_[input_.below(leases_.size())].second;
    const auto groups = groups_of(hashes.size());
    const SetPinning::Options options{.session = session(),
                                      .lease = lease,
                                      .rooms = rooms,
                                      .bytes_max = 1 + input_.below(3 * kSetBytesMax),
                                      .count_max = 1 + input_.below(kBlocks),
                                      .group_counts = groups};
    auto pinned = store_->pin_set(set, hashes, options, now_);
    KV_ASSERT(pinned.has_value() == are_groups_of(groups, hashes.size()));
    if (!pinned) return;
    KV_ASSERT(pinned->looked_count <= hashes.size());
    KV_ASSERT(groups.empty() ? pinned->looked_count <= options.count_max
                             : pinned->looked_count <= std::max<std::size_t>(options.count_max, groups[0]));
    std::size_t whole = 0;
    for (std::size_t i = 0; i < pinned->looked_group_count; ++i) whole += groups[i];
    KV_ASSERT(groups.empty() || whole == pinned->looked_count);
    for (const auto& [index, length] : pinned->too_long) KV_ASSERT(length > rooms[index]);
    pinned_sets_.push_back({std::move(*pinned), hashes});
    expect_intact(pinned_sets_.back());
  }
  void expect_intact(const PinnedSet& pinned) const {
    for (const auto& block : pinned.set.pinned.blocks) {
      const BlockHash& hash = pinned.hashes[block.index];
      for (const std::byte each : block.bytes) KV_ASSERT(each == byte_in_set(hash, block.bytes.size()));
      KV_ASSERT(
          verify_block(set_checksum_seed(set_record_.id(), hash, block.bytes.size()), block.bytes, block.checksums));
    }
  }
  void unpin_set(const PinnedSet& pinned) {
    expect_intact(pinned);  // constant while pinned
    store_->unpin(pinned.set.pinned);
  }

  Input& input_;
  const bool has_set_;
  const NamespaceRecord set_record_ =
      NamespaceRecord::from_fields({{"model", "m"}, {"kind", "set"}, {"block_bytes_max", std::to_string(kSetBytesMax)}})
          .value();
  SpaceId set_{};
  std::vector<PinnedSet> pinned_sets_;
  std::unique_ptr<Store> store_;
  std::vector<Space> spaces_;
  std::map<PutId, Put> puts_;
  std::vector<Pinned> pinned_;
  std::vector<std::pair<SessionId, LeaseId>> leases_;
  TimePoint now_{std::chrono::seconds(1)};
};

}  // namespace
}  // namespace kv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kv::Input input(data, std::min<std::size_t>(size, 1024));
  kv::Operations(input, size % 2 == 1).run();  // not from the input: what the corpus holds keeps its meaning
  return 0;
}
