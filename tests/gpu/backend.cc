#include "tests/gpu/backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/checksum.h"
#include "gpu/device/cuda_module.h"
#include "gpu/device/device_body.h"
#include "gpu/device/device_checksum.h"
#include "gpu/device/device_plan.h"
#include "gpu/plans/verified_plan.h"
#include "gpu/verified.h"

namespace kv {
namespace {

/// Ids that `rows` reads for `row_count` rows.
std::size_t id_bytes(const Rows& rows, std::int64_t row_count) {
  if (rows.kind == Rows::Kind::kRange || row_count == 0) return 0;
  const bool is_blocks = rows.kind == Rows::Kind::kBlocks32 || rows.kind == Rows::Kind::kBlocks64;
  const std::int64_t last = is_blocks ? (row_count - 1) / rows.block_tokens : row_count - 1;
  const bool is_32 = rows.kind == Rows::Kind::kSlots32 || rows.kind == Rows::Kind::kBlocks32;
  return static_cast<std::size_t>((last * rows.id_step + 1) * (is_32 ? 4 : 8));
}

/// Checksums of so many of the blocks.
std::size_t stripes_for(const TestCache& blocks, std::span<const std::uint64_t> seeds) {
  return seeds.size() * stripe_count(static_cast<std::size_t>(dense_block_bytes(blocks.layout())));
}

class HostBackend final : public Backend {
 public:
  std::string name() const override { return "Host"; }
  std::string absence() const override { return ""; }
  bool refuses_slots() const override { return true; }
  Result<void> permute(TestCache& to, const Rows& to_rows, TestCache& from, const Rows& from_rows,
                       std::int64_t row_count, const Operation& operation) override {
    return kv::permute(to.bound(), to_rows, from.bound(), from_rows, row_count, operation);
  }
  Result<void> scatter_kept(TestCache& cache, std::span<const KeepRow> rows, TestCache& source) override {
    return kv::scatter_kept(cache.bound(), rows, source.bound());
  }
  Result<std::vector<std::uint64_t>> checksums(std::span<const std::byte> bytes, std::size_t block_bytes,
                                               std::span<const std::uint64_t> seeds) override {
    std::vector<std::uint64_t> sums;
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      std::vector<std::uint64_t> own(stripe_count(block_bytes));
      block_checksums(seeds[i], bytes.subspan(i * block_bytes, block_bytes), own);
      sums.insert(sums.end(), own.begin(), own.end());
    }
    return sums;
  }
  Result<std::vector<std::uint32_t>> scatter_verified(TestCache& cache, const Rows& rows, TestCache& blocks,
                                                      std::span<const std::uint64_t> seeds,
                                                      std::span<const std::uint64_t> sums,
                                                      const Operation& operation) override {
    const auto sound = kv::scatter_verified(cache.bound(), rows, blocks.bound(), seeds, sums, operation);
    if (!sound) return sound.error();
    std::vector<std::uint32_t> verdicts(seeds.size());
    for (std::size_t i = static_cast<std::size_t>(*sound); i < verdicts.size(); ++i) verdicts[i] = 1;
    return verdicts;
  }
  Result<std::vector<std::uint64_t>> gather_with_checksums(TestCache& blocks, TestCache& cache, const Rows& rows,
                                                           std::span<const std::uint64_t> seeds,
                                                           const Operation& operation) override {
    std::vector<std::uint64_t> sums(stripes_for(blocks, seeds));
    const auto done = kv::gather_with_checksums(blocks.bound(), cache.bound(), rows, seeds, sums, operation);
    if (!done) return done.error();
    return sums;
  }
  bool ends_at_wrong_block() const override { return true; }
};

/// The kernels' bodies on the host, one thread after another: the device's arithmetic, where there is no device.
class EmulatedBackend final : public Backend {
 public:
  EmulatedBackend(std::string name, int thread_count, std::int64_t block_count, int vec_bytes_max, int slice_count = 1)
      : name_(std::move(name)),
        threads_(thread_count),
        blocks_(block_count),
        vec_bytes_max_(vec_bytes_max),
        slices_(slice_count) {}
  std::string name() const override { return name_; }
  std::string absence() const override { return ""; }
  bool refuses_slots() const override { return false; }

