#include "store/node/daemon/main_loop.h"

#include <spdlog/spdlog.h>

#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <utility>

#include "store/node/threads/thread_border.h"

namespace kv {

struct MainLoop::Repeated {
  Round round;
  asio::steady_timer timer;
};

MainLoop::MainLoop(bool catches_hangup) : signals_(context_, SIGTERM, SIGINT), hangup_(context_) {
  if (catches_hangup) hangup_.add(SIGHUP);
}

MainLoop::~MainLoop() = default;

void MainLoop::repeat(Round round) {
  Repeated& repeated = add(std::move(round));
  wait(repeated, repeated.round());
}

void MainLoop::repeat_after(Duration pause, Round round) { wait(add(std::move(round)), pause); }

void MainLoop::on_hangup(std::function<void()> call) {
  hung_up_ = std::move(call);
  wait_for_hangup();
}

/// One wait both reports the signal and ends the loop. With two waits, a signal from before the first one would
/// complete that one only: reported, and not obeyed.
void MainLoop::run() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (!error) spdlog::info("signal {}: draining", signal);
    context_.stop();
  });
  run_within_border(NodeThread::kMain, context_);
}

void MainLoop::run_on(const std::function<bool()>& is_done, std::chrono::steady_clock::time_point until) {
  bool is_hurried = false;
  signals_.async_wait([&](const boost::system::error_code& error, int) { is_hurried = is_hurried || !error; });
  context_.restart();
  while (!is_done() && !is_hurried && std::chrono::steady_clock::now() < until) context_.run_for(50ms);
  signals_.cancel();
}

MainLoop::Repeated& MainLoop::add(Round round) {
  rounds_.emplace_back(new Repeated{std::move(round), asio::steady_timer(context_)});
  return *rounds_.back();
}

void MainLoop::wait(Repeated& repeated, Duration pause) {
  repeated.timer.expires_after(pause);
  repeated.timer.async_wait([this, &repeated](const boost::system::error_code& error) {
    if (!error) wait(repeated, repeated.round());
  });
}

void MainLoop::wait_for_hangup() {
  hangup_.async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    hung_up_();
    wait_for_hangup();
  });
}

}  // namespace kv
