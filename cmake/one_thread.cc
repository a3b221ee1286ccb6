// Part of each ONE_THREAD test program: fails the test during which a thread was started.
#include <gtest/gtest.h>
#include <sys/single_threaded.h>

namespace {

class OneThread final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    EXPECT_NE(__libc_single_threaded, 0)
        << "this program is declared with ONE_THREAD, so ThreadSanitizer does not see it";
  }
};

// gtest_main has the program's main.
const bool is_added = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new OneThread);
  return true;
}();

}  // namespace
