// Pruned caches: which tokens each head keeps, and writing them (gpu/compress.h). Users see kvstore/pruning.py.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/python/src/bind.h"
#include "client/python/src/buffers.h"
#include "client/python/src/caches/cache.h"
#include "client/python/src/caches/device_call.h"
#include "client/python/src/errors.h"
#include "client/python/src/without_gil.h"
#include "gpu/compress.h"
#include "gpu/element.h"

namespace kv::python {
namespace {

/// Rows to write, as scatter_kept() takes them. Python sees their fields as arrays over this memory.
struct KeptRows {
  std::vector<KeepRow> rows;
};

constexpr std::pair<const char*, KeepMode> kKeepModes[] = {
    {"last", KeepMode::kLast},   {"mean", KeepMode::kMean},        {"drop", KeepMode::kDrop},
    {"KVHEAD", KeepMode::kLast}, {"KVHEAD_ROPE", KeepMode::kMean}, {"OMNI", KeepMode::kDrop}};

KeepMode keep_mode_from(const std::string& name) {
  for (const auto& [known, mode] : kKeepModes) {
    if (name == known) return mode;
  }
  throw bad_request("mode: '" + name + "' is none of last, mean, drop (KVHEAD, KVHEAD_ROPE, OMNI)");
}

constexpr std::int64_t kKeptRowsMax = std::int64_t{1} << 31, kFirstSlotMax = std::int64_t{1} << 62;

/// Names the flaw of a request that plan_keep_rows() refuses by a code alone, and bounds the plan's memory.
void check_keep_request(const KeepRequest& request) {
  if (request.head_count < 1 || request.head_count > 65536)
    throw bad_request("head_count: " + std::to_string(request.head_count) + " is not in [1, 65536]");
  const bool has_offsets = request.mode != KeepMode::kLast;
  const auto heads = static_cast<std::size_t>(request.head_count);
  const auto check_size = [&](const char* name, std::size_t size) {
    if (size != request.seq_lens.size() * heads)
      throw bad_request(std::string(name) + ": " + std::to_string(size) + " for " +
                        std::to_string(request.seq_lens.size()) + " sequences of " + std::to_string(heads) + " heads");
  };
  check_size("windows", request.windows.size());
  check_size("first_slots", request.first_slots.size());
  if (has_offsets) check_size("offsets", request.offsets.size());
  std::int64_t row_count_max = 0;
  for (std::size_t b = 0; b < request.seq_lens.size(); ++b) {
    const std::int32_t length = request.seq_lens[b];
    if (length < 0) throw bad_request(entry_text("seq_lens", b, length) + " is not 0 or more");
    const auto sequence = [&] {
      return ", sequence " + std::to_string(b) + " having " + std::to_string(length) + " tokens";
    };
    for (std::size_t i = b * heads; i < (b + 1) * heads; ++i) {
      const std::int32_t window = request.windows[i];
      const bool is_whole = has_offsets && request.offsets[i] == -1;
      if (!is_whole && (window < 0 || window > length))
        throw bad_request(entry_text("windows", i, window) + " is not in [0, " + std::to_string(length) + "]" +
                          sequence());
      if (request.first_slots[i] > kFirstSlotMax)
        throw bad_request(entry_text("first_slots", i, request.first_slots[i]) + " is over 2^62");
      if (request.first_slots[i] < 0) continue;
      if (has_offsets && !is_whole && window > 0 && (request.offsets[i] < 0 || request.offsets[i] > length - window))
        throw bad_request(entry_text("offsets", i, request.offsets[i]) + " is neither -1 nor in [0, " +
                          std::to_string(length - window) + "]" + sequence());
      row_count_max += has_offsets ? length : window;
    }
    if (row_count_max > kKeptRowsMax) throw bad_request("seq_lens, windows: over 2^31 rows");
  }
}

/// [batch, heads] as [batch * heads], which others are already.
nb::object by_row(const char* name, const nb::object& given, std::size_t batch, std::int64_t heads) {
  const nb::object shape = nb::getattr(given, "shape", nb::make_tuple());
  if (nb::len(shape) != 2) return given;
  const auto [rows, columns] = nb::cast<std::pair<std::size_t, std::int64_t>>(shape);
  if (rows != batch || columns != heads)
    throw bad_request(std::string(name) + ": of shape [" + std::to_string(rows) + ", " + std::to_string(columns) +
                      "], not [" + std::to_string(batch) + ", " + std::to_string(heads) + "] as sequences and heads");
  return given.attr("reshape")(-1);
}

KeptRows plan_kept_rows(const std::string& mode, std::int64_t head_count, nb::handle seq_lens,
                        const nb::object& windows, const nb::object& first_slots, const nb::object& offsets) {
  const Numbers<std::int32_t> lengths(seq_lens, "seq_lens");
  const std::size_t batch = lengths.values().size();
  const Numbers<std::int32_t> sizes(by_row("windows", windows, batch, head_count), "windows");
  const Numbers<std::int32_t> begins(by_row("offsets", offsets, batch, head_count), "offsets");
  const Numbers<std::int64_t> slots(by_row("first_slots", first_slots, batch, head_count), "first_slots");
  const KeepRequest request = {.mode = keep_mode_from(mode),
                               .head_count = head_count,
                               .seq_lens = lengths.values(),
                               .windows = sizes.values(),
                               .offsets = begins.values(),
                               .first_slots = slots.values()};
  // Likely another mode's arguments: ignoring them would keep other tokens than intended.
  if (request.mode == KeepMode::kLast && !offsets.is_none())
    throw bad_request("offsets: given, and mode '" + mode + "' has none");
  return run_without_gil([&] {
    check_keep_request(request);
    auto planned = plan_keep_rows(request);
    if (!planned) throw failure_of(planned.error());
    return KeptRows{*std::move(planned)};
  });
}

/// Rows chosen by a policy of the caller's own.
KeptRows kept_rows_of(nb::handle slots, nb::handle tokens, nb::handle heads, nb::handle token_counts) {
  const Numbers<std::int64_t> to(slots, "slots"), from(tokens, "tokens");
  const Numbers<std::int32_t> of(heads, "heads"), counts(token_counts, "token_counts");
  const std::size_t count = to.values().size();
  for (const auto& [name, size] :
       {std::pair("tokens", from.values().size()), std::pair("heads", of.values().size()),
        std::pair("token_counts", token_counts.is_none() ? count : counts.values().size())}) {
    if (size != count)
      throw bad_request(std::string(name) + ": " + std::to_string(size) + " for " + std::to_string(count) + " slots");
  }
  KeptRows made;
  made.rows.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    made.rows.push_back({.slot = to.values()[i],
                         .token = from.values()[i],
                         .head = of.values()[i],
                         .token_count = token_counts.is_none() ? 1 : counts.values()[i]});
  }
  return made;
}

/// Why make_keep_plan() refuses these layouts.
std::string keep_mismatch_text(const Layout& cache, const Layout& source) {
  if (cache.layer_count != source.layer_count)
    return "layers: the cache has " + std::to_string(cache.layer_count) + ", the source " +
           std::to_string(source.layer_count);
  for (const Component& to : cache.components) {
    const std::string role(role_name(to.role));
    const Component* const from = source.find(to.role);
    if (to.role == Role::kLogCount) {
      if (to.element != Element::kFp32) return role + ": " + std::string(element_name(to.element)) + ", not fp32";
    } else if (from == nullptr) {
      return role + ": the source has none";
    } else if (to.heads() != 1) {
      return role + ": the cache has " + std::to_string(to.heads()) + " heads a slot, not one: it is not head-folded";
    } else if (to.features() != from->features()) {
      return role + ": " + std::to_string(from->features()) + " features go to " + std::to_string(to.features());
    } else if (to.element != from->element) {
      return role + ": " + std::string(element_name(from->element)) + " goes to " +
             std::string(element_name(to.element)) + ", and rows are not converted";
    }
  }
  return "components: the cache has log counts alone";
}

/// All rows, before any is written: a device skips bad ones silently.
void check_kept_rows(std::span<const KeepRow> rows, const PermutePlan& plan) {
  std::int64_t heads = std::numeric_limits<std::int64_t>::max();
  bool has_means = false, can_average = true;
  for (int i = 0; i < plan.part_count; ++i) {
    if (plan.parts[i].role == Role::kLogCount) continue;
    heads = std::min(heads, plan.parts[i].heads);
    const Element element = plan.parts[i].to.element;
    can_average &= is_number(element) && element != Element::kInt8;
  }
  const auto refuse = [](std::size_t i, const std::string& text) {
    throw bad_request("rows[" + std::to_string(i) + "]: " + text);
  };
  const auto outside = [](const char* name, std::int64_t value, std::int64_t end, const char* of) {
    return std::string(name) + " " + std::to_string(value) + " is not in [0, " + std::to_string(end) + "), the " + of;
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& [slot, token, head, token_count] = rows[i];
    if (slot < 0 || slot >= plan.to.slot_count) refuse(i, outside("slot", slot, plan.to.slot_count, "cache's slots"));
    if (head < 0 || head >= heads) refuse(i, outside("head", head, heads, "source's heads"));
    if (token < 0 || token >= plan.from.slot_count)
      refuse(i, outside("token", token, plan.from.slot_count, "source's tokens"));
    if (token_count < 1 || token_count > plan.from.slot_count - token)
      refuse(i, "token_count " + std::to_string(token_count) + " is not in [1, " +
                    std::to_string(plan.from.slot_count - token) + "], from token " + std::to_string(token) + " on");
    has_means |= token_count > 1;
  }
  if (has_means && !can_average)
    throw StatusError{static_cast<int>(Errc::kMismatch), "rows: some are means, and int8 and bytes have no means"};
}

nb::object scatter_kept_rows(const nb::object& cache, const nb::object& rows, const nb::object& source,
                             nb::handle stream, int grid_max) {
  const Where where(stream, grid_max);
  const Cache& to = nb::cast<const Cache&>(cache);
  const Cache& from = nb::cast<const Cache&>(source);
  const std::span<const KeepRow> kept = nb::cast<const KeptRows&>(rows).rows;
  const auto plan = make_keep_plan(to.bound(), from.bound());
  if (!plan) {
    throw StatusError{static_cast<int>(Errc::kMismatch), keep_mismatch_text(to.bound().layout, from.bound().layout)};
  }
  const bool is_device = is_for_device(where, to, "cache", from, "source");
  check_kept_rows(kept, *plan);
  if (is_device) return nb::cast(enqueue_kept(where, to, kept, from, {cache, source}));
  const BoundLayout& target = to.writable("cache");
  const auto done = run_without_gil([&] { return scatter_kept(target, kept, from.bound()); });
  if (!done) throw failure_of(done.error());
  return nb::none();
}

/// One field of all rows as an array over the rows' own memory.
template <class Field>
nb::object field_of(nb::handle self, Field KeepRow::*field) {
  std::vector<KeepRow>& rows = nb::cast<KeptRows&>(self).rows;
  constexpr std::int64_t kStep = sizeof(KeepRow) / sizeof(Field);
  static_assert(sizeof(KeepRow) % sizeof(Field) == 0);
  const std::size_t shape[] = {rows.size()};
  const std::int64_t strides[] = {kStep};
  const void* const data = rows.empty() ? nullptr : &(rows.front().*field);
  return nb::cast(nb::ndarray<nb::numpy, const Field>(data, 1, shape, self, strides));
}

}  // namespace

