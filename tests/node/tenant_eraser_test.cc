// Erasures that wait for one another, and those that have nothing to do.
#include "store/node/access/tenant_eraser.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/fakes/virtual_clock.h"
#include "tests/store/store_fixture.h"

namespace kv {
namespace {

class TenantEraserTest : public testing::Test {
 protected:
  static std::unique_ptr<Store> make_store() {
    StoreConfig config;
    config.arena.capacity_bytes = 1 << 20;
    config.arena.touch = false;
    return Store::create(config).value();
  }
  void open(const std::string& tenant) {
    store.with([&](Store& each) { EXPECT_TRUE(each.open(make_record("m", 4096).with({{"tenant", tenant}}).value())); });
  }
  /// Asks until its end is told: by the eraser's thread, which waits for nothing but the test.
  TenantEraser::Progress finish(const std::string& owner) {
    for (;;) {
      const auto progress = eraser.ask(owner);
      EXPECT_TRUE(progress);
      if (!progress || progress->is_done || !progress->trouble.empty()) return progress.value();
      std::this_thread::yield();
    }
  }

  NodeMetrics metrics{"test"};
  VirtualClock clock;
  LockedStore store{make_store(), metrics};
  std::atomic<int> files_written = 0;
  std::promise<void> go_on;
  std::shared_future<void> may_go_on = go_on.get_future();
  TenantEraser eraser{store, clock, nullptr, [this] {
                        ++files_written;
                        may_go_on.wait();
                        return std::string();
                      }};
};

TEST_F(TenantEraserTest, AnOwnerWaitsForThoseBeforeItAndIsNeverTurnedAway) {
  for (const std::string tenant : {"a", "b", "c"}) open(tenant);
  EXPECT_EQ(eraser.ask("a")->waits_for, 0u);
  for (int i = 0; i < 10; ++i) {  // in a loop, as one who means harm
    EXPECT_FALSE(eraser.ask("a")->is_done);
    const auto other = eraser.ask("b");
    ASSERT_TRUE(other) << "busy with what another owner has";
    EXPECT_EQ(other->waits_for, 1u);
    EXPECT_EQ(eraser.ask("c")->waits_for, 2u);
  }
  go_on.set_value();
  for (const std::string tenant : {"a", "b", "c"}) EXPECT_EQ(finish(tenant).namespaces, 1u);
  EXPECT_EQ(store.with([](Store& each) { return each.namespace_count(); }), 0u);
}

TEST_F(TenantEraserTest, AnErasureOfNothingDoesNothing) {
  go_on.set_value();
  EXPECT_TRUE(finish("a").is_done);
  EXPECT_EQ(files_written, 1) << "it may have had something before";
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(finish("a").is_done);
  EXPECT_EQ(files_written, 1);
  open("a");
  EXPECT_EQ(finish("a").namespaces, 1u);
  EXPECT_EQ(files_written, 2) << "it has had something since";
}

TEST_F(TenantEraserTest, ThereIsABoundOnThoseThatWait) {
  for (std::size_t i = 0; i < TenantEraser::kWaitingMax; ++i) ASSERT_TRUE(eraser.ask("t" + std::to_string(i)));
  EXPECT_EQ(eraser.ask("one more").error(), Errc::kBusy);
  EXPECT_TRUE(eraser.ask("t7")) << "who waits already may ask";
  go_on.set_value();
}

}  // namespace
}  // namespace kv
