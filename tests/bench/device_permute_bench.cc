// Question: what share of a device-to-device copy does each layout reach on a GPU? Budgets, `share` being that copy's
// time over the call's, both in this run and of the same bytes, 512 MiB a side: row layouts 0.90, NZ and x-packed whole
// blocks 0.85 (its V, transposed, 0.75), static cast 0.85, verified scatter 0.95 of the scatter; decode, a token of
// each of 64 sequences, at launch latency. Without a device it says so and measures nothing.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/assert.h"
#include "base/checksum.h"
#include "gpu/device/cuda_module.h"
#include "gpu/named_layouts.h"
#include "gpu/plans/verified_plan.h"
#include "gpu/verified.h"

namespace kv {
namespace {

constexpr std::int64_t kSideBytes = std::int64_t{512} << 20;
constexpr std::int64_t kBlockTokens = 16;
constexpr int kCallsTogether = 10;  // so that launch and wait are small beside the work

/// Two sides of device memory, and whatever small arrays a benchmark copies there.
class Device {
 public:
  Device() {
#ifdef KV_CUDA_MODULE
    setenv("KV_CUDA_MODULE", KV_CUDA_MODULE, /*overwrite=*/0);
#endif
    auto loaded = CudaModule::load();
    if (!loaded) {
      why_ = loaded.error().text;
      return;
    }
    module_ = *loaded;
    for (std::byte*& side : sides_) side = allocate<std::byte>(kSideBytes + 4096);
  }
  const std::string& why() const { return why_; }
  const CudaModule& operator*() const { return *module_; }
  const CudaModule* operator->() const { return module_.get(); }
  bool is_there() const { return module_ != nullptr; }

  /// Never freed: the program ends with its benchmarks.
  template <class T>
  T* allocate(std::int64_t count) const {
    void* const memory = module_->allocate(static_cast<std::size_t>(count) * sizeof(T));
    KV_ASSERT(memory);
    return static_cast<T*>(memory);
  }
  template <class T>
  T* copy_of(const std::vector<T>& values) const {
    T* const copy = allocate<T>(static_cast<std::int64_t>(values.size()));
    KV_ASSERT(module_->copy(copy, values.data(), values.size() * sizeof(T)));
    return copy;
  }
  BoundLayout bind_to(const Layout& layout, int side) const {
    std::vector<void*> tensors;
    std::int64_t offset = 0;
    for (std::int64_t i = 0; i < layout.tensor_count * (layout.has_all_layers_in_tensor ? 1 : layout.layer_count);
         ++i) {
      tensors.push_back(sides_[side] + offset);
      offset += layout.tensor_bytes(static_cast<int>(i % layout.tensor_count));
    }
    KV_ASSERT(offset <= kSideBytes + 4096);
    return bind_layout(layout, tensors).value();
  }
  /// Seconds of one of some calls in a row.
  double time(const std::function<Result<void>()>& call) const {
    KV_ASSERT(module_->synchronise(nullptr));
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCallsTogether; ++i) KV_ASSERT(call());
    KV_ASSERT(module_->synchronise(nullptr));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kCallsTogether;
  }
  double copy_seconds(std::int64_t bytes) const {
    void* const to[] = {sides_[0]};
    const void* const from[] = {sides_[1]};
    const std::size_t sizes[] = {static_cast<std::size_t>(bytes)};
    return time([&] { return module_->copy_batch(to, from, sizes, nullptr); });
  }

 private:
  std::string why_;
  std::shared_ptr<const CudaModule> module_;
  std::byte* sides_[2] = {};
};
const Device& device() {
  static const Device found;
  return found;
}

CacheShape filling_shape(Element element = Element::kBf16) {
  CacheShape shape{.block_tokens = kBlockTokens, .heads = 8, .key_size = 128, .layer_count = 2, .element = element};
  shape.block_count = kSideBytes / (2 * 2 * kBlockTokens * 8 * 128 * 2);
  return shape;
}
std::int64_t data_bytes(const Layout& layout, std::int64_t rows) {
  std::int64_t bytes = 0;
  for (const Component& each : layout.components) {
    bytes += rows * layout.layer_count * each.heads() * each.features() * element_bytes(each.element);
  }
  return bytes;
}
std::vector<std::int64_t> shuffled(std::int64_t count) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::shuffle(ids, std::mt19937_64(42));
  return ids;
}

/// Runs `call` by turns with what it is compared with.
void compare(benchmark::State& state, std::int64_t bytes, const std::function<Result<void>()>& call,
             const std::function<double()>& plain) {
  double seconds = 0, plain_seconds = 0;
  for (auto _ : state) {
    plain_seconds += plain();
    const double took = device().time(call);
    seconds += took;
    state.SetIterationTime(took);
  }
  state.SetBytesProcessed(state.iterations() * 2 * bytes);  // read and written
  state.counters["share"] = plain_seconds / seconds;
}

enum Mode { kWholeBlocks, kSingleTokens };
void run(benchmark::State& state, const Layout& pages, bool is_scatter, Mode mode) {
  const BoundLayout cache = device().bind_to(pages, 0);
  const BoundLayout store = device().bind_to(layouts::store_block(pages, 1, pages.block_count).value(), 1);
  const auto ids = shuffled(mode == kWholeBlocks ? pages.block_count : pages.slot_count());
  const std::int64_t* const where = device().copy_of(ids);
  const Rows rows = mode == kWholeBlocks ? Rows::blocks(where, pages.block_tokens) : Rows::slots(where);
  const std::int64_t bytes = data_bytes(pages, pages.slot_count());
  const auto call = [&] {
    return is_scatter ? device()->permute(cache, rows, store, Rows::range(), pages.slot_count(), Operation(), nullptr)
                      : device()->permute(store, Rows::range(), cache, rows, pages.slot_count(), Operation(), nullptr);
  };
  compare(state, bytes, call, [&] { return device().copy_seconds(bytes); });
}

