// [::] serves IPv6 and IPv4, in a network of its own where the kernel's default is that it does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/e2e/node_process.h"

namespace kv::e2e {
namespace {

using testing::HasSubstr;

TEST(OperationFamiliesTest, AListenerOnAllAddressesServesBothFamilies) {
  if (run_program(
          {"/usr/bin/env", "unshare", "-n", "sh", "-c", "ip link set lo up && echo 1 > /proc/sys/net/ipv6/bindv6only"})
          .status != 0)
    GTEST_SKIP() << "no network namespace, ip or IPv6 here";
  const TempDir folder;
  const std::string log = folder.path() + "/log";
  // Ports are this namespace's own. The answers come from kvstorectl, over each family.
  const std::string script = "ip link set lo up && echo 1 > /proc/sys/net/ipv6/bindv6only; " + node_program() +
                             " --capacity=16MiB --listen 'tcp://[::]:7400' --admin '[::]:7401' "
                             "--plaintext-on-trusted-network=true > " +
                             log + " 2>&1 & node=$!; " + ctl_program() +
                             " ping --wait 60s -e 'tcp://[::1]:7400' && for host in 127.0.0.1 '[::1]'; do " +
                             ctl_program() + " ping -e tcp://$host:7400 && " + ctl_program() +
                             " doctor -e tcp://$host:7400 --admin $host:7401; done; kill $node; wait $node";
  const Finished done = run_program({"/usr/bin/env", "unshare", "-n", "sh", "-c", script});
  for (const std::string host : {"127.0.0.1", "[::1]"})
    EXPECT_THAT(done.out, HasSubstr(host + ":7401: 200 OK")) << done.out << done.err;
}

}  // namespace
}  // namespace kv::e2e
