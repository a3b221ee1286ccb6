// client/tools/ctl/doctor/doctor_rdma.h: checks RDMA on this machine. Each judge_ function turns facts into findings
// with advice, without I/O; check_rdma() gathers the facts from a provider.
//
// An unusable device is a warning. FAILED: RDMA cannot work at all, or a transfer went wrong.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/tools/ctl/doctor/doctor.h"
#include "client/tools/ctl/doctor/rdma_loopback.h"
#include "client/tools/ctl/doctor/rdma_machine.h"

namespace kv {

/// `why`: of verbs::load_verbs().
Finding judge_module(const std::string& why);
Finding judge_memlock(const RdmaMachine& machine);
/// A device that could not be opened, or that libibverbs does not list (no error).
Finding judge_closed_device(const RdmaDevice& device, error_code error);
/// The device, its ports and their GIDs. `wanted`: the requested address.
Findings judge_device(const verbs::DeviceInfo& device, const RdmaMachine& machine,
                      const std::optional<verbs::Gid>& wanted = std::nullopt);
Finding judge_transfer(const verbs::Attachment& attachment, const Loopback& loopback, const RdmaMachine& machine);
/// Ways to register GPU memory. `takes_dmabuf`: of each device by name.
Finding judge_gpu(const RdmaMachine& machine, const std::vector<std::pair<std::string, bool>>& takes_dmabuf);

/// All of the above but the module, on the devices of `provider`. `names` are as verbs::parse_device_wish() reads them.
/// If there are any, only these move bytes, and a named device that cannot is FAILED.
asio::awaitable<Findings> check_rdma(verbs::Provider& provider, const RdmaMachine& machine,
                                     const std::vector<std::string>& names, Clock& clock);

/// The same on this machine, and its module. FAILED only if RDMA `is_asked_for`: it is optional.
Findings check_rdma_here(bool is_asked_for, const std::vector<std::string>& names);

}  // namespace kv
