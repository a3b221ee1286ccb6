#include "client/python/src/caches/call_rows.h"

#include <utility>

#include "client/python/src/errors.h"

namespace kv::python {
namespace {

constexpr int kDlCuda = 2;

bool is_on_cuda(nb::handle object) {
  if (PyObject_CheckBuffer(object.ptr()) != 0 || PyList_Check(object.ptr()) != 0) return false;
  if (!nb::hasattr(object, "__dlpack_device__")) return nb::hasattr(object, "__cuda_array_interface__");
  return nb::cast<int>(nb::int_(object.attr("__dlpack_device__")()[nb::int_(0)])) == kDlCuda;
}

}  // namespace

Ids::Ids(nb::handle object, std::string name) : name_(std::move(name)), is_given_(!object.is_none()) {
  if (!is_given_) return;
  if (!is_on_cuda(object)) {
    values_.emplace(object, name_);
    count_ = static_cast<std::int64_t>(values_->values().size());
    return;
  }
  on_device_.emplace(object, name_, /*is_written=*/false, Place::kHostOrCuda);
  const Array& array = *on_device_;
  if (array.dimensions() != 1)
    throw bad_request(name_ + ": has " + std::to_string(array.dimensions()) + " axes, not 1");
  if (array.kind() != 'i' || (array.item_bytes() != 4 && array.item_bytes() != 8) || !array.is_contiguous() ||
      reinterpret_cast<std::uintptr_t>(array.data()) % array.item_bytes() != 0)
    throw bad_request(name_ + ": on a device only int32 and int64 without gaps can be used");
  count_ = array.shape()[0];
}

const Ids& Ids::none() {
  static const auto* const none = new Ids(nb::none(), "");
  return *none;
}

Rows Ids::rows(const void* ids, std::int64_t block_tokens) const {
  if (!is_given_) return Rows::range();
  if (is_on_device() && on_device_->item_bytes() == 4) {
    const auto* const narrow = static_cast<const std::int32_t*>(ids);
    return block_tokens > 0 ? Rows::blocks(narrow, block_tokens) : Rows::slots(narrow);
  }
  const auto* const wide = static_cast<const std::int64_t*>(ids);
  return block_tokens > 0 ? Rows::blocks(wide, block_tokens) : Rows::slots(wide);
}

Rows Ids::on_host(std::int64_t block_tokens) const {
  if (is_on_device()) throw bad_request(name_ + ": on a CUDA device, and the caches are the host's");
  return rows(values().data(), block_tokens);
}

NamedRows::NamedRows(nb::handle slots, nb::handle blocks, std::int64_t block_tokens,
                     std::optional<std::int64_t> row_count)
    : slots_(slots, "slots"), blocks_(blocks, "blocks") {
  if (slots_.is_given() && blocks_.is_given()) throw bad_request("slots and blocks: give one of them");
  if (slots_.is_given()) {
    count_ = slots_.count();
  } else if (blocks_.is_given()) {
    block_tokens_ = block_tokens;
    count_ = blocks_.count() * block_tokens;
  } else if (!row_count) {
    // Unnamed rows are a range from 0, but the caller must give the count: two layouts seldom have the same.
    throw bad_request("slots, blocks or count: give one of them");
  }
  if (!row_count) return;
  if (*row_count < 0 || (ids().is_given() && *row_count > count_))
    throw bad_request("count: more rows than were named");
  count_ = *row_count;
}

}  // namespace kv::python
