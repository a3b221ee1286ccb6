// What is wrong with RDMA is told with the remedy that mends it.
#include "client/tools/ctl/doctor/doctor_rdma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/client/finding_of.h"
#include "tests/fakes/verbs_fake.h"
#include "tests/transport/sim_world.h"

namespace kv {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using verbs::GidType;
using verbs::Status;

verbs::Gid gid(const std::string& text) { return verbs::parse_gid(text).value(); }

/// A healthy RoCE device on eth7.
verbs::DeviceInfo roce() {
  verbs::PortInfo port{.is_active = true, .is_ethernet = true, .mtu_bytes = 4096};
  port.gids = {{0, gid("fe80::1"), GidType::kRoceV1},
               {1, gid("fe80::1"), GidType::kRoceV2},
               {2, gid("::ffff:10.0.0.1"), GidType::kRoceV1},
               {3, gid("::ffff:10.0.0.1"), GidType::kRoceV2}};
  return {.name = "mlx5_0", .numa_node = 1, .limits = {.read_count_max = 16}, .ports = {port}};
}
verbs::DeviceInfo infiniband() {
  verbs::PortInfo port{.is_active = true, .lid = 17, .mtu_bytes = 4096};
  port.gids = {{0, gid("fe80::2:c903:1"), GidType::kInfiniband}};
  return {.name = "mlx5_0", .limits = {.read_count_max = 16}, .ports = {port}};
}

RdmaMachine machine() {
  RdmaMachine made;
  RdmaDevice& device = made.devices.emplace_back();
  device.name = "mlx5_0";
  device.file = "/dev/infiniband/uverbs0";
  RdmaPort& port = device.ports.emplace_back();
  port.state = "ACTIVE";
  port.physical_state = "LinkUp";
  port.interface = "eth7";
  port.interface_mtu_bytes = 4200;
  made.memory_bytes = 64ull << 30;
  return made;
}

Finding only(const Findings& findings, const std::string& check) {
  const Finding* const found = finding_of(findings, check);
  EXPECT_NE(found, nullptr) << check;
  return found ? *found : Finding{};
}
std::size_t count_above(const Findings& findings, Verdict verdict) {
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(), [&](const auto& each) { return each.verdict > verdict; }));
}

TEST(DoctorRdmaTest, AHealthyDeviceNeedsNothingAndSaysWhyThisGid) {
  const Findings findings = judge_device(roce(), machine());
  EXPECT_EQ(count_above(findings, Verdict::kOk), 0u);
  EXPECT_EQ(only(findings, "mlx5_0 port 1").found, "active, RoCE on eth7, MTU 4,096 (4,200 of the interface)");
  EXPECT_EQ(only(findings, "mlx5_0 port 1 GID 3").found, "::ffff:10.0.0.1, RoCE v2, used");
  EXPECT_EQ(only(findings, "mlx5_0 port 1 GID 1").found, "fe80::1, RoCE v2, not used: link-local comes last");
  EXPECT_EQ(only(findings, "mlx5_0 port 1 GID 2").found,
            "::ffff:10.0.0.1, RoCE v1, not used: kvstore speaks RoCE v2 only");
  EXPECT_THAT(only(findings, "RDMA device mlx5_0").found, HasSubstr("NUMA node 1"));
  EXPECT_EQ(count_above(judge_device(infiniband(), machine()), Verdict::kOk), 0u);
}

TEST(DoctorRdmaTest, AnAddressThatIsAskedForIsTheOneThatIsUsed) {
  verbs::DeviceInfo device = roce();
  device.ports[0].gids.push_back({4, gid("::ffff:10.0.0.2"), GidType::kRoceV2});
  const Findings findings = judge_device(device, machine(), gid("10.0.0.2"));
  EXPECT_EQ(count_above(findings, Verdict::kOk), 0u);
  EXPECT_THAT(only(findings, "mlx5_0 port 1 GID 4").found, HasSubstr("RoCE v2, used"));
  EXPECT_THAT(only(findings, "mlx5_0 port 1 GID 3").found, HasSubstr("not used: another address is asked for"));
  EXPECT_THAT(only(findings, "mlx5_0 port 1 GID 2").found, HasSubstr("not used: kvstore speaks RoCE v2 only"));
  const Findings without = judge_device(roce(), machine(), gid("10.0.0.2"));
  EXPECT_THAT(only(without, "mlx5_0 port 1 GID 3").found, HasSubstr("not used: another address is asked for"));
  EXPECT_EQ(finding_of(without, "mlx5_0 port 1 GID"), nullptr) << "there are others";
}

