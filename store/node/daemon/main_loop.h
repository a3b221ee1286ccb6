// store/node/daemon/main_loop.h: the main thread while the node serves: signals, and small work in rounds.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"

namespace kv {

/// Catches SIGTERM and SIGINT from construction on: signals of the start wait for run().
/// Thread safety: none, one thread for all calls. Calls rounds and hang-ups on the thread of run().
class MainLoop {
 public:
  /// Does some work, and returns the pause until the next round.
  using Round = std::function<Duration()>;

  /// `catches_hangup`: SIGHUP too; otherwise it keeps its default action.
  explicit MainLoop(bool catches_hangup);
  ~MainLoop();

  void repeat(Round round);                        ///< The first round is within this call.
  void repeat_after(Duration pause, Round round);  ///< The first round is after the pause.
  void on_hangup(std::function<void()> call);      ///< For each SIGHUP. Once.

  void run();  ///< Until SIGTERM or SIGINT.
  /// After run(): goes on until `is_done`, a second signal, or this time.
  void run_on(const std::function<bool()>& is_done, std::chrono::steady_clock::time_point until);

 private:
  struct Repeated;

  Repeated& add(Round round);
  void wait(Repeated& repeated, Duration pause);
  void wait_for_hangup();

  asio::io_context context_{1};
  asio::signal_set signals_, hangup_;
  std::function<void()> hung_up_;
  std::vector<std::unique_ptr<Repeated>> rounds_;
};

}  // namespace kv
