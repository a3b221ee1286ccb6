#include "store/policy/yield_policy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace kv {
namespace {

constexpr std::uint64_t kRemembered = 6;  ///< Capacities of departures, and the depth of the shadow.
constexpr std::uint64_t kShadowMax = 65536;
constexpr std::uint64_t kCapacityMin = 256;  ///< Blocks; below, the counts are noise.
constexpr double kUnitsPerCapacity = 64;     ///< Of age.
constexpr std::size_t kEventsMax = 1 << 14;  ///< Waiting; further ones are not counted.
/// Per call of learn(), of some 200 ns and some 2 us.
constexpr std::size_t kEventsPerCall = 32;
constexpr int kLessonStepsPerCall = 2;
constexpr std::size_t kGhostsPerCall = 128, kGhostsMin = 64;         ///< Departures, of some 50 ns; fewer wait.
constexpr std::uint64_t kFirstLesson = 64;                           ///< Events; later intervals grow.
constexpr std::uint64_t kLessonMax = 4096, kHintedLessonMax = 2048;  ///< Hints take more learning.
constexpr std::uint64_t kSpell = 4;                                  ///< Capacities.
constexpr std::uint64_t kPenalty = 1, kPenaltyMax = 64;              ///< Spells.
constexpr double kLead = 0.02;
constexpr std::uint64_t kSettled = 2;      ///< Capacities of uses.
constexpr double kUsesBeforeMax = 16'384;  ///< From an earlier life.
constexpr double kHalfLife = 82'000;       ///< Of counts, in events.
/// A trait: 3 bits for the new part, 1 for a set, 4 for the blocks of a request's last tokens, 3 for the hint.
constexpr std::uint16_t kNewClassMask = 0x07;
/// In a set. Such blocks are sorted by the request alone and not by their own uses. Often the names of a set are a
/// chain all the same, and different worths within one request would leave holes in it.
constexpr std::uint16_t kAlone = 0x08;
constexpr std::uint32_t kUsesAlone = 1;
constexpr std::uint32_t kLastShift = 4, kHintShift = 8;
constexpr std::uint32_t kLastMask = 0x0F;
/// The end of a prompt, such as the question behind a document, is the part that the next one seldom repeats.
constexpr std::size_t kLastTokens = 512;
constexpr std::uint32_t kLastBlocksLog2Max = 7;  ///< Usage::passed counts to 255.

/// The number of this node's blocks in kLastTokens, as a power of two.
std::uint32_t last_blocks_log2(const EvictionPolicy::Request& request) {
  std::size_t blocks = 1;
  if (request.block_size > 0 && request.chain.block_count == 0) {
    blocks = kLastTokens / request.block_size;
  } else if (request.block_size > 0) {
    const double tokens = static_cast<double>(request.block_size) * request.chain.stride(request.hashes.size());
    blocks = static_cast<std::size_t>(kLastTokens / tokens);
  }
  return std::min(static_cast<std::uint32_t>(std::bit_width(std::max<std::size_t>(1, blocks))) - 1, kLastBlocksLog2Max);
}

/// The depth of the shadow and of the departures' memory, in blocks; and the number of blocks per sampled block.
struct ShadowDepth {
  explicit ShadowDepth(std::uint64_t capacity)
      : blocks(kRemembered * capacity), one_in(std::bit_ceil((blocks + kShadowMax - 1) / kShadowMax)) {}
  std::uint64_t blocks, one_in;
};

}  // namespace

YieldPolicy::YieldPolicy(std::uint64_t seed, bool lru_unless_combined)
    : sample_{.seed = seed}, lru_unless_combined_(lru_unless_combined) {
  set_capacity(kCapacityMin);
}

LeafQueues YieldPolicy::queues() const {
  return {YieldTable::kClassCount, [](Usage usage) {
            const bool is_alone = (usage.trait & kAlone) != 0;
            const bool is_last = !is_alone && usage.passed < 1u << (usage.trait >> kLastShift & kLastMask);
            const std::uint32_t uses = is_alone ? kUsesAlone : std::max<std::uint32_t>(usage.use_count, 1);
            const auto new_class = std::min<std::uint32_t>(usage.trait & kNewClassMask, YieldTable::kNewClasses - 1);
            const auto hint = static_cast<ReuseHint>(std::min<std::uint32_t>(usage.trait >> kHintShift, kReuseHintMax));
            return YieldTable::class_of(is_last, uses, new_class, hint);
          }};
}

