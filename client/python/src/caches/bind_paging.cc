// Page pools, sequences of a paged cache, and plans for prefixes that a batch shares. NumPy arrays in and out.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/python/src/bind.h"
#include "client/python/src/buffers.h"
#include "client/python/src/errors.h"
#include "client/python/src/numpy_arrays.h"
#include "client/python/src/without_gil.h"
#include "gpu/paging/cascade_plan.h"
#include "gpu/paging/chunk_plan.h"
#include "gpu/paging/paged_cache.h"

namespace kv::python {
namespace {

BlockName name_of(const BlockHash& hash, std::uint32_t group) { return {.hash = hash.bytes, .group = group}; }

std::vector<BlockName> names_from(nb::handle hashes, std::uint32_t group, const char* name) {
  std::vector<BlockName> names;
  for (const BlockHash& hash : hashes_from(hashes, name)) names.push_back(name_of(hash, group));
  return names;
}

BlockName name_from(nb::handle hash, std::uint32_t group) {
  const Array array(hash, "hash", /*is_written=*/false);
  const auto made = block_hash_from_engine(array.all_bytes());
  if (!made) throw bad_request("hash: no bytes");
  return name_of(*made, group);
}

std::vector<std::int32_t> numbers_of(std::span<const PageId> pages) {
  std::vector<std::int32_t> numbers;
  numbers.reserve(pages.size());
  for (const PageId page : pages) numbers.push_back(static_cast<std::int32_t>(page));
  return numbers;
}

nb::object pages_array(std::span<const PageId> pages) { return numpy_of<std::int32_t>(numbers_of(pages)); }

/// A pool, shared by the caches over it, and the names removed from all pages.
struct Pool {
  explicit Pool(std::size_t page_count)
      : pages(page_count, [this](const BlockName& name) {
          // Collected: a Python function called during the pool's work could call the pool.
          if (keeps_removed) removed.push_back(name);
        }) {}
  bool keeps_removed = false;
  std::vector<BlockName> removed;
  // After the list that its callback writes to.
  PagePool pages;

  PageId page(std::int64_t number) const {
    // Page 0 is reserved (kNullPage).
    if (number < 1 || number >= static_cast<std::int64_t>(pages.page_count()))
      throw bad_request("page: " + std::to_string(number) + " is not in [1, " + std::to_string(pages.page_count()) +
                        ")");
    return page_at(static_cast<std::size_t>(number));
  }
  std::vector<PageId> used_pages(nb::handle object) const {
    const Numbers<std::int64_t> numbers(object, "pages");
    std::vector<PageId> made;
    std::vector<std::uint32_t> count(pages.page_count(), 0);
    for (const std::int64_t number : numbers.values()) {
      made.push_back(page(number));
      // Counted within this call too: a page named twice needs two users, or another sequence's would be released.
      if (++count[static_cast<std::size_t>(number)] > pages.user_count(made.back()))
        throw bad_request("page: " + std::to_string(number) + " has no such user");
    }
    return made;
  }
};

/// The sequences of one cache group. Python keeps the pool alive as long as this.
class Sequences {
 public:
  Sequences(Pool& pool, const GroupConfig& group, std::uint32_t number)
      : pool_(pool), block_size_(group.block_size), number_(number), cache_(pool.pages, group) {}

  Pool& pool() const { return pool_; }
  std::size_t block_size() const { return block_size_; }

