// store/node/striped_disk.h: several disks as one.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/disk.h"

namespace kv {

/// Up to kPlaceCount disks, each with its own place in the keys. Blocks are written where their key says, on all disks
/// at once. A disk that fails is left out for a while: nothing is written there, what it holds is asked for all the
/// same, and what it has to forget is told to it when it is tried again.
/// Thread safety: as kv::Disk.
class StripedDisk final : public Disk {
 public:
  struct Part {
    DiskPlace place;
    std::string name;  ///< For the log.
    std::unique_ptr<Disk> disk;
  };
  /// `parts`: with places of their own, 1 to kPlaceCount of them, all in the same epoch. `left_out`: how long one that
  /// failed is. Keeps a reference to the clock.
  StripedDisk(std::vector<Part> parts, Clock& clock, Duration left_out = 60s);
  ~StripedDisk() override;

  std::vector<DiskPlace> places() const override;
  error_code write(std::span<const DiskWrite> blocks) override;
  Result<DiskBlock> read(DiskKey key) const override;
  error_code erase(std::span<const DiskKey> keys) override;
  error_code drop_before(DiskKey end) override;
  error_code add_namespace(const NamespaceId& id, const std::string& record) override;
  error_code remove_namespaces(std::span<const NamespaceId> ids) override;
  error_code load(const std::function<void(const NamespaceId& id, const std::string& record)>& space,
                  const std::function<bool(const DiskRecord& block)>& block) const override;
  std::uint32_t epoch() const override;
  error_code flush() override;
  DiskStats stats() const override;
  std::string hanging(Duration after) const override;

 private:
  struct Member;
  Member* find(DiskKey key) const;
  bool is_left_out(const Member& member) const;
  std::vector<Member*> in_use() const;
  error_code settle(Member& member);
  error_code settle_all();
  error_code failed(Member& member, error_code error);

  Clock& clock_;
  const Duration left_out_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace kv
