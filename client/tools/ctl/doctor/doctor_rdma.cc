#include "client/tools/ctl/doctor/doctor_rdma.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <map>
#include <utility>

#include "base/assert.h"
#include "client/tools/text_table.h"
#include "client/tools/tool_client.h"
#include "transport/verbs/verbs_module.h"

namespace kv {
namespace {

using verbs::GidType;
using verbs::Status;
namespace errc = boost::system::errc;

constexpr const char* kMemlockAdvice =
    "raise the limit: LimitMEMLOCK=infinity in the systemd unit; --ulimit memlock=-1 for a container (or --cap-add "
    "IPC_LOCK); '* - memlock unlimited' in /etc/security/limits.conf for logins";
constexpr const char* kDeviceFileAdvice =
    "give it to the container (--device /dev/infiniband), or to the systemd unit (PrivateDevices=no, DeviceAllow=)";
// RDMA's largest. On Ethernet the interface's MTU must be somewhat above it, for the headers.
constexpr std::uint32_t kFullMtuBytes = 4096;
// Longer than a queue pair's own retries, so that the device's error is seen, not just this deadline.
constexpr Duration kTransferDeadline = 10s;

std::string join(const std::string& separator, const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) {
    if (!part.empty()) all += (all.empty() ? "" : separator) + part;
  }
  return all;
}

std::string type_name(GidType type) {
  switch (type) {
    case GidType::kInfiniband: return "InfiniBand";
    case GidType::kRoceV1: return "RoCE v1";
    case GidType::kRoceV2: return "RoCE v2";
  }
  return "?";
}

/// A placeholder, if the kernel does not say: the advice stays a command that can be completed.
std::string interface_of(const RdmaPort* kernel) {
  return kernel && !kernel->interface.empty() ? kernel->interface : "INTERFACE";
}

std::string inactive_advice(const verbs::PortInfo& port, const RdmaPort* kernel) {
  if (port.is_ethernet) {
    const std::string name = interface_of(kernel);
    return "ip link set " + name + " up; if it is up: cable, transceiver and switch port (ethtool " + name + ")";
  }
  const bool is_waiting = kernel && kernel->state == "INIT";
  if (is_waiting) return "no subnet manager has seen it: is one running (opensm, or in the switch)?";
  return "cable, and the port at the other end (ibstat, iblinkinfo)";
}

/// A port that is down is a warning: check_rdma() fails only if no port carries traffic.
Finding judge_port(const verbs::DeviceInfo& device, const verbs::PortInfo& port, const RdmaPort* kernel) {
  Finding finding{device.name + " port " + std::to_string(port.number), Verdict::kOk, "", ""};
  const std::string kind = join(" on ", {port.is_ethernet ? "RoCE" : "InfiniBand", kernel ? kernel->interface : ""});
  if (!port.is_active) {
    finding.verdict = Verdict::kWarning;
    finding.found = "the link is down, " + kind;
    if (kernel) finding.found = join(", ", {finding.found, kernel->state, kernel->physical_state});
    finding.advice = inactive_advice(port, kernel);
    return finding;
  }
  finding.found = "active, " + kind + ", MTU " + format_count(port.mtu_bytes);
  if (port.is_ethernet && kernel && kernel->interface_mtu_bytes > 0) {
    finding.found += " (" + format_count(kernel->interface_mtu_bytes) + " of the interface)";
  }
  // A warning: RDMA works, at some tenths less bandwidth.
  if (port.mtu_bytes < kFullMtuBytes) {
    finding.verdict = Verdict::kWarning;
    finding.advice =
        port.is_ethernet
            ? "small packets cost bandwidth: ip link set " + interface_of(kernel) +
                  " mtu 4200 (or 9000) gives 4096; both ends, and the switches between, must carry it"
            : "small packets cost bandwidth: the subnet manager gives 4096 with mtu=5 in its partitions.conf";
  }
  return finding;
}

std::string address_advice(const RdmaPort* kernel) {
  return "ip addr add ADDRESS/BITS dev " + interface_of(kernel) + " (GIDs come with addresses)";
}

std::string gidless_advice(const verbs::PortInfo& port, const RdmaPort* kernel) {
  if (!port.is_ethernet) return "the subnet manager has not set it up: is one running (opensm, or in the switch)?";
  const bool has_first_version = std::ranges::count(port.gids, GidType::kRoceV1, &verbs::GidEntry::type) > 0;
  if (!has_first_version) return address_advice(kernel);
  return "if its interface has no address: " + address_advice(kernel) +
         ". If it has: the device speaks RoCE v1 only, or is set to (ConnectX-3: module option mlx4_core roce_mode=2)";
}

void judge_gids(const verbs::DeviceInfo& device, const verbs::PortInfo& port, const std::optional<verbs::Gid>& wanted,
                const verbs::Attachment* chosen, const RdmaPort* kernel, Findings& findings) {
  const std::string name = device.name + " port " + std::to_string(port.number) + " GID";
  // The port's address if it were the device's first port.
  const verbs::DeviceInfo alone{.name = device.name, .limits = device.limits, .ports = {port}};
  const auto own = verbs::attach(alone, wanted);
  for (const verbs::GidEntry& entry : port.gids) {
    Finding finding{name + " " + std::to_string(entry.index), Verdict::kOk,
                    verbs::text_of(entry.gid) + ", " + type_name(entry.type) + ", ", ""};
    if (!port.is_active) {
      finding.found += "the link is down";
    } else if (wanted && entry.gid != *wanted && verbs::is_usable(port, entry)) {
      finding.found += "not used: another address is asked for";
    } else if (!own || own->gid.index != entry.index) {
      finding.found += "not used: " + std::string(verbs::why_not(port, entry, own ? &own->gid : nullptr));
    } else {
      finding.found += chosen && chosen->port == port.number ? "used" : "not used: an earlier port is";
      if (port.is_ethernet && verbs::is_link_local(entry.gid)) {
        finding.verdict = Verdict::kWarning;
        finding.advice = "a link-local address reaches no other network: " + address_advice(kernel);
      }
    }
    findings.push_back(finding);
  }
  // Silent if another address was requested than this port's: the port is not at fault.
  if (own || !port.is_active || verbs::attach(alone, std::nullopt)) return;
  findings.push_back({name, Verdict::kWarning, "none that kvstore can use", gidless_advice(port, kernel)});
}

/// Drivers report either of two errors for the limit, and use them for other causes too: so the step counts as well.
bool is_memlock_refusal(const Loopback& loopback) {
  return loopback.step == Loopback::Step::kRegister &&
         (loopback.error == errc::not_enough_memory || loopback.error == errc::resource_unavailable_try_again);
}

/// Advice for the step that `loopback` failed in, ordered from certain to likely: wrong bytes mean a broken machine
/// whatever the error, and an error with several causes comes last, with the question that distinguishes them.
std::string transfer_advice(const verbs::Attachment& attachment, const Loopback& loopback, const RdmaPort* kernel) {
  using Step = Loopback::Step;
  const error_code error = loopback.error;
  if (loopback.wrong_byte) {
    // First, since it matters most even beside an error.
    return "do not use this device: dmesg (PCIe and memory errors), firmware, and the IOMMU's setting (iommu=pt)";
  }
  if (is_memlock_refusal(loopback)) return kMemlockAdvice;
  if (error == errc::no_such_device || error == errc::io_error || error == Status::kFatal) {
    return "the device is gone or has failed: dmesg, then the driver and its firmware";
  }
  if (loopback.step == Step::kConnect &&
      (error == errc::timed_out || error == errc::host_unreachable || error == errc::network_unreachable ||
       error == errc::no_such_file_or_directory)) {
    return "its own address " + verbs::text_of(attachment.gid.gid) + " cannot be reached: is it still on " +
           interface_of(kernel) + ", and that up (ip addr, ip route, ip neigh)?";
  }
  if (loopback.step == Step::kConnect && error == errc::invalid_argument) {
    return "the driver refuses GID or MTU: did an address change meanwhile? Run this again, then see dmesg";
  }
  if (error == Status::kRetryExceeded) {
    if (!attachment.is_ethernet) return "packets do not come back: subnet manager (sminfo), link errors (perfquery)";
    return "packets do not come back: does a firewall stop UDP port 4791 (nft list ruleset), does " +
           interface_of(kernel) + " carry its MTU, did the link go down? ethtool -S " + interface_of(kernel) +
           " counts what is dropped";
  }
  if (error == asio::error::timed_out) {
    return "nothing completed: dmesg; do the device's interrupts arrive (grep " + attachment.device +
           " /proc/interrupts)?";
  }
  if (error == Status::kRemoteAccess || error == Status::kLocalProtection || error == Status::kLocalAccess) {
    return "the device refuses memory that was registered with it: bring driver, firmware and rdma-core to one "
           "release; with an IOMMU, try iommu=pt";
  }
  return "dmesg has what the driver says of it; bring driver, firmware and rdma-core to one release";
}

std::string speed_text(std::size_t bytes, Duration time) {
  const double seconds = std::chrono::duration<double>(time).count();
  return "in " + format_seconds(seconds) + " (" +
         (seconds > 0 ? format_number(static_cast<double>(bytes) / seconds / 1e6, 0) : "?") + " MB/s)";
}

/// Whether the device takes dma-bufs: as NCCL does, offers a bad descriptor, which only capable ones examine.
bool takes_dmabufs(verbs::Device& device) {
  const auto domain = device.create_domain();
  if (!domain) return false;
  // Needs no memory, so it also works on machines without a GPU.
  const auto region = (*domain)->register_dmabuf(-1, 0, 4096, 0, {.local_write = true});
  return region || region.error() != Errc::kUnsupported;
}

Finding no_device(bool is_known_to_kernel) {
  return {"RDMA devices", Verdict::kFailed, "none",
          is_known_to_kernel
              ? ""
              : "is there a card (lspci), and its driver loaded (modprobe mlx5_ib)? To try RDMA without one: modprobe "
                "rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE"};
}

}  // namespace

