// tests/client/requests.h: a good kvs_request of each operation, and every way to make a field of it wrong.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/assert.h"
#include "client/kvstore.h"

namespace kv {

inline constexpr std::uint32_t kOps = KVS_OP_CONTEXT_LIST;
inline constexpr std::size_t kRequestBlocks = 2, kRequestBlockBytes = 131072, kRequestBlockSize = 16;

/// A client that reaches no node, with a chain and a set opened, and memory for any request.
class RequestBench {
 public:
  RequestBench() {
    kvs_node node = {"unix:///nonexistent/kvstore.sock", nullptr, 0};
    kvs_options options = KVS_OPTIONS_INIT;
    options.nodes = &node;
    options.node_count = 1;
    KV_ASSERT(kvs_client_open(&options, &client) == KVS_OK);
    chain_ = open("model=m\nblock_size=16\nblock_bytes=131072\n");
    set_ = open("model=m\nkind=set\nblock_bytes_max=131072\n");
    for (std::size_t i = 0; i < kRequestBlocks; ++i) {
      hashes_[i].bytes[0] = static_cast<std::uint8_t>(i + 1);
      blocks_[i] = memory_.data() + i * kRequestBlockBytes;
    }
  }
  ~RequestBench() { kvs_client_close(client); }
  RequestBench(const RequestBench&) = delete;
  RequestBench& operator=(const RequestBench&) = delete;

  /// With all fields that the operation takes; it ends soon, since no node is there.
  kvs_request good(std::uint32_t op) {
    kvs_request made = KVS_REQUEST_INIT(op);
    const auto is = [op](auto... ops) { return ((op == ops) || ...); };
    made.deadline_us = 1000;
    if (is(KVS_OP_OPEN)) made.record = "model=m\nblock_size=16\nblock_bytes=131072\n";
    const bool is_set = is(KVS_OP_MATCH_SET, KVS_OP_GET_SET, KVS_OP_PUT_SET);
    const bool is_get = is(KVS_OP_GET, KVS_OP_LOAD);
    if ((op >= KVS_OP_MATCH && op <= KVS_OP_DROP) || is_set || is(KVS_OP_WHY, KVS_OP_CONTEXT_CREATE)) {
      made.hashes = hashes_.data();
      made.count = kRequestBlocks;
    }
    if (made.count > 0 || is(KVS_OP_WAIT_OPEN)) made.space = is_set ? set_ : chain_;
    if (is_get || is(KVS_OP_PUT, KVS_OP_GET_SET, KVS_OP_PUT_SET)) made.blocks = blocks_.data();
    if (is(KVS_OP_GET_SET, KVS_OP_PUT_SET)) made.lengths = lengths_.data();
    if (is_get || is(KVS_OP_PUT)) {
      made.checksums = checksums_.data();
      made.checksum_count = kRequestBlocks * 2;
    }
    if (is(KVS_OP_MATCH, KVS_OP_PUT)) {
      made.token_ids = tokens_.data();
      made.token_count = kRequestBlocks * kRequestBlockSize;
      made.extras = extras_.data();
      made.extra_count = kRequestBlocks;
    }
    if (is_get) {
      made.segment_ends = segment_ends_.data();
      made.segment_count = segment_ends_.size();
    }
    if (is_set) {
      made.group_counts = group_counts_.data();
      made.group_count = group_counts_.size();
    }
    if (is(KVS_OP_LEND, KVS_OP_REMOVE_DEVICE_MEMORY)) {
      made.memory = memory_.data();
      made.bytes = memory_.size();
    }
    if (op >= KVS_OP_CONTEXT_CREATE) made.name = "name";
    if (is(KVS_OP_CONTEXT_CREATE)) {
      made.tags = tags_.data();
      made.tag_count = tags_.size();
    }
    if (is(KVS_OP_CONTEXT_CREATE, KVS_OP_CONTEXT_EXTEND, KVS_OP_CONTEXT_IMPORT)) made.ttl_us = 1'000'000;
    if (is(KVS_OP_CONTEXT_EXPORT, KVS_OP_CONTEXT_IMPORT)) made.file = "/nonexistent/file";
    if (op >= KVS_OP_WHY || is(KVS_OP_STATS)) {
      made.json = json_.data();
      made.json_capacity = json_.size();
    }
    return made;
  }

  kvs_client* client = nullptr;

 private:
  kvs_space open(const char* record) {
    kvs_request request = KVS_REQUEST_INIT(KVS_OP_OPEN);
    request.record = record;
    kvs_completion done;
    KV_ASSERT(kvs_run(client, &request, &done, sizeof done) == KVS_OK && done.block_bytes == kRequestBlockBytes);
    return done.space;
  }

