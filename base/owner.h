// base/owner.h: type-erased ownership of memory that other code works with.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

namespace kv {

/// Identifies an owner: equal if made of the same object. Never dereferenced, so that object may be gone.
class OwnerId {
 public:
  OwnerId() = default;
  template <class T>
  explicit OwnerId(const T* object) : object_(object) {}
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(const OwnerId&) const = default;

 private:
  const void* object_ = nullptr;
};

/// Keeps an object of any type, and with it the memory behind it, until the last copy of this goes.
class Owner {
 public:
  Owner() = default;
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
