#include "store/memory/arena.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/assert.h"
#include "base/checksum.h"

namespace kv {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::uint32_t kNoSlab = 0xFFFFFFFF;
constexpr std::size_t kFreeRunsLookedAt = 256;            ///< In order, for a slab: some microseconds.
constexpr std::size_t kFoundMax = 512, kFoundShare = 16;  ///< Windows that a search keeps.

constexpr std::size_t round_up(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

/// Whole pages where that costs under 1 % (from 400 KiB at the latest; all multiples of 4 KiB), else cache lines.
std::size_t stride_of(std::size_t block_bytes) {
  const std::size_t paged = round_up(block_bytes, kPageBytes);
  return (paged - block_bytes) * 100 <= block_bytes ? paged : round_up(block_bytes, 64);
}

/// Whether a slab of `slab_bytes` bytes is a good one: at most 3 % is idle. Padding is unavoidable, so at most 1 % at
/// the end will do as well; that is under 3 % in all for blocks of 3 KiB and more.
bool wastes_little(std::size_t slab_bytes, std::size_t block_bytes, std::size_t stride) {
  const std::size_t slot_count = slab_bytes / stride;
  return slot_count > 0 && ((slab_bytes - slot_count * block_bytes) * 100 <= slab_bytes * 3 ||
                            (slab_bytes - slot_count * stride) * 100 <= slab_bytes);
}

}  // namespace

struct Arena::Impl {
  struct Class {
    std::size_t block_bytes, stride;  ///< 0: removed.
    std::size_t granule_count;        ///< In a whole slab.
    std::size_t checksum_count;
    std::set<std::uint32_t> with_room;  ///< Slabs (first granules) with a free slot.
    std::set<std::uint32_t> slabs;
    std::size_t slot_count = 0, used_count = 0;
    /// In a full arena a slab's first free slot comes and goes with each block: this reuses its set node.
    std::set<std::uint32_t>::node_type spare = {};

    void set_room(std::uint32_t first_granule) {
      if (!spare) {
        with_room.insert(first_granule);
        return;
      }
      spare.value() = first_granule;
      spare = with_room.insert(std::move(spare)).node;  // given back if it was there
    }
    void set_full(std::uint32_t first_granule) {
      if (auto node = with_room.extract(first_granule)) spare = std::move(node);
    }
  };

  struct Slab {
    std::uint32_t class_index;
    std::uint32_t first_granule, granule_count;
    std::uint32_t slot_count;
    std::uint32_t used_count = 0;
    std::uint32_t fresh = 0;  ///< Slots from here on were never used, and are absent from `free_slots`.
    std::size_t block_bytes, stride, checksum_count;
    std::vector<std::uint32_t> free_slots;
    std::vector<bool> is_used, is_held;
    std::unique_ptr<BlockId[]> owners;
    std::unique_ptr<std::uint64_t[]> checksums;  ///< Uninitialised: a slot's are written before they are read.
  };

  /// The part of a slab that a search reads. Separate from the slab, in the order of granules: a search of a terabyte
  /// reads 12 MiB in sequence instead of half a million scattered slabs.
  struct Head {
    Tick last_use{};
    std::uint32_t class_index = 0, held_count = 0;
    std::uint64_t shield_round = 0;  ///< Shielded iff this equals the arena's round.
  };

  std::unique_ptr<ArenaMemory> memory;
  std::byte* base = nullptr;
  std::size_t capacity_bytes = 0, granule_bytes = 0;
  /// Granules up to the capacity; the number including closed ones, which have laid_bytes in all; the maximum. The last
  /// two bounds are constants, since bytes() is called without the lock.
  std::size_t end_granule = 0, granule_count = 0, laid_bytes = 0, granule_count_max = 0, bytes_max = 0;
  bool can_resize = false;
  std::size_t allocated_bytes = 0, slab_bytes = 0;
  std::uint64_t change_count = 0, shield_round = 1;
  std::vector<Class> classes;
  std::vector<std::uint32_t> free_classes;
  std::unordered_map<std::size_t, std::uint32_t> class_of_size;
  std::vector<std::unique_ptr<Slab>> slabs;  ///< By first granule. Never resized: bytes() reads it without the lock.
  std::vector<Head> heads;
  std::vector<std::uint32_t> slab_of_granule;  ///< First granule of the slab that a granule belongs to, or kNoSlab.
  std::map<std::uint32_t, std::uint32_t> free_runs;  ///< First granule -> length; neighbours are merged.
  std::set<std::pair<std::uint32_t, std::uint32_t>> free_by_length;  ///< The same, as length and first granule.

