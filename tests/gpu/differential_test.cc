// Random calls of permute(), the host against the kernels' bodies and against a device: any two layouts, operations,
// counts that are no multiples of anything, ids at the edges of their types.
//
//   KV_SEED                the seed of the first call; call i has seed + i, and a failure prints its own
//   KV_DIFFERENTIAL_CALLS  how many; 10,000 unless told
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <random>
#include <utility>

#include "base/assert.h"
#include "tests/gpu/backend.h"
#include "tests/gpu/matrix.h"

namespace kv {
namespace {

using Kind = Operation::Kind;
using Random = std::mt19937_64;

std::int64_t pick(Random& random, std::initializer_list<std::int64_t> values) {
  return *(values.begin() + random() % values.size());
}
std::int64_t below(Random& random, std::int64_t end) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
}

std::uint64_t call_count() {
  const char* told = std::getenv("KV_DIFFERENTIAL_CALLS");
  return told ? std::stoull(told) : 10'000;
}

/// Memory that ends, or begins, at a page that nobody may touch: an access one byte too far is a fault, where canaries
/// see writes alone.
class GuardedMemory {
 public:
  GuardedMemory(std::size_t bytes, bool is_at_end) : bytes_(bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t inside = (bytes + page - 1) / page * page;
    mapped_bytes_ = inside + 2 * page;
    mapped_ = static_cast<std::byte*>(
        mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    KV_ASSERT(mapped_ != MAP_FAILED);
    KV_ASSERT(inside == 0 || mprotect(mapped_ + page, inside, PROT_READ | PROT_WRITE) == 0);
    data_ = mapped_ + page + (is_at_end ? inside - bytes : 0);
  }
  GuardedMemory(GuardedMemory&& other) noexcept
      : bytes_(other.bytes_),
        mapped_bytes_(other.mapped_bytes_),
        mapped_(std::exchange(other.mapped_, nullptr)),
        data_(other.data_) {}
  GuardedMemory& operator=(GuardedMemory&&) = delete;
  ~GuardedMemory() {
    if (mapped_) KV_ASSERT(munmap(mapped_, mapped_bytes_) == 0);
  }
  std::span<std::byte> bytes() const { return {data_, bytes_}; }

 private:
  std::size_t bytes_, mapped_bytes_ = 0;
  std::byte* mapped_ = nullptr;
  std::byte* data_ = nullptr;
};

/// A layout bound to guarded memory of random bytes.
class GuardedCache {
 public:
  GuardedCache(const Layout& layout, Random& random) {
    const bool is_at_end = random() % 4 != 0;
    const std::int64_t copies = layout.has_all_layers_in_tensor ? 1 : layout.layer_count;
    std::vector<void*> pointers;
    for (std::int64_t i = 0; i < copies * layout.tensor_count; ++i) {
      memory_.emplace_back(static_cast<std::size_t>(layout.tensor_bytes(static_cast<int>(i % layout.tensor_count))),
                           is_at_end);
      fill_random(memory_.back().bytes(), random);
      pointers.push_back(memory_.back().bytes().data());
    }
    bound_ = bind_layout(layout, pointers).value();
  }
  const BoundLayout& bound() const { return bound_; }
  testing::AssertionResult is_same(const GuardedCache& want) const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      const auto a = memory_[i].bytes(), b = want.memory_[i].bytes();
      const auto j = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
      if (j == a.size()) continue;
      return testing::AssertionFailure() << "allocation " << i << " byte " << j << ": " << static_cast<int>(a[j])
                                         << ", expected " << static_cast<int>(b[j]);
    }
    return testing::AssertionSuccess();
  }

 private:
  std::vector<GuardedMemory> memory_;
  BoundLayout bound_;
};

/// Which rows, with ids of their own.
struct RandomRows {
  Rows rows;
  std::vector<std::int64_t> ids;    ///< As they are given, before they become 32 bits.
  std::vector<std::int64_t> slots;  ///< What they mean: -1 for rows that are skipped.
};