  Result<void> permute(TestCache& to, const Rows& to_rows, TestCache& from, const Rows& from_rows,
                       std::int64_t row_count, const Operation& operation) override {
    return move(to.bound(), to_rows, from.bound(), from_rows, row_count, operation);
  }
  Result<void> move(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from, const Rows& from_rows,
                    std::int64_t row_count, const Operation& operation) {
    const auto plan = make_plan(to, to_rows, from, from_rows, row_count, operation);
    if (!plan) return Errc::kMismatch;
    for (const DevicePlan& launch : make_device_plans(*plan, vec_bytes_max_)) run(launch);
    return {};
  }

  Result<void> scatter_kept(TestCache& cache, std::span<const KeepRow> rows, TestCache& source) override {
    const auto plan = make_keep_plan(cache.bound(), source.bound());
    if (!plan) return plan.error();
    for (const DevicePlan& launch : make_device_keep_plans(*plan, vec_bytes_max_)) {
      const auto scratch = std::make_unique<device::KeepScratch>();
      for_each_block([&](const EmulatedBlock& block) {
        device::run_keep_block(launch, rows.data(), static_cast<std::int64_t>(rows.size()), *scratch, block);
      });
    }
    return {};
  }

  Result<std::vector<std::uint64_t>> checksums(std::span<const std::byte> bytes, std::size_t block_bytes,
                                               std::span<const std::uint64_t> seeds) override {
    std::vector<std::uint64_t> sums(seeds.size() * stripe_count(block_bytes));
    run(DeviceChecksum{.blocks = bytes.data(),
                       .block_bytes = static_cast<std::int64_t>(block_bytes),
                       .block_count = static_cast<std::int64_t>(seeds.size()),
                       .seeds = seeds.data(),
                       .sums = sums.data()});
    return sums;
  }
  Result<std::vector<std::uint32_t>> scatter_verified(TestCache& cache, const Rows& rows, TestCache& blocks,
                                                      std::span<const std::uint64_t> seeds,
                                                      std::span<const std::uint64_t> sums,
                                                      const Operation& operation) override {
    std::vector<std::uint32_t> verdicts(seeds.size(), 99);
    const auto steps = plan_verified(cache.bound(), rows, blocks.bound(),
                                     {.block_count = static_cast<std::int64_t>(seeds.size()),
                                      .seeds = seeds.data(),
                                      .expected = sums.data(),
                                      .verdicts = verdicts.data()},
                                     operation, true, vec_bytes_max_, step_bytes());
    if (!steps) return steps.error();
    for (const VerifiedStep& step : *steps) {
      std::fill_n(step.checksum.verdicts, step.checksum.block_count, 0);
      run(step.checksum);
      for (const DevicePlan& launch : step.launches) run(launch);
    }
    return verdicts;
  }
  Result<std::vector<std::uint64_t>> gather_with_checksums(TestCache& blocks, TestCache& cache, const Rows& rows,
                                                           std::span<const std::uint64_t> seeds,
                                                           const Operation& operation) override {
    std::vector<std::uint64_t> sums(stripes_for(blocks, seeds));
    const auto steps = plan_verified(
        cache.bound(), rows, blocks.bound(),
        {.block_count = static_cast<std::int64_t>(seeds.size()), .seeds = seeds.data(), .sums = sums.data()}, operation,
        false, vec_bytes_max_, step_bytes());
    if (!steps) return steps.error();
    for (const VerifiedStep& step : *steps) {
      for (const DevicePlan& launch : step.launches) run(launch);
      run(step.checksum);
    }
    return sums;
  }

 private:
  /// The narrow one takes a block a step.
  std::int64_t step_bytes() const { return vec_bytes_max_ == 16 ? kVerifiedStepBytes : 1; }

