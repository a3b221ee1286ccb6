// store/node/disk/striped_disk.h: several disks as one.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/disk/disk.h"
#include "store/node/disk/call_threads.h"

namespace kv {

struct StripedDiskConfig {
  Duration left_out = 60s;       ///< How long a failed disk is left out.
  Duration patience = 2s;        ///< A disk whose call takes longer is left out until its calls return.
  std::size_t read_threads = 4;  ///< Per disk: at most so many threads hang with it, and two more.
  Duration open_patience = 5s;   ///< A disk to be added must open within this time.
};

/// Up to kPlaceCount disks, each with its own place in the keys. A block is written to the disk that its key names, to
/// all disks at the same time. A disk that fails is left out for a while: writes skip it, reads still ask it, and it
/// learns of missed erasures when it is tried again. A disk that hangs is left out until it answers, for reads too: its
/// calls run on threads of their own, and callers wait for them no longer than the patience.
///   1. A call that may be abandoned owns its data: a write copies its blocks first.
///   2. A disk that begins to hang has at most one call of each kind under way, and one read for each reading thread.
///      It gets no more calls until it answers.
///   3. Drops are kept on every disk that answers. For a disk that did not, the next start applies them.
///   4. Disks come and go. A new disk is emptied: its old blocks may have been dropped without its knowledge. A leaving
///      disk is closed once it is unused, by a thread of its own that may hang with it.
///   5. A disk that has been alone since the start is called on the caller's thread, without striping.
/// Thread safety: as kv::Disk.
class StripedDisk final : public Disk {
 public:
  struct Part {
    DiskPlace place;
    std::string name;  ///< For the log.
    std::shared_ptr<Disk> disk;
  };
  /// Opens disks to be added, for this epoch: empty, each with a free place. All of them, or an error.
  using Open = std::function<Result<std::vector<Part>, Failure>(
      const std::vector<std::string>& names, std::uint32_t epoch, const std::vector<DiskPlace>& taken)>;
  /// `parts`: 1 to kPlaceCount, each with a place of its own, all in the same epoch. Keeps a reference to the clock.
  StripedDisk(std::vector<Part> parts, Clock& clock, StripedDiskConfig config = {}, Open open = {});
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
  Result<void, Failure> set_directories(std::span<const std::string> paths) override;
  std::vector<LeavingDirectory> leaving() const override;
  error_code remove(DiskPlace place) override;

 private:
  struct Member;
  struct News;
  struct Telling;
  struct Closing;
  /// A snapshot, which keeps its members open.
  using Members = std::shared_ptr<const std::vector<std::shared_ptr<Member>>>;
  Members members() const;
  void set_members(std::vector<std::shared_ptr<Member>> members);
  static Disk* alone(const Members& members);  ///< Invariant 5; nullptr: there are several, or were.
  static Member* find(const Members& members, DiskPlace place);
  bool is_left_out(const Member& member) const;
  bool is_hanging(Member& member) const;
  std::vector<Member*> in_use(const Members& members) const;
  News news_for(const Member& member) const;
  void settled(Member& member, const News& news) const;
  error_code settle_all(const Members& members);
  error_code keep_drops(const Members& members, std::span<const DiskDrop> drops) const;
  error_code failed(Member& member, error_code error) const;
  error_code hangs(Member& member) const;
  bool close(std::shared_ptr<Member> member);

  Clock& clock_;
  const StripedDiskConfig config_;
  const Open open_;
  const std::uint32_t epoch_;
  mutable std::mutex mutex_;  ///< Guards the two members below; held for a copy, never for a call.
  Members members_;           ///< Changed by one thread at a time, under changing_ as well.
  std::vector<std::unique_ptr<Closing>> closing_;
  std::mutex changing_;
  CallThreads opening_;
};

}  // namespace kv