void run_cast(benchmark::State& state) {
  const Layout pages = layouts::nhd(filling_shape(Element::kE4M3)).value();
  const BoundLayout cache = device().bind_to(pages, 0);
  const BoundLayout store =
      device().bind_to(layouts::store_block(layouts::nhd(filling_shape()).value(), 1, pages.block_count).value(), 1);
  const Rows rows = Rows::slots(device().copy_of(shuffled(pages.slot_count())));
  const std::int64_t bytes = data_bytes(pages, pages.slot_count()) * 3 / 2;  // two bytes read, one written
  compare(
      state, bytes,
      [&] {
        return device()->permute(cache, rows, store, Rows::range(), pages.slot_count(),
                                 Operation(Operation::Kind::kCast), nullptr);
      },
      [&] { return device().copy_seconds(bytes); });
}

void run_verified(benchmark::State& state) {
  const Layout pages = layouts::nhd(filling_shape()).value();
  const BoundLayout cache = device().bind_to(pages, 0);
  const BoundLayout store = device().bind_to(layouts::store_block(pages, 1, pages.block_count).value(), 1);
  const Rows rows = Rows::blocks(device().copy_of(shuffled(pages.block_count)), pages.block_tokens);
  const auto stripes =
      static_cast<std::int64_t>(stripe_count(static_cast<std::size_t>(dense_block_bytes(store.layout))));
  VerifiedBlocks all{.block_count = pages.block_count,
                     .seeds = device().copy_of(std::vector<std::uint64_t>(static_cast<std::size_t>(pages.block_count))),
                     .sums = device().allocate<std::uint64_t>(pages.block_count * stripes),
                     .verdicts = device().allocate<std::uint32_t>(pages.block_count)};
  KV_ASSERT(device()->gather_with_checksums(store, cache, rows, all, Operation(), nullptr));
  all.expected = all.sums;
  const auto plain = [&] {
    return device()->permute(cache, rows, store, Rows::range(), pages.slot_count(), Operation(), nullptr);
  };
  compare(
      state, data_bytes(pages, pages.slot_count()),
      [&] { return device()->scatter_verified(cache, rows, store, all, Operation(), nullptr); },
      [&] { return device().time(plain); });
}

void run_decode(benchmark::State& state) {
  const Layout pages = layouts::nhd(filling_shape()).value();
  const BoundLayout cache = device().bind_to(pages, 0);
  const BoundLayout store = device().bind_to(layouts::store_block(pages, 1, pages.block_count).value(), 1);
  const Rows rows = Rows::slots(device().copy_of(shuffled(pages.slot_count())));
  compare(
      state, data_bytes(pages, 64),
      [&] { return device()->permute(cache, rows, store, Rows::range(), 64, Operation(), nullptr); },
      [&] { return device().copy_seconds(16); });  // the least that can be launched
}

int register_all() {
  const auto add = [](const std::string& name, std::function<void(benchmark::State&)> body) {
    benchmark::RegisterBenchmark(name.c_str(),
                                 [body](benchmark::State& state) {
                                   if (device().is_there()) return body(state);
                                   state.SkipWithError(device().why().c_str());
                                 })
        ->Unit(benchmark::kMicrosecond)
        ->UseManualTime()
        ->Iterations(7);
  };
  using Make = Checked<Layout> (*)(const CacheShape&);
  const std::pair<const char*, Make> makers[] = {{"L1_NHD", layouts::nhd},
                                                 {"L2_HND", layouts::hnd},
                                                 {"L3_joint_NHD", layouts::joint_nhd},
                                                 {"L4_joint_HND", layouts::joint_hnd},
                                                 {"L5_kv_first_NHD", layouts::kv_first_nhd},
                                                 {"L6_kv_first_HND", layouts::kv_first_hnd},
                                                 {"L7_packed_HND", layouts::packed_hnd},
                                                 {"L8_packed_NHD", layouts::packed_nhd},
                                                 {"L9_x_packed", layouts::x_packed},
                                                 {"L10_NZ", layouts::fractal_nz},
                                                 {"L15_slot_pool", layouts::slot_pool},
                                                 {"L16_cross_layer", layouts::cross_layer},
                                                 {"L19_batched", layouts::batched}};
  std::vector<std::pair<std::string, Layout>> all;
  for (const auto& [name, make] : makers) all.emplace_back(name, make(filling_shape()).value());
  CacheShape latent{.block_tokens = kBlockTokens, .key_size = 512, .value_size = 64, .layer_count = 2};
  latent.block_count = kSideBytes / (2 * kBlockTokens * 1152);
  all.emplace_back("L11_MLA", layouts::mla(latent).value());
  all.emplace_back("L12_MLA_split", layouts::mla_split(latent).value());
  all.emplace_back("L13_ds_mla", layouts::ds_mla(latent).value());
  for (const auto& [name, layout] : all) {
    for (const Mode mode : {kWholeBlocks, kSingleTokens}) {
      for (const bool is_scatter : {true, false}) {
        add(name + (mode == kWholeBlocks ? "/blocks" : "/tokens") + (is_scatter ? "/scatter" : "/gather"),
            [layout = layout, is_scatter, mode](benchmark::State& state) { run(state, layout, is_scatter, mode); });
      }
    }
  }
  add("L1_NHD/cast_bf16_e4m3", run_cast);
  add("L1_NHD/verified", run_verified);
  add("L1_NHD/decode_64", run_decode);
  return 0;
}
const int registered = register_all();

}  // namespace
}  // namespace kv
