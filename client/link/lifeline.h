// client/link/lifeline.h: callbacks that may outlive their object.
#pragma once

#include <memory>
#include <utility>

namespace kv {

/// A member of an object with work on another thread: results that return after the object is gone are dropped.
///   1. A guarded callback runs only while its Lifeline exists.
/// Thread safety: guard(), the destructor and the calls on one executor; a callback's destructor on any thread.
class Lifeline {
 public:
  Lifeline() : end_(std::make_shared<End>()) {}
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  /// Calls `f`, but has no effect once this is gone.
  template <class F>
  auto guard(F f) const {
    return [end = std::weak_ptr<const End>(end_), f = std::move(f)](auto&&... arguments) {
      if (!end.expired()) f(std::forward<decltype(arguments)>(arguments)...);
    };
  }

 private:
  struct End {};
  std::shared_ptr<const End> end_;
};

}  // namespace kv
