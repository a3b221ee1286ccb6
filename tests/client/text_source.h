// tests/client/text_source.h: an exported context that is no file.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>

#include "client/archive/archive_form.h"

namespace kv {

/// Bytes in memory, at most `piece` a read.
class TextSource final : public ArchiveSource {
 public:
  explicit TextSource(std::string_view text, std::size_t piece = 7) : text_(text), piece_(piece) {}
  Result<std::size_t, Failure> read(std::span<std::byte> to) override {
    const std::size_t count = std::min({to.size(), text_.size(), piece_});
    std::memcpy(to.data(), text_.data(), count);
    text_.remove_prefix(count);
    return count;
  }

 private:
  std::string_view text_;
  std::size_t piece_;
};

}  // namespace kv