Finding judge_module(const std::string& why) {
  // load_verbs() says "RDMA is unavailable: REASON; REMEDY". A reason may hold semicolons, a remedy none.
  const std::size_t found = why.find(": ") + 2, advice = why.rfind("; ");
  KV_ASSERT(advice != std::string::npos && found <= advice);
  return {"RDMA module", Verdict::kFailed, why.substr(found, advice - found), why.substr(advice + 2)};
}

/// Compared with the machine's memory, since the node's registrations are unknown here: a warning at most.
Finding judge_memlock(const RdmaMachine& machine) {
  const char* const check = "RDMA memlock limit";
  if (machine.memlock_bytes == RdmaMachine::kUnlimited) return {check, Verdict::kOk, "unlimited", ""};
  const std::string limit = format_bytes(machine.memlock_bytes) + " for this process";
  if (machine.ignores_memlock) return {check, Verdict::kOk, limit + ", which CAP_IPC_LOCK lifts", ""};
  if (machine.memlock_bytes >= machine.memory_bytes) return {check, Verdict::kOk, limit, ""};
  return {check, Verdict::kWarning, limit + ": no more can be registered, and a node registers its whole capacity",
          kMemlockAdvice};
}

/// In the order in which causes hide each other.
Finding judge_closed_device(const RdmaDevice& device, error_code error) {
  const auto warn = [&](std::string found, std::string advice) {
    return Finding{"RDMA device " + device.name, Verdict::kWarning, std::move(found), std::move(advice)};
  };
  if (device.file.empty()) return warn("not open to programs", "modprobe ib_uverbs");
  if (device.may_open == errc::no_such_file_or_directory) return warn(device.file + " is not here", kDeviceFileAdvice);
  if (device.may_open || error == errc::operation_not_permitted || error == errc::permission_denied) {
    return warn(device.file + ": " + (device.may_open ? device.may_open : error).message(),
                "no right to it: rdma-core's udev rules make it open to all (mode 0666); else chmod, or join its "
                "group. Or " +
                    std::string(kDeviceFileAdvice));
  }
  if (error) return warn("cannot be opened: " + error.message(), "dmesg has what the driver says of it");
  return warn("libibverbs has no driver for it",
              "install rdma-core's drivers (Debian: ibverbs-providers), or the maker's");
}