/// Waiting events belong to the earlier sample: the shadow takes the new capacity after them, so that the learned
/// values do not depend on timing.
void YieldPolicy::set_capacity(std::uint64_t block_count) {
  block_count = std::max(block_count, kCapacityMin);
  if (capacity_ != 0 && block_count < 2 * capacity_ && 2 * block_count > capacity_) return;
  capacity_ = block_count;
  const ShadowDepth depth(capacity_);
  sample_.take_one_in(depth.one_in);
  ghosts_.resize(depth.blocks);
  clock_.set_span(depth.blocks);
  const std::size_t waiting = event_end_ - next_event_;
  is_settled_ = is_settled_ || shadow_.event_count() - counted_from_ >= settled_events_;
  if (!is_settled_ || waiting >= 2 * kEventsMax) {  // no counts worth keeping, or learn() is not being called
    unlearned_uses_ += is_settled_ ? waiting : 0;
    next_event_ = event_end_ = 0;
    is_learning_ = is_told_anew_ = false;
  }
  if (event_end_ == 0 && !is_learning_ && !is_told_anew_) {
    begin_capacity(capacity_);
  } else {
    if (event_end_ == events_.size()) make_event_room(1);
    events_[event_end_++] = {
        .name = capacity_, .at = 0, .how = {}, .is_use = false, .is_found = false, .is_capacity = true};
  }
}

/// Sets the shadow's capacity and empties the shadow. Tables stay: counts in blocks hold for any memory. The exception
/// is the first fill of the memory: capacities then follow one another, each empty shadow sees constantly used blocks
/// as new, and that would stay in the tables for long (conversation, 3,000 blocks: .1397 and not .1414).
void YieldPolicy::begin_capacity(std::uint64_t block_count) {
  const ShadowDepth depth(block_count);
  shadow_.resize(static_cast<std::uint32_t>(depth.blocks / depth.one_in),
                 static_cast<std::uint32_t>(block_count / depth.one_in));
  contest_ = {};
  lru_left_ = penalty_ = 0;
  spell_ = kSpell * block_count / depth.one_in;
  trust_.forget_counts();
  const double unit = std::max(1.0, static_cast<double>(block_count) / kUnitsPerCapacity);
  if (is_settled_) {
    table_.change_unit(unit);
  } else {
    table_.set_unit(unit);
  }
  counted_from_ = learned_at_ = shadow_.event_count();
  settled_events_ = kSettled * block_count / depth.one_in;
  learn_at_ = learned_at_ + kFirstLesson;
  is_told_anew_ = is_told_anew_ || table_.knows();
  ++version_;
}

bool YieldPolicy::knows_first_missed(const Request& request) const {
  return !request.is_set && request.found_count < request.hashes.size() &&
         ghosts_.uses(sample_.name_of(request.tree, request.hashes[request.found_count])) > 0;
}

std::size_t YieldPolicy::known_count(const Request& request) const {
  return knows_first_missed(request) ? search_known(request) : request.found_count;
}