  void run(const DeviceChecksum& job) {
    const std::int64_t stripe_count = job.block_count * device::stripes_of(job);
    for (std::int64_t index = 0; index < stripe_count; ++index) {
      device::StripeScratch scratch;
      std::memset(&scratch, 0xA5, sizeof scratch);
      const device::Stripe stripe = device::stripe_of(job, index);
      const auto step = [&](auto body) {
        for_each_thread(0, [&](const device::Worker& worker) { body(stripe, scratch, worker); });
      };
      step([](auto&... arguments) { device::checksum_begin(arguments...); });
      step([](auto&... arguments) { device::checksum_add(arguments...); });
      step([](auto&... arguments) { device::checksum_fold(arguments...); });
      device::checksum_end(job, index, stripe, scratch);
    }
  }

  /// A block of threads that take their turns: each goes through a step whole before the next one begins it.
  struct EmulatedBlock {
    int thread_count = 1;
    std::int64_t index = 0, count = 1;
    std::int64_t share = 0, share_count = 1;
    int slice = 0, slice_count = 1;

    template <class Step>
    void together(Step step) const {
      for (int thread = 0; thread < thread_count; ++thread)
        step(device::Worker{thread, thread_count, index, count, slice, slice_count});
    }
    template <class Step>
    void alone(Step step) const {
      together(step);
    }
  };
  /// A grid has fewer blocks than there are (component, layer) pairs, so that each takes several.
  template <class Visit>
  void for_each_block(Visit visit) const {
    constexpr std::int64_t kShares = 2;
    for (std::int64_t share = 0; share < kShares; ++share) {
      for (int slice = 0; slice < slices_; ++slice) {
        for (std::int64_t block = 0; block < blocks_; ++block)
          visit(EmulatedBlock{threads_, block, blocks_, share, kShares, slice, slices_});
      }
    }
  }
  template <class Visit>
  void for_each_thread(std::int64_t block, Visit visit) const {
    for (int thread = 0; thread < threads_; ++thread) visit(device::Worker{thread, threads_, block, blocks_});
  }

  void run(const DevicePlan& launch) {
    if (launch.verdicts) return run_bodies<VerifiedDevicePlan>(launch);
    run_bodies<DevicePlan>(launch);
  }
  template <class Plan>
  void run_bodies(const DevicePlan& launch) {
    run_body<DeviceBody::kWideCopy, Plan>(launch);
    run_body<DeviceBody::kCopy, Plan>(launch);
    run_body<DeviceBody::kTranspose, Plan>(launch);
    run_body<DeviceBody::kCast, Plan>(launch);
    run_body<DeviceBody::kRotate, Plan>(launch);
    run_body<DeviceBody::kQuantise, Plan>(launch);
  }
  template <DeviceBody body, class Plan>
  void run_body(const DevicePlan& launch) {
    const auto run = [&](const auto& plan) {
      if (plan.part_count == 0) return;
      const auto scratch = std::make_unique<typename device::ScratchOf<body>::Type>();
      // Only copies and transpositions have slices; others would do each piece again.
      constexpr bool kHasSlices =
          body == DeviceBody::kWideCopy || body == DeviceBody::kCopy || body == DeviceBody::kTranspose;
      for_each_block([&](EmulatedBlock block) {
        if (!kHasSlices && block.slice > 0) return;
        if (!kHasSlices) block.slice_count = 1;
        device::run_block<body>(plan, *scratch, block);
      });
    };
    if (!Plan::kHasVerdicts && fits<SmallDevicePlan>(launch, body))
      return run(plan_of_body<SmallDevicePlan>(launch, body));
    run(plan_of_body<Plan>(launch, body));
  }

  std::string name_;
  int threads_;
  std::int64_t blocks_;
  int vec_bytes_max_;
  int slices_;
};

/// What a call needs, copied to device memory; what it wrote, copied back.
class Mirrors {
 public:
  explicit Mirrors(const CudaModule& module) : module_(module) {}
  ~Mirrors() {
    for (const Mirror& each : mirrors_) module_.free(each.device);
  }
  Mirrors(const Mirrors&) = delete;