TEST(DoctorRdmaTest, ASmallMtuIsToldWithTheInterfacesMtuThatMendsIt) {
  verbs::DeviceInfo device = roce();
  device.ports[0].mtu_bytes = 2048;
  const Finding finding = only(judge_device(device, machine()), "mlx5_0 port 1");
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_THAT(finding.advice, HasSubstr("ip link set eth7 mtu 4200"));
  device = infiniband();
  device.ports[0].mtu_bytes = 2048;
  EXPECT_THAT(only(judge_device(device, machine()), "mlx5_0 port 1").advice, HasSubstr("partitions.conf"));
}

TEST(DoctorRdmaTest, AnInactivePortIsToldWithWhatBringsItUp) {
  RdmaMachine kernel = machine();
  kernel.devices[0].ports[0].state = "INIT";
  verbs::DeviceInfo device = roce();
  device.ports[0].is_active = false;
  const Findings findings = judge_device(device, kernel);
  EXPECT_EQ(only(findings, "mlx5_0 port 1").verdict, Verdict::kWarning);
  EXPECT_THAT(only(findings, "mlx5_0 port 1").found, AllOf(HasSubstr("the link is down"), HasSubstr("INIT, LinkUp")));
  EXPECT_THAT(only(findings, "mlx5_0 port 1").advice, HasSubstr("ip link set eth7 up"));
  EXPECT_THAT(only(findings, "mlx5_0 port 1 GID 3").found, HasSubstr("the link is down"));
  EXPECT_EQ(finding_of(findings, "mlx5_0 port 1 GID"), nullptr) << "GIDs are not what is wrong";
  device = infiniband();
  device.ports[0].is_active = false;
  EXPECT_THAT(only(judge_device(device, kernel), "mlx5_0 port 1").advice, HasSubstr("subnet manager"));
  kernel.devices[0].ports[0].state = "DOWN";
  EXPECT_THAT(only(judge_device(device, kernel), "mlx5_0 port 1").advice, HasSubstr("cable"));
}

TEST(DoctorRdmaTest, APortWithoutAUsableGidIsToldWhereGidsComeFrom) {
  verbs::DeviceInfo device = roce();
  std::erase_if(device.ports[0].gids, [](const auto& each) { return each.type == GidType::kRoceV2; });
  Finding finding = only(judge_device(device, machine()), "mlx5_0 port 1 GID");
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_THAT(finding.advice, AllOf(HasSubstr("ip addr add"), HasSubstr("dev eth7"), HasSubstr("roce_mode=2")));
  device.ports[0].gids.clear();
  EXPECT_THAT(only(judge_device(device, machine()), "mlx5_0 port 1 GID").advice, testing::StartsWith("ip addr add"));
  device.ports[0].gids = {{1, gid("fe80::1"), GidType::kRoceV2}};
  finding = only(judge_device(device, machine()), "mlx5_0 port 1 GID 1");
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_THAT(finding.advice, HasSubstr("reaches no other network"));
  device = infiniband();
  device.ports[0].gids.clear();
  EXPECT_THAT(only(judge_device(device, machine()), "mlx5_0 port 1 GID").advice, HasSubstr("subnet manager"));
}

TEST(DoctorRdmaTest, OfTwoPortsTheFirstThatCanIsUsed) {
  verbs::DeviceInfo device = roce();
  device.ports.push_back(device.ports[0]);
  device.ports[1].number = 2;
  const Findings findings = judge_device(device, machine());
  EXPECT_THAT(only(findings, "mlx5_0 port 1 GID 3").found, HasSubstr(", used"));
  EXPECT_THAT(only(findings, "mlx5_0 port 2 GID 3").found, HasSubstr("not used: an earlier port is"));
}

