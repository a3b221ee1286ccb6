#include "transport/verbs/verbs_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace kv::verbs {
namespace {

using testing::HasSubstr;

class VerbsModuleTest : public testing::Test {
 protected:
  VerbsModuleTest() {
    if (const char* const named = std::getenv("KV_VERBS_MODULE")) before_ = named;
  }
  ~VerbsModuleTest() override {
    ::unsetenv("KV_VERBS_MODULE");
    if (!before_.empty()) ::setenv("KV_VERBS_MODULE", before_.c_str(), 1);
  }

 private:
  std::string before_;
};

TEST_F(VerbsModuleTest, AMissingModuleIsASentenceAndNoHarm) {
  ::setenv("KV_VERBS_MODULE", "/nonexistent/libkvstore_verbs.so", 1);
  Failure failure;
  failure = load_verbs().error();
  EXPECT_EQ(failure, Errc::kUnavailable);
  EXPECT_THAT(failure.text,
              HasSubstr("RDMA is unavailable: /nonexistent/libkvstore_verbs.so: cannot open shared object file"));
  EXPECT_FALSE(load_verbs());
}

TEST_F(VerbsModuleTest, ALibraryThatIsNoModuleIsRefused) {
  ::setenv("KV_VERBS_MODULE", "libc.so.6", 1);
  Failure failure;
  failure = load_verbs().error();
  EXPECT_EQ(failure, Errc::kUnavailable);
  EXPECT_THAT(failure.text, HasSubstr("libc.so.6 is another version's"));
}

TEST_F(VerbsModuleTest, TheModuleLoadsWithoutADeviceAndItsErrorsAreOurs) {
#ifdef KV_VERBS_MODULE_FILE
  ::setenv("KV_VERBS_MODULE", KV_VERBS_MODULE_FILE, 1);
  const auto provider = load_verbs();
  ASSERT_TRUE(provider) << provider.error();
  EXPECT_EQ((*provider)->open("no-such-device").error(),
            Errc::kBadRequest);  // the module has its own copy of Errc's category
#else
  GTEST_SKIP() << "the module was not built: libibverbs-dev is not installed";
#endif
}

}  // namespace
}  // namespace kv::verbs
