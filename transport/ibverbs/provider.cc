#include "transport/ibverbs/objects.h"
#include "transport/verbs/verbs_module.h"

namespace kv::verbs {
namespace {

class IbDevice final : public Device {
 public:
  explicit IbDevice(IbContext context) : context_(std::move(context)) {}

  Result<DeviceInfo> query() const override { return query_device(*context_); }
  Result<std::unique_ptr<ProtectionDomain>> create_domain() override {
    // Queried again: a domain checks requests against these limits for its whole life.
    auto info = query_device(*context_);
    if (!info) return info.error();
    IbDomain domain(ibv_alloc_pd(context_.get()));
    if (!domain) return last_errno();
    return make_domain(std::move(domain), std::move(*info));
  }
  Result<std::unique_ptr<CompletionQueue>> create_completion_queue(std::uint32_t count) override {
    const auto info = query_device(*context_);
    if (!info) return info.error();
    if (count == 0) return Errc::kBadRequest;
    if (count > info->limits.completion_count_max) return Errc::kTooLarge;
    return IbCompletionQueue::create(*context_, count);
  }

 private:
  IbContext context_;
};

/// The present devices; the list is freed with this object.
class DeviceList {
 public:
  DeviceList() : devices_(ibv_get_device_list(&count_)) {}
  ~DeviceList() {
    if (devices_) ibv_free_device_list(devices_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  std::span<ibv_device*> devices() const { return {devices_, devices_ ? static_cast<std::size_t>(count_) : 0}; }

 private:
  int count_ = 0;
  ibv_device** devices_;
};

class IbProvider final : public Provider {
 public:
  std::vector<std::string> device_names() const override {
    std::vector<std::string> names;
    const DeviceList list;
    for (ibv_device* const device : list.devices()) names.emplace_back(ibv_get_device_name(device));
    return names;
  }
  Result<std::unique_ptr<Device>> open(const std::string& name) override {
    const DeviceList list;  // an open device outlives the list
    for (ibv_device* const device : list.devices()) {
      if (name != ibv_get_device_name(device)) continue;
      IbContext context(ibv_open_device(device));
      if (!context) return last_errno();
      return std::unique_ptr<Device>(std::make_unique<IbDevice>(std::move(context)));
    }
    return Errc::kBadRequest;
  }
};

}  // namespace
}  // namespace kv::verbs

extern "C" {
__attribute__((visibility("default"))) int kv_verbs_abi_version() { return kv::verbs::kModuleAbiVersion; }
__attribute__((visibility("default"))) kv::verbs::Provider* kv_verbs_make_provider(int assert_policy) {
  kv::set_assert_policy(static_cast<kv::AssertPolicy>(assert_policy));
  return new kv::verbs::IbProvider;
}
}
