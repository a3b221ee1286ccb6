#include "store/node/daemon/disk_part.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "store/node/daemon/cannot_start.h"
#include "store/node/disk/disk_opener.h"
#include "store/node/disk/files/disk_directory.h"
#include "store/node/disk/files/kept_file.h"
#include "store/node/disk/files/operator_keys.h"
#include "store/node/disk_worker/disk_threads.h"
#include "store/node/jobs/context_keeper.h"
#include "store/node/jobs/context_warmer.h"
#include "store/node/jobs/learned_keeper.h"
#include "store/node/log/log_writer.h"
#include "store/node/log/start_watch.h"
#include "store/node/options/config.h"
#include "store/node/session/core/node_context.h"
#include "store/node/session/requests/contexts.h"
#include "store/node/threads/worker_thread.h"

namespace kv {
namespace {

constexpr std::chrono::milliseconds kContextFilePatience{10'000};

/// Exits if the disk does not answer: the threads that wait for it cannot be joined.
void stop_disk_threads(DiskThreads& disk_worker, LogWriter& log, bool save) {
  if (disk_worker.stop(save)) return;
  spdlog::error("stopped without the disk, which does not answer{}", save ? ": what was only in memory is lost" : "");
  log.finish();
  std::_Exit(1);
}

/// Keeps contexts over a restart. Rewrapped with the keys on disk.
ContextKeeper::File context_file(const std::shared_ptr<KeptFile>& file) {
  return {.read =
              [file] {
                std::vector<ContextKeeper::File::Found> all;
                for (KeptFile::Found& each : file->read()) all.push_back({each.directory, std::move(each.text)});
                return all;
              },
          .write = [file](const std::string& text) { return file->write(text); },
          .set_aside = [file](std::size_t directory) { file->set_aside(directory); },
          .forget_aside = [file] { return file->forget_aside(); }};
}

/// A node may be told to stop before its disk is open. Orders given in that time are worth some seconds.
void wait_for_disk(const DiskThreads& disk_worker) {
  const auto until = std::chrono::steady_clock::now() + 5s;
  while (!disk_worker.can_read() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(10ms);
}

}  // namespace

/// However the node ends: threads that wait for a hanging disk would block the destructor for ever.
void DiskPart::EndDiskThreads::operator()(DiskThreads* disk_worker) const {
  stop_disk_threads(*disk_worker, *log, /*save=*/false);
  delete disk_worker;
}

DiskPart::DiskPart(const NodeOptions& options, NodeContext& node, LogWriter& log)
    : options_(options), node_(node), log_(log), disk_worker_(nullptr, EndDiskThreads{&log}) {}

DiskPart::~DiskPart() {
  if (warmer_) warmer_->stop();  // it reads from the tier
}

ContextWarmer* DiskPart::warmer() const { return warmer_ ? &warmer_->worker() : nullptr; }

bool DiskPart::open_keys(StartWatch& watch) {
  if (!options_.operator_keys.is_given()) return true;
  watch.begins("asking for the keys of the disk tier");
  auto opened = OperatorKeys::open(options_.operator_keys);
  if (!opened) return cannot_start(opened.error().text);
  keys_ = std::move(*opened);
  node_.metrics.set_operator_key(keys_->current_id());
  spdlog::info("disk: what is written to disk is encrypted, key='{}'", keys_->current_id());
  return true;
}

bool DiskPart::start() {
  if (options_.disk_paths.empty()) return true;
  if (!open_tier()) return false;
  keep_learned();
  keep_contexts();
  return true;
}

bool DiskPart::open_tier() {
  disk_worker_.reset(new DiskThreads(node_.store,
                                     disk_opener(options_.disk_paths, node_.clock, options_.disk_hang, keys_),
                                     node_.clock, options_.disk_threads));
  if (const std::string refused = disk_worker_->start(); !refused.empty()) return cannot_start("disk-path " + refused);
  node_.disk_worker = disk_worker_.get();
  node_.metrics.watch([this] { return disk_worker_->stats(); });
  return true;
}

void DiskPart::keep_learned() {
  learned_in_ = std::make_shared<LearnedPlace>(options_.disk_paths.front());
  learned_ = std::make_unique<LearnedKeeper>(
      node_.store,
      LearnedKeeper::File{
          .read = [in = learned_in_] { return read_small_file(in->file(), kLearnedBytesMax); },
          .write = [in = learned_in_](const std::string& bytes) { return replace_file(in->file(), bytes); }});
}

void DiskPart::keep_contexts() {
  context_in_ = std::make_shared<KeptFile>(options_.disk_paths, "CONTEXTS", kContextFileBytesMax + 1024, keys_);
  if (keys_) keys_->add(context_in_);
  contexts_ = std::make_unique<ContextKeeper>(node_.store, node_.clock, context_file(context_in_), wall_us);
  contexts_->start();
  node_.metrics.watch([this] { return contexts_->stats(); });
  warmer_ = std::make_unique<WorkerThread<ContextWarmer>>(NodeThread::kWarmer, node_, options_.warm_bytes_per_second);
  node_.metrics.watch([this] { return warmer_->worker().stats(); });
}

void DiskPart::tick() {
  if (learned_) learned_->tick(node_.clock.now(), disk_worker_->can_read());
  if (contexts_) contexts_->tick(disk_worker_->can_read());
}

/// Afterwards the keys on disk are wrapped by the first key of the file, or the log says why not.
void DiskPart::reload_keys() {
  if (!keys_) return;
  const Failure failure = keys_->reload();
  node_.metrics.set_operator_key(keys_->current_id());
  if (failure.code)
    spdlog::error("disk keys: {}", failure.text);
  else
    spdlog::info("disk keys: read again, key='{}'", keys_->current_id());
}

std::vector<NodeMetrics::Value> DiskPart::key_values() const {
  const OperatorKeys::Stats stats = keys_->stats();
  return {
      {"disk_encrypted", 1, false, "1: what is written to disk is encrypted (disk-key-file, disk-key-command)"},
      {"disk_key_file_exposed", keys_->is_exposed(), false, "1: others than its owner may read or write disk-key-file"},
      {"disk_key_reloads", stats.reloads, true, "Times that the keys were asked for again"},
      {"disk_key_reload_failed", stats.last_failed ? 1.0 : 0.0, false,
       "1: the last reload of the keys failed, or not all keys on disk are wrapped by the first one"}};
}

std::string DiskPart::forget_contexts() { return contexts_ ? contexts_->forget(kContextFilePatience) : std::string(); }

void DiskPart::move_to(const std::vector<std::string>& directories) {
  learned_in_->set(directories.front());
  context_in_->move_to(directories);
  // Not awaited. Without it, a kill before the next change would lose contexts.
  static_cast<void>(contexts_->write_now(std::chrono::milliseconds(0)));
}

void DiskPart::stop(bool save) {
  const std::size_t count = node_.store.with([](Store& each) { return each.context_changes().count; });
  if (!contexts_ && count > 0)
    spdlog::warn("contexts: {} named contexts end with this process, which has no disk tier; create them anew", count);
  if (warmer_) warmer_->stop();  // blocks that come now would not be written
  // While the directory is still this node's, and before blocks are released.
  if (contexts_) {
    if (count > 0) wait_for_disk(*disk_worker_);
    contexts_->stop(disk_worker_->can_read());
  }
  if (learned_) learned_->stop(disk_worker_->can_read());
  if (disk_worker_) stop_disk_threads(*disk_worker_, log_, save);
}

}  // namespace kv