  kvs_space chain_ = 0, set_ = 0;
  std::array<kvs_hash, kRequestBlocks> hashes_{};
  std::array<void*, kRequestBlocks> blocks_{};
  std::array<std::size_t, kRequestBlocks> lengths_{1, kRequestBlockBytes};
  std::array<std::uint64_t, kRequestBlocks * 2> checksums_{};
  std::array<std::uint32_t, kRequestBlocks * kRequestBlockSize> tokens_{};
  std::array<kvs_extra, kRequestBlocks> extras_{};
  std::array<std::uint64_t, 2> segment_ends_{65536, kRequestBlockBytes};
  std::array<std::uint32_t, 1> group_counts_{kRequestBlocks};
  std::array<const char*, 1> tags_{"tag"};
  std::array<char, 1024> json_{};
  std::vector<std::byte> memory_ = std::vector<std::byte>(kRequestBlocks * kRequestBlockBytes);
};

/// Makes one field wrong, whatever the operation: one that the operation does not take is set.
struct WrongField {
  const char* name;
  std::function<void(kvs_request&)> make;
};

inline const std::vector<WrongField>& wrong_fields() {
  static void* const no_blocks[kRequestBlocks] = {};
  static const std::uint64_t ends_twice[2] = {65536, 65536};
  static const std::uint32_t too_many[1] = {kRequestBlocks + 1};
  static const char* const bad_tags[1] = {"\n"};
  static char text[] = "x";
  /// Sets a list that is taken to nullptr, and one that is not to something.
  const auto list = [](const char* name, auto pointer, auto count) {
    return WrongField{name, [=](kvs_request& request) {
                        using T = std::remove_reference_t<decltype(request.*pointer)>;
                        const bool is_taken = request.*pointer != nullptr;
                        request.*pointer = is_taken ? nullptr : reinterpret_cast<T>(text);
                        if (is_taken && request.*count == 0) request.*count = 1;
                      }};
  };
  using R = kvs_request;
  static const std::vector<WrongField> fields = {
      {"struct_size", [](R& r) { r.struct_size = 7; }},
      {"struct_size", [](R& r) { r.struct_size = 65537; }},
      {"op", [](R& r) { r.op = 0; }},
      {"op", [](R& r) { r.op = kOps + 1; }},
      {"flags", [](R& r) { r.flags = 1u << 31; }},
      {"space", [](R& r) { r.space = 77; }},
      {"reuse", [](R& r) { r.reuse = KVS_REUSE_LATER + 1; }},
      {"deadline_us", [](R& r) { r.deadline_us = ~std::uint64_t{0}; }},
      list("hashes", &R::hashes, &R::count),
      {"count", [](R& r) { r.count = ~std::size_t{0}; }},
      list("blocks", &R::blocks, &R::count),
      {"blocks", [](R& r) { r.blocks = no_blocks; }},
      list("lengths", &R::lengths, &R::count),
      list("checksums", &R::checksums, &R::checksum_count),
      {"checksum_count", [](R& r) { r.checksum_count = 1; }},
      list("token_ids", &R::token_ids, &R::token_count),
      {"token_count", [](R& r) { r.token_count = 1; }},
      list("extras", &R::extras, &R::extra_count),
      {"extra_count", [](R& r) { r.extra_count = 1; }},
      list("segment_ends", &R::segment_ends, &R::segment_count),
      {"segment_ends", [](R& r) { r.segment_ends = ends_twice; }},
      {"segment_", [](R& r) { r.segment_count = 1; }},  // named by the end that is not the block's
      list("group_counts", &R::group_counts, &R::group_count),
      {"group_counts", [](R& r) { r.group_counts = too_many; }},
      list("memory", &R::memory, &R::bytes),
      {"bytes", [](R& r) { r.bytes = r.bytes > 0 ? 0 : 1; }},
      {"record", [](R& r) { r.record = r.record != nullptr ? nullptr : text; }},
      {"name", [](R& r) { r.name = "a b"; }},
      {"name", [](R& r) { r.name = ""; }},
      list("tags", &R::tags, &R::tag_count),
      {"tags", [](R& r) { r.tags = bad_tags; }},
      {"tag_count", [](R& r) { r.tag_count = 17; }},
      {"ttl_us", [](R& r) { r.ttl_us = ~std::uint64_t{0}; }},
      {"until_us", [](R& r) { r.until_us = 1; }},
      {"priority", [](R& r) { r.priority = 10; }},
      {"file", [](R& r) { r.file = r.file != nullptr ? nullptr : text; }},
      {"json_capacity",
       [](R& r) {
         r.json_capacity = 1;
         r.json = nullptr;
       }},
  };
  return fields;
}

}  // namespace kv
