// client/c/gpu_c_plans.cc: kvstore_paging.h's plans for a batch's shared prefixes. Exceptions stop here.
#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "client/c/gpu_c_arguments.h"
#include "client/kvstore_paging.h"
#include "gpu/paging/cascade_plan.h"
#include "gpu/paging/chunk_plan.h"

struct kvs_cascade {
  std::vector<std::size_t> order;
  kv::CascadePlan plan;
};
// Views point into these lists, which live as long as the plan and never change.
struct kvs_chunks {
  std::vector<std::size_t> order;
  std::vector<std::int32_t> pages;
  kv::ChunkPlan plan;
};

namespace kv {
namespace {

using namespace c_api;

/// A C caller's batch, checked. Owns the blocks that a tree borrows.
class Batch {
 public:
  void read(const kvs_batch* given) {
    from_ = read_struct(given);
    if (from_.block_tokens < 1 || from_.block_tokens > kInt32Max) {
      refuse_at("block_tokens", from_.block_tokens, "from 1 to 2^31 - 1");
    }
    if (from_.sequence_count > kInt32Max) refuse_at("sequence_count", from_.sequence_count, "below 2^31");
    if (from_.sequence_count > 0 && from_.page_indptr == nullptr) refuse(KVS_BAD_REQUEST, "page_indptr is NULL");
    if (from_.sequence_count > 0 && from_.last_page_tokens == nullptr && from_.page_tokens == nullptr) {
      refuse(KVS_BAD_REQUEST, "batch: last_page_tokens and page_tokens are NULL");
    }
    // page_indptr has one more entry than there are sequences, but may be missing for zero sequences.
    if (from_.sequence_count == 0) return;
    if (from_.page_indptr[0] < 0) refuse_value("batch: page_indptr[0]", from_.page_indptr[0], "0 or more");
    const auto end = static_cast<std::size_t>(std::max(from_.page_indptr[from_.sequence_count], 0));
    if (end > 0 && from_.pages == nullptr) refuse(KVS_BAD_REQUEST, "batch: pages is NULL");
    // Sized once: the sequences' spans point into it.
    blocks_.resize(end);
    for (std::size_t s = 0; s < from_.sequence_count; ++s) {
      read_sequence(s);
    }
    KV_ASSERT(sequences_.size() == from_.sequence_count);
  }

  SharedPrefixTree plan() const {
    auto planned =
        plan_shared_prefixes(sequences_, {from_.block_tokens, std::max<std::size_t>(from_.sequence_count_min, 2)});
    if (!planned && planned.error() == Errc::kBadRequest) {
      refuse(KVS_BAD_REQUEST,
             "batch: a sequence has more queries than tokens or a partial page among its queries, or one hash has two "
             "numbers of tokens");
    }
    if (!planned) refuse(planned.error());
    KV_ASSERT(planned->order.size() == from_.sequence_count);
    return *std::move(planned);
  }

 private:
  static constexpr std::size_t kInt32Max = std::numeric_limits<std::int32_t>::max();

  [[noreturn]] static void refuse_at(const char* field, std::size_t value, const char* allowed) {
    refuse(KVS_BAD_REQUEST, std::string("batch: ") + field + ": " + std::to_string(value) + " is not " + allowed);
  }
  [[noreturn]] static void refuse_entry(const char* field, std::size_t index, std::int64_t value, const char* allowed) {
    refuse_value("batch: " + std::string(field) + "[" + std::to_string(index) + "]", value, allowed);
  }

  void read_sequence(std::size_t s) {
    const std::int32_t begin = from_.page_indptr[s], end = from_.page_indptr[s + 1];
    // The last entry gave blocks_ its size. A larger one in the middle would read pages beyond the list.
    if (begin < 0 || end <= begin || static_cast<std::size_t>(end) > blocks_.size()) {
      refuse_entry("page_indptr", s + 1, end, "above the one before, and at most the last");
    }
    const auto full = static_cast<std::int32_t>(from_.block_tokens);
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const bool is_last = i + 1 == static_cast<std::size_t>(end);
      const std::int32_t* tokens = from_.page_tokens != nullptr ? &from_.page_tokens[i]
                                   : is_last                    ? &from_.last_page_tokens[s]
                                                                : &full;
      // Page 0 is reserved: a sequence that reads it would read pages left behind by a window.
      if (from_.pages[i] < 1) refuse_entry("pages", i, from_.pages[i], "1 or more");
      if (*tokens < 1 || *tokens > full) {
        const bool are_given = from_.page_tokens != nullptr;
        refuse_entry(are_given ? "page_tokens" : "last_page_tokens", are_given ? i : s, *tokens,
                     "from 1 to block_tokens");
      }
      blocks_[i] = {name_of(i), static_cast<PageId>(from_.pages[i]), *tokens};
    }
    const std::int32_t queries = from_.query_counts != nullptr ? from_.query_counts[s] : 1;
    if (queries < 1) refuse_entry("query_counts", s, queries, "1 or more");
    sequences_.push_back(
        {std::span(blocks_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)), queries});
  }

