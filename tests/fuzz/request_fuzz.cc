// A kvs_request with any of its fields changed, as kvs_run and kvs_submit take it: refused with words, or a call that
// ends once. Lists are as long as their counts say, unless a count is beyond any list: that much a C caller must keep.
#include <cstring>
#include <set>
#include <string>

#include "base/assert.h"
#include "tests/client/requests.h"
#include "tests/fuzz/input.h"

namespace kv {
namespace {

struct Bench : RequestBench {
  Bench() {
    kvs_queue_options options = KVS_QUEUE_OPTIONS_INIT;
    KV_ASSERT(kvs_queue_open(client, &options, &queue) == KVS_OK);
  }
  kvs_queue* queue = nullptr;
};

/// A change that keeps every pointer good for its count. A second one of a field might undo the first by halves.
void change(kvs_request& request, Input& input, std::set<std::size_t>& changed) {
  const auto& fields = wrong_fields();
  const std::size_t which = input.below(fields.size() + 8);
  if (!changed.insert(which).second) return;
  switch (which) {
    case 0: request.flags = static_cast<std::uint32_t>(input.number(2)); break;
    case 1: request.deadline_us = input.below(2000); break;
    case 2: request.count = input.below(kRequestBlocks + 1); break;
    case 3: request.priority = input.byte(); break;
    case 4: request.ttl_us = input.number(8); break;
    case 5: request.until_us = input.number(8); break;
    case 6: request.json_capacity = input.below(1024); break;
    case 7: request.block_count_min = input.below(4); break;
    default: fields[which - 8].make(request);
  }
}

}  // namespace
}  // namespace kv

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  static Bench* const bench = new Bench;
  Input input(data, size);
  const std::uint32_t op = 1 + static_cast<std::uint32_t>(input.below(kOps));
  kvs_request request = bench->good(op);
  std::set<std::size_t> changed;
  while (!input.empty()) change(request, input, changed);

  kvs_completion done;
  const int status = kvs_run(bench->client, &request, &done, sizeof done);
  KV_ASSERT(done.status == status && status != KVS_INTERNAL);
  KV_ASSERT(status == KVS_OK || std::strlen(kvs_last_error()) > 0);
  kvs_call call = 0;
  if (kvs_submit(bench->queue, &request, &call) == KVS_OK) {
    std::size_t count = 0;
    KV_ASSERT(kvs_wait(bench->queue, &call, 1, 1, 60'000'000, &done, sizeof done, &count) == KVS_OK && count == 1);
  } else {
    KV_ASSERT(call == 0 && std::strlen(kvs_last_error()) > 0);
  }
  std::size_t calls = 1;
  std::uint64_t bytes = 1;
  KV_ASSERT(kvs_queue_in_flight(bench->queue, &calls, &bytes) == KVS_OK && calls == 0 && bytes == 0);
  return 0;
}