  static std::uint32_t slot_number(SlotId slot) { return static_cast<std::uint32_t>(slot); }
  /// A SlotId is the slab's first granule and the slot's number in the slab. Every call passes here: an invalid slot,
  /// or one of a freed slab, stops the process before another block's bytes are touched.
  Slab& slab_of(SlotId slot) const {
    const std::uint64_t first = static_cast<std::uint64_t>(slot) >> 32;
    KV_ASSERT(first < granule_count_max);
    Slab* slab = slabs[first].get();
    KV_ASSERT(slab != nullptr && slot_number(slot) < slab->slot_count);
    return *slab;
  }
  SlotId slot_id(const Slab& slab, std::uint32_t number) const {
    return SlotId{std::uint64_t{slab.first_granule} << 32 | number};
  }
  std::size_t run_bytes(std::size_t first, std::size_t count) const {
    return std::min((first + count) * granule_bytes, laid_bytes) - first * granule_bytes;
  }
  bool is_closed(const Slab& slab) const { return slab.first_granule + slab.granule_count > end_granule; }
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  /// A granule's last use, for a search of the class: 0 if free, kNever if not clearable for it.
  std::uint64_t last_use(std::size_t granule, std::uint32_t class_index) const {
    const std::uint32_t first = slab_of_granule[granule];
    if (first == kNoSlab) return 0;
    const Head& head = heads[first];
    const bool is_clearable =
        head.held_count == 0 && head.shield_round != shield_round && head.class_index != class_index;
    return is_clearable ? static_cast<std::uint64_t>(head.last_use) : kNever;
  }
  Head& head_of(SlotId slot) { return heads[slab_of(slot).first_granule]; }