  std::optional<BlockName> name_of(std::size_t page) const {
    if (from_.hashes == nullptr) return std::nullopt;
    BlockName name;
    std::memcpy(name.hash.data(), from_.hashes[page].bytes, sizeof from_.hashes[page].bytes);
    // All zero means a block without a name, such as a partial last one: it is not shared.
    if (name == BlockName{}) return std::nullopt;
    return name;
  }

  kvs_batch from_;
  std::vector<PlannedBlock> blocks_;
  std::vector<PlannedSequence> sequences_;
};

/// Common start of every plan: clears the result, and builds the tree of shared prefixes, which borrows from `given`.
template <class Plan>
SharedPrefixTree begin_plan(const kvs_batch* batch, Plan** plan, Batch& given) {
  if (plan == nullptr) refuse(KVS_BAD_REQUEST, "plan is NULL");
  *plan = nullptr;
  given.read(batch);
  return given.plan();
}

}  // namespace
}  // namespace kv

using namespace kv;

int kvs_plan_cascade(const kvs_batch* batch, size_t level_count_max, kvs_cascade** plan) {
  return gpu_call([&] {
    Batch given;
    SharedPrefixTree tree = begin_plan(batch, plan, given);
    // Bounded: each level is a launch of its own, and pays only if several sequences read its blocks.
    auto planned = plan_cascade(tree, level_count_max == 0 ? SIZE_MAX : level_count_max);
    if (!planned) {
      refuse(KVS_UNSUPPORTED, "level_count_max: " + std::to_string(level_count_max) +
                                  " levels put a partial page in the middle of an entry");
    }
    *plan = new kvs_cascade{std::move(tree.order), *std::move(planned)};
  });
}

int kvs_cascade_describe(const kvs_cascade* plan, size_t* level_count, const size_t** order) {
  return gpu_call([&] {
    if (plan == nullptr) refuse(KVS_BAD_REQUEST, "plan is NULL");
    if (level_count != nullptr) *level_count = plan->plan.levels.size();
    if (order != nullptr) *order = plan->order.data();
  });
}

int kvs_cascade_get_level(const kvs_cascade* plan, size_t index, kvs_cascade_level* level) {
  return gpu_call([&] {
    if (plan == nullptr) refuse(KVS_BAD_REQUEST, "plan is NULL");
    if (index >= plan->plan.levels.size()) {
      refuse(KVS_BAD_REQUEST, "index: " + std::to_string(index) + " is not below " +
                                  std::to_string(plan->plan.levels.size()) + " levels");
    }
    const CascadeLevel& from = plan->plan.levels[index];
    kvs_cascade_level out = KVS_CASCADE_LEVEL_INIT;
    out.entry_count = from.last_page_tokens.size();
    KV_ASSERT(from.query_indptr.size() == out.entry_count + 1 && from.page_indptr.size() == out.entry_count + 1);
    out.query_indptr = from.query_indptr.data();
    out.page_indptr = from.page_indptr.data();
    out.page_indices = from.page_indices.data();
    out.last_page_tokens = from.last_page_tokens.data();
    write_struct(out, level);
  });
}

void kvs_cascade_free(kvs_cascade* plan) { delete plan; }

int kvs_plan_chunks(const kvs_batch* batch, size_t sharing_threshold, kvs_chunks** plan) {
  return gpu_call([&] {
    Batch given;
    SharedPrefixTree tree = begin_plan(batch, plan, given);
    // A chunk shared by fewer than the threshold goes to each sequence as its own. 1: all sharing is used.
    auto planned = plan_chunks(tree, sharing_threshold == 0 ? 1 : sharing_threshold);
    if (!planned) refuse(KVS_UNSUPPORTED, "batch: query_counts: a plan of chunks has one query a sequence");
    auto made = std::make_unique<kvs_chunks>();
    made->order = std::move(tree.order);
    made->plan = *std::move(planned);
    for (const PageId page : made->plan.pages) made->pages.push_back(static_cast<std::int32_t>(page));
    *plan = made.release();
  });
}

int kvs_chunks_describe(const kvs_chunks* plan, kvs_chunks_view* view) {
  return gpu_call([&] {
    if (plan == nullptr) refuse(KVS_BAD_REQUEST, "plan is NULL");
    const ChunkPlan& from = plan->plan;
    kvs_chunks_view out = KVS_CHUNKS_VIEW_INIT;
    out.chunk_count = plan->pages.size();
    out.shared_count = from.shared_count();
    out.pages = plan->pages.data();
    out.token_counts = from.token_counts.data();
    out.begins = from.begins.data();
    out.ends = from.ends.data();
    out.offsets = from.offsets.data();
    out.partial_row_count = from.partial_row_count;
    out.chunk_count_max = from.chunk_count_max;
    out.sequence_chunks = from.sequence_chunks.data();
    out.sequence_tokens = from.sequence_tokens.data();
    out.order = plan->order.data();
    write_struct(out, view);
  });
}

void kvs_chunks_free(kvs_chunks* plan) { delete plan; }