/// Targets must not meet: which of two rows wins is up to the device.
RandomRows random_rows(Random& random, const Layout& layout, std::int64_t row_count, bool is_target) {
  RandomRows made;
  const std::int64_t slot_count = layout.slot_count();
  const auto kind = static_cast<Rows::Kind>(random() % 5);
  made.rows.kind = kind;
  const bool is_32 = kind == Rows::Kind::kSlots32 || kind == Rows::Kind::kBlocks32;
  const bool is_blocks = kind == Rows::Kind::kBlocks32 || kind == Rows::Kind::kBlocks64;
  if (kind == Rows::Kind::kRange) {
    made.rows.first = below(random, slot_count - row_count + 1);
  } else {
    made.rows.block_tokens = !is_blocks          ? 1
                             : random() % 3 != 0 ? layout.block_tokens
                                                 : pick(random, {1, 2, 3, 5, 16, 64});
    const std::int64_t tokens = made.rows.block_tokens;
    const std::int64_t unit_count = (slot_count + tokens - 1) / tokens;  // the last block may reach beyond the cache
    const std::int64_t id_count = (row_count + tokens - 1) / tokens;
    made.rows.id_step = is_target || random() % 4 != 0 ? pick(random, {1, 1, 2, 3}) : 0;
    std::vector<std::int64_t> free_ids(static_cast<std::size_t>(unit_count));
    for (std::int64_t i = 0; i < unit_count; ++i) free_ids[static_cast<std::size_t>(i)] = i;
    std::ranges::shuffle(free_ids, random);
    const std::int64_t most =
        is_32 ? std::numeric_limits<std::int32_t>::max() : std::numeric_limits<std::int64_t>::max();
    const std::int64_t least =
        is_32 ? std::numeric_limits<std::int32_t>::min() : std::numeric_limits<std::int64_t>::min();
    const auto edge = [&] {
      const std::int64_t far = std::int64_t{1} << (is_32 ? 30 : pick(random, {31, 32, 33, 52, 59, 60, 61, 62}));
      return pick(random, {-1, least, least + 1, most, most - 1, unit_count, unit_count + 1, far, far - 1, far + 1});
    };
    const std::uint64_t edge_share = pick(random, {0, 0, 16, 2});
    made.ids.assign(static_cast<std::size_t>(id_count * std::max<std::int64_t>(made.rows.id_step, 1)), 0x5555);
    for (std::int64_t i = 0; i < id_count; ++i) {
      std::int64_t id = 0;
      if (edge_share != 0 && random() % edge_share == 0) {
        id = edge();
      } else if (is_target) {
        id = -1;
        if (!free_ids.empty()) id = free_ids.back(), free_ids.pop_back();
      } else {
        id = below(random, unit_count);
      }
      made.ids[static_cast<std::size_t>(i * made.rows.id_step)] = id;
    }
  }
  made.rows.ids = made.ids.data();
  Rows wide = made.rows;
  if (is_32) wide.kind = is_blocks ? Rows::Kind::kBlocks64 : Rows::Kind::kSlots64;
  for (std::int64_t row = 0; row < row_count; ++row) {
    const std::int64_t slot = wide.slot(row);
    made.slots.push_back(slot >= 0 && slot < slot_count ? slot : -1);
  }
  return made;
}

/// The ids where nothing follows them, in the width that the rows have.
GuardedMemory guard_ids(const RandomRows& from, Rows* rows) {
  const bool is_32 = rows->kind == Rows::Kind::kSlots32 || rows->kind == Rows::Kind::kBlocks32;
  // The gap after the last id that counts is not the callee's to read.
  const std::size_t step = static_cast<std::size_t>(std::max<std::int64_t>(rows->id_step, 1));
  const std::size_t count = from.ids.empty() ? 0 : rows->id_step == 0 ? 1 : from.ids.size() - step + 1;
  GuardedMemory memory(count * (is_32 ? 4 : 8), true);
  for (std::size_t i = 0; i < count; ++i) {
    if (is_32) {
      const auto id = static_cast<std::int32_t>(from.ids[i]);
      std::memcpy(memory.bytes().data() + 4 * i, &id, 4);
    } else {
      std::memcpy(memory.bytes().data() + 8 * i, &from.ids[i], 8);
    }
  }
  rows->ids = memory.bytes().data();
  return memory;
}

struct RandomCall {
  Layout to, from;
  Operation operation;
  std::int64_t row_count = 0;
  RandomRows to_rows, from_rows;
  std::vector<double> frequencies;
  std::vector<std::int64_t> deltas;
};

Element random_number(Random& random) {
  return static_cast<Element>(pick(random, {1, 2, 3, 5, 6, 7}));  // no bytes and no pairs of numbers
}

/// Codes with scales of every kind.
std::optional<Layout> random_scaled(Random& random, CacheShape shape, ScaleRule* rule) {
  *rule = ScaleRule::kTokenHead;
  shape.value_element = Element::kByte;
  switch (random() % 6) {
    case 0: {
      *rule = ScaleRule::kNvfp4;
      const auto made = layouts::nvfp4(shape, static_cast<layouts::ScaleOrder>(random() % 2));
      return made ? std::optional(*made) : std::nullopt;
    }
    case 1: {
      shape.element = Element::kInt8;
      const auto made = layouts::inline_scales_nhd(shape);
      return made ? std::optional(*made) : std::nullopt;
    }
    default: break;
  }
  shape.element = static_cast<Element>(pick(random, {1, 2, 3}));
  *rule = static_cast<ScaleRule>(random() % 4);
  const auto plain = copy_layouts()[random() % copy_layouts().size()].make(shape);
  if (!plain) return std::nullopt;
  const auto made = layouts::with_token_head_scales(*plain);
  return made ? std::optional(*made) : std::nullopt;
}

