#include "store/node/disk/rocks/purge_filter.h"

#include <algorithm>
#include <string>

#include "base/assert.h"
#include "store/node/disk/files/disk_format.h"

namespace kv {

class PurgeFilter::OfOneFile final : public rocksdb::CompactionFilter {
 public:
  explicit OfOneFile(std::shared_ptr<const Wanted> wanted) : wanted_(std::move(wanted)) {}
  bool Filter(int /*level*/, const rocksdb::Slice& key, const rocksdb::Slice& /*value*/, std::string* /*new_value*/,
              bool* /*is_changed*/) const override {
    const auto decoded = decode_key(key.ToStringView());
    if (!decoded || *decoded < wanted_->first || *decoded > wanted_->last) return false;
    return !std::ranges::binary_search(wanted_->keys, *decoded);
  }
  const char* Name() const override { return "kvstore-purge"; }

 private:
  const std::shared_ptr<const Wanted> wanted_;
};

void PurgeFilter::use(std::vector<DiskKey> wanted, DiskKey first, DiskKey last) {
  KV_ASSERT(std::ranges::is_sorted(wanted) && first <= last);
  auto next = std::make_shared<const Wanted>(Wanted{std::move(wanted), first, last});
  const std::lock_guard lock(mutex_);
  wanted_ = std::move(next);
}

void PurgeFilter::rest() {
  const std::lock_guard lock(mutex_);
  wanted_ = nullptr;
}

std::unique_ptr<rocksdb::CompactionFilter> PurgeFilter::CreateCompactionFilter(
    const rocksdb::CompactionFilter::Context& /*context*/) {
  const std::lock_guard lock(mutex_);
  return wanted_ == nullptr ? nullptr : std::make_unique<OfOneFile>(wanted_);
}

}  // namespace kv
