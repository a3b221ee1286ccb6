#include "store/node/jobs/learned_keeper.h"

#include <spdlog/spdlog.h>

#include "store/node/counts_copy.h"
#include "store/node/threads/thread_border.h"
#include "store/policy/yield_counts.h"

namespace kv {

LearnedKeeper::LearnedKeeper(LockedStore& store, File file, Duration period)
    : store_(store), period_(period), work_(std::make_shared<Work>(std::move(file))) {
  thread_ = std::thread([work = work_] { work_at(*work); });
}

LearnedKeeper::~LearnedKeeper() { end_or_leave(thread_, *work_); }  // 1

void LearnedKeeper::work_at(Work& work) {
  std::string read;
  within_border(NodeThread::kLearned, [&] { read = work.file.read(); });
  std::unique_lock lock(work.mutex);
  work.was_read = std::move(read);
  for (;;) {
    work.changed.notify_all();
    work.changed.wait(lock, [&work] { return work.ends || work.to_write; });
    if (work.ends) break;
    const std::string bytes = *std::exchange(work.to_write, std::nullopt);
    work.is_writing = true;
    lock.unlock();
    error_code failure = Errc::kUnavailable;
    within_border(NodeThread::kLearned, [&] { failure = work.file.write(bytes); });
    lock.lock();
    work.failure = failure;
    work.is_writing = false;
  }
  work.has_ended = true;
  work.changed.notify_all();
}

void LearnedKeeper::take_over() {
  std::string bytes;
  {
    const std::lock_guard lock(work_->mutex);
    if (!work_->was_read) return;
    bytes = *std::exchange(work_->was_read, std::nullopt);
  }
  is_read_ = true;
  if (bytes.empty()) return;
  auto counts = read_learned(bytes);
  if (!counts) {
    spdlog::warn("{}; the node learns anew", counts.error().text);
    return;
  }
  const double uses = counts->uses();
  store_.with([&](Store& store) { store.set_before(std::move(*counts)); });
  spdlog::info("learned: {:.0f} uses from before the restart", uses);
}

void LearnedKeeper::tick(TimePoint now, bool may_write) {
  if (!is_read_) take_over();
  if (!due_) due_ = now + period_;
  if (now < *due_) return;
  due_ = now + period_;
  if (may_write) hand_over();
  error_code failure;
  {
    const std::lock_guard lock(work_->mutex);
    failure = work_->failure;
  }
  if (failure && failure != told_) spdlog::warn("learned: cannot be kept for a restart: {}", failure.message());
  told_ = failure;
}

/// Replaces an older copy that still waits to be written.
bool LearnedKeeper::hand_over() {
  if (!is_read_) return false;
  const YieldCounts counts = copy_counts(store_, /*with_before=*/true);
  if (counts.uses() < kUsesMin) return false;
  std::string bytes = write_learned(counts);
  const std::lock_guard lock(work_->mutex);
  work_->to_write = std::move(bytes);
  work_->changed.notify_all();
  return true;
}

bool LearnedKeeper::stop(bool may_write, std::chrono::milliseconds patience) {
  if (!is_read_) take_over();
  if (!may_write || !hand_over()) return false;
  std::unique_lock lock(work_->mutex);
  const bool is_done =
      work_->changed.wait_for(lock, patience, [this] { return !work_->to_write && !work_->is_writing; });
  if (is_done && !work_->failure) return true;
  spdlog::warn("learned: not kept for the next start: {}", is_done ? work_->failure.message() : "the disk is slow");
  return false;
}

}  // namespace kv
