// store/node/live/: what an operator changes while the node serves. Start here.
//
//     kvstorectl config set NAME=VALUE -> admin server -> Settings: checked as at the start -> the part that it
//     concerns SIGHUP                           -> the TOML file anew      ->   "
//
// Files, in reading order:
//   settings.h     every option: its value, where that came from, whether it can be changed, and the changes
//   config_file.h  a value written into the TOML file
//   capacity.h     more memory for blocks, or less
//   live_options.h which part of the node takes up which option
// Which options are live, and why others are not, is said in their rows (config.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/node/config.h"
#include "store/node/metrics.h"

namespace kv {

/// The options in force.
///   1. A value is in force only if it would be accepted at the start, together with all others.
///   2. What cannot be changed while the node runs is as it was at the start, whatever file and requests say.
///   3. A value that was set stays until the node ends: SIGHUP does not take it back.
/// Thread safety: all calls from any thread, but on() within open(); parts are told of changes on the thread
/// of whoever makes them, one change at a time.
class Settings {
 public:
  /// Puts what has changed into force. Returns "", or why it cannot be: then the value stays as it was.
  using Apply = std::function<std::string(const NodeOptions& next)>;
  /// Reads flags, environment and file again; nothing and *wrong after a mistake.
  using Read = std::function<std::optional<GivenOptions>(std::string* wrong)>;

  /// `options`: what follows from `given`, which was checked.
  Settings(GivenOptions given, NodeOptions options, Read read)
      : given_(std::move(given)), in_force_(std::move(options)), read_(std::move(read)) {}

  /// Who is told of changes of these live options. An option without anybody is not in use on this node.
  void on(std::initializer_list<const char*> names, const Apply& apply);
  /// Each of them is only looked up, when it matters: in in_force().
  void on_demand(std::initializer_list<const char*> names);

  struct Assignment {
    std::string name;
    std::vector<std::string> values;  ///< Several of a list.
  };
  struct Outcome {
    std::string wrong;                 ///< Why not, or why no further.
    std::vector<std::string> changed;  ///< Names, of what is in force now and was not before.
    std::vector<std::string> notes;    ///< For the operator.
  };
  /// All are checked, then put into force one after another. `writes`: then writes them to the file as well.
  Outcome set(const std::vector<Assignment>& assignments, bool writes, const std::string& who);
  Outcome reload();  ///< SIGHUP. A bad file changes nothing.

  /// Before this nothing is changed: `wire` calls on() for what there is.
  void open(const std::function<void()>& wire);
  NodeOptions close();  ///< From here on nothing is: parts may go. Returns in_force().
  NodeOptions in_force() const;
  std::string list_json() const;
  std::vector<NodeMetrics::Value> stats() const;

 private:
  std::string check(const std::vector<Assignment>& assignments, GivenOptions& next) const;
  std::string write(const std::vector<Assignment>& assignments) const;
  void put_in_force(GivenOptions& next, const NodeOptions& options, const std::vector<std::string>& names,
                    const std::string& by, Outcome& outcome);

  mutable std::mutex mutex_;
  GivenOptions given_;
  NodeOptions in_force_;
  const Read read_;
  bool is_open_ = false;
  std::map<std::string, Apply, std::less<>> applies_;
  std::uint64_t changes_ = 0, refusals_ = 0, reloads_ = 0, reload_failures_ = 0;
};

/// "a=1&b=2": values of one name together, percent-decoded; nothing if it is none. `+` is itself.
std::optional<std::vector<Settings::Assignment>> parse_assignments(std::string_view query);

}  // namespace kv
