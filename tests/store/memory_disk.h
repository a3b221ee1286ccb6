// tests/store/memory_disk.h: a Disk in memory that does what it is told: fail, fill up, lose what was written last,
// flip bits.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "store/disk/disk.h"

namespace kv {

class MemoryDisk final : public Disk {
 public:
  // What it is told. Set by the test.
  bool fails_writes = false, fails_reads = false, fails_drops = false;
  std::size_t fails_load_after = ~std::size_t{0};  ///< Records.
  std::uint64_t capacity_bytes = ~std::uint64_t{0};
  std::function<void()> during_write = [] {};

  /// What is in a block, for tests that damage it. nullptr if it is not here.
  std::vector<std::byte>* bytes(DiskKey key) {
    const auto it = blocks_.find(key);
    return it == blocks_.end() ? nullptr : &it->second->bytes;
  }
  /// Forgets everything written after the last `kept` blocks, as a crash does, and starts a new epoch.
  void crash(std::size_t kept) {
    while (blocks_.size() > kept) blocks_.erase(std::prev(blocks_.end()));
    unsynced_.clear();
    ++epoch_;
  }
  /// What a kill leaves: of what was done since the last flush() some first part, drops in whole. A new epoch.
  void crash_unsynced(std::size_t lost) {
    for (; lost > 0 && !unsynced_.empty(); --lost) {
      const Change change = unsynced_.back();
      unsynced_.pop_back();
      switch (change.what) {
        case Change::kWrite: blocks_.erase(change.key); break;
        case Change::kErase: erased_.erase(change.key); break;
        case Change::kSpace: spaces_.erase(change.space); break;
      }
    }
    unsynced_.clear();
    ++epoch_;
  }
  /// One of several directories is emptied, or gone.
  void clear_place(DiskPlace place) {
    std::erase_if(blocks_, [&](const auto& each) {
      if (place_of(each.first) == place) stats_.file_bytes -= each.second->bytes.size();
      return place_of(each.first) == place;
    });
    std::erase_if(unsynced_,
                  [&](const Change& each) { return each.what == Change::kWrite && place_of(each.key) == place; });
  }
  std::size_t unsynced_count() const { return unsynced_.size(); }
  std::size_t block_count() const { return blocks_.size(); }
  std::size_t namespace_count() const { return spaces_.size(); }
  bool has(DiskKey key) const { return blocks_.contains(key); }

  error_code write(std::span<const DiskWrite> writes) override {
    during_write();
    if (fails_writes) return Errc::kDiskFailed;
    std::uint64_t bytes = 0;
    for (const DiskWrite& write : writes) bytes += write.bytes.size();
    if (stats_.file_bytes + bytes > capacity_bytes) return Errc::kDiskFailed;
    for (const DiskWrite& write : writes) {
      if (!blocks_.empty() && blocks_.rbegin()->first >= write.record.key) return Errc::kBadRequest;
      auto block = std::make_shared<Block>();
      block->record = write.record;
      block->bytes.assign(write.bytes.begin(), write.bytes.end());
      block->checksums.assign(write.checksums.begin(), write.checksums.end());
      blocks_.emplace(write.record.key, std::move(block));
      unsynced_.push_back({Change::kWrite, write.record.key, {}});
    }
    stats_.file_bytes += bytes;
    stats_.written_bytes += bytes;
    stats_.device_written_bytes += bytes;
    return {};
  }
  Result<DiskBlock> read(DiskKey key) const override {
    if (fails_reads) return Errc::kDiskFailed;
    const auto it = blocks_.find(key);
    if (it == blocks_.end()) return Errc::kNotFound;
    return DiskBlock{it->second, it->second->bytes, it->second->checksums};
  }
  error_code erase(std::span<const DiskKey> keys) override {
    for (const DiskKey key : keys) {
      if (erased_.insert(key).second) unsynced_.push_back({Change::kErase, key, {}});
    }
    return {};
  }
  error_code drop_before(DiskKey end) override {
    while (!blocks_.empty() && blocks_.begin()->first < end) {
      stats_.file_bytes -= blocks_.begin()->second->bytes.size();
      blocks_.erase(blocks_.begin());
    }
    return {};
  }
  error_code add_drops(std::span<const DiskDrop> drops) override {
    if (fails_drops) return Errc::kDiskFailed;
    drops_.insert(drops_.end(), drops.begin(), drops.end());
    return {};
  }
  std::vector<DiskDrop> drops() const override { return drops_; }
  error_code forget_drops(DiskKey before) override {
    if (fails_drops) return Errc::kDiskFailed;
    std::erase_if(drops_, [before](const DiskDrop& drop) { return drop.before <= before; });
    return {};
  }
  error_code add_namespace(const NamespaceId& id, const std::string& record) override {
    if (!spaces_.contains(id)) unsynced_.push_back({Change::kSpace, {}, id});
    spaces_[id] = record;
    return {};
  }
  error_code remove_namespaces(std::span<const NamespaceId> ids) override {
    if (fails_writes) return Errc::kDiskFailed;
    for (const NamespaceId& id : ids) spaces_.erase(id);
    return {};
  }
  error_code load(const std::function<void(const NamespaceId& id, const std::string& record)>& space,
                  const std::function<bool(const DiskRecord& block)>& block) const override {
    if (fails_reads) return Errc::kDiskFailed;
    for (const auto& [id, record] : spaces_) space(id, record);
    std::size_t count = 0;
    for (auto it = blocks_.rbegin(); it != blocks_.rend(); ++it) {
      if (count++ == fails_load_after) return Errc::kDiskFailed;
      if (!erased_.contains(it->first) && !block(it->second->record)) break;
    }
    return {};
  }
  std::uint32_t epoch() const override { return epoch_; }
  error_code flush() override {
    if (fails_writes) return Errc::kDiskFailed;
    unsynced_.clear();
    return {};
  }
  DiskStats stats() const override { return stats_; }

 private:
  struct Block {
    DiskRecord record;
    std::vector<std::byte> bytes;
    std::vector<std::uint64_t> checksums;
  };
  struct Change {
    enum What : std::uint8_t { kWrite, kErase, kSpace } what;
    DiskKey key;
    NamespaceId space;
  };
  std::vector<Change> unsynced_;  ///< Since the last flush, in order.
  std::map<DiskKey, std::shared_ptr<Block>> blocks_;
  std::set<DiskKey> erased_;
  std::map<NamespaceId, std::string> spaces_;
  std::vector<DiskDrop> drops_;
  std::uint32_t epoch_ = 1;
  DiskStats stats_;
};

}  // namespace kv
