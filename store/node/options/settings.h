// store/node/live/: options that an operator changes while the node serves. Start here.
//
//     kvstorectl config set NAME=VALUE -> /config/set   -> Settings: checked as at the start -> the part concerned
//     SIGHUP                           -> the TOML file -> Settings: the same                -> the part concerned
//
// Files, in reading order:
//   settings.h     every option: its value, its origin, whether it can be changed, and the changes
//   config_file.h  a value written into the TOML file
//   capacity.h     more memory for blocks, or less
//   live_options.h connects options to the parts of the node
// The rows of the options (config.cc) say which are live, and why others are not.
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

#include "store/node/metrics.h"
#include "store/node/options/config.h"

namespace kv {

/// The options in force.
///   1. A value is in force only if it would be accepted at the start, together with all others.
///   2. Options that are not live keep their start values, whatever file and requests say.
///   3. A value that was set stays until the node ends: SIGHUP keeps it.
/// Thread safety: any thread, but on() within open(). Changes are applied on the caller's thread, one at a time.
class Settings {
 public:
  /// Applies the changed options. Returns "", or the reason for a refusal: then the old value stays.
  using Apply = std::function<std::string(const NodeOptions& next)>;
  /// Reads flags, environment and file again; nullopt and *wrong after an error.
  using Read = std::function<std::optional<GivenOptions>(std::string* wrong)>;

  /// `options`: derived from `given`, and checked.
  Settings(GivenOptions given, NodeOptions options, Read read)
      : given_(std::move(given)), in_force_(std::move(options)), read_(std::move(read)) {}

  /// Registers the part that applies changes of these live options. Options without a part are not in use.
  void on(std::initializer_list<const char*> names, const Apply& apply);
  /// For options that are only read, when needed, from in_force().
  void on_demand(std::initializer_list<const char*> names);

  struct Assignment {
    std::string name;
    std::vector<std::string> values;  ///< Several for a list.
  };
  struct Outcome {
    std::string wrong;                 ///< The reason for a refusal, or for stopping halfway.
    std::vector<std::string> changed;  ///< Names of options that are newly in force.
    std::vector<std::string> notes;    ///< For the operator.
  };
  /// Checks all, then puts them into force one after another. `writes`: then writes them to the file too.
  Outcome set(const std::vector<Assignment>& assignments, bool writes, const std::string& who);
  Outcome reload();  ///< For SIGHUP. A bad file is ignored.

  /// Allows changes from now on: `wire` calls on() for each part.
  void open(const std::function<void()>& wire);
  NodeOptions close();  ///< Ends changes, so that parts may go. Returns in_force().
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

/// "a=1&b=2": values of one name together, percent-decoded; nullopt if malformed. `+` is itself.
std::optional<std::vector<Settings::Assignment>> parse_assignments(std::string_view query);

}  // namespace kv
