#include "client/tools/ctl/doctor/rdma_machine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace kv {
namespace {

class RdmaMachineTest : public testing::Test {
 protected:
  RdmaMachineTest() {
    char name[] = "/tmp/kv-rdma-machine-XXXXXX";
    root_ = ::mkdtemp(name);
    write("/proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\n");
    write("/proc/self/uid_map", "         0          0 4294967295\n");
    write("/proc/self/status", "Name:\tdoctor\nCapEff:\t0000000000004000\n");
  }
  ~RdmaMachineTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void add_device(const std::string& name, const std::string& interface) const {
    const std::string port = "/sys/class/infiniband/" + name + "/ports/1/";
    write(port + "state", "4: ACTIVE\n");
    write(port + "phys_state", "5: LinkUp\n");
    write(port + "gid_attrs/ndevs/0", "");
    write(port + "gid_attrs/ndevs/1", interface + "\n");
    write("/sys/class/net/" + interface + "/mtu", "4200\n");
  }

  std::string root_;
};

TEST_F(RdmaMachineTest, DevicesComeWithPortsInterfacesAndFiles) {
  add_device("mlx5_1", "eth1");
  add_device("mlx5_0", "eth0");
  write("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
  write("/sys/class/infiniband_verbs/abi_version", "6\n");
  write("/dev/infiniband/uverbs0", "");
  const RdmaMachine machine = read_rdma_machine(root_);
  ASSERT_EQ(machine.devices.size(), 2u);
  EXPECT_EQ(machine.devices[0].name, "mlx5_0");
  EXPECT_EQ(machine.devices[0].file, "/dev/infiniband/uverbs0");
  EXPECT_FALSE(machine.devices[0].may_open);
  EXPECT_EQ(machine.devices[1].file, "") << "ib_uverbs does not know it";
  const RdmaPort* const port = machine.find("mlx5_0", 1);
  ASSERT_NE(port, nullptr);
  EXPECT_EQ(port->state, "ACTIVE");
  EXPECT_EQ(port->physical_state, "LinkUp");
  EXPECT_EQ(port->interface, "eth0");
  EXPECT_EQ(port->interface_mtu_bytes, 4200u);
  EXPECT_EQ(machine.find("mlx5_0", 2), nullptr);
  EXPECT_EQ(machine.find("mlx5_9"), nullptr);

  std::filesystem::remove(root_ + "/dev/infiniband/uverbs0");
  EXPECT_EQ(read_rdma_machine(root_).devices[0].may_open, boost::system::errc::no_such_file_or_directory);
}

TEST_F(RdmaMachineTest, ACapabilityOfAUserNamespaceDoesNotLiftTheLimit) {
  EXPECT_TRUE(read_rdma_machine(root_).ignores_memlock);
  EXPECT_EQ(read_rdma_machine(root_).memory_bytes, 1u << 20);
  write("/proc/self/uid_map", "         0     100000      65536\n");
  EXPECT_FALSE(read_rdma_machine(root_).ignores_memlock);
  write("/proc/self/uid_map", "         0          0 4294967295\n");
  write("/proc/self/status", "CapEff:\t0000000000000400\n");
  EXPECT_FALSE(read_rdma_machine(root_).ignores_memlock);
}

TEST_F(RdmaMachineTest, AMachineWithNothingHasNothing) {
  const RdmaMachine machine = read_rdma_machine(root_);
  EXPECT_TRUE(machine.devices.empty());
  EXPECT_EQ(machine.nvidia_driver, "");
  EXPECT_FALSE(machine.has_nvidia_peermem);
  write("/sys/module/nvidia_peermem/initstate", "live\n");
  EXPECT_TRUE(read_rdma_machine(root_).has_nvidia_peermem);
}

}  // namespace
}  // namespace kv
