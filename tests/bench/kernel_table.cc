// Question: how well do the kernels use memory, and how much do they compute for it? Budgets: docs/kernels.md, "On a
// device". A functional simulator of the kernels' PTX counts, for each kind of call on 256 tokens of one layer: which
// part of the 32-byte sectors that a warp's loads and stores touch it asked for, and the instructions of lanes for 32
// bytes that it asked for. The simulator knows neither time nor caches. Prints Markdown.
//
//   sh $KV_CUDA_SIMULATOR/build.sh . build/simulator/90 90
//   KV_CUDA_MODULE=build/simulator/90/libkvstore_cuda.so build/release/tests/bench/kv_kernel_table
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/assert.h"
#include "gpu/compress.h"
#include "gpu/device/cuda_module.h"
#include "gpu/named_layouts.h"
#include "gpu/rotary.h"

namespace kv {
namespace {

constexpr std::int64_t kRows = 256;
constexpr std::int64_t kBlockTokens = 16;
constexpr std::int64_t kHeadSize = 128;

/// What the simulator counts, as its own header declares it.
struct Count {
  unsigned long long warps, lanes, bytes, sectors, lines;
};
struct Totals {
  Count loads, stores, shared;
  unsigned long long local_accesses, warp_instructions, lane_instructions, launches, blocks, divisions;
  unsigned long long loaded_sectors, stored_sectors;
};

class Simulator {
 public:
  explicit Simulator(const char* path) : library_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) return;
    reset_ = reinterpret_cast<void (*)()>(dlsym(library_, "gpusim_reset_counts"));
    totals_ = reinterpret_cast<void (*)(Totals*)>(dlsym(library_, "gpusim_get_totals"));
  }
  bool is_there() const { return reset_ && totals_; }
  void reset() const { reset_(); }
  Totals totals() const {
    Totals totals{};
    totals_(&totals);
    return totals;
  }

 private:
  void* library_;
  void (*reset_)() = nullptr;
  void (*totals_)(Totals*) = nullptr;
};

/// Device memory of a call, given back after it.
class Scratch {
 public:
  explicit Scratch(const CudaModule& module) : module_(module) {}
  ~Scratch() {
    for (void* each : memory_) module_.free(each);
  }
  Scratch(const Scratch&) = delete;

  std::byte* allocate(std::size_t bytes) {
    memory_.push_back(module_.allocate(bytes));
    KV_ASSERT(memory_.back());
    return static_cast<std::byte*>(memory_.back());
  }
  template <class T>
  const T* copy_of(const std::vector<T>& values) {
    std::byte* const copy = allocate(values.size() * sizeof(T));
    KV_ASSERT(module_.copy(copy, values.data(), values.size() * sizeof(T)));
    return reinterpret_cast<const T*>(copy);
  }
  /// The layout in memory of small numbers: neither NaN nor infinity in any element type.
  BoundLayout bind(const Layout& layout) {
    std::vector<void*> pointers;
    for (int i = 0;
         i < layout.tensor_count * static_cast<int>(layout.has_all_layers_in_tensor ? 1 : layout.layer_count); ++i) {
      std::vector<std::byte> bytes(static_cast<std::size_t>(layout.tensor_bytes(i % layout.tensor_count)));
      for (std::byte& each : bytes) each = static_cast<std::byte>(random_() & 0x3F);
      pointers.push_back(const_cast<std::byte*>(copy_of(bytes)));
    }
    return bind_layout(layout, pointers).value();
  }

 private:
  const CudaModule& module_;
  std::vector<void*> memory_;
  std::mt19937_64 random_{42};
};

enum class Ids { kBlocks, kTokens };

struct Table {
  std::shared_ptr<const CudaModule> module;
  const Simulator& simulator;

