// Requests of the C ABI with a wrong field, alone and in pairs: refused by its name, and nothing is left behind.
#include <gtest/gtest.h>

#include <string>

#include "tests/client/requests.h"

namespace kv {
namespace {

class RequestRulesTest : public testing::Test {
 protected:
  RequestRulesTest() {
    kvs_queue_options options = KVS_QUEUE_OPTIONS_INIT;
    EXPECT_EQ(kvs_queue_open(bench.client, &options, &queue), KVS_OK);
  }
  ~RequestRulesTest() override { kvs_queue_close(queue); }

  /// Refused by both ways in, with one of these names in front.
  void expect_refused(const kvs_request& request, const std::string& name, const std::string& other) {
    kvs_completion done;
    const int status = kvs_run(bench.client, &request, &done, sizeof done);
    const std::string text = kvs_last_error();
    EXPECT_TRUE(status == KVS_BAD_REQUEST || status == KVS_UNSUPPORTED || status == KVS_TOO_LARGE) << status;
    EXPECT_EQ(done.status, status);
    EXPECT_TRUE(text.starts_with(name) || text.starts_with(other)) << text;
    EXPECT_NE(text.find_first_of(":"), std::string::npos) << text;
    EXPECT_EQ(kvs_submit(queue, &request, nullptr), status);
    EXPECT_EQ(kvs_last_error(), text);
  }

  RequestBench bench;
  kvs_queue* queue = nullptr;
};

TEST_F(RequestRulesTest, AGoodRequestOfEachOperationIsTaken) {
  for (std::uint32_t op = 1; op <= kOps; ++op) {
    SCOPED_TRACE(op);
    const kvs_request request = bench.good(op);
    const bool is_of_file = op == KVS_OP_CONTEXT_EXPORT || op == KVS_OP_CONTEXT_IMPORT;
    kvs_call call = 0;
    const int status = kvs_submit(queue, &request, &call);
    EXPECT_EQ(status, is_of_file ? KVS_UNSUPPORTED : KVS_OK) << kvs_last_error();
    kvs_completion done;
    std::size_t count = 0;
    if (!is_of_file) {
      EXPECT_EQ(kvs_wait(queue, &call, 1, 1, 10'000'000, &done, sizeof done, &count), KVS_OK);
      EXPECT_EQ(count, 1u);
    }
    kvs_run(bench.client, &request, &done, sizeof done);
    EXPECT_EQ(std::string(kvs_last_error()).find("allowed"), std::string::npos) << kvs_last_error();
  }
}

TEST_F(RequestRulesTest, AWrongFieldIsRefusedByItsNameAloneAndInPairs) {
  const auto& fields = wrong_fields();
  for (std::uint32_t op = 1; op <= kOps; ++op) {
    for (std::size_t i = 0; i < fields.size(); ++i) {
      for (std::size_t j = i; j < fields.size(); ++j) {
        SCOPED_TRACE("op " + std::to_string(op) + ": " + fields[i].name + ", " + fields[j].name);
        kvs_request request = bench.good(op);
        fields[i].make(request);
        if (j > i) fields[j].make(request);
        if (j > i && std::string(fields[i].name) == fields[j].name) continue;  // may undo each other
        expect_refused(request, fields[i].name, fields[j].name);
        if (HasFailure()) return;
      }
    }
  }
  std::size_t calls = 1;
  EXPECT_EQ(kvs_queue_in_flight(queue, &calls, nullptr), KVS_OK);
  EXPECT_EQ(calls, 0u);
}

TEST_F(RequestRulesTest, AFlagIsTakenByItsOperationsOnly) {
  std::size_t taken_count = 0;
  for (std::uint32_t op = 1; op <= kOps; ++op) {
    for (std::uint32_t flag = 1; flag <= KVS_FLAG_REPLACE; flag <<= 1) {
      SCOPED_TRACE("op " + std::to_string(op) + ", flag " + std::to_string(flag));
      kvs_request request = bench.good(op);
      request.flags = flag;
      kvs_run(bench.client, &request, nullptr, 0);
      if (std::string(kvs_last_error()).starts_with("flags: " + std::to_string(flag) + ", allowed for ")) {
        expect_refused(request, "flags", "flags");
      } else {
        ++taken_count;
      }
      kvs_traceparent("not one");  // another last error
    }
  }
  // lease 2, prefetch 2, memory_only 3, tell_match 1, sliding 3, priority 3, stop 1, partial 1, replace 1
  EXPECT_EQ(taken_count, 17u);
}

}  // namespace
}  // namespace kv
