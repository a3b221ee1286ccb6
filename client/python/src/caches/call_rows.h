// client/python/src/caches/call_rows.h: the rows of a Python call: slots or blocks, in a list or an array on host or
// device.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "client/python/src/buffers.h"
#include "gpu/rows.h"

namespace kv::python {

/// Numbers of rows or blocks. On a device they are used in place, int32 or int64, without a check.
class Ids {
 public:
  /// None: all rows, a range from 0.
  Ids(nb::handle object, std::string name);
  static const Ids& none();

  bool is_given() const { return is_given_; }
  bool is_on_device() const { return on_device_.has_value(); }
  std::int64_t count() const { return count_; }
  std::span<const std::int64_t> values() const { return values_ ? values_->values() : std::span<const std::int64_t>(); }
  const std::string& name() const { return name_; }

  /// Rows for the numbers at `ids`: the same array or a copy. block_tokens 0: they are slots.
  Rows rows(const void* ids, std::int64_t block_tokens) const;
  Rows on_host(std::int64_t block_tokens) const;  ///< Throws if they lie on a device.
  const void* address() const { return on_device_->data(); }

 private:
  std::string name_;
  bool is_given_ = false;
  std::int64_t count_ = 0;
  std::optional<Numbers<std::int64_t>> values_;
  std::optional<Array> on_device_;
};

/// Rows named by slots or by blocks, or the first so many.
class NamedRows {
 public:
  NamedRows(nb::handle slots, nb::handle blocks, std::int64_t block_tokens, std::optional<std::int64_t> row_count);

  const Ids& ids() const { return slots_.is_given() ? slots_ : blocks_; }
  std::int64_t block_tokens() const { return block_tokens_; }  ///< 0: slots, or the first rows.
  std::int64_t count() const { return count_; }

 private:
  Ids slots_, blocks_;
  std::int64_t block_tokens_ = 0, count_ = 0;
};

}  // namespace kv::python
