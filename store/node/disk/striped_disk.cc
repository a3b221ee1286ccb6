#include "store/node/disk/striped_disk.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <system_error>

#include "base/assert.h"
#include "store/node/disk/record_stream.h"
#include "store/node/threads/thread_border.h"

namespace kv {
namespace {

constexpr std::chrono::milliseconds kClosingLook{5};  ///< Between checks whether a leaving disk is still in use.

/// Blocks with their bytes and checksums, for a call that may be abandoned.
struct OwnedWrites {
  explicit OwnedWrites(std::span<const DiskWrite> blocks) : writes(blocks.begin(), blocks.end()) {
    std::size_t byte_count = 0, sum_count = 0;
    for (const DiskWrite& write : writes) {
      byte_count += write.bytes.size();
      sum_count += write.checksums.size();
    }
    bytes = std::make_unique_for_overwrite<std::byte[]>(byte_count);
    sums.reserve(sum_count);  // so that the spans below stay good
    std::byte* to = bytes.get();
    for (DiskWrite& write : writes) {
      std::memcpy(to, write.bytes.data(), write.bytes.size());
      write.bytes = {to, write.bytes.size()};
      to += write.bytes.size();
      const auto at = sums.insert(sums.end(), write.checksums.begin(), write.checksums.end());
      write.checksums = {sums.data() + (at - sums.begin()), write.checksums.size()};
    }
    KV_ASSERT(to == bytes.get() + byte_count && sums.size() == sum_count);
  }
  std::vector<DiskWrite> writes;
  std::unique_ptr<std::byte[]> bytes;
  std::vector<std::uint64_t> sums;
};

}  // namespace

struct StripedDisk::Member {
  Member(Part own, const Clock& clock, const StripedDiskConfig& config)
      : part(std::move(own)),
        writing(clock, 1, config.patience),
        dropping(clock, 1, config.patience),
        reading(clock, config.read_threads, config.patience) {}
  bool is_stuck(Duration after) const {
    return writing.is_stuck(after) || dropping.is_stuck(after) || reading.is_stuck(after);
  }
  bool is_idle() const { return writing.is_idle() && dropping.is_idle() && reading.is_idle(); }

  const Part part;
  std::atomic<bool> is_alone{false};  // invariant 5
  std::atomic<bool> is_leaving{false};
  mutable CallThreads writing, dropping, reading;
  std::atomic<Duration::rep> left_out_until{0};  // atomic, since stats() reads it
  std::atomic<bool> has_hung{false};             // and has not answered since
  std::mutex stats_mutex;
  DiskStats last_stats;
  // Changes that the disk has missed. Used by the writer's thread only.
  std::vector<DiskKey> erased;
  DiskKey drop_before{};
  std::map<NamespaceId, std::string> added_spaces;
  std::set<NamespaceId> removed_spaces;
  bool is_unflushed = false;  // blocks were erased or dropped since the last flush
};

/// Changes that a disk has missed and gets before any other call. A copy, since the call may be abandoned.
struct StripedDisk::News {
  std::map<NamespaceId, std::string> spaces;
  std::vector<DiskKey> erased;
  DiskKey drop_before{};
  std::vector<NamespaceId> removed_spaces;