TEST(DoctorRdmaTest, TooLittleLockedMemoryIsToldWithWhatToSet) {
  RdmaMachine kernel = machine();
  EXPECT_EQ(judge_memlock(kernel).found, "unlimited");
  kernel.memlock_bytes = 8 << 20;
  const Finding finding = judge_memlock(kernel);
  EXPECT_EQ(finding.verdict, Verdict::kWarning);
  EXPECT_THAT(finding.found, HasSubstr("8 MiB"));
  EXPECT_THAT(finding.advice, AllOf(HasSubstr("LimitMEMLOCK=infinity"), HasSubstr("--ulimit memlock=-1"),
                                    HasSubstr("limits.conf"), HasSubstr("IPC_LOCK")));
  kernel.memlock_bytes = kernel.memory_bytes;
  EXPECT_EQ(judge_memlock(kernel).verdict, Verdict::kOk);
  kernel.memlock_bytes = 8 << 20;
  kernel.ignores_memlock = true;
  EXPECT_EQ(judge_memlock(kernel).verdict, Verdict::kOk);
}

TEST(DoctorRdmaTest, ADeviceThatCannotBeOpenedIsToldWhatStandsBeforeIt) {
  RdmaDevice device = machine().devices[0];
  EXPECT_THAT(judge_closed_device(device, {}).advice, HasSubstr("ibverbs-providers"));
  EXPECT_THAT(judge_closed_device(device, {EIO, boost::system::system_category()}).advice, HasSubstr("dmesg"));
  device.may_open = {ENOENT, boost::system::system_category()};
  EXPECT_THAT(judge_closed_device(device, {}).advice,
              AllOf(HasSubstr("--device /dev/infiniband"), HasSubstr("PrivateDevices=no")));
  device.may_open = {EACCES, boost::system::system_category()};
  EXPECT_THAT(judge_closed_device(device, {}).advice, HasSubstr("udev"));
  device.file.clear();
  EXPECT_THAT(judge_closed_device(device, {}).advice, HasSubstr("modprobe ib_uverbs"));
}

TEST(DoctorRdmaTest, AModuleThatIsNotThereIsToldWithWhatToInstall) {
  const Finding finding = judge_module("RDMA is unavailable: libibverbs.so.1: no such file; install rdma-core");
  EXPECT_EQ(finding.verdict, Verdict::kFailed);
  EXPECT_EQ(finding.found, "libibverbs.so.1: no such file");
  EXPECT_EQ(finding.advice, "install rdma-core");
}

TEST(DoctorRdmaTest, GpuMemoryIsReportedAndNeverAFailure) {
  RdmaMachine kernel = machine();
  EXPECT_EQ(judge_gpu(kernel, {{"mlx5_0", true}}).verdict, Verdict::kOk);
  kernel.nvidia_driver = "NVRM version: 580";
  EXPECT_THAT(judge_gpu(kernel, {{"mlx5_0", true}, {"rxe0", false}}).found,
              AllOf(HasSubstr("nvidia_peermem is not loaded"), testing::EndsWith("dma-bufs: mlx5_0")));
  EXPECT_EQ(judge_gpu(kernel, {{"rxe0", false}}).verdict, Verdict::kNote);
  EXPECT_THAT(judge_gpu(kernel, {{"rxe0", false}}).advice, HasSubstr("modprobe nvidia_peermem"));
  kernel.has_nvidia_peermem = true;
  EXPECT_EQ(judge_gpu(kernel, {{"rxe0", false}}).verdict, Verdict::kOk);
}

/// check_rdma() on devices inside the process.
class DoctorRdmaTransferTest : public testing::Test {
 protected:
  explicit DoctorRdmaTransferTest() { options_.device_count = 1; }

  Findings check(const std::function<void(verbs::FakeVerbs&)>& spoil = {}, const std::vector<std::string>& names = {}) {
    SimWorld world;
    verbs::FakeVerbs verbs(world.clock, world.io.get_executor(), options_);
    if (spoil) spoil(verbs);
    return world.await(check_rdma(verbs, RdmaMachine{}, names, world.clock)).value_or(Findings{});
  }
  Finding transfer_after(Status status) {
    return only(check([&](auto& verbs) { verbs.fail_next("fake0", status); }), "fake0 transfer");
  }

  verbs::FakeOptions options_;
};

TEST_F(DoctorRdmaTransferTest, AGoodTransferIsMeasuredBothWays) {
  const Findings findings = check();
  EXPECT_EQ(count_above(findings, Verdict::kOk), 0u);
  EXPECT_THAT(only(findings, "fake0 transfer").found,
              AllOf(HasSubstr("8 MiB"), HasSubstr("WRITE in "), HasSubstr("READ in "), HasSubstr("every byte right")));
}

