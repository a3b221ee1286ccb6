#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/ibverbs/objects.h"

namespace kv::verbs {
namespace {

class IbMemoryRegion final : public MemoryRegion {
 public:
  explicit IbMemoryRegion(IbRegion region) : region_(std::move(region)) {}
  std::uint32_t lkey() const override { return region_->lkey; }
  std::uint32_t rkey() const override { return region_->rkey; }

 private:
  IbRegion region_;
};

std::string memlock_text() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return std::to_string(limit.rlim_cur) + " bytes";
}

class IbProtectionDomain final : public ProtectionDomain {
 public:
  IbProtectionDomain(IbDomain domain, DeviceInfo info) : domain_(std::move(domain)), info_(std::move(info)) {}

  Result<std::unique_ptr<MemoryRegion>, Failure> register_memory(std::span<std::byte> memory, Access access) override {
    const auto checked = check_access(memory.size(), info_.limits.region_bytes_max, access);
    if (!checked) return checked.error();
    // The function, not the macro of that name: flags are never constant here.
    IbRegion region((ibv_reg_mr)(domain_.get(), memory.data(), memory.size(), access_flags(access)));
    if (region) return wrap(std::move(region));
    const int error = errno;  // later calls may change it
    std::string text = "bytes: " + std::to_string(memory.size()) + ", " + info_.name +
                       " cannot register so much: " + std::strerror(error);
    if (error == ENOMEM || error == EAGAIN) {
      text += "; the limit on locked memory is " + memlock_text() +
              " (set LimitMEMLOCK=infinity in the systemd unit, --ulimit memlock=-1 for a container, or give "
              "CAP_IPC_LOCK)";
    }
    return Failure(system_error(error), std::move(text));
  }

  Result<std::unique_ptr<MemoryRegion>, Failure> register_dmabuf(int fd, std::uint64_t offset, std::uint64_t bytes,
                                                                 std::uint64_t address, Access access) override {
    const auto checked = check_access(bytes, info_.limits.region_bytes_max, access);
    if (!checked) return checked.error();
    IbRegion region(ibv_reg_dmabuf_mr(domain_.get(), offset, bytes, address, fd, access_flags(access)));
    if (region) return wrap(std::move(region));
    const int error = errno;
    // Kernels and drivers report a missing feature in different ways; the caller then tries by address.
    const bool is_unsupported = error == EOPNOTSUPP || error == ENOSYS || error == EPROTONOSUPPORT;
    return Failure(is_unsupported ? make_error_code(Errc::kUnsupported) : system_error(error),
                   info_.name + " cannot register a dma-buf: " + std::strerror(error));
  }

  Result<std::unique_ptr<QueuePair>, Failure> create_queue_pair(CompletionQueue& queue,
                                                                const QueuePairOptions& options) override {
    const auto checked = check_options(options, info_);
    if (!checked) return checked.error();
    auto& ib_queue = static_cast<IbCompletionQueue&>(queue);
    if (ib_queue.room() < options.request_count_max + options.receive_count_max) {
      return Failure(Errc::kTooLarge, "queue: no room for all completions that may be outstanding");
    }
    return IbQueuePair::create(*domain_, ib_queue, options, info_.limits);
  }

 private:
  static Result<std::unique_ptr<MemoryRegion>> wrap(IbRegion region) {
    return std::unique_ptr<MemoryRegion>(std::make_unique<IbMemoryRegion>(std::move(region)));
  }

  IbDomain domain_;
  DeviceInfo info_;
};

}  // namespace

/// Exactly the requested flags. An extra one would let a peer write where it may only read.
int access_flags(Access access) {
  return (access.local_write ? IBV_ACCESS_LOCAL_WRITE : 0) | (access.remote_write ? IBV_ACCESS_REMOTE_WRITE : 0) |
         (access.remote_read ? IBV_ACCESS_REMOTE_READ : 0);
}

std::unique_ptr<ProtectionDomain> make_domain(IbDomain domain, DeviceInfo info) {
  return std::make_unique<IbProtectionDomain>(std::move(domain), std::move(info));
}

}  // namespace kv::verbs