  void measure(const std::string& name, const std::function<Result<void>()>& call) const {
    simulator.reset();
    KV_ASSERT(call());
    KV_ASSERT(module->synchronise(nullptr));
    const Totals t = simulator.totals();
    const auto share = [](const Count& count) {
      return count.sectors == 0
                 ? 0.0
                 : 100.0 * static_cast<double>(count.bytes) / (32.0 * static_cast<double>(count.sectors));
    };
    // Each sector once: what is fetched and written if the caches keep it while neighbours ask for the rest of it.
    const auto of_memory = [](const Count& count, unsigned long long sectors) {
      return sectors == 0
                 ? 0.0
                 : std::min(100.0, 100.0 * static_cast<double>(count.bytes) / (32.0 * static_cast<double>(sectors)));
    };
    const double moved = static_cast<double>(t.loads.bytes + t.stores.bytes) / 32;
    std::printf("| %s | %.0f, %.0f %% | %.0f, %.0f %% | %.0f | %.2f | %llu | %llu |\n", name.c_str(), share(t.loads),
                share(t.stores), of_memory(t.loads, t.loaded_sectors), of_memory(t.stores, t.stored_sectors),
                32.0 * static_cast<double>(t.warp_instructions) / moved,
                t.shared.lines == 0 ? 1.0 : static_cast<double>(t.shared.sectors) / static_cast<double>(t.shared.lines),
                t.local_accesses, t.blocks);
    std::fflush(stdout);
  }

  /// Between pages at random ids and rows end to end.
  void permute(const std::string& name, const Layout& to, const Layout& from, bool is_scatter, Ids ids,
               const Operation& operation) const {
    Scratch scratch(*module);
    const BoundLayout to_bound = scratch.bind(to), from_bound = scratch.bind(from);
    const Layout& pages = is_scatter ? to : from;
    std::vector<std::int64_t> chosen(
        static_cast<std::size_t>(ids == Ids::kBlocks ? pages.block_count : pages.slot_count()));
    std::iota(chosen.begin(), chosen.end(), 0);
    std::ranges::shuffle(chosen, std::mt19937_64(7));
    const auto* where = scratch.copy_of(chosen);
    const Rows rows = ids == Ids::kBlocks ? Rows::blocks(where, pages.block_tokens) : Rows::slots(where);
    Operation device_operation = operation;
    if (operation.rotation.frequencies) {
      device_operation.rotation.frequencies = scratch.copy_of(rope_frequencies(10000, operation.rotation.rotary_size));
      std::vector<std::int64_t> deltas(kRows);
      std::iota(deltas.begin(), deltas.end(), 1000);
      device_operation.rotation.deltas = scratch.copy_of(deltas);
    }
    measure(name, [&] {
      return is_scatter ? module->permute(to_bound, rows, from_bound, Rows::range(), kRows, device_operation, nullptr)
                        : module->permute(to_bound, Rows::range(), from_bound, rows, kRows, device_operation, nullptr);
    });
  }

  void keep(const std::string& name, std::int64_t heads, std::int32_t token_count) const {
    Scratch scratch(*module);
    const std::int64_t tokens = kRows * token_count;
    const BoundLayout source = scratch.bind(
        layouts::ragged({.block_count = 1, .block_tokens = tokens, .heads = heads, .key_size = kHeadSize}).value());
    const BoundLayout cache = scratch.bind(
        layouts::head_folded(
            {.block_count = kRows * heads / kBlockTokens, .block_tokens = kBlockTokens, .key_size = kHeadSize})
            .value());
    std::vector<KeepRow> rows;
    for (std::int32_t head = 0; head < heads; ++head) {
      for (std::int64_t i = 0; i < kRows; ++i) rows.push_back({head * kRows + i, i * token_count, head, token_count});
    }
    const KeepRow* const on_device = scratch.copy_of(rows);
    measure(name, [&] { return module->scatter_kept(cache, {on_device, rows.size()}, source, nullptr); });
  }
};

CacheShape shape_of(std::int64_t heads, Element element) {
  return {.block_count = kRows / kBlockTokens,
          .block_tokens = kBlockTokens,
          .heads = heads,
          .key_size = kHeadSize,
          .element = element};
}
using Make = Checked<Layout> (*)(const CacheShape&);

/// The store's blocks of such a cache.
Layout blocks_of(const Layout& pages) { return layouts::store_block(pages, 1, pages.block_count).value(); }