TEST_F(DoctorRdmaTransferTest, MemoryThatCannotBeRegisteredIsToldWithTheLimit) {
  options_.registered_bytes_max = 1 << 20;
  const Finding finding = only(check(), "fake0 transfer");
  EXPECT_EQ(finding.verdict, Verdict::kFailed);
  EXPECT_THAT(finding.found, HasSubstr("registering memory, 8 MiB"));
  EXPECT_THAT(finding.advice, HasSubstr("LimitMEMLOCK=infinity"));
}

TEST_F(DoctorRdmaTransferTest, ALinkThatIsDownLeavesNothingToUse) {
  const Findings findings = check([](auto& verbs) { verbs.set_link("fake0", false); });
  EXPECT_EQ(only(findings, "RDMA devices").verdict, Verdict::kFailed);
  EXPECT_THAT(only(findings, "RDMA devices").found, HasSubstr("the link is down"));
  EXPECT_EQ(finding_of(findings, "fake0 transfer"), nullptr);
}

TEST_F(DoctorRdmaTransferTest, OnlyDevicesThatAreAskedForMoveBytesAndEachMust) {
  options_.device_count = 2;
  Findings findings = check({}, {"fake1"});
  EXPECT_EQ(finding_of(findings, "fake0 transfer"), nullptr);
  EXPECT_EQ(only(findings, "fake1 transfer").verdict, Verdict::kOk);
  EXPECT_EQ(finding_of(findings, "RDMA devices"), nullptr);

  findings = check([](auto& verbs) { verbs.set_link("fake0", false); }, {"fake0", "fake1", "fake7"});
  EXPECT_EQ(only(findings, "fake0 transfer").verdict, Verdict::kFailed);
  EXPECT_THAT(only(findings, "fake0 transfer").found, HasSubstr("the link is down"));
  EXPECT_EQ(only(findings, "fake1 transfer").verdict, Verdict::kOk);
  EXPECT_EQ(only(findings, "RDMA devices").verdict, Verdict::kFailed);
  EXPECT_THAT(only(findings, "RDMA devices").found, HasSubstr("fake7, no such device"));

  findings = check({}, {"fake0@10.9.9.9"});
  EXPECT_THAT(only(findings, "fake0 transfer").found, HasSubstr("10.9.9.9, not one of this port"));
  EXPECT_EQ(only(findings, "RDMA devices").verdict, Verdict::kFailed);
}

TEST_F(DoctorRdmaTransferTest, NoDeviceIsAFailureWithAWayToTryRdma) {
  options_.device_count = 0;
  const Findings findings = check();
  EXPECT_EQ(only(findings, "RDMA devices").verdict, Verdict::kFailed);
  EXPECT_THAT(only(findings, "RDMA devices").advice, HasSubstr("rdma link add rxe0"));
}

TEST_F(DoctorRdmaTransferTest, AFailingTransferIsToldWithItsReasonAndRemedy) {
  EXPECT_EQ(transfer_after(Status::kRetryExceeded).verdict, Verdict::kFailed);
  EXPECT_THAT(transfer_after(Status::kRetryExceeded).found, HasSubstr("WRITE: retries exceeded"));
  EXPECT_THAT(transfer_after(Status::kRetryExceeded).advice, HasSubstr("UDP port 4791"));
  EXPECT_THAT(transfer_after(Status::kRemoteAccess).advice, HasSubstr("rdma-core"));
  EXPECT_THAT(transfer_after(Status::kFatal).advice, HasSubstr("dmesg"));
  EXPECT_THAT(transfer_after(Status::kBadResponse).advice, HasSubstr("dmesg"));
}

TEST_F(DoctorRdmaTransferTest, ATransferThatNeverEndsIsToldAfterItsDeadline) {
  options_.delay_min = options_.delay_max = 1h;
  const Finding finding = only(check(), "fake0 transfer");
  EXPECT_EQ(finding.verdict, Verdict::kFailed);
  EXPECT_THAT(finding.found, HasSubstr("WRITE: the deadline passed"));
  EXPECT_THAT(finding.advice, HasSubstr("/proc/interrupts"));
}