/// Requires: knows_first_missed(). A block leaves together with all behind it, so the known part has one end: a binary
/// search finds it. One lookup in 64 finds another block's uses: two in a row are believed. Each lookup misses caches
/// and TLB, so the candidates of the next steps are prefetched together.
[[gnu::noinline]] std::size_t YieldPolicy::search_known(const Request& request) const {
  const std::size_t end = request.hashes.size();
  const auto name = [&](std::size_t i) { return sample_.name_of(request.tree, request.hashes[i]); };
  const auto is_known = [&](std::size_t i) { return ghosts_.uses(name(i)) > 0 && ghosts_.uses(name(i - 1)) > 0; };
  const auto prefetch = [&](std::size_t i) {
    ghosts_.prefetch(name(i));
    ghosts_.prefetch(name(i - 1));
  };
  std::size_t known = request.found_count + 1, next = known;  // the blocks before `known` are known
  for (std::size_t at = known, step = 2; at < end; step *= 2) {
    at = std::min(at + step, end);
    prefetch(at - 1);
  }
  for (std::size_t step = 2; known < end; step *= 2) {
    next = std::min(known + step, end) - 1;
    if (!is_known(next)) break;
    known = ++next;
  }
  constexpr int kHalvings = 3;  // at once: seven places
  for (int halving = 0; known < next; ++halving) {
    for (std::size_t part = 1, parts = std::size_t{1} << kHalvings; halving % kHalvings == 0 && part < parts; ++part)
      prefetch(known + (next - known) * part / parts);  // give or take one, where the division is uneven
    const std::size_t middle = (known + next) / 2;
    if (is_known(middle)) {
      known = middle + 1;
    } else {
      next = middle;
    }
  }
  return known;
}

/// The part to compute anew, in effect: blocks that left recently were computed once, and do not count as new.
std::uint32_t YieldPolicy::new_class_of(const Request& request, std::size_t known) const {
  return YieldTable::new_class_of(request.chain.new_blocks(known, request.hashes.size()) *
                                  std::max<std::size_t>(request.block_size, 1));
}

[[gnu::noinline]] void YieldPolicy::hear(const Request& request, Kind& kind) {
  kind.tenant = trust_.hear(request.tenant, request.hint);
  kind.believed = trust_.believed(kind.tenant, request.hint);
  table_.use_hints();
}

YieldPolicy::Kind YieldPolicy::kind_of(const Request& request, std::size_t known) {
  Kind kind{.new_class = new_class_of(request, known), .last_blocks_log2 = last_blocks_log2(request)};
  if (request.hint != ReuseHint::kNone || trust_.has_heard()) hear(request, kind);
  return kind;
}

/// Finds the sampled blocks itself, for requests without SampledNames.
[[gnu::noinline]] void YieldPolicy::look_and_note(const Request& request, const Kind& kind, std::size_t first,
                                                  bool is_use) {
  sample_.visit(request.hashes, first, [&](std::span<const std::uint32_t> positions) {
    add_events(request, kind, positions, is_use);
    return true;
  });
}

[[gnu::noinline]] void YieldPolicy::make_event_room(std::size_t count) {
  events_.resize(std::max(event_end_ + count, 2 * events_.size()));
}

void YieldPolicy::add_events(const Request& request, const Kind& kind, std::span<const std::uint32_t> positions,
                             bool is_use) {
  const std::size_t waiting = event_end_ - next_event_;
  const std::size_t count = std::min(positions.size(), kEventsMax - std::min(kEventsMax, waiting));
  unlearned_uses_ += positions.size() - count;
  if (count == 0) return;
  if (event_end_ + count > events_.size()) make_event_room(count);
  // From here on, the hashes are the end of the request.
  const std::size_t end = request.hashes.size() + request.chain.after_last(request.hashes.size());
  const std::size_t last_from = request.is_set ? end : end - std::min(end, std::size_t{1} << kind.last_blocks_log2);
  const auto at = static_cast<std::uint32_t>(clock_.count());
  Event* event = events_.data() + event_end_;
  event_end_ += count;
  for (const std::uint32_t i : positions.first(count)) {
    const bool is_found = i < request.found_count;
    *event++ = {.name = sample_.name_of(request.tree, request.hashes[i]),
                .at = at,
                .how = {.is_last = i >= last_from,
                        .is_alone = request.is_set,
                        .new_class = static_cast<std::uint8_t>(kind.new_class),
                        .hint = request.hint,
                        .believed = kind.believed,
                        .tenant = kind.tenant},
                .is_use = is_use,
                .is_found = is_found,
                .is_known = !is_use && is_found};
  }
}

std::uint16_t YieldPolicy::trait_of(const Request& request, const Kind& kind) {
  return static_cast<std::uint16_t>(kind.new_class | (request.is_set ? kAlone : 0) |
                                    kind.last_blocks_log2 << kLastShift |
                                    static_cast<std::uint32_t>(kind.believed) << kHintShift);
}

