#include "client/c/read_request.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "client/c/stats_json.h"

namespace kv::c_api {
namespace {

// The numbers are public and cast, not translated. Comparing the last ones catches an insertion in one of the lists.
static_assert(KVS_OP_OPEN == static_cast<int>(Op::kOpen) && KVS_OP_STATS == static_cast<int>(Op::kStats) &&
              KVS_OP_PUT_SET == static_cast<int>(Op::kPutSet) && KVS_OP_WHY == static_cast<int>(Op::kWhy) &&
              KVS_OP_CONTEXT_LIST == static_cast<int>(Op::kListContexts));
static_assert(KVS_HELD_NOWHERE == static_cast<int>(Held::kNowhere) &&
              KVS_HELD_IN_MEMORY == static_cast<int>(Held::kInMemory) &&
              KVS_HELD_ON_DISK == static_cast<int>(Held::kOnDisk));
static_assert(KVS_PUT_REFUSED == static_cast<int>(SetPutBlock::kRefused) &&
              KVS_PUT_STORED == static_cast<int>(SetPutBlock::kStored) &&
              KVS_PUT_ALREADY_STORED == static_cast<int>(SetPutBlock::kAlreadyStored) &&
              KVS_PUT_CONFLICT == static_cast<int>(SetPutBlock::kConflict));
static_assert(sizeof(kvs_hash) == sizeof(BlockHash) && alignof(kvs_hash) == alignof(BlockHash));
static_assert(sizeof(kvs_extra) == sizeof(ExtraDigest) && alignof(kvs_extra) == alignof(ExtraDigest));

/// A context's arguments, with copies of what the caller may free after a submit.
struct ContextArguments {
  std::vector<BlockHash> hashes;
  std::string name;
  std::vector<std::string> tags;
  ContextTime life;
  std::optional<std::uint8_t> priority;
};

ContextTime life_of(const kvs_request& given) {
  ContextTime life;
  life.ttl = std::chrono::microseconds(given.ttl_us);  // may exceed a day
  life.is_sliding = (given.flags & KVS_FLAG_SLIDING) != 0;
  if (given.until_us > 0) {
    life.until = std::chrono::system_clock::time_point(std::chrono::microseconds(given.until_us));
  }
  return life;
}

std::optional<std::uint8_t> priority_of(const kvs_request& given) {
  if ((given.flags & KVS_FLAG_PRIORITY) == 0) return std::nullopt;
  return static_cast<std::uint8_t>(given.priority);
}

/// Where an answer in words goes. Written on the I/O thread before the call's end.
struct JsonPlace {
  char* to;
  std::size_t capacity;
  std::size_t write(const std::string& text) const {
    if (text.size() + 1 > capacity) return text.size() | kDoesNotFit;
    std::memcpy(to, text.c_str(), text.size() + 1);
    return text.size();
  }
};

template <class T>
Async<std::size_t> write_answer(Async<T> asked, std::string (*json_of)(const T&), JsonPlace json) {
  // When cancelled, it ends only after the client's call: `json` is not written after the completion.
  const auto answer = co_await std::move(asked);
  if (!answer) co_return answer.error();
  co_return json.write(json_of(*answer));
}

Async<std::size_t> write_stats(Client& client, std::chrono::microseconds deadline, CallControl control,
                               JsonPlace json) {
  NodeQuestion question{.path = "/stats.json"};
  const auto stats = co_await client.ask(std::move(question), deadline, control);
  if (!stats) co_return stats.error();
  co_return json.write(stats_json(*stats, client.numa()));
}

/// The calls whose answer is words. The arguments live with the Work.
Async<std::size_t> ask(Client& client, CallControl control, const Request& request, std::uint32_t flags,
                       const ContextArguments& own, JsonPlace json) {
  const auto deadline = request.deadline;
  switch (request.op) {
    case Op::kStats: return write_stats(client, deadline, control, json);
    case Op::kWhy: return write_answer(client.why(request.space, own.hashes, deadline, control), &miss_json, json);
    case Op::kCreateContext: {
      const ContextOptions options{.deadline = deadline,
                                   .name = own.name,
                                   .life = own.life,
                                   .tags = own.tags,
                                   .priority = own.priority.value_or(ContextOptions{}.priority),
                                   .control = control};
      return write_answer(client.create_context(request.space, own.hashes, options), &context_json, json);
    }
    case Op::kExtendContext:
      return write_answer(client.extend_context(own.name, own.life, deadline, control, own.priority), &context_json,
                          json);
    case Op::kDeleteContext:
      return write_answer(client.delete_context(own.name, deadline, control), &context_json, json);
    case Op::kWarmContext:
      return write_answer((flags & KVS_FLAG_STOP) != 0 ? client.stop_warming_context(own.name, deadline, control)
                                                       : client.warm_context(own.name, deadline, control),
                          &context_json, json);
    default: return write_answer(client.list_contexts(own.name, deadline, control), &contexts_json, json);
  }
}

// Called at a set call's end, also after a failure: the lists then say "not held" instead of old content. Without a
// capture: a request keeps a function pointer and addresses only. A list may be NULL, and a result without elements
// comes from a call that failed before any block.

const SetResults& results_of(const Completion& end) {
  static const SetResults kNone;
  return end.sets ? *end.sets : kNone;
}

void write_held(const SetLists& lists, const Completion& end) {
  const SetMatchResult& match = results_of(end).match;
  const bool is_empty = match.held.empty();
  KV_ASSERT(match.held.size() == match.block_bytes.size() && (is_empty || match.held.size() == lists.count));
  auto* const held = static_cast<std::uint8_t*>(lists.first);
  auto* const block_bytes = static_cast<std::uint32_t*>(lists.second);
  for (std::size_t i = 0; i < lists.count; ++i) {
    if (held) held[i] = is_empty ? std::uint8_t{KVS_HELD_NOWHERE} : static_cast<std::uint8_t>(match.held[i]);
    if (block_bytes) block_bytes[i] = is_empty ? 0 : match.block_bytes[i];
  }
}

void write_landed(const SetLists& lists, const Completion& end) {
  const SetGetResult& got = results_of(end).get;
  KV_ASSERT(got.blocks.empty() || got.blocks.size() == lists.count);
  auto* const landed = static_cast<kvs_set_block*>(lists.first);
  for (std::size_t i = 0; i < lists.count && landed != nullptr; ++i) {
    const SetGetBlock block = got.blocks.empty() ? SetGetBlock{.why = end.error} : got.blocks[i];
    KV_ASSERT(!block.has_landed || (!block.why && block.block_bytes > 0));
    landed[i] = {.status = block.has_landed ? KVS_OK
                           : block.why      ? status_of(block.why)
                                            : KVS_NOT_FOUND,
                 .block_bytes = block.block_bytes};
  }
}

void write_outcomes(const SetLists& lists, const Completion& end) {
  const SetPutResult& put = results_of(end).put;
  KV_ASSERT(put.blocks.empty() || put.blocks.size() == lists.count);
  auto* const outcomes = static_cast<std::uint8_t*>(lists.first);
  for (std::size_t i = 0; i < lists.count && outcomes != nullptr; ++i) {
    outcomes[i] = put.blocks.empty() ? std::uint8_t{KVS_PUT_REFUSED} : static_cast<std::uint8_t>(put.blocks[i]);
  }
}

}  // namespace

TraceContext& trace_of_thread() noexcept {
  thread_local TraceContext trace;
  return trace;
}

void ReadRequest::read(SpaceSize size) {
  check_request(given_, size);
  request_.op = static_cast<Op>(given_.op);
  request_.space = Space{given_.space};
  request_.deadline = std::chrono::microseconds(given_.deadline_us);
  request_.tag = given_.tag;
  request_.lease = Lease{given_.lease};
  request_.wants_lease = (given_.flags & KVS_FLAG_LEASE) != 0;
  request_.prefetch = (given_.flags & KVS_FLAG_PREFETCH) != 0;
  request_.memory_only = (given_.flags & KVS_FLAG_MEMORY_ONLY) != 0;
  request_.tell_match = (given_.flags & KVS_FLAG_TELL_MATCH) != 0;
  request_.reuse = static_cast<ReuseHint>(given_.reuse);
  request_.memory = {static_cast<std::byte*>(given_.memory), given_.bytes};
  request_.trace = trace_of_thread();
  read_lists();
  if (given_.blocks != nullptr) read_blocks(size);
  if (given_.record != nullptr) read_record();
  if (given_.op >= KVS_OP_WHY || given_.op == KVS_OP_STATS) make_work();
}

void ReadRequest::read_lists() {
  request_.hashes = {reinterpret_cast<const BlockHash*>(given_.hashes), given_.count};
  request_.token_ids = {given_.token_ids, given_.token_count};
  request_.extras = {reinterpret_cast<const ExtraDigest*>(given_.extras), given_.extra_count};
  request_.segment_ends = {given_.segment_ends, given_.segment_count};
  request_.on_segment = {given_.on_segment, given_.segment_context};
  request_.block_count_min = std::max<std::size_t>(given_.block_count_min, 1);
  request_.group_counts = {given_.group_counts, given_.group_count};
  request_.checksums = {given_.checksums, given_.checksum_count};
  request_.checksums_of_from = request_.checksums;
  request_.lists.count = given_.count;
  switch (request_.op) {
    case Op::kMatchSet:
      request_.lists.write = &write_held;
      request_.lists.first = given_.held;
      request_.lists.second = given_.held_bytes;
      break;
    case Op::kGetSet:
      request_.lists.write = &write_landed;
      request_.lists.first = given_.landed;
      break;
    case Op::kPutSet:
      request_.lists.write = &write_outcomes;
      request_.lists.first = given_.outcomes;
      break;
    default: break;
  }
}

void ReadRequest::read_blocks(SpaceSize size) {
  const bool is_put = request_.op == Op::kPut || request_.op == Op::kPutSet;
  is_put ? from_.resize(given_.count) : to_.resize(given_.count);
  for (std::size_t i = 0; i < given_.count; ++i) {
    auto* const block = static_cast<std::byte*>(given_.blocks[i]);
    // Room beyond a set's largest block cannot be filled. 0 is allowed: the block is reported as too long.
    const std::size_t bytes =
        given_.lengths == nullptr ? size.block_bytes : std::min(given_.lengths[i], size.block_bytes);
    is_put ? void(from_[i] = {block, bytes}) : void(to_[i] = {block, bytes});
  }
  request_.to = to_;
  request_.from = from_;
}

void ReadRequest::read_record() {
  auto record = parse_record(given_.record);
  if (!record) refuse(KVS_BAD_REQUEST, record.error().text);
  record_ = *std::move(record);
  request_.record = &*record_;
}

void ReadRequest::make_work() {
  ContextArguments own{.hashes = {request_.hashes.begin(), request_.hashes.end()},
                       .name = given_.name != nullptr ? given_.name : "",
                       .tags = {given_.tags, given_.tags + given_.tag_count},
                       .life = life_of(given_),
                       .priority = priority_of(given_)};
  const JsonPlace json{.to = given_.json, .capacity = given_.json_capacity};
  Request plain = request_;
  plain.hashes = {};  // the caller's
  work_ = [plain, flags = given_.flags, own = std::move(own), json](Client& client, CallControl control) {
    return ask(client, control, plain, flags, own, json);
  };
  request_.work = &work_;
}

ContextExportOptions ReadRequest::export_options() const {
  ContextExportOptions options{.deadline = request_.deadline};
  options.is_partial = (given_.flags & KVS_FLAG_PARTIAL) != 0;
  options.replaces = (given_.flags & KVS_FLAG_REPLACE) != 0;
  if (given_.key_file != nullptr) options.key_file = given_.key_file;
  return options;
}

ContextImportOptions ReadRequest::import_options() const {
  ContextImportOptions options{.deadline = request_.deadline};
  if (given_.name != nullptr) options.name = given_.name;
  if (given_.key_file != nullptr) options.key_file = given_.key_file;
  if (given_.ttl_us > 0 || given_.until_us > 0) options.life = life_of(given_);
  options.priority = priority_of(given_);
  return options;
}

}  // namespace kv::c_api
