#include "client/python/src/calls/device_memory.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "client/python/src/errors.h"

namespace kv::python {
namespace {

// std::less: < has no meaning for addresses of different objects.
bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return before(a.data(), b.data() + b.size()) && before(b.data(), a.data() + a.size());
}
bool contains(std::span<const std::byte> whole, std::span<const std::byte> part) {
  const std::less_equal<const std::byte*> at_most;
  return at_most(whole.data(), part.data()) && at_most(part.data() + part.size(), whole.data() + whole.size());
}

}  // namespace

DeviceRegions::RegionPtr DeviceRegions::add(Region region) {
  for (const RegionPtr& each : regions_) {
    if (overlap(each->bytes, region.bytes)) throw bad_request("memory: a part of it is lent already");
  }
  regions_.push_back(std::make_shared<Region>(std::move(region)));
  return regions_.back();
}

void DeviceRegions::remove(const RegionPtr& region) {
  std::erase(regions_, region);
  // Last: its release can run Python, which may enter here again.
  const std::vector<Array> owner = std::exchange(region->owner, {});
}

void DeviceRegions::clear() {
  for (const RegionPtr& each : std::exchange(regions_, {})) remove(each);
}

bool DeviceRegions::has(const RegionPtr& region) const { return std::ranges::find(regions_, region) != regions_.end(); }

bool DeviceRegions::covers(std::span<const Array> arrays, std::span<const std::span<std::byte>> blocks) const {
  const auto is_on_device = [](const Array& array) { return array.is_on_device(); };
  if (std::ranges::none_of(arrays, is_on_device) || blocks.empty()) return false;
  if (!std::ranges::all_of(arrays, is_on_device))
    throw bad_request("blocks: some lie in host memory and some on a CUDA device");
  const auto holds_first = [&](const RegionPtr& each) { return contains(each->bytes, blocks.front()); };
  const auto found = std::ranges::find_if(regions_, holds_first);
  const auto is_inside = [&](std::span<std::byte> block) { return contains((*found)->bytes, block); };
  if (found == regions_.end() || !std::ranges::all_of(blocks, is_inside))
    throw bad_request(
        "blocks: the memory lies on a CUDA device, and is not in one part that Client.lend_device() has lent");
  if ((*found)->is_leaving)
    throw StatusError{status_of(make_error_code(Errc::kQuarantined)), "blocks: their memory is being taken back"};
  return true;
}

}  // namespace kv::python