std::optional<RandomCall> random_call(Random& random) {
  RandomCall call;
  constexpr std::array kKinds = {Kind::kCopy,     Kind::kCopy,       Kind::kCast,
                                 Kind::kQuantise, Kind::kDequantise, Kind::kRotate};
  call.operation = Operation(kKinds[random() % kKinds.size()]);
  const Kind kind = call.operation.kind;
  CacheShape shape{.block_count = pick(random, {1, 2, 3, 5}),
                   .block_tokens = pick(random, {1, 2, 3, 4, 8, 16, 17, 32}),
                   .heads = pick(random, {1, 1, 2, 3, 8}),
                   .key_size = pick(random, {4, 16, 24, 32, 40, 64, 80, 128, 192}),
                   .value_size = 0,
                   .layer_count = pick(random, {1, 1, 2, 3}),
                   .element = random_number(random),
                   .value_element = Element::kByte};
  if (random() % 4 == 0) shape.value_size = pick(random, {8, 16, 48, 64});
  const auto plain = [&](Element element) -> std::optional<Layout> {
    CacheShape own = shape;
    own.element = element;
    own.block_tokens = random() % 2 == 0 ? shape.block_tokens : pick(random, {1, 3, 4, 16, 32});
    own.block_count = pick(random, {1, 2, 4, 6});
    const auto made = copy_layouts()[random() % copy_layouts().size()].make(own);
    if (!made) return std::nullopt;
    return random() % 4 == 0 ? dense_rows(*made, made->slot_count()) : *made;
  };
  const bool is_scaled =
      kind == Kind::kQuantise || kind == Kind::kDequantise || (kind != Kind::kCast && random() % 6 == 0);
  std::optional<Layout> to, from;
  ScaleRule rule = ScaleRule::kTokenHead;
  if (kind == Kind::kQuantise) {
    to = random_scaled(random, shape, &rule);
    from = plain(random_number(random));
  } else if (kind == Kind::kDequantise) {
    from = random_scaled(random, shape, &rule);
    to = plain(random_number(random));
  } else if (is_scaled) {
    to = from = random_scaled(random, shape, &rule);
  } else {
    const Element element = kind == Kind::kCopy && random() % 8 == 0 ? Element::kByte : random_number(random);
    to = plain(element);
    from = plain(kind == Kind::kCopy ? element : random_number(random));
  }
  constexpr std::int64_t kBytesMax = 1 << 17;
  if (!to || !from || to->tensor_bytes(0) > kBytesMax || from->tensor_bytes(0) > kBytesMax) return std::nullopt;
  call.to = *std::move(to);
  call.from = *std::move(from);
  call.operation.scale_rule = rule;
  call.operation.global_scale = random() % 2 == 0 ? 1.0F : 0.013F;
  if (random() % 3 == 0) {
    for (int i = 0; i < kRoleCount; ++i) call.operation.from_scale[i] = 0.37F, call.operation.to_scale[i] = 1.9F;
  }
  if (random() % 5 == 0) call.operation.roles = role_bit(Role::kKey) | role_bit(Role::kKeyScale);

  const std::int64_t most = std::min({call.to.slot_count(), call.from.slot_count(), std::int64_t{97}});
  call.row_count = random() % 16 == 0 ? 0 : 1 + below(random, most);
  call.to_rows = random_rows(random, call.to, call.row_count, true);
  call.from_rows = random_rows(random, call.from, call.row_count, false);
  if (kind == Kind::kRotate) {
    Rotation& rotation = call.operation.rotation;
    rotation.style = static_cast<RopeStyle>(random() % 2);
    rotation.rotary_size = 2 * (1 + below(random, shape.key_size / 2));
    for (std::int64_t i = 0; i < rotation.rotary_size / 2; ++i)
      call.frequencies.push_back(1.0 / static_cast<double>(i + 1));
    rotation.delta = pick(random, {0, 1, -1, 4097, -1'000'003});
    for (std::int64_t i = 0; i < call.row_count && random() % 2 == 0; ++i) {
      call.deltas.assign(static_cast<std::size_t>(call.row_count), pick(random, {0, 5, -9}));
    }
    rotation.frequencies = call.frequencies.data();
    rotation.deltas = call.deltas.empty() ? nullptr : call.deltas.data();
  }
  return call;
}