void YieldPolicy::count_part(const Request& request) {
  if (request.is_set || (request.chain.block_count == 0 && parts_seen_ == 0)) return;
  const bool was_learned = is_learned();
  if (request.chain.block_count > 0) {
    parts_seen_ = std::min(parts_seen_ + 1, kPartsMax);
  } else {
    --parts_seen_;
  }
  if (was_learned != is_learned()) ++version_;
}

void YieldPolicy::expect_miss(TreeId tree, const BlockHash& missed) const {
  ghosts_.prefetch(sample_.name_of(tree, missed));
  __builtin_prefetch(&trust_);
  __builtin_prefetch(events_.data() + event_end_, 1);
}

/// The usual path touches a few cache lines, one after another: between two requests other work has even evicted its
/// code. Rare paths are functions of their own.
std::uint16_t YieldPolicy::asked(const Request& request, std::size_t* known) {
  count_part(request);
  const std::size_t count = known_count(request);
  const Kind kind = kind_of(request, request.chain.known ? 0 : count);
  const auto* const looked_up =
      request.sampled == nullptr ? nullptr : request.sampled->find(SampledNames::kPolicy, sample_, request.hashes);
  if (looked_up != nullptr) {
    add_events(request, kind, *looked_up, true);
  } else {
    look_and_note(request, kind, 0, true);
  }
  if (known != nullptr) *known = count;
  return trait_of(request, kind);
}

std::uint16_t YieldPolicy::offered(const Request& request, Usage above, Tick tick) {
  count_part(request);
  if (!request.chain.known && !request.is_set && request.found_count < request.hashes.size())
    expect_miss(request.tree, request.hashes[request.found_count]);
  clock_.advance(request.hashes.size() - request.found_count, tick);
  Kind kind = kind_of(request, request.chain.known ? 0 : known_count(request));
  // The end of the blocks that the same request stored before: engines store as blocks fill.
  const bool continues = above.use_count == 1 && above.passed == 0;
  if (continues) kind.new_class = std::max<std::uint32_t>(kind.new_class, above.trait & kNewClassMask);
  look_and_note(request, kind, request.chain.known ? 0 : request.found_count, false);
  return trait_of(request, kind);
}

void YieldPolicy::left(TreeId tree, const BlockHash& hash, Usage usage) {
  if ((usage.trait & kAlone) != 0) return;
  ghosts_.add(sample_.name_of(tree, hash), std::max<std::uint8_t>(usage.use_count, 1));
}

/// Half of its former uses: a returning block was last used long ago, and will be used at such intervals again. Blocks
/// with as many uses that were here all the time were used in a burst, and are a class of their own.
std::size_t YieldPolicy::remembered_uses(TreeId tree, std::span<const BlockHash> hashes,
                                         std::span<std::uint8_t> uses) const {
  for (const BlockHash& hash : hashes) ghosts_.prefetch(sample_.name_of(tree, hash));
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    uses[i] = static_cast<std::uint8_t>((ghosts_.uses(sample_.name_of(tree, hashes[i])) + 1) / 2);
    if (uses[i] == 0) return i;
  }
  return hashes.size();
}

double YieldPolicy::worth(std::uint32_t queue, std::uint64_t age) const {
  return is_learned() ? table_.yield(queue, age) : -static_cast<double>(age);
}

double YieldPolicy::chance(std::uint32_t queue, std::uint64_t age, std::uint64_t blocks) const {
  return is_learned() ? table_.chance(queue, age, blocks) : 1;
}

std::uint64_t YieldPolicy::next_step(std::uint64_t age) const { return is_learned() ? table_.next_step(age) : age + 1; }

/// All nodes learn when they exchange counts, at about the same moment: values in force on only some nodes would make
/// these keep parts of a chain that are useless without the rest.
void YieldPolicy::set_combined(YieldTable::Combined combined) {
  const bool was_learned = is_learned();
  table_.set_combined(std::move(combined));
  is_told_anew_ = true;
  if (was_learned != is_learned()) ++version_;
}

