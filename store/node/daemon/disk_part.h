// store/node/daemon/disk_part.h: the disk tier with all that depends on it: keys, learned counts, named contexts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/node/metrics.h"

namespace kv {

class ContextKeeper;
class ContextWarmer;
class KeptFile;
class LearnedKeeper;
class LearnedPlace;
class LogWriter;
class DiskThreads;
class OperatorKeys;
class StartWatch;
struct NodeContext;
struct NodeOptions;
template <class Worker>
class WorkerThread;

/// Empty without --disk-path, apart from the keys.
/// Thread safety: one thread makes, stops and destroys it; forget_contexts(), move_to() and key_values() from any.
class DiskPart {
 public:
  /// All outlive this. `log`: finished before an exit, see stop().
  DiskPart(const NodeOptions& options, NodeContext& node, LogWriter& log);
  ~DiskPart();  ///< Unless stopped before: stops without writing memory. May exit, see stop().

  /// Asks for the operator's keys, which may take long. False: stderr says why.
  bool open_keys(StartWatch& watch);
  /// Opens the tier and reads what was kept beside it, so that the first client finds the contexts. Adds values to the
  /// metrics. False: stderr says why.
  bool start();

  DiskThreads* tier() const { return disk_worker_.get(); }  ///< nullptr: without disk tier.
  OperatorKeys* keys() const { return keys_.get(); }        ///< nullptr: without encryption.
  ContextWarmer* warmer() const;                            ///< nullptr: without disk tier.

  void tick();         ///< Advances what is kept beside the tier, mostly within microseconds.
  void reload_keys();  ///< For SIGHUP. Logs the result.
  std::vector<NodeMetrics::Value> key_values() const;  ///< Requires keys(). Any thread.
  /// For after contexts were deleted for good. Returns "", or the error.
  std::string forget_contexts();
  /// The tier has other directories now.
  void move_to(const std::vector<std::string>& directories);

  /// Keeps contexts and counts, then stops the tier; `save`: with all blocks in memory written. Exits with status 1 if
  /// the disk does not answer, since the threads that wait for it cannot be joined.
  void stop(bool save);

 private:
  struct EndDiskThreads {
    LogWriter* log;
    void operator()(DiskThreads* disk_worker) const;
  };

  bool open_tier();
  void keep_learned();
  void keep_contexts();

  const NodeOptions& options_;
  NodeContext& node_;
  LogWriter& log_;
  std::shared_ptr<OperatorKeys> keys_;
  std::unique_ptr<WorkerThread<ContextWarmer>> warmer_;  ///< Outlives the tier, whose reads complete there.
  std::unique_ptr<DiskThreads, EndDiskThreads> disk_worker_;
  std::unique_ptr<LearnedKeeper> learned_;
  std::shared_ptr<LearnedPlace> learned_in_;  ///< Shared with a thread that may outlive this.
  std::shared_ptr<KeptFile> context_in_;
  std::unique_ptr<ContextKeeper> contexts_;
};

}  // namespace kv