std::string text(const RandomCall& call) {
  std::string slots;
  for (std::size_t i = 0; i < call.to_rows.slots.size() && i < 8; ++i) {
    slots += " " + std::to_string(call.from_rows.slots[i]) + ">" + std::to_string(call.to_rows.slots[i]);
  }
  return "kind " + std::to_string(static_cast<int>(call.operation.kind)) + ", roles " +
         std::to_string(call.operation.roles) + ", slots" + slots + ", " + std::to_string(call.row_count) +
         " rows of kinds " + std::to_string(static_cast<int>(call.to_rows.rows.kind)) + " and " +
         std::to_string(static_cast<int>(call.from_rows.rows.kind)) + "\nto " + to_string(call.to) + "from " +
         to_string(call.from);
}

/// The last bit of a turned key is the compiler's and the device's own; rotate_matrix_test has bounds for it. Here it
/// is forgiven: the rows that the call turned become `want`'s. All else must be equal.
void forgive_turned_keys(const RandomCall& call, const BoundLayout& got, const BoundLayout& want) {
  if (call.operation.kind != Kind::kRotate) return;
  const RoleMask turned = role_bit(Role::kKey) | role_bit(Role::kRope) | role_bit(Role::kKeyScale);
  const Rows rows = Rows::slots(call.to_rows.slots.data());
  ASSERT_TRUE(permute(got, rows, want, rows, call.row_count, Operation(Kind::kCopy, turned)));
}

class DifferentialTest : public testing::Test {
 protected:
  /// Runs `check` on so many calls, until one fails.
  template <class Check>
  void for_each_call(Check check) {
    const std::uint64_t first = test_seed(), count = call_count();
    std::uint64_t refused = 0;
    for (std::uint64_t seed = first; seed - first < count && !HasFailure(); ++seed) {
      Random random(seed);
      std::optional<RandomCall> call;
      while (!call) call = random_call(random);
      if (explain_mismatch(call->to, call->from, call->operation)) ++refused;
      check(random, *call);
      if (HasFailure()) ADD_FAILURE() << seed_text(seed) << " KV_DIFFERENTIAL_CALLS=1: " << text(*call);
    }
    EXPECT_LT(refused * 3, std::max<std::uint64_t>(count, 10)) << "too many calls test nothing";
  }
};

TEST_F(DifferentialTest, BodiesOfTheKernelsDoWhatTheHostDoesWithinTheirMemory) {
  for_each_call([](Random& random, const RandomCall& call) {
    const GuardedCache from(call.from, random);
    const std::uint64_t fill = random();
    Random once(fill), again(fill);
    GuardedCache want(call.to, once), got(call.to, again);
    const auto host = permute(want.bound(), Rows::slots(call.to_rows.slots.data()), from.bound(),
                              Rows::slots(call.from_rows.slots.data()), call.row_count, call.operation);
    Rows to_rows = call.to_rows.rows, from_rows = call.from_rows.rows;
    const GuardedMemory to_ids = guard_ids(call.to_rows, &to_rows), from_ids = guard_ids(call.from_rows, &from_rows);
    const EmulatedGrid grid{static_cast<int>(pick(random, {1, 24, 32, 64, 256})), pick(random, {1, 2, 3, 7}),
                            static_cast<int>(pick(random, {16, 16, 8, 4})),
                            static_cast<int>(pick(random, {1, 1, 2, 5}))};
    const auto body =
        emulated_permute(got.bound(), to_rows, from.bound(), from_rows, call.row_count, call.operation, grid);
    EXPECT_EQ(host.has_value(), body.has_value());
    if (host) forgive_turned_keys(call, got.bound(), want.bound());
    EXPECT_TRUE(got.is_same(want));
  });
}

TEST_F(DifferentialTest, ADeviceDoesWhatTheHostDoes) {
  const auto backends = all_backends();
  Backend& cuda = **std::ranges::find(backends, "Cuda", &Backend::name);
  if (const std::string why = cuda.absence(); !why.empty()) GTEST_SKIP() << why;
  for_each_call([&](Random& random, const RandomCall& call) {
    const auto misalign = pick(random, {0, 0, 4, 8});
    TestCache from(call.from, misalign), want(call.to, misalign);
    from.fill_random(random);
    want.fill_random(random);
    TestCache got = want;
    const auto host = permute(want.bound(), Rows::slots(call.to_rows.slots.data()), from.bound(),
                              Rows::slots(call.from_rows.slots.data()), call.row_count, call.operation);
    Rows to_rows = call.to_rows.rows, from_rows = call.from_rows.rows;
    const GuardedMemory to_ids = guard_ids(call.to_rows, &to_rows), from_ids = guard_ids(call.from_rows, &from_rows);
    const auto device = cuda.permute(got, to_rows, from, from_rows, call.row_count, call.operation);
    EXPECT_EQ(host.has_value(), device.has_value());
    if (host) forgive_turned_keys(call, got.bound(), want.bound());
    EXPECT_TRUE(same_bytes(got, want));
  });
}

}  // namespace
}  // namespace kv
