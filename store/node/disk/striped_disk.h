// store/node/disk/striped_disk.h: several disks as one.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/disk.h"

namespace kv {

struct StripedDiskConfig {
  Duration left_out = 60s;       ///< How long a disk that failed is left out.
  Duration patience = 2s;        ///< A disk whose call takes longer is left out until its calls return.
  std::size_t read_threads = 4;  ///< Of each disk: at most so many threads hang with it, and two more.
};

/// Up to kPlaceCount disks, each with its own place in the keys. A block is written to the disk that its key names, to
/// all disks at the same time. A disk that fails is left out for a while: nothing is written to it, reads still ask it,
/// and it is told what to forget when it is tried again. A disk that hangs is left out until it answers, for reads too:
/// calls go to it on threads of its own, and nobody waits for them longer than the patience.
///   1. A call that may be given up owns what it touches: a write copies its blocks first.
///   2. A disk that begins to hang has at most one call of each kind under way, and one read for each thread that
///   reads.
///      It gets no more calls until it answers.
///   3. Drops are kept on every disk that answers. A disk that did not answer hears of them at the next start.
/// Thread safety: as kv::Disk.
class StripedDisk final : public Disk {
 public:
  struct Part {
    DiskPlace place;
    std::string name;  ///< For the log.
    std::unique_ptr<Disk> disk;
  };
  /// `parts`: 1 to kPlaceCount, each with a place of its own, all in the same epoch. Keeps a reference to the clock.
  StripedDisk(std::vector<Part> parts, Clock& clock, StripedDiskConfig config = {});
  ~StripedDisk() override;

  std::vector<DiskPlace> places() const override;
  error_code write(std::span<const DiskWrite> blocks) override;
  Result<DiskBlock> read(DiskKey key) const override;
  error_code erase(std::span<const DiskKey> keys) override;
  error_code drop_before(DiskKey end) override;
  error_code add_drops(std::span<const DiskDrop> drops) override;
  std::vector<DiskDrop> drops() const override;
  error_code forget_drops(DiskKey before) override;
  error_code add_namespace(const NamespaceId& id, const std::string& record) override;
  error_code remove_namespaces(std::span<const NamespaceId> ids) override;
  error_code load(const std::function<void(const NamespaceId& id, const std::string& record)>& space,
                  const std::function<bool(const DiskRecord& block)>& block) const override;
  std::uint32_t epoch() const override;
  Result<DiskPurge> purge(std::span<const DiskDrop> dropped,
                          const std::function<bool(const DiskPurge&)>& goes_on) override;
  error_code flush() override;
  DiskStats stats() const override;
  std::string hanging(Duration after) const override;

 private:
  struct Member;
  struct News;
  struct Telling;
  Member* find(DiskKey key) const;
  bool is_left_out(const Member& member) const;
  bool is_hanging(Member& member) const;
  std::vector<Member*> in_use() const;
  News news_for(const Member& member) const;
  void settled(Member& member, const News& news) const;
  error_code settle_all();
  error_code failed(Member& member, error_code error) const;
  error_code hangs(Member& member) const;

  Clock& clock_;
  const StripedDiskConfig config_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace kv