Findings judge_device(const verbs::DeviceInfo& device, const RdmaMachine& machine,
                      const std::optional<verbs::Gid>& wanted) {
  Findings findings = {{"RDMA device " + device.name, Verdict::kOk,
                        (device.numa_node < 0 ? "NUMA node unknown" : "NUMA node " + std::to_string(device.numa_node)) +
                            ", " + std::to_string(device.limits.read_count_max) + " READs in flight",
                        ""}};
  const auto chosen = verbs::attach(device, wanted);
  for (const verbs::PortInfo& port : device.ports) {
    const RdmaPort* const kernel = machine.find(device.name, port.number);
    findings.push_back(judge_port(device, port, kernel));
    judge_gids(device, port, wanted, chosen ? &*chosen : nullptr, kernel, findings);
  }
  return findings;
}

Finding judge_transfer(const verbs::Attachment& attachment, const Loopback& loopback, const RdmaMachine& machine) {
  const std::string check = attachment.device + " transfer", bytes = format_bytes(loopback.bytes);
  if (loopback.step == Loopback::Step::kDone) {
    return {check, Verdict::kOk,
            "to itself, " + bytes + ": WRITE " + speed_text(loopback.bytes, loopback.write_time) + ", READ " +
                speed_text(loopback.bytes, loopback.read_time) + ", every byte right",
            ""};
  }
  std::string found(name_of(loopback.step));
  if (loopback.wrong_byte) {
    found += " of " + bytes + ": wrong bytes, the first at " + std::to_string(*loopback.wrong_byte);
  } else if (is_memlock_refusal(loopback)) {  // not the provider's words, which hold the same advice
    found += ", " + bytes + ": " + describe(loopback.error);
  } else {
    found += ": " + (loopback.why.empty() ? describe(loopback.error) : loopback.why);
  }
  return {check, Verdict::kFailed, found,
          transfer_advice(attachment, loopback, machine.find(attachment.device, attachment.port))};
}