  template <class T>
  T* add(T* host, std::size_t bytes) {
    if (!host) return nullptr;
    mirrors_.push_back({host, module_.allocate(bytes + 1), bytes});
    EXPECT_TRUE(mirrors_.back().device != nullptr && module_.copy(mirrors_.back().device, host, bytes));
    return static_cast<T*>(mirrors_.back().device);
  }
  Rows add(Rows rows, std::int64_t row_count) {
    rows.ids = add(static_cast<const std::byte*>(rows.ids), id_bytes(rows, row_count));
    return rows;
  }
  BoundLayout add(TestCache& cache) {
    BoundLayout bound = cache.bound();
    for (Bytes& tensor : cache.memory()) {
      auto* device = const_cast<std::byte*>(add(static_cast<const std::byte*>(tensor.data()), tensor.size()));
      for (std::size_t i = 0; i < bound.bases.size(); ++i) {
        const std::ptrdiff_t offset = cache.bound().bases[i] - tensor.data();
        if (offset >= 0 && offset < static_cast<std::ptrdiff_t>(tensor.size())) bound.bases[i] = device + offset;
      }
    }
    return bound;
  }
  /// Everything as the device has it now.
  Result<void> copy_back(TestCache& cache) {
    const auto finished = module_.synchronise(nullptr);
    if (!finished) return finished.error();
    for (Bytes& tensor : cache.memory()) {
      for (const Mirror& each : mirrors_) {
        if (each.host != tensor.data()) continue;
        const auto copied = module_.copy(tensor.data(), each.device, tensor.size());
        if (!copied) return copied.error();
      }
    }
    return {};
  }

 private:
  struct Mirror {
    const void* host;
    void* device;
    std::size_t bytes;
  };
  const CudaModule& module_;
  std::vector<Mirror> mirrors_;
};

/// Real kernels on a real device, on copies of the caches.
class CudaBackend final : public Backend {
 public:
  CudaBackend() {
#ifdef KV_CUDA_MODULE
    setenv("KV_CUDA_MODULE", KV_CUDA_MODULE, /*overwrite=*/0);  // the one that was just built
#endif
    if (auto module = CudaModule::load()) {
      module_ = *module;
    } else {
      absence_ = module.error().text;
    }
  }
  std::string name() const override { return "Cuda"; }
  std::string absence() const override { return absence_; }
  bool refuses_slots() const override { return false; }

  Result<void> permute(TestCache& to, const Rows& to_rows, TestCache& from, const Rows& from_rows,
                       std::int64_t row_count, const Operation& operation) override {
    Mirrors mirrors(*module_);
    Operation mirrored = operation;
    Rotation& rotation = mirrored.rotation;
    const std::int64_t pairs = rotation.rotary_size > 0 ? rotation.rotary_size / 2 : 0;
    rotation.frequencies = mirrors.add(rotation.frequencies, static_cast<std::size_t>(pairs) * sizeof(double));
    rotation.deltas = mirrors.add(rotation.deltas, static_cast<std::size_t>(row_count) * sizeof(std::int64_t));
    const BoundLayout to_bound = mirrors.add(to);
    const BoundLayout from_bound = mirrors.add(from);
    const auto moved = module_->permute(to_bound, mirrors.add(to_rows, row_count), from_bound,
                                        mirrors.add(from_rows, row_count), row_count, mirrored, nullptr);
    if (!moved) return moved.error();
    return mirrors.copy_back(to);
  }

  Result<void> scatter_kept(TestCache& cache, std::span<const KeepRow> rows, TestCache& source) override {
    Mirrors mirrors(*module_);
    const BoundLayout cache_bound = mirrors.add(cache);
    const BoundLayout source_bound = mirrors.add(source);
    const KeepRow* device_rows = mirrors.add(rows.data(), rows.size_bytes());
    const auto kept = module_->scatter_kept(cache_bound, {device_rows, rows.size()}, source_bound, nullptr);
    if (!kept) return kept.error();
    return mirrors.copy_back(cache);
  }