  std::pair<nb::object, std::size_t> find(nb::handle hashes, std::size_t token_count) const {
    const CachedPrefix prefix = cache_.find(names_from(hashes, number_, "hashes"), token_count);
    return {pages_array(prefix.pages), prefix.token_count};
  }
  std::size_t pages_needed(nb::handle hashes, std::size_t token_count) const {
    return cache_.pages_needed(cache_.find(names_from(hashes, number_, "hashes"), token_count), token_count);
  }
  std::pair<std::uint64_t, std::size_t> open(nb::handle hashes, std::size_t token_count) {
    CachedPrefix prefix;
    if (!hashes.is_none()) prefix = cache_.find(names_from(hashes, number_, "hashes"), token_count);
    return {static_cast<std::uint64_t>(value_of(cache_.open(prefix, token_count))), prefix.token_count};
  }
  nb::object append(std::uint64_t sequence, std::size_t token_count) {
    const auto copies = value_of(cache_.append(id(sequence), token_count));
    std::vector<std::int64_t> pairs;
    for (const PageCopy& copy : copies) {
      pairs.push_back(static_cast<std::int64_t>(copy.from));
      pairs.push_back(static_cast<std::int64_t>(copy.to));
    }
    return numpy_of<std::int64_t>(std::move(pairs), {copies.size(), 2});
  }
  std::uint64_t fork(std::uint64_t sequence) { return static_cast<std::uint64_t>(cache_.fork(id(sequence))); }
  void crop(std::uint64_t sequence, std::size_t token_count) {
    const auto cropped = cache_.crop(id(sequence), token_count);
    if (!cropped) throw bad_request("token_count: the sequence is shorter, or its window has left those tokens behind");
  }
  void close(std::uint64_t sequence) { cache_.close(id(sequence)); }
  void name_blocks(std::uint64_t sequence, nb::handle hashes) {
    cache_.name_blocks(id(sequence), names_from(hashes, number_, "hashes"));
  }
  std::size_t token_count(std::uint64_t sequence) const { return cache_.token_count(id(sequence)); }
  nb::object page_table(std::uint64_t sequence) const { return pages_array(cache_.page_table(id(sequence))); }
  nb::object slot_mapping(std::uint64_t sequence, std::size_t begin, std::optional<std::size_t> end) const {
    const std::size_t last = end.value_or(cache_.token_count(id(sequence)));
    if (begin > last || last > cache_.token_count(id(sequence))) throw bad_request("begin, end: not tokens of it");
    return numpy_of<std::int64_t>(cache_.slot_mapping(id(sequence), begin, last));
  }
  std::size_t sequence_count() const { return cache_.sequence_count(); }

 private:
  SequenceId id(std::uint64_t sequence) const {
    if (!cache_.has(SequenceId{sequence})) throw bad_request("sequence: " + std::to_string(sequence) + " is not open");
    return SequenceId{sequence};
  }