Finding judge_gpu(const RdmaMachine& machine, const std::vector<std::pair<std::string, bool>>& takes_dmabuf) {
  const char* const check = "RDMA with GPU memory";
  if (machine.nvidia_driver.empty())
    return {check, Verdict::kOk, "no NVIDIA driver is loaded; host memory is used", ""};
  std::vector<std::string> devices;
  for (const auto& [name, takes] : takes_dmabuf) {
    if (takes) devices.push_back(name);
  }
  const std::string found = std::string("nvidia_peermem is ") + (machine.has_nvidia_peermem ? "" : "not ") +
                            "loaded; dma-bufs: " + (devices.empty() ? "no device takes them" : join(", ", devices));
  if (machine.has_nvidia_peermem || !devices.empty()) return {check, Verdict::kOk, found, ""};
  return {check, Verdict::kNote, found,
          "host memory is used. For GPU memory: the open NVIDIA driver, Linux 5.12 and a device that takes dma-bufs, "
          "or modprobe nvidia_peermem"};
}

/// All facts first: transfers take up to their deadline where packets are lost, and need the explanation.
asio::awaitable<Findings> check_rdma(verbs::Provider& provider, const RdmaMachine& machine,
                                     const std::vector<std::string>& names, Clock& clock) {
  Findings findings;
  std::map<std::string, std::optional<verbs::Gid>> wanted;  // by device
  for (const std::string& text : names) {
    if (const auto wish = verbs::parse_device_wish(text)) wanted.emplace(wish->device, wish->gid);
  }
  std::vector<verbs::DeviceInfo> infos;
  std::vector<std::pair<std::string, std::unique_ptr<verbs::Device>>> open;
  std::vector<std::pair<std::string, bool>> dmabuf;
  const std::vector<std::string> present = provider.device_names();
  for (const std::string& name : present) {
    auto device = provider.open(name);
    const auto info = device ? (*device)->query() : Result<verbs::DeviceInfo>(device.error());
    if (!info) {
      const RdmaDevice* const kernel = machine.find(name);
      findings.push_back(judge_closed_device(kernel ? *kernel : RdmaDevice{.name = name, .file = name}, info.error()));
      continue;
    }
    append(findings, judge_device(*info, machine, wanted[name]));
    infos.push_back(*info);
    dmabuf.emplace_back(name, takes_dmabufs(**device));
    open.emplace_back(name, std::move(*device));
  }
  // Devices that the kernel has but libibverbs does not list: programs cannot open them.
  for (const RdmaDevice& device : machine.devices) {
    if (std::ranges::find(present, device.name) == present.end()) findings.push_back(judge_closed_device(device, {}));
  }
  findings.push_back(judge_memlock(machine));
  findings.push_back(judge_gpu(machine, dmabuf));

  // By the same function as node and client, to judge their choice. -1: without a preferred processor.
  const auto [chosen, left_out] = verbs::choose_devices(infos, -1, names);
  const bool can_any = std::ranges::any_of(chosen, [](const auto& each) { return each.attachment.has_value(); });
  if (present.empty()) {
    findings.push_back(no_device(!machine.devices.empty()));
  } else if (!can_any) {
    findings.push_back({"RDMA devices", Verdict::kFailed,
                        infos.empty() ? "none can be opened" : "none can be used: " + left_out,
                        "see the warnings above"});
  } else if (!names.empty() && !left_out.empty()) {
    findings.push_back({"RDMA devices", Verdict::kFailed, left_out, "kvstorectl doctor --rdma lists what is here"});
  }
  // An ordinary login may lock 8 MiB: a transfer of 1 MiB, with both of its ends, fits into that. Eight times as much
  // if allowed: the speed over 1 MiB is mostly the latency of one transfer.
  const bool has_room = machine.ignores_memlock || machine.memlock_bytes >= 64u << 20;
  for (const verbs::DeviceChoice& choice : chosen) {
    if (!choice.attachment) {
      const auto info = std::ranges::find(infos, choice.wish.device, &verbs::DeviceInfo::name);
      KV_ASSERT(info != infos.end());  // choices come from these
      const std::string reason = verbs::attach(*info, choice.wish.gid).error().text;
      findings.push_back({choice.wish.device + " transfer", Verdict::kFailed, "not possible: " + reason,
                          "it was asked for by name: see the findings on it above"});
      continue;
    }
    const verbs::Attachment& attachment = *choice.attachment;
    const auto device = std::ranges::find(open, attachment.device, [](const auto& each) { return each.first; });
    KV_ASSERT(device != open.end());
    const Loopback loopback =
        co_await run_loopback(*device->second, attachment, has_room ? 8u << 20 : 1u << 20, clock, kTransferDeadline);
    findings.push_back(judge_transfer(attachment, loopback, machine));
  }
  co_return findings;
}