/// Counts of a past load: they weigh no more than the counts of a while, in case the load has changed.
void YieldPolicy::set_before(double unit, std::vector<YieldTable::Counts> counts) {
  double uses = 0;
  for (const YieldTable::Counts& each : counts)
    for (const double hits : each.hits) uses += hits;
  table_.set_before(unit, std::move(counts), std::min(1.0, kUsesBeforeMax / std::max(uses, 1.0)));
  is_told_anew_ = is_settled_ = true;
}

bool YieldPolicy::learn() {
  if (is_learning_) {
    const bool knew = table_.knows();
    for (int i = 0; i < kLessonStepsPerCall && is_learning_; ++i) is_learning_ = !table_.learn_step();
    if (!is_learning_) end_lesson(knew);
    return true;
  }
  if (ghosts_.waiting_count() >= kGhostsMin) {
    ghosts_.settle(kGhostsPerCall);
    return true;
  }
  if (std::exchange(is_told_anew_, false)) return is_learning_ = true;
  learn_from_events();
  is_learning_ = shadow_.event_count() >= learn_at_;
  return is_learning_ || is_told_anew_ || event_end_ > 0;
}

void YieldPolicy::end_lesson(bool knew) {
  ++version_;
  const std::uint64_t events = shadow_.event_count() - learned_at_;
  learned_at_ = shadow_.event_count();
  trust_.learn();
  if (knew) {
    const double factor = std::exp2(-static_cast<double>(events) / kHalfLife);
    table_.forget(factor);
    trust_.forget(factor);
  }
  const std::uint64_t most = trust_.has_heard() ? kHintedLessonMax : kLessonMax;
  learn_at_ = learned_at_ + std::clamp(learned_at_ / 4, kFirstLesson, most);
}

void YieldPolicy::learn_from_events() {
  constexpr std::size_t kAhead = 8;
  // A lesson begins with a fixed event, whenever that is processed: so the learned values do not depend on the calls.
  for (std::size_t i = 0; i < kEventsPerCall && next_event_ < event_end_ && shadow_.event_count() < learn_at_; ++i) {
    if (next_event_ + kAhead < event_end_) shadow_.prefetch(events_[next_event_ + kAhead].name);
    const Event& event = events_[next_event_++];
    if (event.is_capacity) {
      begin_capacity(event.name);
      break;  // a lesson may be due
    }
    if (event.is_known) {
      shadow_.correct(event.name, event.at, event.how);
      continue;
    }
    if (!event.is_use) {
      shadow_.stored(event.name, event.at, event.how);
      continue;
    }
    contest_.lru_found += shadow_.asked(event.name, event.at, event.how);
    contest_.found += event.is_found;
    ++contest_.uses;
    if (lru_left_ > 0 && --lru_left_ == 0) {
      ++version_;
      contest_ = {};
    }
    compare();
  }
  if (next_event_ == event_end_) {
    next_event_ = event_end_ = 0;
  } else if (next_event_ >= kEventsMax) {
    std::copy(events_.begin() + static_cast<std::ptrdiff_t>(next_event_),
              events_.begin() + static_cast<std::ptrdiff_t>(event_end_), events_.begin());
    event_end_ -= next_event_;
    next_event_ = 0;
  }
}

/// A spell is four capacities of uses. LRU's lead must be more than chance: the uses of one request are found together
/// or not at all, so their number overstates the evidence.
void YieldPolicy::compare() {
  if (lru_left_ > 0 || !table_.knows() || contest_.uses < spell_) return;
  const double lead = static_cast<double>(contest_.lru_found) - static_cast<double>(contest_.found);
  if (lead > kLead * static_cast<double>(contest_.lru_found)) {
    penalty_ = std::min(std::max(2 * penalty_, kPenalty * spell_), kPenaltyMax * spell_);
    lru_left_ = penalty_;
    ++version_;
  } else if (lead < 0) {
    penalty_ /= 2;
  }
  contest_ = {};
}

std::size_t YieldPolicy::memory_bytes() const {
  return sizeof *this + shadow_.memory_bytes() + ghosts_.memory_bytes() + clock_.memory_bytes() +
         table_.memory_bytes() + events_.capacity() * sizeof(Event);
}

}  // namespace kv
