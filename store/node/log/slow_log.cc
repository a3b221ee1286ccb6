#include "store/node/log/slow_log.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "base/text/printable.h"

namespace kv {

std::string slow_request_text(const SlowRequest& request) {
  const auto seconds = [](Duration time) { return std::chrono::duration<double>(time).count(); };
  const RequestPhases& phases = request.phases;
  std::string text = fmt::format(
      "{} took {:.6f} s (lock {:.6f}, store {:.6f}, room {:.6f}, disk {:.6f}, move {:.6f}, client {:.6f}) blocks={} "
      "bytes={}",
      frame_type_name(request.type), seconds(request.took), seconds(phases.lock), seconds(phases.store),
      seconds(phases.room), seconds(phases.disk), seconds(phases.move), seconds(phases.client), request.block_count,
      request.moved_bytes);
  if (request.space) text += " namespace=" + to_hex(request.space->bytes);
  if (!request.model.empty()) text += " model='" + printable(request.model) + "'";
  if (!request.tenant.empty()) text += " tenant='" + printable(request.tenant) + "'";
  if (request.has_failed) text += " failed=true";
  if (request.trace.is_set()) text += " traceparent=" + request.trace.text();
  return text;
}

void SlowLog::set(SlowLogConfig config) {
  const std::lock_guard lock(mutex_);
  threshold_ = config.threshold > Duration::zero() ? config.threshold : Duration::max();
  count_max_ = std::clamp<std::size_t>(config.count_max, 1, kCountMax);
  if (requests_.size() > count_max_) requests_.resize(count_max_);
}

void SlowLog::add(SlowRequest request) {
  for (std::string* const text : {&request.model, &request.tenant, &request.identity, &request.peer}) {
    if (text->size() > kTextMax) text->resize(kTextMax);
  }
  const std::lock_guard lock(mutex_);
  request.number = ++count_;
  if (requests_.size() >= count_max_) requests_.pop_back();
  requests_.push_front(std::move(request));
}

void SlowLog::clear() {
  const std::lock_guard lock(mutex_);
  requests_.clear();
}

SlowLog::Told SlowLog::told() const {
  const std::lock_guard lock(mutex_);
  const Duration threshold = threshold_;
  return {threshold == Duration::max() ? Duration::zero() : threshold, count_, {requests_.begin(), requests_.end()}};
}

}  // namespace kv