  bool empty() const { return spaces.empty() && erased.empty() && drop_before == DiskKey{} && removed_spaces.empty(); }
  error_code tell(Disk& disk) const {
    for (const auto& [id, record] : spaces) {
      if (const error_code error = disk.add_namespace(id, record)) return error;
    }
    if (!erased.empty()) {
      if (const error_code error = disk.erase(erased)) return error;
    }
    if (drop_before != DiskKey{}) {
      if (const error_code error = disk.drop_before(drop_before)) return error;
    }
    // Last, after the blocks of these namespaces: a crash in between leaves a namespace too many, never one too few.
    return removed_spaces.empty() ? error_code() : disk.remove_namespaces(removed_spaces);
  }
};

/// A call to one disk that has begun, and the news that it begins with.
struct StripedDisk::Telling {
  Member* member;
  News news;
  std::shared_ptr<CallThreads::Begun<error_code>> begun;
};

/// A disk that is out of use and being closed.
struct StripedDisk::Closing {
  std::string name;
  TimePoint since;
  std::atomic<bool> is_over{false};
  std::thread thread;
};

StripedDisk::StripedDisk(std::vector<Part> parts, Clock& clock, StripedDiskConfig config, Open open)
    : clock_(clock),
      config_(config),
      open_(std::move(open)),
      epoch_(parts.front().disk->epoch()),
      opening_(clock, 1, config.open_patience) {
  std::vector<std::shared_ptr<Member>> members;
  for (Part& part : parts) {
    KV_ASSERT(part.disk->epoch() == epoch_ && part.place < kPlaceCount);
    KV_ASSERT(std::ranges::none_of(members, [&](const auto& each) { return each->part.place == part.place; }));
    members.push_back(std::make_shared<Member>(std::move(part), clock, config_));
  }
  members.front()->is_alone = members.size() == 1;
  set_members(std::move(members));
}

StripedDisk::~StripedDisk() {
  for (const auto& each : closing_) each->thread.join();
}

StripedDisk::Members StripedDisk::members() const {
  const std::lock_guard lock(mutex_);
  return members_;
}

void StripedDisk::set_members(std::vector<std::shared_ptr<Member>> members) {
  KV_ASSERT(!members.empty());
  auto next = std::make_shared<const std::vector<std::shared_ptr<Member>>>(std::move(members));
  const std::lock_guard lock(mutex_);
  members_.swap(next);  // the old members end outside the lock
}

Disk* StripedDisk::alone(const Members& members) {
  const Member& first = *members->front();
  return first.is_alone ? first.part.disk.get() : nullptr;
}

StripedDisk::Member* StripedDisk::find(const Members& members, DiskPlace place) {
  // A dozen disks at most: a search is negligible beside a call to one.
  const auto found = std::ranges::find_if(*members, [place](const auto& each) { return each->part.place == place; });
  return found == members->end() ? nullptr : found->get();
}

bool StripedDisk::is_left_out(const Member& member) const {
  return clock_.now().time_since_epoch().count() < member.left_out_until;
}

/// A call to the disk was abandoned, and some calls have not returned yet.
bool StripedDisk::is_hanging(Member& member) const {
  if (!member.has_hung) return false;
  if (member.is_stuck(config_.patience) || !member.writing.is_idle() || !member.dropping.is_idle()) return true;
  if (member.has_hung.exchange(false)) spdlog::info("disk: {} answers again", member.part.name);
  return false;
}

/// The disks that are not left out. If all are, returns all: only an attempt shows whether one works again.
std::vector<StripedDisk::Member*> StripedDisk::in_use(const Members& members) const {
  std::vector<Member*> working, all;
  for (const auto& member : *members) {
    all.push_back(member.get());
    if (!is_left_out(*member) && !is_hanging(*member)) working.push_back(member.get());
  }
  KV_ASSERT(!all.empty());
  return working.empty() ? all : working;
}

std::vector<DiskPlace> StripedDisk::places() const {
  const Members members = this->members();
  std::vector<DiskPlace> working, all;
  for (const auto& member : *members) {
    if (member->is_leaving) continue;
    all.push_back(member->part.place);
    if (member->is_alone || (!is_left_out(*member) && !is_hanging(*member))) working.push_back(member->part.place);
  }
  KV_ASSERT(!all.empty());
  return working.empty() ? all : working;
}

/// The call has returned an error: the disk is left out for a fixed time. Calls that hang are handled by hangs(),
/// without a fixed time, since the duration of a hang is unknown.
error_code StripedDisk::failed(Member& member, error_code error) const {
  // Once for a series of errors, which may come with every call.
  if (!is_left_out(member)) {
    spdlog::error("disk: {} is left out for {} s: {}", member.part.name,
                  std::chrono::duration_cast<std::chrono::seconds>(config_.left_out).count(), error.message());
  }
  member.left_out_until = (clock_.now() + config_.left_out).time_since_epoch().count();
  return error;
}

error_code StripedDisk::hangs(Member& member) const {
  if (!member.has_hung.exchange(true)) {
    spdlog::error("disk: {} is left out until it answers: a call takes longer than {} ms", member.part.name,
                  std::chrono::duration_cast<std::chrono::milliseconds>(config_.patience).count());
  }
  return Errc::kDiskFailed;
}

StripedDisk::News StripedDisk::news_for(const Member& member) const {
  return {.spaces = member.added_spaces,
          .erased = member.erased,
          .drop_before = member.drop_before,
          .removed_spaces = {member.removed_spaces.begin(), member.removed_spaces.end()}};
}

/// `member` has applied all of `news`. It is still complete: only the writer adds to it, and the writer waited.
void StripedDisk::settled(Member& member, const News& news) const {
  KV_ASSERT(news.erased.size() == member.erased.size() && news.drop_before == member.drop_before);
  member.added_spaces.clear();
  member.removed_spaces.clear();
  member.is_unflushed = member.is_unflushed || !news.erased.empty() || news.drop_before != DiskKey{};
  member.erased.clear();
  member.drop_before = {};
}

/// Applies missed changes to all disks in use. Fails only when all of these fail: the others get theirs later.
error_code StripedDisk::settle_all(const Members& members) {
  std::vector<Telling> tellings;
  bool has_any = false;
  error_code error;
  for (Member* const member : in_use(members)) {
    News news = news_for(*member);
    if (news.empty()) {
      has_any = true;
    } else if (is_hanging(*member)) {
      error = Errc::kDiskFailed;
    } else {
      auto begun = member->writing.begin([news, disk = member->part.disk.get()] { return news.tell(*disk); });
      tellings.push_back({member, std::move(news), std::move(begun)});
    }
  }
  // All calls begin before the first wait, so this takes as long as the slowest rather than the sum.
  for (const Telling& each : tellings) {
    const auto own = each.member->writing.wait(each.begun);
    if (own && !*own) {
      settled(*each.member, each.news);
      has_any = true;
    } else {
      error = own ? failed(*each.member, *own) : hangs(*each.member);
    }
  }
  return has_any ? error_code() : error;
}

/// Each block goes to the disk that its key names; the Store has chosen among places() when it made the key. The bytes
/// are copied first: the caller's slots are free again when this returns, while an abandoned call may still read.
error_code StripedDisk::write(std::span<const DiskWrite> blocks) {
  const Members members = this->members();
  if (Disk* const disk = alone(members)) return disk->write(blocks);
  std::map<Member*, std::vector<DiskWrite>> shares;
  for (const DiskWrite& block : blocks) {
    Member* const member = find(members, place_of(block.record.key));
    KV_ASSERT(member != nullptr);
    shares[member].push_back(block);
  }
  std::vector<Telling> writing;
  error_code first;
  for (const auto& [member, share] : shares) {
    if (is_hanging(*member)) {
      first = Errc::kDiskFailed;
      continue;
    }
    News news = news_for(*member);
    auto own = std::make_shared<const OwnedWrites>(share);
    auto begun = member->writing.begin([news, own = std::move(own), disk = member->part.disk.get()] {
      const error_code error = news.tell(*disk);
      return error ? error : disk->write(own->writes);
    });
    writing.push_back({member, std::move(news), std::move(begun)});
  }
  for (const Telling& each : writing) {
    const auto own = each.member->writing.wait(each.begun);
    if (own && !*own) {
      settled(*each.member, each.news);
      continue;
    }
    const error_code error = own ? failed(*each.member, *own) : hangs(*each.member);
    if (!first) first = error;
  }
  return first;
}

Result<DiskBlock> StripedDisk::read(DiskKey key) const {
  const Members members = this->members();
  if (const Disk* const disk = alone(members)) return disk->read(key);
  Member* const member = find(members, place_of(key));
  if (member == nullptr) return make_error_code(Errc::kNotFound);  // its directory is out of use
  if (is_hanging(*member)) return make_error_code(Errc::kDiskFailed);
  // A disk left out after a failure is read all the same: a full disk is still readable.
  auto block = member->reading.run([key, disk = member->part.disk.get()] { return disk->read(key); });
  if (!block) return hangs(*member);
  return std::move(*block);
}

error_code StripedDisk::erase(std::span<const DiskKey> keys) {
  const Members members = this->members();
  if (Disk* const disk = alone(members)) return disk->erase(keys);
  for (const DiskKey key : keys) {
    if (Member* const member = find(members, place_of(key))) member->erased.push_back(key);
  }
  static_cast<void>(settle_all(members));
  return {};  // a disk that missed this gets it later, so the caller need not repeat it
}

error_code StripedDisk::drop_before(DiskKey end) {
  const Members members = this->members();
  if (Disk* const disk = alone(members)) return disk->drop_before(end);
  // Blocks below `end` go with their files, so their single erasures become unnecessary.
  for (const auto& member : *members) {
    member->drop_before = std::max(member->drop_before, end);
    std::erase_if(member->erased, [end](DiskKey key) { return key < end; });
  }
  return settle_all(members);
}

error_code StripedDisk::add_drops(std::span<const DiskDrop> drops) {
  const Members members = this->members();
  if (Disk* const disk = alone(members)) return disk->add_drops(drops);
  return keep_drops(members, drops);
}

/// One disk with the drops is enough, since a start reads those of all. The others keep them too, if they answer soon.
error_code StripedDisk::keep_drops(const Members& members, std::span<const DiskDrop> drops) const {
  std::vector<std::pair<Member*, std::shared_ptr<CallThreads::Begun<error_code>>>> adding;
  const std::vector<DiskDrop> own(drops.begin(), drops.end());
  for (const auto& member : *members) {
    // On threads of their own, beside writes: an answer waits for this.
    if (is_hanging(*member) || member->dropping.is_stuck()) continue;
    adding.emplace_back(member.get(),
                        member->dropping.begin([own, disk = member->part.disk.get()] { return disk->add_drops(own); }));
  }
  bool has_any = false;
  error_code error = Errc::kDiskFailed;
  for (const auto& [member, begun] : adding) {
    const auto outcome = member->dropping.wait(begun);
    if (outcome && !*outcome) {
      has_any = true;
    } else {
      error = outcome ? failed(*member, *outcome) : hangs(*member);
    }
  }
  return has_any ? error_code() : error;
}

std::vector<DiskDrop> StripedDisk::drops() const {
  std::vector<DiskDrop> all;
  const Members members = this->members();
  for (const auto& member : *members) {
    const auto own = member->part.disk->drops();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

error_code StripedDisk::forget_drops(DiskKey before) {
  const Members members = this->members();
  if (Disk* const disk = alone(members)) return disk->forget_drops(before);
  // Only when every disk has durably erased the dropped blocks. Otherwise the next start would find them there.
  for (const auto& member : *members) {
    const bool knows_all = news_for(*member).empty() && !member->is_unflushed;
    if (is_left_out(*member) || is_hanging(*member) || !knows_all) return Errc::kBusy;
  }
  error_code first;
  for (const auto& member : *members) {
    const auto own =
        member->writing.run([before, disk = member->part.disk.get()] { return disk->forget_drops(before); });
    if (own && !*own) continue;
    const error_code error = own ? failed(*member, *own) : hangs(*member);
    if (!first) first = error;
  }
  return first;
}

error_code StripedDisk::add_namespace(const NamespaceId& id, const std::string& record) {
  const Members members = this->members();
  if (Disk* const disk = alone(members)) return disk->add_namespace(id, record);
  for (const auto& member : *members) {
    member->removed_spaces.erase(id);
    member->added_spaces.insert_or_assign(id, record);
  }
  return settle_all(members);
}

error_code StripedDisk::remove_namespaces(std::span<const NamespaceId> ids) {
  const Members members = this->members();
  if (Disk* const disk = alone(members)) return disk->remove_namespaces(ids);
  for (const auto& member : *members) {
    for (const NamespaceId& id : ids) {
      // A namespace that is still unknown to this disk needs no removal. Otherwise the lists of a disk that is left out
      // would grow; at worst the disk keeps a record until the next start.
      if (member->added_spaces.erase(id) == 0) member->removed_spaces.insert(id);
    }
  }
  static_cast<void>(settle_all(members));
  return {};  // as with erase
}

error_code StripedDisk::load(const std::function<void(const NamespaceId& id, const std::string& record)>& space,
                             const std::function<bool(const DiskRecord& block)>& block) const {
  const Members members = this->members();
  if (const Disk* const disk = alone(members)) return disk->load(space, block);
  std::vector<std::unique_ptr<RecordStream>> streams;
  for (const auto& member : *members) streams.push_back(std::make_unique<RecordStream>(*member->part.disk));
  // Namespaces first, each once: a record of an unknown namespace would be skipped.
  std::vector<NamespaceId> told;
  for (const auto& stream : streams) {
    for (const auto& [id, record] : stream->spaces()) {
      if (std::ranges::find(told, id) != told.end()) continue;
      told.push_back(id);
      space(id, record);
    }
  }
  // A merge of all disks, newest record first: if memory for the index runs out, the newest are known.
  for (;;) {
    RecordStream* newest = nullptr;
    for (const auto& stream : streams) {
      const DiskRecord* const record = stream->peek();
      // Once a stream has failed, older records are withheld. A repeated load continues below the oldest record
      // reported, and would skip newer ones that this stream still had.
      if (const error_code error = stream->error(); record == nullptr && error) return error;
      if (record != nullptr && (newest == nullptr || record->key > newest->peek()->key)) newest = stream.get();
    }
    if (newest == nullptr) break;
    if (!block(*newest->peek())) return {};
    newest->pop();
  }
  return {};
}

std::uint32_t StripedDisk::epoch() const { return epoch_; }

/// One by one, on the caller's thread, which alone hangs with a disk. Any failure is an error: its blocks remain.
Result<DiskPurge> StripedDisk::purge(std::span<const DiskDrop> dropped,
                                     const std::function<bool(const DiskPurge&)>& goes_on) {
  DiskPurge sum;
  error_code first;
  const Members members = this->members();
  for (const auto& member : *members) {
    const DiskPurge before = sum;
    const auto added = [&before](const DiskPurge& own) {
      return DiskPurge{before.file_count + own.file_count, before.looked_count + own.looked_count,
                       before.rewritten_count + own.rewritten_count, before.given_back_bytes + own.given_back_bytes};
    };
    const auto own = member->part.disk->purge(dropped, [&](const DiskPurge& so_far) { return goes_on(added(so_far)); });
    if (own) {
      sum = added(*own);
    } else if (!first) {
      first = own.error();
    }
  }
  if (first) return first;
  return sum;
}

/// Fails when a disk fails, or all hang. A hanging disk is tolerated: its missed changes precede its next call.
error_code StripedDisk::flush() {
  const Members members = this->members();
  if (Disk* const disk = alone(members)) return disk->flush();
  std::vector<Telling> flushing;
  for (Member* const member : in_use(members)) {
    if (is_hanging(*member)) continue;
    News news = news_for(*member);
    auto begun = member->writing.begin([news, disk = member->part.disk.get()] {
      const error_code error = news.tell(*disk);
      return error ? error : disk->flush();
    });
    flushing.push_back({member, std::move(news), std::move(begun)});
  }
  error_code first;
  bool has_any = false;
  for (const Telling& each : flushing) {
    const auto own = each.member->writing.wait(each.begun);
    if (!own) {
      hangs(*each.member);
    } else if (*own) {
      failed(*each.member, *own);
      if (!first) first = *own;
    } else {
      settled(*each.member, each.news);
      each.member->is_unflushed = false;
      has_any = true;
    }
  }
  return first || has_any ? first : Errc::kDiskFailed;
}

/// Reads stats on the writing lane: a hanging disk blocks that lane, and the caller only for the patience. A disk busy
/// with an abandoned call counts with its last stats.
DiskStats StripedDisk::stats() const {
  const Members members = this->members();
  if (const Disk* const disk = alone(members)) return disk->stats();
  DiskStats sum{.directory_count = 0, .free_bytes = 0};
  for (const auto& member : *members) {
    if (!is_hanging(*member) && member->writing.is_idle()) {
      if (const auto now = member->writing.run([disk = member->part.disk.get()] { return disk->stats(); })) {
        const std::lock_guard lock(member->stats_mutex);
        member->last_stats = *now;
      } else {
        hangs(*member);
      }
    }
    const std::lock_guard lock(member->stats_mutex);
    const DiskStats& one = member->last_stats;
    sum.file_bytes += one.file_bytes;
    sum.written_bytes += one.written_bytes;
    sum.device_written_bytes += one.device_written_bytes;
    sum.read_bytes += one.read_bytes;
    sum.left_out_count += is_left_out(*member) || is_hanging(*member);
    ++sum.directory_count;
    if (!member->is_leaving) sum.free_bytes += std::min(one.free_bytes, ~std::uint64_t{0} - sum.free_bytes);
  }
  return sum;
}

std::string StripedDisk::hanging(Duration after) const {
  std::string names;
  const auto add = [&names](const std::string& name) { names += (names.empty() ? "" : ", ") + name; };
  const Members members = this->members();
  for (const auto& member : *members) {
    if (member->is_stuck(after)) add(member->part.name);
  }
  if (opening_.is_stuck(after)) add("a directory that is to be added");
  const std::lock_guard lock(mutex_);
  for (const auto& each : closing_) {
    if (!each->is_over && clock_.now() - each->since >= after) add(each->name);
  }
  return names;
}

// -- disks that come and go

Result<void, Failure> StripedDisk::set_directories(std::span<const std::string> paths) {
  KV_ASSERT(!paths.empty());
  const std::lock_guard changing(changing_);
  std::vector<std::string> added;
  std::vector<DiskPlace> taken;
  const Members now = members();  // changed only under changing_
  for (const auto& each : *now) taken.push_back(each->part.place);
  for (const std::string& path : paths) {
    if (std::ranges::none_of(*now, [&](const auto& each) { return each->part.name == path; })) added.push_back(path);
  }
  const auto joined = [&added] {
    std::string names;
    for (const std::string& name : added) names += (names.empty() ? "" : ", ") + name;
    return names;
  };
  {
    const std::lock_guard lock(mutex_);
    for (const auto& each : closing_) {
      if (!each->is_over && std::ranges::find(added, each->name) != added.end())
        return Failure(Errc::kBusy, each->name + ": is still being closed; try again later");
    }
  }
  if (taken.size() + added.size() > kPlaceCount) {
    return Failure(Errc::kBusy,
                   fmt::format("{}: {} directories are in use, those included that are being emptied; at most {}",
                               joined(), taken.size(), kPlaceCount));
  }
  std::vector<Part> parts;
  if (!added.empty()) {
    if (!open_) return Disk::set_directories(paths);
    if (!opening_.is_idle())
      return Failure(Errc::kBusy, joined() + ": an earlier directory is still being opened; try again later");
    auto opened = opening_.run([open = open_, added, taken, epoch = epoch_] { return open(added, epoch, taken); });
    if (!opened) {
      return Failure(Errc::kDiskFailed,
                     fmt::format("{}: not open after {} s: the device is slow, or does not answer", joined(),
                                 std::chrono::duration_cast<std::chrono::seconds>(config_.open_patience).count()));
    }
    if (!*opened) return opened->error();
    parts = std::move(**opened);
  }
  std::vector<std::shared_ptr<Member>> next;
  try {
    for (const auto& each : *now) {
      // From here on it is one of several. Calls under way on it end as they began.
      const bool was_alone = each->is_alone && !parts.empty();
      next.push_back(was_alone ? std::make_shared<Member>(each->part, clock_, config_) : each);
    }
    for (Part& part : parts) {
      KV_ASSERT(part.disk->epoch() == epoch_ && find(now, part.place) == nullptr);
      next.push_back(std::make_shared<Member>(std::move(part), clock_, config_));
    }
  } catch (const std::system_error& error) {
    return Failure(Errc::kOutOfMemory, joined() + ": no threads to be had: " + error.what());
  }
  for (std::size_t i = now->size(); i < next.size(); ++i)
    spdlog::info("disk: {} takes blocks from now on", next[i]->part.name);
  set_members(next);
  // First those that stay, then those that leave: at every moment some take blocks.
  for (const bool leaves : {false, true}) {
    for (const auto& each : next) {
      if ((std::ranges::find(paths, each->part.name) == paths.end()) != leaves) continue;
      if (each->is_leaving.exchange(leaves) == leaves) continue;
      spdlog::info("disk: {} {}", each->part.name,
                   leaves ? "takes no blocks any more, and is being emptied" : "stays, and takes blocks again");
    }
  }
  return {};
}

std::vector<LeavingDirectory> StripedDisk::leaving() const {
  std::vector<LeavingDirectory> all;
  const Members members = this->members();
  for (const auto& each : *members) {
    if (each->is_leaving) all.push_back({each->part.place, each->part.name, !is_hanging(*each)});
  }
  return all;
}

error_code StripedDisk::remove(DiskPlace place) {
  const std::unique_lock changing(changing_, std::try_to_lock);
  if (!changing.owns_lock()) return Errc::kBusy;  // it may be named again: the next call decides
  const Members before = members();
  std::vector<std::shared_ptr<Member>> others;
  std::shared_ptr<Member> leaving;
  for (const auto& each : *before) {
    if (each->part.place == place && each->is_leaving)
      leaving = each;
    else
      others.push_back(each);
  }
  if (leaving == nullptr) return Errc::kNotFound;
  const auto left = std::make_shared<const std::vector<std::shared_ptr<Member>>>(others);
  // A drop kept only by this disk must survive until the others have erased its blocks.
  if (!is_hanging(*leaving)) {
    const std::vector<DiskDrop> drops = leaving->part.disk->drops();
    if (!drops.empty()) {
      if (const error_code error = keep_drops(left, drops)) return error;
    }
  }
  if (!close(std::move(leaving))) return Errc::kBusy;  // the system is out of threads
  set_members(std::move(others));
  return {};
}

/// Closes the disk once all users have released it: it may still be among the members.
bool StripedDisk::close(std::shared_ptr<Member> member) {
  auto closing = std::make_unique<Closing>();
  closing->name = member->part.name;
  closing->since = clock_.now();
  auto end = [own = closing.get(), member = std::move(member)]() mutable {
    // Readers that found it earlier still hold it, and so do abandoned calls.
    while (member.use_count() > 1 || member->part.disk.use_count() > 1 || !member->is_idle())
      std::this_thread::sleep_for(kClosingLook);
    error_code error = Errc::kDiskFailed;
    within_border(NodeThread::kDisk, [&] { error = member->part.disk->clear(); });
    member.reset();
    if (error)
      spdlog::warn("disk: {} is closed and can be removed. It could not be emptied: {}", own->name, error.message());
    else
      spdlog::info("disk: {} is closed and holds no blocks: the directory can be removed", own->name);
    own->is_over = true;
  };
  const std::lock_guard lock(mutex_);
  std::erase_if(closing_, [](const auto& each) {
    if (each->is_over) each->thread.join();
    return !each->thread.joinable();
  });
  try {
    closing->thread = std::thread(std::move(end));
  } catch (const std::system_error&) {
    return false;
  }
  closing_.push_back(std::move(closing));
  return true;
}

}  // namespace kv
