// base/error_words.h: categories of errors: a name, and the words for each value.
#pragma once

#include <boost/system/error_category.hpp>
#include <cstdint>
#include <string>

namespace kv {

// error_category is never deleted through its base, so it has no virtual destructor.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wnon-virtual-dtor"
/// Each module loaded at run time has its own copy of a category. Categories with one `id` compare equal, so an error
/// from a module still equals its code here.
class ErrorWords final : public boost::system::error_category {
 public:
  constexpr ErrorWords(const char* name, std::string (*words)(int), std::uint64_t id = 0)
      : error_category(id), name_(name), words_(words) {}
  const char* name() const noexcept override { return name_; }
  std::string message(int value) const override { return words_(value); }

 private:
  const char* name_;
  std::string (*words_)(int);
};
#pragma GCC diagnostic pop

}  // namespace kv