void bind_pruning(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<KeptRows>(module, "KeptRows")
      .def_static("of", &kept_rows_of, "slots"_a, "tokens"_a, "heads"_a, "token_counts"_a = nb::none())
      .def("__repr__",
           [](const KeptRows& self) { return "<kvstore.KeptRows of " + std::to_string(self.rows.size()) + " rows>"; })
      .def("__len__", [](const KeptRows& self) { return self.rows.size(); })
      .def_prop_ro("slots", [](nb::handle self) { return field_of(self, &KeepRow::slot); })
      .def_prop_ro("tokens", [](nb::handle self) { return field_of(self, &KeepRow::token); })
      .def_prop_ro("heads", [](nb::handle self) { return field_of(self, &KeepRow::head); })
      .def_prop_ro("token_counts", [](nb::handle self) { return field_of(self, &KeepRow::token_count); });
  module.def("plan_keep_rows", &plan_kept_rows, "mode"_a, nb::kw_only(), "head_count"_a, "seq_lens"_a, "windows"_a,
             "first_slots"_a, "offsets"_a = nb::none());
  module.def("scatter_kept", &scatter_kept_rows, "cache"_a, "rows"_a, "source"_a, nb::kw_only(),
             "stream"_a = nb::none(), "grid_max"_a = 0);
}

}  // namespace kv::python
