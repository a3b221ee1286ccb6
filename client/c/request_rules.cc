#include "client/c/request_rules.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "base/checksum.h"
#include "base/text/printable.h"
#include "client/c/c_status.h"
#include "index/name_groups.h"
#include "index/reuse_hint.h"

namespace kv::c_api {
namespace {

constexpr std::uint32_t kOpMax = KVS_OP_CONTEXT_LIST;
constexpr std::array<const char*, kOpMax + 1> kOpNames{"",
                                                       "open",
                                                       "wait_open",
                                                       "match",
                                                       "get",
                                                       "load",
                                                       "put",
                                                       "touch",
                                                       "retain",
                                                       "unretain",
                                                       "drop",
                                                       "release",
                                                       "lend",
                                                       "remove_device_memory",
                                                       "stats",
                                                       "match_set",
                                                       "get_set",
                                                       "put_set",
                                                       "why",
                                                       "context_create",
                                                       "context_extend",
                                                       "context_delete",
                                                       "context_warm",
                                                       "context_export",
                                                       "context_import",
                                                       "context_list"};

using Ops = std::uint32_t;  ///< A set of them.
template <class... Each>
constexpr Ops of(Each... ops) {
  return ((Ops{1} << ops) | ...);
}

constexpr Ops kGets = of(KVS_OP_GET, KVS_OP_LOAD);
constexpr Ops kSets = of(KVS_OP_MATCH_SET, KVS_OP_GET_SET, KVS_OP_PUT_SET);
constexpr Ops kChains = kGets | of(KVS_OP_MATCH, KVS_OP_PUT, KVS_OP_CONTEXT_CREATE);
constexpr Ops kHashes = kChains | kSets | of(KVS_OP_TOUCH, KVS_OP_RETAIN, KVS_OP_UNRETAIN, KVS_OP_DROP, KVS_OP_WHY);
constexpr Ops kMoving = kGets | of(KVS_OP_PUT, KVS_OP_GET_SET, KVS_OP_PUT_SET);
constexpr Ops kMemory = of(KVS_OP_LEND, KVS_OP_REMOVE_DEVICE_MEMORY);
constexpr Ops kTokens = of(KVS_OP_MATCH, KVS_OP_PUT);
constexpr Ops kFiles = of(KVS_OP_CONTEXT_EXPORT, KVS_OP_CONTEXT_IMPORT);
constexpr Ops kTimed = of(KVS_OP_CONTEXT_CREATE, KVS_OP_CONTEXT_EXTEND, KVS_OP_CONTEXT_IMPORT);
constexpr Ops kNamed =
    of(KVS_OP_CONTEXT_CREATE, KVS_OP_CONTEXT_EXTEND, KVS_OP_CONTEXT_DELETE, KVS_OP_CONTEXT_WARM, KVS_OP_CONTEXT_EXPORT);
constexpr Ops kAnswers = kNamed | kFiles | of(KVS_OP_STATS, KVS_OP_WHY, KVS_OP_CONTEXT_LIST);

struct Field {
  const char* name;
  std::size_t offset, bytes;
  Ops taken_by;
  Ops needed_by = 0;
};
#define KV_FIELD(name) #name, offsetof(kvs_request, name), sizeof(kvs_request::name)
/// In the order of the struct; those not listed (struct_size, op, deadline_us, tag) are every operation's.
constexpr Field kFields[] = {
    {KV_FIELD(space), kHashes | of(KVS_OP_WAIT_OPEN)},
    {KV_FIELD(reuse), kTokens | of(KVS_OP_LOAD, KVS_OP_MATCH_SET, KVS_OP_PUT_SET)},
    {KV_FIELD(lease), of(KVS_OP_GET, KVS_OP_GET_SET, KVS_OP_RELEASE)},
    {KV_FIELD(hashes), kHashes},
    {KV_FIELD(count), kHashes},
    {KV_FIELD(blocks), kMoving},
    {KV_FIELD(lengths), of(KVS_OP_GET_SET, KVS_OP_PUT_SET)},
    {KV_FIELD(checksums), kGets | of(KVS_OP_PUT)},
    {KV_FIELD(checksum_count), kGets | of(KVS_OP_PUT)},
    {KV_FIELD(token_ids), kTokens},
    {KV_FIELD(token_count), kTokens},
    {KV_FIELD(extras), kTokens},
    {KV_FIELD(extra_count), kTokens},
    {KV_FIELD(segment_ends), kGets},
    {KV_FIELD(segment_count), kGets},
    {KV_FIELD(on_segment), kGets},
    {KV_FIELD(segment_context), kGets},
    {KV_FIELD(block_count_min), of(KVS_OP_LOAD)},
    {KV_FIELD(group_counts), kSets},
    {KV_FIELD(group_count), kSets},
    {KV_FIELD(memory), kMemory, kMemory},
    {KV_FIELD(bytes), kMemory, kMemory},
    {KV_FIELD(record), of(KVS_OP_OPEN), of(KVS_OP_OPEN)},
    {KV_FIELD(name), kNamed | of(KVS_OP_CONTEXT_IMPORT, KVS_OP_CONTEXT_LIST), kNamed},
    {KV_FIELD(tags), of(KVS_OP_CONTEXT_CREATE)},
    {KV_FIELD(tag_count), of(KVS_OP_CONTEXT_CREATE)},
    {KV_FIELD(ttl_us), kTimed},
    {KV_FIELD(until_us), kTimed},
    {KV_FIELD(priority), kTimed},
    {KV_FIELD(file), kFiles, kFiles},
    {KV_FIELD(key_file), kFiles},
    {KV_FIELD(json), kAnswers},
    {KV_FIELD(json_capacity), kAnswers},
    {KV_FIELD(held), of(KVS_OP_MATCH_SET)},
    {KV_FIELD(held_bytes), of(KVS_OP_MATCH_SET)},
    {KV_FIELD(landed), of(KVS_OP_GET_SET)},
    {KV_FIELD(outcomes), of(KVS_OP_PUT_SET)},
};
#undef KV_FIELD

struct Flag {
  std::uint32_t flag;
  const char* name;
  Ops taken_by;
};
constexpr Flag kFlags[] = {
    {KVS_FLAG_LEASE, "LEASE", of(KVS_OP_MATCH, KVS_OP_MATCH_SET)},
    {KVS_FLAG_PREFETCH, "PREFETCH", of(KVS_OP_MATCH, KVS_OP_MATCH_SET)},
    {KVS_FLAG_MEMORY_ONLY, "MEMORY_ONLY", kGets | of(KVS_OP_GET_SET)},
    {KVS_FLAG_TELL_MATCH, "TELL_MATCH", of(KVS_OP_LOAD)},
    {KVS_FLAG_SLIDING, "SLIDING", kTimed},
    {KVS_FLAG_PRIORITY, "PRIORITY", kTimed},
    {KVS_FLAG_STOP, "STOP", of(KVS_OP_CONTEXT_WARM)},
    {KVS_FLAG_PARTIAL, "PARTIAL", of(KVS_OP_CONTEXT_EXPORT)},
    {KVS_FLAG_REPLACE, "REPLACE", of(KVS_OP_CONTEXT_EXPORT)},
};

constexpr std::uint64_t kDeadlineUsMax = 24ull * 3600 * 1'000'000;  // the client's limit
constexpr std::size_t kListMax = 1 << 24;                           // beyond any node's limit on a request
constexpr std::uint64_t kTimeUsMax = 9'000'000'000'000'000;         // in the year 2255: fits in nanoseconds
constexpr std::size_t kTextMax = 128, kTagsMax = 16;                // the nodes' limits

[[noreturn]] void refuse_value(const std::string& field, std::uint64_t value, const std::string& allowed,
                               int status = KVS_BAD_REQUEST) {
  refuse(status, field + ": " + std::to_string(value) + ", allowed " + allowed);
}
std::string up_to(std::uint64_t most) { return "are 0 to " + std::to_string(most); }
std::string element(const char* list, std::size_t i) { return std::string(list) + "[" + std::to_string(i) + "]"; }

bool is_zero(const kvs_request& request, const Field& field) {
  const char* const at = reinterpret_cast<const char*>(&request) + field.offset;
  // By two fixed sizes: a copy of any size costs a call for each field, 0.1 us in all.
  std::uint32_t first = 0, second = 0;
  std::memcpy(&first, at, sizeof first);
  if (field.bytes > sizeof first) std::memcpy(&second, at + sizeof first, sizeof second);
  return (first | second) == 0;
}

void check_fields(const kvs_request& request, Ops op) {
  for (const Field& field : kFields) {
    static_assert(std::ranges::all_of(kFields, [](const Field& each) { return each.bytes == 4 || each.bytes == 8; }));
    const bool is_given = !is_zero(request, field);
    if (is_given && (field.taken_by & op) == 0) {
      refuse(KVS_BAD_REQUEST, std::string(field.name) + ": is set, allowed for " + op_name(request.op) + " is 0");
    }
    if (!is_given && (field.needed_by & op) != 0) {
      refuse(KVS_BAD_REQUEST, std::string(field.name) + ": is 0, and " + op_name(request.op) + " needs it");
    }
  }
  std::uint32_t allowed = 0, known = 0;
  for (const Flag& flag : kFlags) {
    known |= flag.flag;
    if ((flag.taken_by & op) != 0) allowed |= flag.flag;
  }
  if ((request.flags & ~allowed) == 0) return;
  std::string names;
  for (const Flag& flag : kFlags) {
    if ((flag.taken_by & op) != 0) names += std::string(" ") + flag.name;
  }
  refuse_value("flags", request.flags,
               std::string("for ") + op_name(request.op) + (names.empty() ? " are none" : " are" + names),
               (request.flags & ~known) != 0 ? KVS_UNSUPPORTED : KVS_BAD_REQUEST);
}

void check_list(const char* name, const void* list, const char* count_name, std::size_t count) {
  if (count > kListMax) refuse_value(count_name, count, up_to(kListMax), KVS_TOO_LARGE);
  if (list == nullptr && count > 0) {
    refuse(KVS_BAD_REQUEST,
           std::string(name) + ": NULL, allowed for " + count_name + " " + std::to_string(count) + " is a list");
  }
}

void check_lists(const kvs_request& request, Ops op) {
  check_list("hashes", request.hashes, "count", request.count);
  if ((op & kMoving) != 0) check_list("blocks", request.blocks, "count", request.count);
  if ((op & (of(KVS_OP_GET_SET, KVS_OP_PUT_SET))) != 0) {
    check_list("lengths", request.lengths, "count", request.count);
  }
  check_list("checksums", request.checksums, "checksum_count", request.checksum_count);
  check_list("token_ids", request.token_ids, "token_count", request.token_count);
  check_list("extras", request.extras, "extra_count", request.extra_count);
  check_list("segment_ends", request.segment_ends, "segment_count", request.segment_count);
  check_list("group_counts", request.group_counts, "group_count", request.group_count);
  if (request.tag_count > kTagsMax) refuse_value("tag_count", request.tag_count, up_to(kTagsMax));
  check_list("tags", request.tags, "tag_count", request.tag_count);
  if (request.json == nullptr && request.json_capacity > 0) {
    refuse_value("json_capacity", request.json_capacity, "for json NULL is 0");
  }
  for (std::size_t i = 0; i < request.count && request.blocks != nullptr; ++i) {
    // Refused here, in the caller's call; later it would crash the I/O thread.
    if (request.blocks[i] == nullptr) refuse(KVS_BAD_REQUEST, element("blocks", i) + ": NULL, allowed is an address");
  }
}

void check_count(const char* name, std::size_t count, std::size_t least, std::size_t most) {
  if (count == 0 || (count >= least && count <= most)) return;
  refuse_value(name, count,
               "are 0 and " + std::to_string(least) + (most > least ? " to " + std::to_string(most) : std::string()));
}

/// Of a chain's calls, against its block's size.
void check_chain(const kvs_request& request, SpaceSize size) {
  const std::size_t sums = request.count * stripe_count(size.block_bytes);
  check_count("checksum_count", request.checksum_count, sums, sums);
  const std::size_t most = request.count + (request.op == KVS_OP_MATCH ? 1 : 0);
  check_count("token_count", request.token_count, request.count * size.block_size, most * size.block_size);
  check_count("extra_count", request.extra_count, request.count, most);
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < request.segment_count; ++i) {
    const std::uint64_t end = request.segment_ends[i];
    const bool is_last = i + 1 == request.segment_count;
    if (end <= before || end > size.block_bytes || (is_last && end != size.block_bytes)) {
      refuse_value(element("segment_ends", i), end,
                   is_last ? "is the block's " + std::to_string(size.block_bytes)
                           : "are " + std::to_string(before + 1) + " to " + std::to_string(size.block_bytes));
    }
    before = end;
  }
}

void check_set(const kvs_request& request, SpaceSize size) {
  if (request.op == KVS_OP_PUT_SET) {
    for (std::size_t i = 0; i < request.count; ++i) {
      const std::size_t length = request.lengths[i];
      if (length > 0 && length <= size.block_bytes) continue;
      refuse(KVS_BAD_REQUEST, element("lengths", i) + ": " + std::to_string(length) + ", not 1.." +
                                  std::to_string(size.block_bytes) + ", the set's block_bytes_max");
    }
  }
  const Hashes names(reinterpret_cast<const BlockHash*>(request.hashes), request.count);
  const std::string why = check_groups(names, {request.group_counts, request.group_count});
  if (!why.empty()) refuse(KVS_BAD_REQUEST, why);
}

void check_space(const kvs_request& request, Ops op, SpaceSize size) {
  if (size.block_bytes == 0) {
    refuse(KVS_BAD_REQUEST, "space: " + std::to_string(request.space) + ", allowed are those opened by this client");
  }
  const bool is_set = size.block_size == 0;
  if ((is_set && (op & kChains) != 0) || (!is_set && (op & kSets) != 0)) {
    refuse(KVS_UNSUPPORTED, "space: " + std::to_string(request.space) + " is a " + (is_set ? "set" : "chain's") +
                                ", allowed for " + op_name(request.op) + " is a " + (is_set ? "chain's" : "set"));
  }
  if ((op & kSets) != 0) return check_set(request, size);
  if ((op & kChains) != 0) check_chain(request, size);
}

void check_text(const std::string& field, const char* text, char first) {
  const std::string_view given(text, ::strnlen(text, kTextMax + 1));
  const bool is_good = std::ranges::all_of(given, [first](char each) { return each >= first && each < 127; });
  if (is_good && !given.empty() && given.size() <= kTextMax) return;
  refuse(KVS_BAD_REQUEST, field + ": '" + printable(given) + "', allowed are 1 to 128 " +
                              (first == ' ' ? "printable" : "visible") + " ASCII characters");
}

void check_context(const kvs_request& request, Ops op) {
  if (request.name != nullptr) check_text("name", request.name, '!');
  for (std::size_t i = 0; i < request.tag_count; ++i) {
    if (request.tags[i] == nullptr) refuse(KVS_BAD_REQUEST, element("tags", i) + ": NULL, allowed is a text");
    check_text(element("tags", i), request.tags[i], ' ');
  }
  if (request.priority > 9) refuse_value("priority", request.priority, up_to(9));
  if (request.priority > 0 && (request.flags & KVS_FLAG_PRIORITY) == 0) {
    refuse_value("priority", request.priority, "without KVS_FLAG_PRIORITY is 0");
  }
  if ((op & kTimed) == 0) return;
  if (request.ttl_us > kTimeUsMax) refuse_value("ttl_us", request.ttl_us, up_to(kTimeUsMax));
  if (request.until_us > kTimeUsMax) refuse_value("until_us", request.until_us, up_to(kTimeUsMax));
  if (request.until_us > 0 && request.ttl_us > 0) refuse_value("until_us", request.until_us, "beside ttl_us is 0");
  if (request.ttl_us > 0) return;
  if ((request.flags & KVS_FLAG_SLIDING) != 0) refuse_value("ttl_us", 0, "with KVS_FLAG_SLIDING are 1 and more");
  if (request.until_us == 0 && request.op != KVS_OP_CONTEXT_IMPORT) {
    refuse_value("ttl_us", 0, "without until_us are 1 and more");
  }
}

}  // namespace

const char* op_name(std::uint32_t op) { return op <= kOpMax ? kOpNames[op] : ""; }

bool takes_space(std::uint32_t op) { return op <= kOpMax && ((kHashes | of(KVS_OP_WAIT_OPEN)) & (Ops{1} << op)) != 0; }

void check_request(const kvs_request& request, SpaceSize size) {
  if (request.op < 1 || request.op > kOpMax) {
    refuse_value("op", request.op, "are 1 to " + std::to_string(kOpMax) + " (KVS_OP_...)", KVS_UNSUPPORTED);
  }
  const Ops op = Ops{1} << request.op;
  check_fields(request, op);
  if (request.deadline_us > kDeadlineUsMax) refuse_value("deadline_us", request.deadline_us, up_to(kDeadlineUsMax));
  if (request.reuse > kReuseHintMax) {
    refuse_value("reuse", request.reuse, up_to(kReuseHintMax) + " (KVS_REUSE_...)");
  }
  check_lists(request, op);
  if (takes_space(request.op)) check_space(request, op, size);
  check_context(request, op);
}

}  // namespace kv::c_api