/// A domain that lets one byte of each registered memory be changed behind its back.
class OpenDomain final : public verbs::ProtectionDomain {
 public:
  OpenDomain(std::unique_ptr<verbs::ProtectionDomain> inner, std::vector<std::span<std::byte>>& memory)
      : inner_(std::move(inner)), memory_(memory) {}
  Result<std::unique_ptr<verbs::MemoryRegion>, Failure> register_memory(std::span<std::byte> memory,
                                                                        verbs::Access access) override {
    memory_.push_back(memory);
    return inner_->register_memory(memory, access);
  }
  Result<std::unique_ptr<verbs::MemoryRegion>, Failure> register_dmabuf(int fd, std::uint64_t offset,
                                                                        std::uint64_t bytes, std::uint64_t address,
                                                                        verbs::Access access) override {
    return inner_->register_dmabuf(fd, offset, bytes, address, access);
  }
  Result<std::unique_ptr<verbs::QueuePair>, Failure> create_queue_pair(
      verbs::CompletionQueue& queue, const verbs::QueuePairOptions& options) override {
    return inner_->create_queue_pair(queue, options);
  }

 private:
  std::unique_ptr<verbs::ProtectionDomain> inner_;
  std::vector<std::span<std::byte>>& memory_;
};

class OpenDevice final : public verbs::Device {
 public:
  explicit OpenDevice(std::unique_ptr<verbs::Device> inner) : inner_(std::move(inner)) {}
  Result<verbs::DeviceInfo> query() const override { return inner_->query(); }
  Result<std::unique_ptr<verbs::ProtectionDomain>> create_domain() override {
    return std::unique_ptr<verbs::ProtectionDomain>(
        std::make_unique<OpenDomain>(inner_->create_domain().value(), memory));
  }
  Result<std::unique_ptr<verbs::CompletionQueue>> create_completion_queue(std::uint32_t count) override {
    return inner_->create_completion_queue(count);
  }
  std::vector<std::span<std::byte>> memory;  ///< The node's, then the client's.

 private:
  std::unique_ptr<verbs::Device> inner_;
};

/// A transfer of 1 MiB in which byte `at` of the receiving side changes once it has landed, before the last one has.
Loopback spoiled(Loopback::Step step, std::size_t at) {
  SimWorld world;
  verbs::FakeOptions options;
  options.delay_min = options.delay_max = 1us;
  options.packet_bytes_max = 4096;
  verbs::FakeVerbs verbs(world.clock, world.io.get_executor(), options);
  OpenDevice device(verbs.open("fake0").value());
  const verbs::Attachment attachment = verbs::attach(device.query().value(), std::nullopt).value();
  std::optional<Loopback> result;
  asio::co_spawn(world.io, run_loopback(device, attachment, 1 << 20, world.clock, 10s),
                 [&](const std::exception_ptr&, Loopback ended) { result = ended; });
  const std::size_t sender = step == Loopback::Step::kWrite ? 0 : 1;
  bool is_spoiled = false;
  world.run_until([&] {
    if (device.memory.size() < 2 || is_spoiled) return result.has_value();
    const std::span<std::byte> from = device.memory[sender], to = device.memory[1 - sender];
    // The receiving side begins with zeros.
    is_spoiled = to[at] == from[at] && to[at] != std::byte{0} && to.back() == std::byte{0};
    if (is_spoiled) to[at] ^= std::byte{1};
    return result.has_value();
  });
  return result.value_or(Loopback{});
}

TEST(DoctorRdmaLoopbackTest, OneWrongByteIsFoundInEitherDirection) {
  for (const auto step : {Loopback::Step::kWrite, Loopback::Step::kRead}) {
    const Loopback loopback = spoiled(step, 4321);
    EXPECT_EQ(loopback.step, step);
    EXPECT_EQ(loopback.wrong_byte, 4321u);
    const Finding finding = judge_transfer({.device = "fake0"}, loopback, {});
    EXPECT_EQ(finding.verdict, Verdict::kFailed);
    EXPECT_THAT(finding.found, HasSubstr("wrong bytes, the first at 4321"));
    EXPECT_THAT(finding.advice, HasSubstr("do not use this device"));
  }
}

}  // namespace
}  // namespace kv
