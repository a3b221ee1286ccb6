#include "store/node/slow_log.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/printable.h"

namespace kv {
namespace {

void append_seconds(std::string& text, const char* what, Duration time) {
  char number[48];
  std::snprintf(number, sizeof number, "%s%s %.6f", text.empty() ? "" : ", ", what,
                std::chrono::duration<double>(time).count());
  text += number;
}

}  // namespace

std::string slow_request_text(const SlowRequest& request) {
  const RequestPhases& phases = request.phases;
  std::string times;
  append_seconds(times, "lock", phases.lock);
  append_seconds(times, "store", phases.store);
  append_seconds(times, "room", phases.room);
  append_seconds(times, "disk", phases.disk);
  append_seconds(times, "move", phases.move);
  append_seconds(times, "client", phases.client);
  char took[48];
  std::snprintf(took, sizeof took, " took %.6f s (", std::chrono::duration<double>(request.took).count());
  std::string text = frame_type_name(request.verb) + (took + times) + ")";
  text += " blocks=" + std::to_string(request.block_count) + " bytes=" + std::to_string(request.moved_bytes);
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