Findings check_rdma_here(bool is_asked_for, const std::vector<std::string>& names) {
  const RdmaMachine machine = read_rdma_machine();
  const auto provider = verbs::load_verbs();
  // RDMA is optional on a machine. With --rdma a device is expected, and its absence is the finding.
  if (!is_asked_for && machine.devices.empty()) {
    return {{"RDMA", Verdict::kNote, "not there; TCP and shared memory are used", ""}};
  }
  Findings findings;
  if (!provider) {
    findings.push_back(judge_module(provider.error().text));
    if (machine.devices.empty()) findings.push_back(no_device(false));
    findings.push_back(judge_memlock(machine));
  } else {
    findings.push_back({"RDMA module", Verdict::kOk, "libkvstore_verbs.so and libibverbs are here", ""});
    SteadyClock clock;
    asio::io_context io{1};
    // A separate variable: GCC 12 would destroy it twice inside the call.
    auto checking = check_rdma(**provider, machine, names, clock);
    asio::co_spawn(io, std::move(checking), [&](const std::exception_ptr& thrown, const Findings& found) {
      if (thrown) std::rethrow_exception(thrown);
      append(findings, found);
    });
    io.run();
  }
  for (Finding& finding : findings) {
    if (is_asked_for || finding.verdict != Verdict::kFailed) continue;
    finding.verdict = Verdict::kWarning;
    finding.found += "; TCP and shared memory are used";
  }
  return findings;
}

}  // namespace kv
