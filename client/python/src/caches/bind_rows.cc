// Slots of tokens, one for each row of a call, from block tables and CSR page tables. Users see kvstore/layouts.py.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/python/src/bind.h"
#include "client/python/src/buffers.h"
#include "client/python/src/errors.h"
#include "client/python/src/numpy_arrays.h"
#include "client/python/src/without_gil.h"
#include "gpu/plans/row_plan.h"

namespace kv::python {
namespace {

/// Throws unless `indptr` starts at 0 or above, never falls, and has an entry more than `count`.
void check_indptr(const char* name, std::span<const std::int32_t> indptr, std::size_t count, const char* of) {
  if (indptr.size() != count + 1)
    throw bad_request(std::string(name) + ": " + std::to_string(indptr.size()) + " entries, " +
                      std::to_string(count + 1) + " are needed for " + std::to_string(count) + of);
  std::int32_t before = 0;
  for (std::size_t i = 0; i < indptr.size(); before = indptr[i++]) {
    if (indptr[i] < before)
      throw bad_request(entry_text(name, i, indptr[i]) + " is below " +
                        (i == 0 ? "0" : "the entry before, " + std::to_string(before)));
  }
}

nb::object slots_of_table(nb::handle table, nb::handle lengths, std::int64_t block_tokens, nb::handle starts,
                          bool drops_missing) {
  using namespace nb::literals;
  const Array ids(nb::module_::import_("numpy").attr("ascontiguousarray")(table, "dtype"_a = "int32"), "table",
                  /*is_written=*/false);
  if (ids.dimensions() != 2) throw bad_request("table: has " + std::to_string(ids.dimensions()) + " axes, not 2");
  const Numbers<std::int64_t> begins(starts, "starts"), counts(lengths, "lengths");
  std::int64_t total = 0;
  for (const std::int64_t length : counts.values()) {
    if (length < 0 || length > (std::int64_t{1} << 40)) throw bad_request("lengths: out of range");
    total += length;
    if (total > (std::int64_t{1} << 31)) throw bad_request("lengths: over 2^31 rows");
  }
  std::vector<std::int64_t> slots(static_cast<std::size_t>(total));
  const auto rows =
      plan_table_rows(slots, {integers_of<std::int32_t>(ids), ids.shape()[1]}, block_tokens, begins.values(),
                      counts.values(), drops_missing ? MissingBlock::kDropRow : MissingBlock::kKeepRow);
  if (!rows) throw bad_request("table: a token beyond it, or lengths of unequal counts");
  slots.resize(static_cast<std::size_t>(*rows));
  return numpy_of<std::int64_t>(std::move(slots));
}

/// The first entry that plan_append_rows() refuses.
StatusError entry_flaw(const PageTableCsr& table, std::int64_t page_tokens, std::span<const std::int32_t> batch_indices,
                       std::span<const std::int32_t> positions) {
  const std::size_t requests = table.indptr.size() - 1;
  for (std::size_t e = 0; e < batch_indices.size(); ++e) {
    if (batch_indices[e] < 0) continue;
    const auto request = static_cast<std::size_t>(batch_indices[e]);
    if (request >= requests)
      return bad_request(entry_text("batch_indices", e, batch_indices[e]) + " is not below " +
                         std::to_string(requests) + ", the requests of indptr");
    const std::int64_t tokens = (std::int64_t{table.indptr[request + 1]} - table.indptr[request]) * page_tokens;
    if (positions[e] < 0 || positions[e] >= tokens)
      return bad_request(entry_text("positions", e, positions[e]) + " is not in [0, " + std::to_string(tokens) +
                         "), the tokens of request " + std::to_string(request) + "'s pages");
  }
  return failure_of(make_error_code(Errc::kBadRequest));
}

nb::object slots_of_csr(nb::handle indptr, nb::handle indices, std::int64_t page_tokens, nb::handle batch_indices,
                        nb::handle positions) {
  const Numbers<std::int32_t> begins(indptr, "indptr"), pages(indices, "indices");
  const Numbers<std::int32_t> requests(batch_indices, "batch_indices"), places(positions, "positions");
  const PageTableCsr table{begins.values(), pages.values()};
  if (page_tokens < 1 || page_tokens > std::int64_t{1} << 31)
    throw bad_request("page_tokens: " + std::to_string(page_tokens) + " is not in [1, 2^31]");
  if (table.indptr.empty()) throw bad_request("indptr: 0 entries, one more than requests are needed");
  check_indptr("indptr", table.indptr, table.indptr.size() - 1, " requests");
  if (static_cast<std::size_t>(table.indptr.back()) > table.indices.size())
    throw bad_request("indices: " + std::to_string(table.indices.size()) + ", and indptr ends at " +
                      std::to_string(table.indptr.back()));
  if (requests.values().size() != places.values().size())
    throw bad_request("positions: " + std::to_string(places.values().size()) + " for " +
                      std::to_string(requests.values().size()) + " batch_indices");
  std::vector<std::int64_t> slots(requests.values().size());
  const auto planned =
      run_without_gil([&] { return plan_append_rows(slots, table, page_tokens, requests.values(), places.values()); });
  if (!planned) throw entry_flaw(table, page_tokens, requests.values(), places.values());
  return numpy_of<std::int64_t>(std::move(slots));
}

nb::tuple positions_of_appended(nb::handle append_indptr, nb::handle seq_lens, std::optional<std::int64_t> row_count) {
  const Numbers<std::int32_t> begins(append_indptr, "append_indptr"), lengths(seq_lens, "seq_lens");
  const std::span<const std::int32_t> indptr = begins.values();
  check_indptr("append_indptr", indptr, lengths.values().size(), " seq_lens");
  const std::int64_t rows = row_count.value_or(indptr.back());
  if (rows < indptr.back() || rows > std::numeric_limits<std::int32_t>::max())
    throw bad_request("row_count: " + std::to_string(rows) + " is not in [" + std::to_string(indptr.back()) +
                      ", 2^31 - 1], from append_indptr's end on");
  for (std::size_t b = 0; b < lengths.values().size(); ++b) {
    if (indptr[b + 1] - indptr[b] > lengths.values()[b])
      throw bad_request(entry_text("seq_lens", b, lengths.values()[b]) + " is less than the " +
                        std::to_string(indptr[b + 1] - indptr[b]) + " tokens that its request appends");
  }
  std::vector<std::int32_t> requests(static_cast<std::size_t>(rows)), positions(static_cast<std::size_t>(rows));
  const auto planned =
      run_without_gil([&] { return plan_append_positions(requests, positions, indptr, lengths.values()); });
  if (!planned) throw failure_of(planned.error());
  return nb::make_tuple(numpy_of<std::int32_t>(std::move(requests)), numpy_of<std::int32_t>(std::move(positions)));
}

}  // namespace

void bind_rows(nb::module_& module) {
  using namespace nb::literals;
  module.def("table_slots", &slots_of_table, "table"_a, "lengths"_a, nb::kw_only(), "block_tokens"_a,
             "starts"_a = nb::none(), "drop_missing"_a = false);
  module.def("slots_of_csr", &slots_of_csr, "indptr"_a, "indices"_a, "page_tokens"_a, "batch_indices"_a, "positions"_a);
  module.def("append_positions", &positions_of_appended, "append_indptr"_a, "seq_lens"_a, "row_count"_a = nb::none());
}

}  // namespace kv::python