  Pool& pool_;
  std::size_t block_size_;
  std::uint32_t number_;
  PagedCache cache_;
};

/// A batch in the planners' form: the tree borrows the blocks, so both live together.
struct PlannedBatch {
  std::vector<std::vector<PlannedBlock>> blocks;
  std::optional<SharedPrefixTree> tree;
};

void plan_tree(PlannedBatch& planned, std::vector<PlannedSequence>& sequences, const SharingConfig& config) {
  // Now that the outer vector no longer grows: spans point into it.
  for (std::size_t i = 0; i < sequences.size(); ++i) sequences[i].blocks = planned.blocks[i];
  auto tree = run_without_gil([&] { return plan_shared_prefixes(sequences, config); });
  if (!tree) throw failure_of(tree.error());
  planned.tree = *std::move(tree);
}

std::unique_ptr<PlannedBatch> plan_batch(const nb::sequence& page_tables, const nb::sequence& hashes,
                                         nb::handle token_counts, std::size_t block_size, nb::handle query_counts,
                                         std::size_t sequence_count_min) {
  const Numbers<std::int64_t> counts(token_counts, "token_counts"), queries(query_counts, "query_counts");
  const std::size_t batch = nb::len(page_tables);
  if (nb::len(hashes) != batch || counts.values().size() != batch ||
      (!query_counts.is_none() && queries.values().size() != batch))
    throw bad_request("page_tables, hashes, token_counts and query_counts: of different lengths");
  if (block_size == 0 || block_size > 65536) throw bad_request("block_size: not in [1, 65536]");
  auto planned = std::make_unique<PlannedBatch>();
  std::vector<PlannedSequence> sequences;
  for (std::size_t i = 0; i < batch; ++i) {
    const std::string at = "[" + std::to_string(i) + "]";
    const Numbers<std::int32_t> table(nb::object(page_tables[i]), "page_tables" + at);
    const std::int64_t tokens = counts.values()[i];
    const std::size_t needed = tokens < 0 ? 0 : (static_cast<std::size_t>(tokens) + block_size - 1) / block_size;
    if (tokens < 1 || table.values().size() < needed)
      throw bad_request("token_counts" + at + ": no tokens, or more than the pages hold");
    std::vector<PageId> pages;
    for (std::size_t k = 0; k < needed; ++k) {
      if (table.values()[k] < 1) throw bad_request("page_tables" + at + ": page " + std::to_string(table.values()[k]));
      pages.push_back(PageId{table.values()[k]});
    }
    // All of one group: a batch is for one kind of layer, where hashes are unique.
    std::vector<BlockName> names = names_from(nb::object(hashes[i]), 0, "hashes");
    // Only full blocks have names: the engine may already have hashed tokens whose KV is not computed yet.
    names.resize(std::min(names.size(), static_cast<std::size_t>(tokens) / block_size));
    planned->blocks.push_back(planned_blocks(pages, names, static_cast<std::size_t>(tokens), block_size));
    const std::int64_t asked = query_counts.is_none() ? 1 : queries.values()[i];
    if (asked < 1 || asked > tokens) throw bad_request("query_counts" + at + ": not in [1, tokens]");
    sequences.push_back({.blocks = {}, .query_count = static_cast<std::int32_t>(asked)});
  }
  plan_tree(*planned, sequences, {.block_size = block_size, .sequence_count_min = sequence_count_min});
  return planned;
}

/// Requests without pages, to find their order. Blocks without a hash, and those with queries, are never shared: one
/// token stands for all of them.
std::unique_ptr<PlannedBatch> plan_requests(const nb::sequence& hashes, nb::handle token_counts, std::size_t block_size,
                                            nb::handle query_counts, std::size_t sequence_count_min) {
  const Numbers<std::int64_t> counts(token_counts, "token_counts"), queries(query_counts, "query_counts");
  const std::size_t batch = nb::len(hashes);
  for (const auto& [given, name, size] : {std::tuple(token_counts, "token_counts", counts.values().size()),
                                          std::tuple(query_counts, "query_counts", queries.values().size())}) {
    if (!given.is_none() && size != batch)
      throw bad_request(std::string(name) + ": " + std::to_string(size) + " for " + std::to_string(batch) +
                        " sequences of hashes");
  }
  if (block_size == 0 || block_size > 65536)
    throw bad_request("block_size: " + std::to_string(block_size) + " is not in [1, 65536]");
  constexpr PageId kNoPageYet{1};  // any: the order depends on names alone
  auto planned = std::make_unique<PlannedBatch>();
  for (std::size_t i = 0; i < batch; ++i) {
    const std::string at = "[" + std::to_string(i) + "]: ";
    const std::vector<BlockHash> chain = hashes_from(nb::object(hashes[i]), "hashes");
    const auto named = static_cast<std::int64_t>(chain.size() * block_size);
    const std::int64_t tokens = token_counts.is_none() ? named + 1 : counts.values()[i];
    if (tokens < 1) throw bad_request("token_counts" + at + std::to_string(tokens) + " is not 1 or more");
    const std::int64_t asked = query_counts.is_none() ? 1 : queries.values()[i];
    if (asked < 1 || asked > tokens)
      throw bad_request("query_counts" + at + std::to_string(asked) + " is not in [1, " + std::to_string(tokens) +
                        "], the tokens of its sequence");
    const auto sharable = static_cast<std::size_t>(std::min(tokens - asked, named)) / block_size;
    std::vector<PlannedBlock>& blocks = planned->blocks.emplace_back();
    blocks.reserve(sharable + 1);
    for (std::size_t k = 0; k < sharable; ++k)
      blocks.push_back({name_of(chain[k], 0), kNoPageYet, static_cast<std::int32_t>(block_size)});
    blocks.push_back({.name = {}, .page = kNoPageYet, .token_count = 1});
  }
  std::vector<PlannedSequence> sequences(batch);
  plan_tree(*planned, sequences, {.block_size = block_size, .sequence_count_min = sequence_count_min});
  return planned;
}

/// One of the named tuples of kvstore/paging.py.
template <class... Fields>
nb::object named_tuple(const char* name, Fields&&... fields) {
  return nb::module_::import_("kvstore.paging").attr(name)(std::forward<Fields>(fields)...);
}

nb::object order_of(const SharedPrefixTree& tree) {
  return numpy_of<std::int64_t>(std::vector<std::int64_t>(tree.order.begin(), tree.order.end()));
}

/// One field of all runs.
nb::object run_fields(const std::vector<SharedRun>& runs, std::size_t SharedRun::*field) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(runs.size());
  for (const SharedRun& run : runs) numbers.push_back(static_cast<std::int64_t>(run.*field));
  return numpy_of<std::int64_t>(std::move(numbers));
}

nb::object shared_prefixes_of(const nb::sequence& hashes, nb::handle token_counts, std::size_t block_size,
                              nb::handle query_counts, std::size_t sequence_count_min) {
  const auto batch = plan_requests(hashes, token_counts, block_size, query_counts, sequence_count_min);
  const SharedPrefixTree& tree = *batch->tree;
  const auto field = [&](std::size_t SharedRun::*each) { return run_fields(tree.runs, each); };
  const nb::object runs =
      named_tuple("SharedRuns", field(&SharedRun::level), field(&SharedRun::sequence_begin),
                  field(&SharedRun::sequence_end), field(&SharedRun::block_begin), field(&SharedRun::block_end));
  return named_tuple("SharedPrefixes", order_of(tree), runs,
                     numpy_of<std::int64_t>(std::vector<std::int64_t>(tree.tail_begin.begin(), tree.tail_begin.end())));
}

nb::object cascade_of(const nb::sequence& page_tables, const nb::sequence& hashes, nb::handle token_counts,
                      std::size_t block_size, nb::handle query_counts, std::size_t sequence_count_min,
                      std::optional<std::size_t> level_count_max) {
  if (level_count_max == std::size_t{0}) throw bad_request("level_count_max: 0, not 1 or more");
  const auto batch = plan_batch(page_tables, hashes, token_counts, block_size, query_counts, sequence_count_min);
  auto plan = value_of(plan_cascade(*batch->tree, level_count_max.value_or(SIZE_MAX)));
  nb::list levels;
  for (CascadeLevel& level : plan.levels) {
    levels.append(named_tuple("CascadeLevel", numpy_of<std::int32_t>(std::move(level.query_indptr)),
                              numpy_of<std::int32_t>(std::move(level.page_indptr)),
                              numpy_of<std::int32_t>(std::move(level.page_indices)),
                              numpy_of<std::int32_t>(std::move(level.last_page_tokens))));
  }
  return named_tuple("CascadePlan", order_of(*batch->tree), levels);
}

nb::object chunks_of(const nb::sequence& page_tables, const nb::sequence& hashes, nb::handle token_counts,
                     std::size_t block_size, std::size_t sharing_threshold) {
  const auto batch = plan_batch(page_tables, hashes, token_counts, block_size, nb::none(), 2);
  auto plan = value_of(plan_chunks(*batch->tree, sharing_threshold));
  const std::size_t rows = plan.sequence_tokens.size();
  return named_tuple("ChunkPlan", order_of(*batch->tree), pages_array(plan.pages),
                     numpy_of<std::int32_t>(std::move(plan.token_counts)),
                     numpy_of<std::int32_t>(std::move(plan.begins)), numpy_of<std::int32_t>(std::move(plan.ends)),
                     numpy_of<std::int32_t>(std::move(plan.offsets)), plan.partial_row_count,
                     numpy_of<std::int32_t>(std::move(plan.sequence_chunks), {rows, plan.chunk_count_max}),
                     numpy_of<std::int32_t>(std::move(plan.sequence_tokens)));
}

void bind_pool(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Pool>(module, "PagePool")
      .def(
          "__init__",
          [](Pool* self, std::size_t page_count, bool keeps_removed) {
            if (page_count < 1 || page_count >= INT32_MAX) throw bad_request("page_count: not in [1, 2^31 - 1)");
            new (self) Pool(page_count);
            self->keeps_removed = keeps_removed;
          },
          "page_count"_a, nb::kw_only(), "keep_removed"_a = false)
      .def_prop_ro("page_count", [](const Pool& pool) { return pool.pages.page_count(); })
      .def_prop_ro("free_count", [](const Pool& pool) { return pool.pages.free_count(); })
      .def(
          "user_count", [](const Pool& pool, std::int64_t page) { return pool.pages.user_count(pool.page(page)); },
          "page"_a)
      .def(
          "take", [](Pool& pool, std::size_t count) { return pages_array(value_of(pool.pages.take(count))); },
          "count"_a)
      .def(
          "release", [](Pool& pool, nb::handle pages) { pool.pages.release(pool.used_pages(pages)); }, "pages"_a)
      .def(
          "touch",
          [](Pool& pool, nb::handle pages) {
            const Numbers<std::int64_t> numbers(pages, "pages");
            std::vector<PageId> made;
            for (const std::int64_t number : numbers.values()) made.push_back(pool.page(number));
            pool.pages.touch(made);
          },
          "pages"_a)
      .def(
          "find",
          [](const Pool& pool, nb::handle hash, std::uint32_t group) -> std::optional<std::int32_t> {
            const auto page = pool.pages.find(name_from(hash, group));
            if (!page) return std::nullopt;
            return static_cast<std::int32_t>(*page);
          },
          "block"_a, "group"_a = 0)
      .def(
          "set_name",
          [](Pool& pool, std::int64_t page, nb::handle hash, std::uint32_t group) {
            const PageId id = pool.page(page);
            if (pool.pages.user_count(id) == 0 || pool.pages.name(id) != nullptr)
              throw bad_request("page: unused, or it has a name");
            pool.pages.set_name(id, name_from(hash, group));
          },
          "page"_a, "block"_a, "group"_a = 0)
      .def(
          "forget_name",
          [](Pool& pool, std::int64_t page) {
            const PageId id = pool.page(page);
            if (pool.pages.name(id) != nullptr) pool.pages.forget_name(id);
          },
          "page"_a)
      .def("forget_all_names", [](Pool& pool) { return pool.pages.forget_all_names(); })
      .def_prop_ro("free_pages", [](const Pool& pool) { return pages_array(pool.pages.free_pages()); })
      .def("take_removed", [](Pool& pool) {
        nb::list list;
        for (const BlockName& name : std::exchange(pool.removed, {})) {
          list.append(nb::make_tuple(nb::bytes(name.hash.data(), name.hash.size()), name.group));
        }
        return list;
      });
}

void bind_sequences(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Sequences>(module, "PagedCache")
      .def(
          "__init__",
          [](Sequences* self, Pool& pool, std::size_t block_size, std::size_t window_tokens, bool drops_last_block,
             std::uint32_t group) {
            if (block_size < 1 || block_size > 65536) throw bad_request("block_size: not in [1, 65536]");
            new (self) Sequences(pool, {block_size, window_tokens, drops_last_block}, group);
          },
          "pool"_a, "block_size"_a, nb::kw_only(), "window_tokens"_a = 0, "drop_last_block"_a = false, "group"_a = 0,
          nb::keep_alive<1, 2>())
      .def_prop_ro("pool", &Sequences::pool, nb::rv_policy::reference)
      .def_prop_ro("block_size", &Sequences::block_size)
      .def("find", &Sequences::find, "hashes"_a, "token_count"_a)
      .def("pages_needed", &Sequences::pages_needed, "hashes"_a, "token_count"_a)
      .def("open", &Sequences::open, "hashes"_a.none(), "token_count"_a)
      .def("append", &Sequences::append, "sequence"_a, "token_count"_a)
      .def("fork", &Sequences::fork, "sequence"_a)
      .def("crop", &Sequences::crop, "sequence"_a, "token_count"_a)
      .def("close", &Sequences::close, "sequence"_a)
      .def("name_blocks", &Sequences::name_blocks, "sequence"_a, "hashes"_a)
      .def("token_count", &Sequences::token_count, "sequence"_a)
      .def("page_table", &Sequences::page_table, "sequence"_a)
      .def("slot_mapping", &Sequences::slot_mapping, "sequence"_a, "begin"_a = 0, "end"_a = nb::none())
      .def_prop_ro("sequence_count", &Sequences::sequence_count);
}

}  // namespace

void bind_paging(nb::module_& module) {
  using namespace nb::literals;
  bind_pool(module);
  bind_sequences(module);
  module.def("plan_shared_prefixes", &shared_prefixes_of, "hashes"_a, nb::kw_only(), "token_counts"_a = nb::none(),
             "block_size"_a, "query_counts"_a = nb::none(), "sequence_count_min"_a = 2);
  module.def("plan_cascade", &cascade_of, "page_tables"_a, "hashes"_a, "token_counts"_a, nb::kw_only(), "block_size"_a,
             "query_counts"_a = nb::none(), "sequence_count_min"_a = 2, "level_count_max"_a = nb::none());
  module.def("plan_chunks", &chunks_of, "page_tables"_a, "hashes"_a, "token_counts"_a, nb::kw_only(), "block_size"_a,
             "sharing_threshold"_a = 1);
}

}  // namespace kv::python