  std::uint32_t class_index_of(std::size_t block_bytes);
  std::pair<std::uint32_t, std::uint32_t> find_run(const Class& of, Place place) const;
  Slab* add_slab(std::uint32_t class_index, Place place);
  void remove_slab(Slab& slab);
  void take_run(std::uint32_t first, std::uint32_t count);
  void give_run(std::uint32_t first, std::uint32_t count);
  void set_free(std::uint32_t first, std::uint32_t count);
  void end_free(std::map<std::uint32_t, std::uint32_t>::iterator run);
};

Arena::Arena(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Arena::~Arena() = default;

Result<std::unique_ptr<Arena>> Arena::create(const ArenaConfig& config) {
  if (config.capacity_bytes == 0 || config.granule_bytes == 0 || config.granule_bytes % kPageBytes != 0)
    return Errc::kBadRequest;
  const auto granules = [&](std::size_t bytes) { return (bytes + config.granule_bytes - 1) / config.granule_bytes; };
  const bool can_resize = config.capacity_bytes_max > 0;
  // Must end at a whole granule: otherwise a slab there would grow or shrink with the arena.
  if (can_resize &&
      (config.capacity_bytes % config.granule_bytes != 0 || config.capacity_bytes_max % config.granule_bytes != 0 ||
       config.capacity_bytes_max < config.capacity_bytes)) {
    return Errc::kBadRequest;
  }
  if (granules(config.bytes_max()) >= kNoSlab) return Errc::kTooLarge;
  ArenaConfig own = config;
  // Otherwise the arena would end within a page.
  if (can_resize && config.granule_bytes % (2 << 20) != 0) own.huge_pages = false;
  auto memory = ArenaMemory::create(own);
  if (!memory) return memory.error();
  auto impl = std::make_unique<Impl>();
  impl->memory = std::move(*memory);
  impl->base = impl->memory->data();
  impl->can_resize = can_resize;
  impl->capacity_bytes = impl->laid_bytes = config.capacity_bytes;
  impl->bytes_max = config.bytes_max();
  impl->granule_bytes = config.granule_bytes;
  impl->end_granule = impl->granule_count = granules(config.capacity_bytes);
  impl->granule_count_max = granules(config.bytes_max());
  impl->slabs.resize(impl->granule_count_max);
  impl->heads.resize(impl->granule_count_max);
  impl->slab_of_granule.assign(impl->granule_count_max, kNoSlab);
  impl->set_free(0, static_cast<std::uint32_t>(impl->granule_count));
  return std::unique_ptr<Arena>(new Arena(std::move(impl)));
}

// -- another capacity

bool Arena::can_resize() const { return impl_->can_resize; }
std::size_t Arena::capacity_bytes_max() const { return impl_->bytes_max; }
std::size_t Arena::granule_bytes() const { return impl_->granule_bytes; }
ArenaMemory& Arena::pages() { return *impl_->memory; }

void Arena::set_capacity(std::size_t bytes) {
  Impl& impl = *impl_;
  KV_ASSERT(impl.can_resize && bytes > 0 && bytes <= impl.bytes_max && bytes % impl.granule_bytes == 0);
  KV_ASSERT(bytes <= impl.memory->committed_bytes());
  const std::size_t was = impl.end_granule, end = bytes / impl.granule_bytes;
  impl.capacity_bytes = bytes;
  impl.end_granule = end;
  if (end > impl.granule_count) {
    impl.granule_count = end;
    impl.laid_bytes = bytes;
  }
  if (end > was) {
    for (std::size_t granule = was; granule < end; ++granule)
      if (impl.slab_of_granule[granule] == kNoSlab) impl.give_run(static_cast<std::uint32_t>(granule), 1);
  } else {
    // Free runs behind the end are removed.
    while (!impl.free_runs.empty()) {
      const auto last = std::prev(impl.free_runs.end());
      const auto [first, count] = *last;
      if (first + count <= end) break;
      impl.end_free(last);
      if (first < end) impl.set_free(first, static_cast<std::uint32_t>(end - first));
    }
  }
  // Slabs that were closed, or are now; the first may begin before both ends.
  std::size_t granule = std::min(was, end);
  if (granule < impl.granule_count && impl.slab_of_granule[granule] != kNoSlab) granule = impl.slab_of_granule[granule];
  for (; granule < impl.granule_count; ++granule) {
    if (impl.slab_of_granule[granule] != granule) continue;
    const Impl::Slab& slab = *impl.slabs[granule];
    auto& with_room = impl.classes[slab.class_index].with_room;
    if (impl.is_closed(slab)) {
      with_room.erase(slab.first_granule);
    } else if (slab.used_count < slab.slot_count) {
      with_room.insert(slab.first_granule);
    }
  }
  ++impl.change_count;
}

std::optional<SlotId> Arena::next_closed(Cursor& cursor, Steps& steps) const {
  const Impl& impl = *impl_;
  if (impl.granule_count == impl.end_granule) return std::nullopt;
  std::size_t first = impl.end_granule;
  if (impl.slab_of_granule[first] != kNoSlab) first = impl.slab_of_granule[first];
  if (cursor.granule < first) cursor = {.granule = first};
  return next_slot({first, impl.granule_count - first, Tick{}}, cursor, steps);
}

bool Arena::cut() {
  Impl& impl = *impl_;
  for (std::size_t granule = impl.end_granule; granule < impl.granule_count; ++granule)
    if (impl.slab_of_granule[granule] != kNoSlab) return false;
  impl.granule_count = impl.end_granule;
  impl.laid_bytes = impl.capacity_bytes;
  return true;
}

std::uint32_t Arena::add_class(std::size_t block_bytes) {
  KV_ASSERT(fits(block_bytes));
  return impl_->class_index_of(block_bytes);
}

void Arena::remove_class(std::size_t block_bytes) {
  const auto found = impl_->class_of_size.find(block_bytes);
  if (found == impl_->class_of_size.end()) return;
  Impl::Class& of = impl_->classes[found->second];
  KV_ASSERT(of.used_count == 0 && of.slabs.empty());
  of = {};
  impl_->free_classes.push_back(found->second);
  impl_->class_of_size.erase(found);
}

std::optional<SlotId> Arena::allocate(std::size_t block_bytes, Place place) {
  if (!fits(block_bytes)) return std::nullopt;
  const std::uint32_t class_index = impl_->class_index_of(block_bytes);
  Impl::Slab* slab = nullptr;
  if (const auto& with_room = impl_->classes[class_index].with_room; !with_room.empty()) {
    slab = impl_->slabs[*with_room.begin()].get();
  } else {
    slab = impl_->add_slab(class_index, place);
    if (slab == nullptr) return std::nullopt;
  }
  // Used slots come first: their bytes may still be in cache.
  std::uint32_t number = slab->fresh;
  if (slab->free_slots.empty()) {
    ++slab->fresh;
  } else {
    number = slab->free_slots.back();
    slab->free_slots.pop_back();
  }
  KV_ASSERT(slab->block_bytes == block_bytes);
  KV_ASSERT(number < slab->slot_count && !slab->is_used[number] && !slab->is_held[number]);
  slab->is_used[number] = true;
  slab->owners[number] = kNoBlock;
  Impl::Class& of = impl_->classes[class_index];
  if (++slab->used_count == slab->slot_count) of.set_full(slab->first_granule);
  ++of.used_count;
  impl_->allocated_bytes += block_bytes;
  return impl_->slot_id(*slab, number);
}

void Arena::free(SlotId slot) {
  Impl::Slab& slab = impl_->slab_of(slot);
  const std::uint32_t number = Impl::slot_number(slot);
  KV_ASSERT(slab.is_used[number] && !slab.is_held[number]);
  slab.is_used[number] = false;
  ++impl_->change_count;
  Impl::Class& of = impl_->classes[slab.class_index];
  KV_ASSERT(slab.used_count > 0 && of.used_count > 0 && impl_->allocated_bytes >= of.block_bytes);
  --of.used_count;
  impl_->allocated_bytes -= of.block_bytes;
  if (--slab.used_count == 0) return impl_->remove_slab(slab);
  slab.free_slots.push_back(number);
  if (!impl_->is_closed(slab)) of.set_room(slab.first_granule);
}

std::uint32_t Arena::Impl::class_index_of(std::size_t block_bytes) {
  const auto next = static_cast<std::uint32_t>(free_classes.empty() ? classes.size() : free_classes.back());
  const auto [it, is_new] = class_of_size.try_emplace(block_bytes, next);
  if (is_new) {
    if (free_classes.empty()) {
      classes.emplace_back();
    } else {
      free_classes.pop_back();
    }
    const std::size_t stride = stride_of(block_bytes);
    std::size_t count = (stride + granule_bytes - 1) / granule_bytes;
    // Terminates: the rest at a slab's end is under one stride, so 34 blocks are enough to make it under 3 %.
    while (!wastes_little(count * granule_bytes, block_bytes, stride)) ++count;
    classes[it->second] = {block_bytes, stride, count, stripe_count(block_bytes), {}, {}};
  }
  return it->second;
}

/// Chooses the place of a slab of the class, as first granule and length; length 0: it does not fit. The lowest free
/// run in which a slab fits at a multiple of its length. Failing that, and with Place::kAny: the first run that is long
/// enough, or the free end of the arena if that holds a block at all. So an arena smaller than a whole slab is usable,
/// and so are the last granules of every arena.
std::pair<std::uint32_t, std::uint32_t> Arena::Impl::find_run(const Class& of, Place place) const {
  const auto length = static_cast<std::uint32_t>(std::min(of.granule_count, end_granule));
  const auto aligned_in = [&](std::uint32_t first, std::uint32_t count) {
    const auto aligned = static_cast<std::uint32_t>(round_up(first, length));
    return aligned + length <= first + count && run_bytes(aligned, length) >= of.block_bytes ? aligned : kNoSlab;
  };
  std::uint32_t anywhere = kNoSlab;
  std::size_t looked_at = 0;
  for (const auto& [run_first, run_count] : free_runs) {
    if (++looked_at > kFreeRunsLookedAt) break;
    if (run_count < length || run_bytes(run_first, length) < of.block_bytes) continue;
    if (anywhere == kNoSlab) anywhere = run_first;
    if (const std::uint32_t aligned = aligned_in(run_first, run_count); aligned != kNoSlab) return {aligned, length};
  }
  if (looked_at > kFreeRunsLookedAt) {
    // Memory is fragmented. A walk in order of address would be unbounded: take the shortest run that is long enough.
    auto run = free_by_length.lower_bound({length, 0});
    for (looked_at = 0; run != free_by_length.end() && looked_at < kFreeRunsLookedAt; ++run, ++looked_at) {
      if (run_bytes(run->second, length) < of.block_bytes) continue;
      if (anywhere == kNoSlab) anywhere = run->second;
      if (const std::uint32_t aligned = aligned_in(run->second, run->first); aligned != kNoSlab)
        return {aligned, length};
    }
    run = free_by_length.lower_bound({2 * length - 1, 0});  // certainly holds a multiple of the length
    if (run != free_by_length.end()) {
      if (const std::uint32_t aligned = aligned_in(run->second, run->first); aligned != kNoSlab)
        return {aligned, length};
    }
  }
  if (place == Place::kAligned) return {0, 0};
  if (anywhere != kNoSlab) return {anywhere, length};
  if (free_runs.empty()) return {0, 0};
  const auto [first, count] = *free_runs.rbegin();
  if (first + count != end_granule || run_bytes(first, count) < of.block_bytes) return {0, 0};
  return {first, std::min(count, length)};
}

Arena::Impl::Slab* Arena::Impl::add_slab(std::uint32_t class_index, Place place) {
  Class& of = classes[class_index];
  const auto [first, count] = find_run(of, place);
  if (count == 0) return nullptr;
  take_run(first, count);

  auto slab = std::make_unique<Slab>();
  slab->class_index = class_index;
  slab->first_granule = first;
  slab->granule_count = count;
  slab->block_bytes = of.block_bytes;
  slab->stride = of.stride;
  slab->checksum_count = of.checksum_count;
  // The last slot is unpadded: an arena of exactly one block of any size holds it.
  slab->slot_count = static_cast<std::uint32_t>((run_bytes(first, count) - of.block_bytes) / of.stride + 1);
  slab->is_used.resize(slab->slot_count);
  slab->is_held.resize(slab->slot_count);
  slab->owners = std::make_unique_for_overwrite<BlockId[]>(slab->slot_count);
  slab->checksums = std::make_unique_for_overwrite<std::uint64_t[]>(slab->slot_count * of.checksum_count);
  for (std::uint32_t granule = first; granule < first + count; ++granule) slab_of_granule[granule] = first;
  slab_bytes += run_bytes(first, count);
  of.slot_count += slab->slot_count;
  of.slabs.insert(first);
  of.with_room.insert(first);
  heads[first] = {.class_index = class_index};
  slabs[first] = std::move(slab);
  return slabs[first].get();
}

void Arena::Impl::remove_slab(Slab& slab) {
  KV_ASSERT(slab.used_count == 0 && heads[slab.first_granule].held_count == 0);
  KV_ASSERT(slabs[slab.first_granule].get() == &slab && slab_of_granule[slab.first_granule] == slab.first_granule);
  Class& of = classes[slab.class_index];
  of.slot_count -= slab.slot_count;
  of.slabs.erase(slab.first_granule);
  of.with_room.erase(slab.first_granule);
  const std::uint32_t first = slab.first_granule, count = slab.granule_count;
  slab_bytes -= run_bytes(first, count);
  for (std::uint32_t granule = first; granule < first + count; ++granule) slab_of_granule[granule] = kNoSlab;
  slabs[first].reset();
  if (first < end_granule)
    give_run(first, static_cast<std::uint32_t>(std::min<std::size_t>(count, end_granule - first)));
}

void Arena::Impl::set_free(std::uint32_t first, std::uint32_t count) {
  free_runs.emplace(first, count);
  free_by_length.emplace(count, first);
}

void Arena::Impl::end_free(std::map<std::uint32_t, std::uint32_t>::iterator run) {
  free_by_length.erase({run->second, run->first});
  free_runs.erase(run);
}

void Arena::Impl::take_run(std::uint32_t first, std::uint32_t count) {
  const auto behind = free_runs.upper_bound(first);
  KV_ASSERT(behind != free_runs.begin());
  const auto run = std::prev(behind);
  const std::uint32_t run_first = run->first, run_end = run->first + run->second;
  KV_ASSERT(run_first <= first && first + count <= run_end);
  end_free(run);
  if (run_first < first) set_free(run_first, first - run_first);
  if (first + count < run_end) set_free(first + count, run_end - first - count);
}

/// Merges with both neighbours: a slab of another class may need more granules than this one had.
void Arena::Impl::give_run(std::uint32_t first, std::uint32_t count) {
  KV_ASSERT(count > 0 && std::size_t{first} + count <= end_granule);
  if (const auto next = free_runs.lower_bound(first); next != free_runs.end() && first + count == next->first) {
    count += next->second;
    end_free(next);
  }
  if (const auto next = free_runs.lower_bound(first); next != free_runs.begin()) {
    const auto before = std::prev(next);
    KV_ASSERT(before->first + before->second <= first);  // otherwise some granule was free already
    if (before->first + before->second == first) {
      first = before->first;
      count += before->second;
      end_free(before);
    }
  }
  set_free(first, count);
}

/// Runs without the lock, for a slot that the caller owns or pinned. So this must not read `is_used`: the bits of a
/// slab's other slots share its words and change under the lock meanwhile. The members read here are constant.
std::span<std::byte> Arena::bytes(SlotId slot) const {
  const Impl::Slab& slab = impl_->slab_of(slot);
  const std::size_t offset = slab.first_granule * impl_->granule_bytes + Impl::slot_number(slot) * slab.stride;
  KV_ASSERT(offset + slab.block_bytes <= impl_->bytes_max);
  return {impl_->base + offset, slab.block_bytes};
}

std::span<std::uint64_t> Arena::checksums(SlotId slot) const {
  const Impl::Slab& slab = impl_->slab_of(slot);
  return {slab.checksums.get() + Impl::slot_number(slot) * slab.checksum_count, slab.checksum_count};
}

std::size_t Arena::block_bytes(SlotId slot) const { return impl_->slab_of(slot).block_bytes; }
std::span<std::byte> Arena::memory() const { return {impl_->base, impl_->memory->committed_bytes()}; }
std::size_t Arena::capacity_bytes() const { return impl_->capacity_bytes; }
std::size_t Arena::free_bytes() const {
  return impl_->capacity_bytes - std::min(impl_->capacity_bytes, impl_->allocated_bytes);
}
std::size_t Arena::allocated_bytes() const { return impl_->allocated_bytes; }
std::size_t Arena::slab_bytes() const { return impl_->slab_bytes; }
bool Arena::fits(std::size_t block_bytes) const { return block_bytes > 0 && block_bytes <= impl_->capacity_bytes; }
std::size_t Arena::class_count() const { return impl_->class_of_size.size(); }
bool Arena::has_class(std::size_t block_bytes) const { return impl_->class_of_size.contains(block_bytes); }

std::vector<Arena::SizeClass> Arena::classes() const {
  std::vector<SizeClass> classes;
  for (const Impl::Class& of : impl_->classes) {
    if (of.block_bytes == 0) continue;
    classes.push_back({of.block_bytes, of.stride, of.slabs.size(), of.slot_count, of.used_count});
  }
  return classes;
}

void Arena::set_owner(SlotId slot, BlockId block) {
  KV_ASSERT(is_allocated(slot));
  impl_->slab_of(slot).owners[Impl::slot_number(slot)] = block;
}
BlockId Arena::owner(SlotId slot) const { return impl_->slab_of(slot).owners[Impl::slot_number(slot)]; }

bool Arena::is_allocated(SlotId slot) const {
  const auto first = static_cast<std::uint64_t>(slot) >> 32;
  const Impl::Slab* slab = first < impl_->granule_count_max ? impl_->slabs[first].get() : nullptr;
  return slab != nullptr && Impl::slot_number(slot) < slab->slot_count && slab->is_used[Impl::slot_number(slot)];
}

void Arena::use(SlotId slot, Tick tick) {
  Impl::Head& head = impl_->head_of(slot);
  head.last_use = std::max(head.last_use, tick);
}

void Arena::hold(SlotId slot) {
  Impl::Slab& slab = impl_->slab_of(slot);
  const std::uint32_t number = Impl::slot_number(slot);
  KV_ASSERT(slab.is_used[number] && !slab.is_held[number]);
  slab.is_held[number] = true;
  ++impl_->heads[slab.first_granule].held_count;
}

void Arena::end_hold(SlotId slot) {
  Impl::Slab& slab = impl_->slab_of(slot);
  const std::uint32_t number = Impl::slot_number(slot);
  KV_ASSERT(slab.is_held[number] && impl_->heads[slab.first_granule].held_count > 0);
  slab.is_held[number] = false;
  --impl_->heads[slab.first_granule].held_count;
  ++impl_->change_count;
}

bool Arena::is_held(SlotId slot) const { return impl_->slab_of(slot).is_held[Impl::slot_number(slot)]; }
void Arena::shield(SlotId slot) { impl_->head_of(slot).shield_round = impl_->shield_round; }
void Arena::end_shields() { ++impl_->shield_round; }
std::uint64_t Arena::change_count() const { return impl_->change_count; }

/// Maximum over a sliding window: `later` holds the granules that could still be the latest of some window, in falling
/// order of use, so each granule enters and leaves once. Windows at the arena's end are shorter, as add_slab() allows.
void Arena::search(std::size_t block_bytes, Search& search, Steps& steps) const {
  KV_ASSERT(fits(block_bytes));
  const std::uint32_t class_index = impl_->class_index_of(block_bytes);
  const Impl::Class& of = impl_->classes[class_index];
  const std::size_t length = of.granule_count;
  const std::size_t found_max = std::clamp<std::size_t>(impl_->end_granule / length / kFoundShare, 1, kFoundMax);
  const auto is_older = [](const Window& a, const Window& b) { return a.last_use < b.last_use; };
  for (; search.first < impl_->end_granule; ++search.first) {
    for (; search.end < std::min(search.first + length, impl_->end_granule); ++search.end) {
      if (!steps.are_left()) return;
      steps.take(Steps::kGranule);
      const std::uint64_t use = impl_->last_use(search.end, class_index);
      while (!search.later.empty() && search.later.back().second <= use) search.later.pop_back();
      search.later.emplace_back(search.end, use);
    }
    while (search.later.front().first < search.first) search.later.pop_front();
    KV_ASSERT(!search.later.empty());  // the window's last granule at least
    const std::size_t count = search.end - search.first;
    if (impl_->run_bytes(search.first, count) < of.block_bytes) break;
    const std::uint64_t use = search.later.front().second;
    if (use == Impl::kNever) continue;
    const Window window{search.first, count, Tick{use}};
    if (!search.anywhere || is_older(window, *search.anywhere)) search.anywhere = window;
    if (count != length || search.first % count != 0) continue;
    std::vector<Window>& found = search.aligned;  // a heap, the youngest on top
    if (found.size() == found_max) {
      if (!is_older(window, found.front())) continue;
      std::pop_heap(found.begin(), found.end(), is_older);
      found.pop_back();
    }
    found.push_back(window);
    std::push_heap(found.begin(), found.end(), is_older);
  }
  search.is_over = true;
}

std::optional<Tick> Arena::last_use(const Window& window, std::size_t block_bytes) const {
  const std::uint32_t class_index = impl_->class_index_of(block_bytes);
  KV_ASSERT(window.first_granule + window.granule_count <= impl_->granule_count_max);
  if (window.first_granule + window.granule_count > impl_->end_granule) return std::nullopt;
  std::uint64_t latest = 0;  // kNever is larger than any use, so one such granule decides
  for (std::size_t i = 0; i < window.granule_count; ++i)
    latest = std::max(latest, impl_->last_use(window.first_granule + i, class_index));
  return latest == Impl::kNever ? std::nullopt : std::optional(Tick{latest});
}

bool Arena::is_in(const Window& window, SlotId slot) const {
  const Impl::Slab& slab = impl_->slab_of(slot);
  return slab.first_granule < window.first_granule + window.granule_count &&
         window.first_granule < std::size_t{slab.first_granule} + slab.granule_count;
}

std::optional<SlotId> Arena::next_slot(const Window& window, Cursor& cursor, Steps& steps) const {
  KV_ASSERT(window.first_granule + window.granule_count <= impl_->granule_count_max);
  while (cursor.granule < window.first_granule + window.granule_count && steps.are_left()) {
    steps.take(Steps::kGranule);
    const std::uint32_t first = impl_->slab_of_granule[cursor.granule];
    if (first == kNoSlab) {
      ++cursor.granule;
      continue;
    }
    // Between two calls the slab may have been freed and replaced: then begin with its first slot.
    if (std::exchange(cursor.slab, first) != first) cursor.slot = 0;
    const Impl::Slab& slab = *impl_->slabs[first];
    while (cursor.slot < slab.fresh && steps.are_left()) {
      const std::uint32_t number = cursor.slot++;
      if (slab.is_used[number]) return impl_->slot_id(slab, number);
      steps.take(Steps::kGranule);
    }
    if (cursor.slot < slab.fresh) break;
    cursor.granule = first + slab.granule_count;
    cursor.slot = 0;
  }
  return std::nullopt;
}

std::string Arena::check() const {
  std::size_t allocated_bytes = 0, slab_bytes = 0, free_granules = 0;
  const std::size_t numbers = impl_->classes.size();
  if (numbers - impl_->free_classes.size() != class_count()) return "arena: a class is neither in use nor free";
  std::vector<std::size_t> slot_counts(numbers), used_counts(numbers), slab_counts(numbers);
  for (std::size_t granule = 0; granule < impl_->granule_count;) {
    const std::uint32_t first = impl_->slab_of_granule[granule];
    if (first == kNoSlab) {
      if (impl_->slabs[granule]) return "arena: a slab starts at a free granule";
      free_granules += granule < impl_->end_granule;
      ++granule;
      continue;
    }
    if (first != granule || !impl_->slabs[first])
      return "arena: a granule names a slab that does not start where it says";
    const Impl::Slab& slab = *impl_->slabs[first];
    const Impl::Class& of = impl_->classes[slab.class_index];
    const auto used = static_cast<std::size_t>(std::count(slab.is_used.begin(), slab.is_used.end(), true));
    const auto held = static_cast<std::size_t>(std::count(slab.is_held.begin(), slab.is_held.end(), true));
    if (used != slab.used_count || used == 0) return "arena: a slab's used slots are miscounted";
    if (held != impl_->heads[first].held_count) return "arena: a slab's held slots are miscounted";
    if (slab.fresh != used + slab.free_slots.size()) return "arena: a slab's free slots are miscounted";
    if (of.with_room.contains(first) != (used < slab.slot_count && !impl_->is_closed(slab)))
      return "arena: a slab with room is not listed as such";
    if (!of.slabs.contains(first)) return "arena: a slab is unknown to its class";
    const std::size_t bytes = impl_->run_bytes(first, slab.granule_count);
    if ((slab.slot_count - 1) * slab.stride + slab.block_bytes > bytes) return "arena: a slab's slots do not fit it";
    allocated_bytes += used * of.block_bytes;
    slab_bytes += bytes;
    used_counts[slab.class_index] += used;
    slot_counts[slab.class_index] += slab.slot_count;
    ++slab_counts[slab.class_index];
    for (std::uint32_t i = 0; i < slab.granule_count; ++i, ++granule)
      if (impl_->slab_of_granule[granule] != first) return "arena: slabs overlap";
  }
  if (allocated_bytes != impl_->allocated_bytes) return "arena: allocated_bytes is wrong";
  if (slab_bytes != impl_->slab_bytes) return "arena: slab_bytes is wrong";
  for (std::size_t i = 0; i < numbers; ++i) {
    const Impl::Class& of = impl_->classes[i];
    if (of.slot_count != slot_counts[i] || of.used_count != used_counts[i] || of.slabs.size() != slab_counts[i])
      return "arena: a class is miscounted";
  }
  std::size_t end_before = 0;
  if (impl_->end_granule > impl_->granule_count) return "arena: it ends behind its last granule";
  for (const auto& [first, count] : impl_->free_runs) {
    if (std::size_t{first} + count > impl_->end_granule) return "arena: a free run lies behind the end";
    if (first < end_before || (first == end_before && first > 0)) return "arena: free runs overlap or are not merged";
    for (std::uint32_t granule = first; granule < first + count; ++granule)
      if (impl_->slab_of_granule[granule] != kNoSlab) return "arena: a free run holds a slab";
    free_granules -= count;
    end_before = first + count;
  }
  if (free_granules != 0) return "arena: free granules are miscounted";
  if (impl_->free_by_length.size() != impl_->free_runs.size()) return "arena: a free run is listed once only";
  for (const auto& [first, count] : impl_->free_runs)
    if (!impl_->free_by_length.contains({count, first})) return "arena: a free run is listed with another length";
  return "";
}

}  // namespace kv
