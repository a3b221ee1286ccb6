#include "store/node/access/tenant_eraser.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/text/printable.h"
#include "index/namespace_record.h"
#include "store/node/threads/thread_border.h"

namespace kv {

TenantEraser::TenantEraser(LockedStore& store, Clock& clock, DiskWorker* disk_worker, ForgetContexts forget_contexts)
    : store_(store), clock_(clock), disk_worker_(disk_worker), forget_contexts_(std::move(forget_contexts)) {}

TenantEraser::~TenantEraser() {
  stops_ = true;
  if (thread_.joinable()) thread_.join();
}

Result<TenantEraser::Progress> TenantEraser::ask(const std::string& owner) {
  const std::lock_guard lock(mutex_);
  const auto found = progress_.find(owner);
  const auto place = std::ranges::find(waiting_, owner);
  if (found != progress_.end() && place == waiting_.end()) return std::move(progress_.extract(found).mapped());
  if (found == progress_.end()) {
    if (waiting_.size() >= kWaitingMax) return make_error_code(Errc::kBusy);
    // Unreported ends are not kept for ever.
    if (progress_.size() >= 2 * kWaitingMax) {
      std::erase_if(progress_,
                    [&](const auto& each) { return std::ranges::find(waiting_, each.first) == waiting_.end(); });
    }
    waiting_.push_back(owner);
    progress_[owner] = {.owner = owner, .trouble = {}, .has_disk = disk_worker_ != nullptr, .began = clock_.now()};
    if (!std::exchange(is_running_, true)) {
      if (thread_.joinable()) thread_.join();  // its run has ended and released the lock
      thread_ = std::thread([this] { run(); });
    }
  }
  Progress now = progress_.at(owner);
  now.waits_for = static_cast<std::size_t>(std::ranges::find(waiting_, owner) - waiting_.begin());
  return now;
}

void TenantEraser::run() {
  std::unique_lock lock(mutex_);
  while (!waiting_.empty() && !stops_) {
    const std::string owner = waiting_.front();
    lock.unlock();
    std::string trouble = "an exception; the log has it";
    within_border(NodeThread::kEraser, [&] { trouble = erase(owner); });
    lock.lock();
    Progress& progress = progress_.at(owner);
    progress.trouble = trouble;
    progress.is_done = trouble.empty();
    progress.ended = clock_.now();
    waiting_.pop_front();
    if (trouble.empty()) {
      spdlog::info("erase: all of '{}' is gone: namespaces={} blocks={} files_rewritten={} blocks_stored_since={}",
                   printable(owner), progress.namespaces, progress.blocks, progress.disk.rewritten_count,
                   progress.blocks_left);
    } else {
      spdlog::error("erase: '{}' is not gone: {}", printable(owner), trouble);
    }
  }
  is_running_ = false;
}

/// In slices, so that lookups get in between; records are not copied.
std::vector<SpaceId> TenantEraser::spaces_of(const std::string& owner, std::uint64_t* block_count) const {
  std::vector<SpaceId> spaces;
  std::optional<NamespaceId> after;
  for (bool has_more = true; has_more;) {
    const auto views = store_.with([&](Store& store) { return store.list_spaces(after ? &*after : nullptr); });
    for (const SpaceDesk::View& each : views) {
      if (each.record->owner() != owner) continue;
      spaces.push_back(each.id);
      if (block_count != nullptr) *block_count += each.block_count;
    }
    has_more = views.size() == SpaceDesk::kViewsPerCall;
    if (has_more) after = views.back().name;
  }
  return spaces;
}

/// Whether an owner that was erased before has had no blocks here since.
bool TenantEraser::has_nothing(const std::string& owner) const {
  const auto before = clean_.find(owner);
  if (before == clean_.end()) return false;
  const bool is_same = store_.with([&](Store& store) {
    return store.stats().forgotten_namespaces == before->second &&
           store.list_contexts(owner, "", 1, clock_.now()).empty();
  });
  return is_same && spaces_of(owner, nullptr).empty();
}

/// Returns "", or the error.
std::string TenantEraser::erase(const std::string& owner) {
  if (has_nothing(owner)) return "";
  clean_.erase(owner);
  // First, since names and tags are the tenant's data too. A share reader's context stays, without blocks.
  while (store_.with([&](Store& store) { return store.delete_contexts(owner, clock_.now()); })) {
    if (stops_) return "the node stops";
    std::this_thread::yield();
  }
  if (forget_contexts_) {
    if (const std::string why = forget_contexts_(); !why.empty()) return "the file of named contexts: " + why;
  }
  // Only the disk lists blocks not loaded for lack of room. Collected first: forgetting removes records.
  std::vector<DiskDrop> drops;
  if (disk_worker_ != nullptr) {
    const auto on_disk = disk_worker_->namespaces_on_disk();
    if (!on_disk) return "the disk cannot be asked: " + on_disk.error().message();
    for (const std::string& text : *on_disk) {
      const auto record = NamespaceRecord::parse(text);
      // Covers all earlier starts: the disk's bound for a drop without a key.
      if (record && record->owner() == owner) drops.push_back({.space = record->id(), .hash = {}});
    }
  }
  const std::vector<SpaceId> spaces = spaces_of(owner, nullptr);
  std::set<NamespaceId> names;
  for (const DiskDrop& drop : drops) names.insert(drop.space);
  for (const SpaceId space : spaces) {
    if (stops_) return "the node stops";
    DiskDrop drop;
    bool has_rest = false;
    const auto count = store_.with([&](Store& store) {
      auto dropped = store.drop(space, {}, &drop);
      has_rest = store.is_dropping();
      return dropped;
    });
    if (!count) continue;  // forgotten meanwhile: it was empty
    names.insert(drop.space);
    std::uint64_t blocks = *count;
    while (has_rest && !stops_) {
      store_.with([&](Store& store) {
        blocks += store.drop_more(clock_.now());
        has_rest = store.is_dropping();
      });
      std::this_thread::yield();
    }
    drops.push_back(drop);
    update([&](Progress& progress) { progress.blocks += blocks; });
  }
  update([&](Progress& progress) { progress.namespaces = names.size(); });
  const auto forget = [&] {
    std::uint64_t left = 0;
    for (const SpaceId space : spaces_of(owner, &left))
      store_.with([&](Store& store) { static_cast<void>(store.forget(space)); });
    return left;
  };
  if (disk_worker_ != nullptr) {  // even without namespaces: blocks evicted long ago are still in files
    forget();                     // so that the disk forgets their records, too
    if (!keep(drops)) return stops_ ? "the node stops" : "the disk does not keep the drops; they hold until a restart";
    const auto purged = disk_worker_->purge(drops, [this](const DiskPurge& so_far) {
      update([&](Progress& progress) { progress.disk = so_far; });
      return !stops_;
    });
    if (!purged) return "the files of the disk: " + purged.error().message();
    update([&](Progress& progress) { progress.disk = *purged; });
  }
  const std::uint64_t left = forget();
  if (clean_.size() >= kWaitingMax) clean_.clear();
  if (left == 0) clean_[owner] = store_.with([](Store& store) { return store.stats().forgotten_namespaces; });
  update([&](Progress& progress) { progress.blocks_left = left; });
  return "";
}

/// Whether the next start will see all drops.
bool TenantEraser::keep(const std::vector<DiskDrop>& drops) {
  struct Waiting {
    std::mutex mutex;
    std::condition_variable done;
    std::size_t count = 0, not_kept = 0;
  };
  // Some at a time: the disk's queue is shared. Shared: an answer may come after a stop.
  constexpr std::size_t kAtOnce = 256;
  std::uint64_t not_kept = 0;
  for (std::size_t at = 0; at < drops.size(); at += kAtOnce) {
    const auto waiting = std::make_shared<Waiting>();
    const std::size_t end = std::min(drops.size(), at + kAtOnce);
    waiting->count = end - at;
    for (std::size_t i = at; i < end; ++i) {
      disk_worker_->keep_drop(drops[i], [waiting](bool is_kept) {
        const std::lock_guard lock(waiting->mutex);
        waiting->not_kept += !is_kept;
        --waiting->count;
        waiting->done.notify_all();
      });
    }
    std::unique_lock lock(waiting->mutex);
    while (waiting->count > 0 && !stops_) waiting->done.wait_for(lock, std::chrono::milliseconds(50));
    not_kept += waiting->not_kept + waiting->count;
  }
  update([&](Progress& progress) { progress.drops_not_kept = not_kept; });
  return not_kept == 0;
}

std::vector<NodeMetrics::Value> TenantEraser::Progress::values(TimePoint now) const {
  const bool is_over = is_done || !trouble.empty();
  const double seconds = std::chrono::duration<double>((is_over ? ended : now) - began).count();
  return {{"erase_done", is_done, false, ""},
          {"erase_failed", !trouble.empty(), false, ""},
          {"erase_namespaces", namespaces, false, ""},
          {"erase_blocks", blocks, false, ""},
          {"erase_drops_not_kept", drops_not_kept, false, ""},
          {"erase_has_disk", has_disk, false, ""},
          {"erase_files", disk.file_count, false, ""},
          {"erase_files_looked_at", disk.looked_count, false, ""},
          {"erase_files_rewritten", disk.rewritten_count, false, ""},
          {"erase_given_back_bytes", disk.given_back_bytes, false, ""},
          {"erase_blocks_left", blocks_left, false, ""},
          {"erase_seconds", seconds, false, ""},
          {"erase_waits_for", waits_for, false, ""}};
}

}  // namespace kv
