// base/owner.h: memory that somebody else works with is kept by its owner, which nobody needs to know.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace kv {

/// Which owner, to tell one from another: equal if made of the same object. Never followed, so that object may be gone.
class OwnerId {
 public:
  OwnerId() = default;  ///< Nobody.
  template <class T>
  explicit OwnerId(const T* object) : object_(object) {}
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(const OwnerId&) const = default;

 private:
  const void* object_ = nullptr;
};

/// Keeps an object, whatever it is, and with it the memory that it stands for, until the last copy of this goes.
class Owner {
 public:
  Owner() = default;  ///< Keeps nothing.
  Owner(std::nullptr_t) {}
  template <class T>
  Owner(std::shared_ptr<T> object) : object_(std::move(object)) {}
  explicit operator bool() const { return object_ != nullptr; }
  OwnerId id() const { return OwnerId(object_.get()); }
  void reset() { object_.reset(); }

 private:
  std::shared_ptr<const void> object_;
};

}  // namespace kv
