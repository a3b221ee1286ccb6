#include "store/node/striped_disk.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <set>

#include "base/assert.h"
#include "store/node/call_watch.h"
#include "store/node/record_stream.h"

namespace kv {

struct StripedDisk::Member {
  Member(Part own, const Clock& clock) : part(std::move(own)), writing(clock), reading(clock) {}

  Part part;
  CallWatch writing, reading;
  std::atomic<Duration::rep> left_out_until{0};  // read by stats()
  // What it has not been told yet.
  std::vector<DiskKey> erased;
  DiskKey drop_before{};
  std::map<NamespaceId, std::string> added_spaces;
  std::set<NamespaceId> removed_spaces;
};

StripedDisk::StripedDisk(std::vector<Part> parts, Clock& clock, Duration left_out)
    : clock_(clock), left_out_(left_out) {
  KV_ASSERT(!parts.empty());
  const std::uint32_t epoch = parts.front().disk->epoch();
  for (Part& part : parts) {
    KV_ASSERT(part.disk->epoch() == epoch);
    members_.push_back(std::make_unique<Member>(std::move(part), clock));
  }
}

StripedDisk::~StripedDisk() = default;

StripedDisk::Member* StripedDisk::find(DiskKey key) const {
  const auto found =
      std::ranges::find_if(members_, [key](const auto& member) { return member->part.place == place_of(key); });
  return found == members_.end() ? nullptr : found->get();
}

bool StripedDisk::is_left_out(const Member& member) const {
  return clock_.now().time_since_epoch().count() < member.left_out_until;
}

/// Those that are not left out; all if none is left, since somebody has to find out whether they work again.
std::vector<StripedDisk::Member*> StripedDisk::in_use() const {
  std::vector<Member*> working, all;
  for (const auto& member : members_) {
    all.push_back(member.get());
    if (!is_left_out(*member)) working.push_back(member.get());
  }
  return working.empty() ? all : working;
}

std::vector<DiskPlace> StripedDisk::places() const {
  std::vector<DiskPlace> places;
  for (const Member* const member : in_use()) places.push_back(member->part.place);
  return places;
}

error_code StripedDisk::failed(Member& member, error_code error) {
  if (!is_left_out(member)) {
    spdlog::error("spill: {} is left out for {} s: {}", member.part.name,
                  std::chrono::duration_cast<std::chrono::seconds>(left_out_).count(), error.message());
  }
  member.left_out_until = (clock_.now() + left_out_).time_since_epoch().count();
  return error;
}

/// Tells the disk what it missed.
error_code StripedDisk::settle(Member& member) {
  Disk& disk = *member.part.disk;
  const CallWatch::Call call(member.writing);
  while (!member.added_spaces.empty()) {
    const auto& [id, record] = *member.added_spaces.begin();
    if (const error_code error = disk.add_namespace(id, record)) return failed(member, error);
    member.added_spaces.erase(member.added_spaces.begin());
  }
  if (!member.erased.empty()) {
    if (const error_code error = disk.erase(member.erased)) return failed(member, error);
    member.erased.clear();
  }
  if (member.drop_before != DiskKey{}) {
    if (const error_code error = disk.drop_before(member.drop_before)) return failed(member, error);
    member.drop_before = {};
  }
  if (!member.removed_spaces.empty()) {  // last: after the blocks that were of them
    const std::vector<NamespaceId> removed(member.removed_spaces.begin(), member.removed_spaces.end());
    if (const error_code error = disk.remove_namespaces(removed)) return failed(member, error);
    member.removed_spaces.clear();
  }
  return {};
}

/// Settles all that are in use. An error only when none works: what one misses it is told later.
error_code StripedDisk::settle_all() {
  bool has_any = false;
  error_code error;
  for (Member* const member : in_use()) {
    const error_code own = settle(*member);
    if (own) error = own;
    has_any = has_any || !own;
  }
  return has_any ? error_code() : error;
}

error_code StripedDisk::write(std::span<const DiskWrite> blocks) {
  std::map<Member*, std::vector<DiskWrite>> shares;
  for (const DiskWrite& block : blocks) {
    Member* const member = find(block.record.key);
    KV_ASSERT(member != nullptr);
    shares[member].push_back(block);
  }
  std::vector<std::future<error_code>> writing;
  for (auto& [to, part] : shares) {
    writing.push_back(std::async(std::launch::async, [this, &member = *to, &share = part] {
      if (const error_code error = settle(member)) return error;
      const CallWatch::Call call(member.writing);
      const error_code error = member.part.disk->write(share);
      return error ? failed(member, error) : error;
    }));
  }
  error_code first;
  for (auto& each : writing) {
    const error_code error = each.get();
    if (error && !first) first = error;
  }
  return first;
}

Result<DiskBlock> StripedDisk::read(DiskKey key) const {
  Member* const member = find(key);
  if (member == nullptr) return make_error_code(Errc::kNotFound);  // of a directory that is not used any more
  const CallWatch::Call call(member->reading);
  return member->part.disk->read(key);
}

error_code StripedDisk::erase(std::span<const DiskKey> keys) {
  for (const DiskKey key : keys) {
    if (Member* const member = find(key)) member->erased.push_back(key);
  }
  static_cast<void>(settle_all());
  return {};  // who could not be told will be: nobody has to ask again
}

error_code StripedDisk::drop_before(DiskKey end) {
  for (const auto& member : members_) {
    member->drop_before = std::max(member->drop_before, end);
    std::erase_if(member->erased, [end](DiskKey key) { return key < end; });
  }
  return settle_all();
}

error_code StripedDisk::add_namespace(const NamespaceId& id, const std::string& record) {
  for (const auto& member : members_) {
    member->removed_spaces.erase(id);
    member->added_spaces.insert_or_assign(id, record);
  }
  return settle_all();
}

error_code StripedDisk::remove_namespaces(std::span<const NamespaceId> ids) {
  for (const auto& member : members_) {
    for (const NamespaceId& id : ids) {
      // What one that is left out was never told of piles up no more: at worst it keeps a record until the next start.
      if (member->added_spaces.erase(id) == 0) member->removed_spaces.insert(id);
    }
  }
  static_cast<void>(settle_all());
  return {};  // as with erase
}

error_code StripedDisk::load(const std::function<void(const NamespaceId& id, const std::string& record)>& space,
                             const std::function<bool(const DiskRecord& block)>& block) const {
  std::vector<std::unique_ptr<RecordStream>> streams;
  for (const auto& member : members_) streams.push_back(std::make_unique<RecordStream>(*member->part.disk));
  std::vector<NamespaceId> told;
  for (const auto& stream : streams) {
    for (const auto& [id, record] : stream->spaces()) {
      if (std::ranges::find(told, id) != told.end()) continue;
      told.push_back(id);
      space(id, record);
    }
  }
  for (;;) {
    RecordStream* newest = nullptr;
    for (const auto& stream : streams) {
      const DiskRecord* const record = stream->peek();
      // Nothing older is told once one of them has broken off: who tries again goes on from the oldest that was, and
      // would never hear of what this one had above it.
      if (const error_code error = stream->error(); record == nullptr && error) return error;
      if (record != nullptr && (newest == nullptr || record->key > newest->peek()->key)) newest = stream.get();
    }
    if (newest == nullptr) break;
    if (!block(*newest->peek())) return {};
    newest->pop();
  }
  return {};
}

std::uint32_t StripedDisk::epoch() const { return members_.front()->part.disk->epoch(); }

error_code StripedDisk::flush() {
  error_code first;
  for (Member* const member : in_use()) {
    error_code error = settle(*member);
    if (!error) {
      const CallWatch::Call call(member->writing);
      error = member->part.disk->flush();
      if (error) failed(*member, error);
    }
    if (error && !first) first = error;
  }
  return first;
}

DiskStats StripedDisk::stats() const {
  DiskStats sum;
  for (const auto& member : members_) {
    const DiskStats one = member->part.disk->stats();
    sum.file_bytes += one.file_bytes;
    sum.written_bytes += one.written_bytes;
    sum.device_written_bytes += one.device_written_bytes;
    sum.read_bytes += one.read_bytes;
    sum.left_out_count += is_left_out(*member);
  }
  return sum;
}

std::string StripedDisk::hanging(Duration after) const {
  std::string names;
  for (const auto& member : members_) {
    if (!member->writing.is_stuck(after) && !member->reading.is_stuck(after)) continue;
    names += (names.empty() ? "" : ", ") + member->part.name;
  }
  return names;
}

}  // namespace kv