  Result<std::vector<std::uint64_t>> checksums(std::span<const std::byte> bytes, std::size_t block_bytes,
                                               std::span<const std::uint64_t> seeds) override {
    // Through the gather of whole blocks onto themselves: the module has no call for checksums alone.
    const Tensor tensor{"blf",
                        {static_cast<std::int64_t>(seeds.size()), 1, static_cast<std::int64_t>(block_bytes)},
                        {},
                        Element::kByte,
                        {Role::kKey}};
    TestCache blocks(make_layout("bytes", {&tensor, 1}).value()), cache(blocks.layout());
    std::ranges::copy(bytes, cache.bound().bases.front());
    return gather_with_checksums(blocks, cache, Rows::range(), seeds, Operation());
  }
  Result<std::vector<std::uint32_t>> scatter_verified(TestCache& cache, const Rows& rows, TestCache& blocks,
                                                      std::span<const std::uint64_t> seeds,
                                                      std::span<const std::uint64_t> sums,
                                                      const Operation& operation) override {
    Mirrors mirrors(*module_);
    std::vector<std::uint32_t> verdicts(seeds.size(), 99);
    const VerifiedBlocks verified{.block_count = static_cast<std::int64_t>(seeds.size()),
                                  .seeds = mirrors.add(seeds.data(), seeds.size_bytes()),
                                  .expected = mirrors.add(sums.data(), sums.size_bytes()),
                                  .verdicts = mirrors.add(verdicts.data(), verdicts.size() * sizeof(std::uint32_t))};
    const BoundLayout cache_bound = mirrors.add(cache), blocks_bound = mirrors.add(blocks);
    const auto done = module_->scatter_verified(cache_bound, mirrors.add(rows, blocks.layout().slot_count()),
                                                blocks_bound, verified, operation, nullptr);
    if (!done) return done.error();
    const auto copied = mirrors.copy_back(cache);
    if (!copied) return copied.error();
    const auto read = module_->copy(verdicts.data(), verified.verdicts, verdicts.size() * sizeof(std::uint32_t));
    if (!read) return read.error();
    return verdicts;
  }
  Result<std::vector<std::uint64_t>> gather_with_checksums(TestCache& blocks, TestCache& cache, const Rows& rows,
                                                           std::span<const std::uint64_t> seeds,
                                                           const Operation& operation) override {
    Mirrors mirrors(*module_);
    std::vector<std::uint64_t> sums(stripes_for(blocks, seeds));
    const VerifiedBlocks verified{.block_count = static_cast<std::int64_t>(seeds.size()),
                                  .seeds = mirrors.add(seeds.data(), seeds.size_bytes()),
                                  .sums = mirrors.add(sums.data(), sums.size() * sizeof(std::uint64_t))};
    const BoundLayout cache_bound = mirrors.add(cache), blocks_bound = mirrors.add(blocks);
    const auto done = module_->gather_with_checksums(
        blocks_bound, cache_bound, mirrors.add(rows, blocks.layout().slot_count()), verified, operation, nullptr);
    if (!done) return done.error();
    const auto copied = mirrors.copy_back(blocks);
    if (!copied) return copied.error();
    const auto read = module_->copy(sums.data(), verified.sums, sums.size() * sizeof(std::uint64_t));
    if (!read) return read.error();
    return sums;
  }

 private:
  std::string absence_;
  std::shared_ptr<const CudaModule> module_;
};

}  // namespace

Result<void> emulated_permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from,
                              const Rows& from_rows, std::int64_t row_count, const Operation& operation,
                              const EmulatedGrid& grid) {
  EmulatedBackend device("", grid.thread_count, grid.block_count, grid.vec_bytes_max, grid.slice_count);
  return device.move(to, to_rows, from, from_rows, row_count, operation);
}

std::vector<Backend*> all_backends() {
  static HostBackend host;
  static EmulatedBackend wide("Emulated", 64, 3, 16);
  static EmulatedBackend narrow("EmulatedNarrow", 24, 2,
                                4);  // fewer threads than items, narrower vectors: the same bytes
  static CudaBackend cuda;
  return {&host, &wide, &narrow, &cuda};
}

}  // namespace kv