void fill(const Table& table) {
  using Kind = Operation::Kind;
  const auto bf16 = shape_of(8, Element::kBf16), int8 = shape_of(8, Element::kInt8), e4m3 = shape_of(8, Element::kE4M3);
  const Layout plain = layouts::nhd(bf16).value();
  const auto copy = [&](const std::string& name, Make make, const CacheShape& shape, Ids ids) {
    const Layout pages = make(shape).value();
    const Layout rows = blocks_of(layouts::nhd(shape).value());
    table.permute(name + ", scatter", pages, rows, true, ids, Operation());
    table.permute(name + ", gather", rows, pages, false, ids, Operation());
  };
  copy("copy NHD, 8 heads bf16, tokens", layouts::nhd, bf16, Ids::kTokens);
  copy("copy NHD, 1 head int8, tokens", layouts::nhd, shape_of(1, Element::kInt8), Ids::kTokens);
  copy("copy NZ, tokens", layouts::fractal_nz, bf16, Ids::kTokens);
  copy("copy x-packed bf16, blocks", layouts::x_packed, bf16, Ids::kBlocks);
  copy("copy x-packed int8, blocks", layouts::x_packed, int8, Ids::kBlocks);
  copy("copy x-packed bf16, tokens", layouts::x_packed, bf16, Ids::kTokens);

  const auto cast = [&](const std::string& name, Make make, const CacheShape& pages, const CacheShape& rows, Ids ids) {
    const Layout a = make(pages).value(), b = blocks_of(layouts::nhd(rows).value());
    table.permute(name + ", scatter", a, b, true, ids, Operation(Kind::kCast));
    table.permute(name + ", gather", b, a, false, ids, Operation(Kind::kCast));
  };
  cast("cast NHD e4m3, rows bf16, tokens", layouts::nhd, e4m3, bf16, Ids::kTokens);
  cast("cast x-packed e4m3, rows bf16, blocks", layouts::x_packed, e4m3, bf16, Ids::kBlocks);
  cast("cast x-packed bf16, rows e4m3, blocks", layouts::x_packed, bf16, e4m3, Ids::kBlocks);

  const auto quantise = [&](const std::string& name, const Layout& codes, const Layout& rows, Ids ids, ScaleRule rule) {
    Operation there(Kind::kQuantise), back(Kind::kDequantise);
    there.scale_rule = back.scale_rule = rule;
    table.permute("quantise " + name, codes, rows, true, ids, there);
    table.permute("dequantise " + name, rows, codes, false, ids, back);
  };
  quantise("int8, token-head, tokens", layouts::with_token_head_scales(layouts::nhd(int8).value()).value(), plain,
           Ids::kTokens, ScaleRule::kTokenHead);
  quantise("int8, scales in the row, tokens", layouts::inline_scales_nhd(int8).value(), plain, Ids::kTokens,
           ScaleRule::kTokenHead);
  CacheShape latent = shape_of(1, Element::kBf16);
  latent.key_size = 512, latent.value_size = 64;
  quantise("ds_mla, tokens", layouts::ds_mla(latent).value(), layouts::mla(latent).value(), Ids::kTokens,
           ScaleRule::kTile);
  for (const Ids ids : {Ids::kTokens, Ids::kBlocks}) {
    const std::string text = ids == Ids::kTokens ? "tokens" : "blocks";
    quantise("NVFP4, " + text, layouts::nvfp4(bf16, layouts::ScaleOrder::kLinear).value(), plain, ids,
             ScaleRule::kNvfp4);
  }

  for (const RopeStyle style : {RopeStyle::kNeox, RopeStyle::kGptj}) {
    for (const std::int64_t heads : {8, 1}) {
      Operation turn(Kind::kRotate, role_bit(Role::kKey));
      const double any = 0;  // the table's own frequencies take its place
      turn.rotation = {style, kHeadSize, &any, nullptr, 0};
      const Layout pages = layouts::nhd(shape_of(heads, Element::kBf16)).value();
      table.permute(std::string("rotate ") + (style == RopeStyle::kNeox ? "NeoX" : "GPT-J") + ", " +
                        std::to_string(heads) + (heads == 1 ? " head" : " heads") + ", tokens",
                    pages, blocks_of(pages), true, Ids::kTokens, turn);
    }
  }
  table.keep("keep rows", 8, 1);
  table.keep("keep means of 8", 8, 8);
}

int run() {
  const char* const path = std::getenv("KV_CUDA_MODULE");
  const Simulator simulator(path ? path : "libkvstore_cuda.so");
  const auto module = CudaModule::load();
  if (!module) {
    std::fprintf(stderr, "kv_kernel_table: %s\n", module.error().text.c_str());
    return 1;
  }
  if (!simulator.is_there()) {
    std::fprintf(stderr, "kv_kernel_table: KV_CUDA_MODULE names no simulator: a device counts no sectors\n");
    return 1;
  }
  std::printf(
      "| call | asked of sectors: loads, stores | used within the launch | lane instructions a 32 B | shared passes | "
      "local | blocks |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- |\n");
  fill({*module, simulator});
  return 0;
}

}  // namespace
}  // namespace kv

int main() { return kv::run(); }
