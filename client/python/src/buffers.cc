#include "client/python/src/buffers.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <tuple>
#include <utility>

#include "client/python/src/errors.h"

namespace kv::python {
namespace {

// -- DLPack's structs, as its specification fixes them. Version 1 has flags; before it, read-only is not marked.

struct DlDevice {
  std::int32_t type, id;
};
struct DlType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};
struct DlTensor {
  void* data;
  DlDevice device;
  std::int32_t dimension_count;
  DlType type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: in C order
  std::uint64_t byte_offset;
};
struct DlManaged {
  DlTensor tensor;
  void* context;
  void (*deleter)(DlManaged*);
};

struct DlVersioned {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(DlVersioned*);
  std::uint64_t flags;
  DlTensor tensor;
};
constexpr std::uint64_t kDlReadOnly = 1;

constexpr int kCpu = 1, kCuda = 2, kCudaHost = 3, kRocmHost = 11, kCudaManaged = 13;

/// Codes 10 and 12 are the two narrow floats that engines keep KV in; other types are opaque, and can move as bytes.
char kind_of(DlType type) {
  switch (type.code) {
    case 0: return 'i';
    case 1: return 'u';
    case 2: return 'f';
    case 4: return 'b';
    case 10: return '4';
    case 12: return '5';
    default: return 'o';
  }
}

/// The kind of a buffer's format, in native byte order; 'o' unless it is one number.
char kind_of(const char* format) {
  // By the buffer protocol, no format means unsigned bytes.
  if (format == nullptr) return 'u';
  // '>' and '!' are missing: such numbers are in the other byte order.
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (*format == '\0' || format[1] != '\0') return 'o';
  if (std::strchr("bhilqn", *format) != nullptr) return 'i';
  if (std::strchr("BHILQN?", *format) != nullptr) return 'u';
  if (std::strchr("efd", *format) != nullptr) return 'f';
  return 'o';
}

std::string text_of(std::int64_t number) { return std::to_string(number); }

}  // namespace

struct Array::Source {
  Py_buffer buffer{};
  bool has_buffer = false;
  DlManaged* managed = nullptr;
  DlVersioned* versioned = nullptr;
  nb::object owner;

  /// Takes the tensor over from a capsule, which is then used up.
  const DlTensor& take(const nb::object& capsule) {
    const bool is_versioned = PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0;
    const char* const name = is_versioned ? "dltensor_versioned" : "dltensor";
    void* const pointer = PyCapsule_GetPointer(capsule.ptr(), name);
    // Renamed at once: a capsule that keeps its name frees the tensor a second time when Python collects it.
    if (pointer == nullptr ||
        PyCapsule_SetName(capsule.ptr(), is_versioned ? "used_dltensor_versioned" : "used_dltensor") != 0)
      throw nb::python_error();
    if (is_versioned) {
      versioned = static_cast<DlVersioned*>(pointer);
      return versioned->tensor;
    }
    managed = static_cast<DlManaged*>(pointer);
    return managed->tensor;
  }

  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() {
    // Releases the one that was taken; each keeps the exporter from moving or freeing the memory. The GIL is held here.
    if (has_buffer) PyBuffer_Release(&buffer);
    if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
    if (versioned != nullptr && versioned->deleter != nullptr) versioned->deleter(versioned);
  }
};

namespace {

/// The object's capsule, versioned if possible: libraries from before version 1 raise a TypeError for the argument.
nb::object dlpack_of(nb::handle object, bool is_cuda) {
  // A device tensor's address is enough: the stream of each call orders the work (-1: the exporter shall not wait).
  nb::dict options;
  if (is_cuda) options["stream"] = -1;
  nb::dict with_version;
  with_version.update(options);
  with_version["max_version"] = nb::make_tuple(1, 0);
  try {
    return object.attr("__dlpack__")(**with_version);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return object.attr("__dlpack__")(**options);
}

/// The kind of __cuda_array_interface__'s typestr, '<f2' for instance, and the bytes of an element.
std::pair<char, std::size_t> type_of(const std::string& name, const std::string& text) {
  std::size_t bytes = 0;
  const bool is_sound =
      text.size() >= 3 && (text[0] == '<' || text[0] == '|' || text[0] == '>') &&
      std::all_of(text.begin() + 2, text.end(), [](char digit) { return digit >= '0' && digit <= '9'; });
  if (is_sound && text.size() <= 6) bytes = std::stoul(text.substr(2));
  if (bytes == 0 || text[0] == '>') throw bad_request(name + ": elements of type '" + text + "' cannot be used");
  const char kind = text[1];
  return {kind == 'i' || kind == 'u' || kind == 'f' ? kind : kind == 'b' ? 'u' : 'o', bytes};
}

}  // namespace

Array::Array(Array&&) noexcept = default;
Array& Array::operator=(Array&&) noexcept = default;
Array::~Array() = default;

Array::Array(nb::handle object, std::string name, bool is_written, Place place)
    : source_(std::make_unique<Source>()), name_(std::move(name)) {
  // First the buffer protocol: it marks read-only memory, which DLPack could not before version 1.
  if (PyObject_CheckBuffer(object.ptr()) != 0) {
    Py_buffer& buffer = source_->buffer;
    if (PyObject_GetBuffer(object.ptr(), &buffer, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) throw nb::python_error();
    source_->has_buffer = true;
    is_read_only_ = buffer.readonly != 0;
    if (is_written && is_read_only_) throw bad_request(name_ + ": the memory is read-only, and bytes land there");
    data_ = static_cast<std::byte*>(buffer.buf);
    item_bytes_ = static_cast<std::size_t>(buffer.itemsize);
    kind_ = kind_of(buffer.format);
    for (int i = 0; i < buffer.ndim; ++i) {
      shape_.push_back(buffer.shape[i]);
      strides_.push_back(buffer.strides[i]);
    }
    return;
  }
  constexpr const char* kDevices =
      "; this call takes host memory. Client.lend_device() lends a GPU's for the blocks of chains";
  if (!nb::hasattr(object, "__dlpack__")) {
    if (nb::hasattr(object, "__cuda_array_interface__")) {
      if (place != Place::kHostOrCuda) throw bad_request(name_ + ": the memory lies on a CUDA device" + kDevices);
      read_cuda_interface(object, is_written);
      return;
    }
    const std::string type = nb::cast<std::string>(nb::str(object.type().attr("__name__")));
    throw bad_request(name_ + ": an object of type " + type +
                      " has neither the buffer protocol nor DLPack; give a NumPy array, a torch tensor or bytes");
  }
  // The type may be the library's own enumeration. Asked first: making a capsule may wait for the device.
  const nb::object device = object.attr("__dlpack_device__")();
  const long type = PyLong_AsLong(nb::int_(device[0]).ptr());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  const bool is_cuda = type == kCuda && place == Place::kHostOrCuda;
  // Page-locked host memory works under its own types. Touching managed memory may migrate it during the engine's work.
  if (!is_cuda && type != kCpu && type != kCudaHost && type != kRocmHost)
    throw bad_request(name_ + ": the memory lies on " + (type == kCuda || type == kCudaManaged ? "a CUDA" : "a") +
                      " device (DLPack type " + text_of(type) + ")" +
                      (place == Place::kHost ? kDevices : "; this call takes host memory and CUDA's device memory"));
  read_dlpack(object, is_written, is_cuda);
}

void Array::read_dlpack(nb::handle object, bool is_written, bool is_cuda) {
  const DlTensor& tensor = source_->take(dlpack_of(object, is_cuda));
  is_on_device_ = is_cuda;
  const DlVersioned* const versioned = source_->versioned;
  // Other major versions differ in layout. By the specification the deleter's place is fixed, so it is still called.
  if (versioned != nullptr && versioned->major != 1)
    throw bad_request(name_ + ": DLPack version " + text_of(versioned->major) + " is not known");
  is_read_only_ = versioned != nullptr && (versioned->flags & kDlReadOnly) != 0;
  if (is_written && is_read_only_) throw bad_request(name_ + ": the memory is read-only, and bytes land there");
  if (tensor.type.lanes != 1 || tensor.type.bits % 8 != 0)
    throw bad_request(name_ + ": elements of " + text_of(tensor.type.bits) + " bits cannot be used");
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  item_bytes_ = tensor.type.bits / 8;
  kind_ = kind_of(tensor.type);
  shape_.assign(tensor.shape, tensor.shape + tensor.dimension_count);
  strides_.resize(shape_.size());
  std::int64_t step = static_cast<std::int64_t>(item_bytes_);
  for (std::size_t i = shape_.size(); i-- > 0;) {
    strides_[i] = tensor.strides != nullptr ? tensor.strides[i] * static_cast<std::int64_t>(item_bytes_) : step;
    step *= shape_[i];
  }
}

void Array::read_cuda_interface(nb::handle object, bool is_written) {
  const auto given = nb::cast<nb::dict>(object.attr("__cuda_array_interface__"));
  if (given.contains("mask") && !given["mask"].is_none()) throw bad_request(name_ + ": a masked array");
  const auto data = nb::cast<nb::tuple>(given["data"]);
  data_ = reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(data[0]));
  is_read_only_ = nb::cast<bool>(data[1]);
  if (is_written && is_read_only_) throw bad_request(name_ + ": the memory is read-only, and bytes land there");
  std::tie(kind_, item_bytes_) = type_of(name_, nb::cast<std::string>(given["typestr"]));
  for (const nb::handle extent : nb::cast<nb::tuple>(given["shape"])) shape_.push_back(nb::cast<std::int64_t>(extent));
  if (given.contains("strides") && !given["strides"].is_none()) {
    for (const nb::handle step : nb::cast<nb::tuple>(given["strides"]))
      strides_.push_back(nb::cast<std::int64_t>(step));
    if (strides_.size() != shape_.size()) throw bad_request(name_ + ": not as many strides as axes");
  } else {
    strides_.resize(shape_.size());
    std::int64_t step = static_cast<std::int64_t>(item_bytes_);
    for (std::size_t i = shape_.size(); i-- > 0; step *= shape_[i]) strides_[i] = step;
  }
  is_on_device_ = true;
  source_->owner = nb::borrow(object);
}

std::size_t Array::bytes() const {
  std::size_t bytes = item_bytes_;
  for (const std::int64_t extent : shape_) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

bool Array::is_contiguous(std::size_t first_axis) const {
  std::int64_t step = static_cast<std::int64_t>(item_bytes_);
  // The stride of an axis with one element is never used, and NumPy leaves anything there.
  for (std::size_t i = shape_.size(); i-- > first_axis;) {
    if (shape_[i] == 0) return true;
    if (shape_[i] != 1 && strides_[i] != step) return false;
    step *= shape_[i];
  }
  return true;
}

std::span<std::byte> Array::all_bytes() const {
  if (!is_contiguous()) throw bad_request(name_ + ": the array is strided; give one in C order without gaps");
  return {data_, bytes()};
}

// -- numbers

namespace {

template <class To, class From>
std::vector<To> convert(const Array& array) {
  std::vector<To> values(static_cast<std::size_t>(array.shape()[0]));
  const std::byte* at = array.data();
  for (std::size_t i = 0; i < values.size(); ++i, at += array.strides()[0]) {
    From value;
    // The numbers may lie at any address: a field of a packed record, a slice of bytes.
    std::memcpy(&value, at, sizeof value);
    if (!std::in_range<To>(value))
      throw bad_request(array.name() + "[" + std::to_string(i) + "]: " + std::to_string(value) + " is out of range");
    values[i] = static_cast<To>(value);
  }
  return values;
}

template <class To>
std::vector<To> convert_any(const Array& array) {
  const bool is_signed = array.kind() == 'i';
  switch (array.item_bytes()) {
    case 1: return is_signed ? convert<To, std::int8_t>(array) : convert<To, std::uint8_t>(array);
    case 2: return is_signed ? convert<To, std::int16_t>(array) : convert<To, std::uint16_t>(array);
    case 4: return is_signed ? convert<To, std::int32_t>(array) : convert<To, std::uint32_t>(array);
    default: return is_signed ? convert<To, std::int64_t>(array) : convert<To, std::uint64_t>(array);
  }
}

}  // namespace

template <class T>
Numbers<T>::Numbers(nb::handle object, const std::string& name) {
  if (object.is_none()) return;
  nb::object held = nb::borrow(object);
  // NumPy converts a list or a range in one C loop. Walking it here would take a call into Python for each token.
  if (PyObject_CheckBuffer(object.ptr()) == 0 && PySequence_Check(object.ptr()) != 0 &&
      !nb::hasattr(object, "__dlpack__")) {
    if (nb::len(object) == 0) return;
    held = nb::module_::import_("numpy").attr("asarray")(object);
  }
  Array array(held, name, /*is_written=*/false);
  if (array.dimensions() != 1) throw bad_request(name + ": has " + std::to_string(array.dimensions()) + " axes, not 1");
  if (array.kind() != 'i' && array.kind() != 'u') throw bad_request(name + ": the elements are no whole numbers");
  const auto count = static_cast<std::size_t>(array.shape()[0]);
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(array.data()) % alignof(T) == 0;
  const bool is_right_type = array.item_bytes() == sizeof(T) && (array.kind() == 'i') == std::is_signed_v<T>;
  // Used in place; array_ keeps them until the call is over.
  if (is_right_type && is_aligned && array.is_contiguous()) {
    values_ = {reinterpret_cast<const T*>(array.data()), count};
    array_.push_back(std::move(array));
    return;
  }
  converted_ = convert_any<T>(array);
  values_ = converted_;
}

template class Numbers<std::uint32_t>;
template class Numbers<std::int32_t>;
template class Numbers<std::int64_t>;
template class Numbers<std::uint64_t>;

// -- hashes

namespace {

template <class T>
std::vector<T> rows_of_bytes(const Array& array) {
  constexpr std::size_t kBytes = sizeof(T);
  if (array.dimensions() != 2 || array.item_bytes() != 1 || array.shape()[1] != std::int64_t{kBytes})
    throw bad_request(array.name() + ": not an array of uint8 [n, " + std::to_string(kBytes) + "]");
  const std::span<std::byte> bytes = array.all_bytes();
  std::vector<T> rows(static_cast<std::size_t>(array.shape()[0]));
  if (!rows.empty()) std::memcpy(rows.data(), bytes.data(), bytes.size());
  return rows;
}

}  // namespace

/// An array of rows is used as it is; list elements of other lengths are hashed to 32 bytes, as in C.
std::vector<BlockHash> hashes_from(nb::handle object, const std::string& name) {
  if (PyList_Check(object.ptr()) == 0 && PyTuple_Check(object.ptr()) == 0)
    return rows_of_bytes<BlockHash>(Array(object, name, /*is_written=*/false));
  std::vector<BlockHash> hashes;
  hashes.reserve(nb::len(object));
  for (const nb::handle each : object) {
    // The form engines use: thousands, on a thread shared by all their requests.
    if (char* bytes = nullptr; PyBytes_Check(each.ptr()) != 0) {
      Py_ssize_t length = 0;
      if (PyBytes_AsStringAndSize(each.ptr(), &bytes, &length) != 0) throw nb::python_error();
      const auto hash =
          block_hash_from_engine({reinterpret_cast<const std::byte*>(bytes), static_cast<std::size_t>(length)});
      if (!hash) throw bad_request(name + "[" + std::to_string(hashes.size()) + "]: no bytes");
      hashes.push_back(*hash);
      continue;
    }
    const Array array(each, name + "[" + std::to_string(hashes.size()) + "]", /*is_written=*/false);
    const auto hash = block_hash_from_engine(array.all_bytes());
    if (!hash) throw bad_request(array.name() + ": no bytes");
    hashes.push_back(*hash);
  }
  return hashes;
}

std::vector<ExtraDigest> extras_from(nb::handle object, const std::string& name) {
  if (object.is_none()) return {};
  return rows_of_bytes<ExtraDigest>(Array(object, name, /*is_written=*/false));
}

// -- blocks

namespace {

/// Two blocks in one place would both be reported as good, and one would be lost.
void refuse_overlap(std::span<const std::span<std::byte>> blocks, const char* name) {
  const auto is_before = [](std::span<std::byte> a, std::span<std::byte> b) { return a.data() < b.data(); };
  const auto touch = [](std::span<std::byte> a, std::span<std::byte> b) { return a.data() + a.size() > b.data(); };
  if (std::ranges::adjacent_find(blocks, touch) == blocks.end()) return;  // in ascending order, as most are
  std::vector<std::span<std::byte>> sorted;
  sorted.reserve(blocks.size());
  std::ranges::copy_if(blocks, std::back_inserter(sorted), [](std::span<std::byte> each) { return !each.empty(); });
  std::ranges::sort(sorted, is_before);
  if (std::ranges::adjacent_find(sorted, touch) != sorted.end())
    throw bad_request(std::string(name) + ": two blocks would land in the same memory");
}

bool is_list(nb::handle object) { return PyList_Check(object.ptr()) != 0 || PyTuple_Check(object.ptr()) != 0; }

/// One block for each object of a list; `block_bytes`: of each, or 0: any.
std::vector<std::span<std::byte>> listed_blocks(nb::handle object, nb::handle rows, std::size_t block_count,
                                                std::size_t block_bytes, bool is_written, Holds& holds, Place place) {
  if (!rows.is_none()) throw bad_request("rows: only with blocks in one array");
  std::vector<std::span<std::byte>> blocks;
  blocks.reserve(block_count);
  for (const nb::handle each : object) {
    holds.emplace_back(each, "blocks[" + std::to_string(blocks.size()) + "]", is_written, place);
    blocks.push_back(holds.back().all_bytes());
    if (block_bytes != 0 && blocks.back().size() != block_bytes)
      throw bad_request(holds.back().name() + ": " + std::to_string(blocks.back().size()) + " bytes, a block has " +
                        std::to_string(block_bytes));
  }
  if (blocks.size() != block_count)
    throw bad_request("blocks: " + std::to_string(blocks.size()) + " for " + std::to_string(block_count) + " hashes");
  if (is_written) refuse_overlap(blocks, "blocks");
  return blocks;
}

}  // namespace

std::vector<std::span<std::byte>> blocks_from(nb::handle object, nb::handle rows, std::size_t block_count,
                                              std::size_t block_bytes, bool is_written, Holds& holds, Place place) {
  if (is_list(object)) return listed_blocks(object, rows, block_count, block_bytes, is_written, holds, place);
  std::vector<std::span<std::byte>> blocks;
  blocks.reserve(block_count);
  holds.emplace_back(object, "blocks", is_written, place);
  const Array& array = holds.back();
  std::byte* const data = array.data();
  std::size_t row_count = 0;
  std::int64_t step = static_cast<std::int64_t>(block_bytes);
  if (array.dimensions() <= 1) {  // bytes end to end
    const std::size_t bytes = array.all_bytes().size();
    if (bytes % block_bytes != 0)
      throw bad_request("blocks: " + std::to_string(bytes) + " bytes are not whole blocks of " +
                        std::to_string(block_bytes));
    row_count = bytes / block_bytes;
  } else {
    row_count = static_cast<std::size_t>(array.shape()[0]);
    if (row_count > 0 && array.bytes() != row_count * block_bytes)
      throw bad_request("blocks: a row has " + std::to_string(array.bytes() / row_count) + " bytes, a block has " +
                        std::to_string(block_bytes));
    if (!array.is_contiguous(1))
      throw bad_request("blocks: the array is strided inside a block; only the first axis may be");
    if (row_count > 1) step = array.strides()[0];
    // Only targets must not overlap: torch's expand() makes overlapping sources. Negative strides are fine.
    if (is_written && row_count > 1 && std::abs(step) < static_cast<std::int64_t>(block_bytes))
      throw bad_request("blocks: rows overlap");
  }
  if (rows.is_none()) {
    if (row_count != block_count)
      throw bad_request("blocks: " + std::to_string(row_count) + " for " + std::to_string(block_count) + " hashes");
    for (std::size_t i = 0; i < block_count; ++i)
      blocks.emplace_back(data + static_cast<std::int64_t>(i) * step, block_bytes);
    return blocks;
  }
  const Numbers<std::int64_t> chosen(rows, "rows");
  if (chosen.values().size() != block_count)
    throw bad_request("rows: " + std::to_string(chosen.values().size()) + " for " + std::to_string(block_count) +
                      " hashes");
  for (const std::int64_t row : chosen.values()) {
    // Not counted from the end as Python does: an engine's -1 is a missing page, and would overwrite the last one.
    if (row < 0 || row >= static_cast<std::int64_t>(row_count))
      throw bad_request("rows: " + std::to_string(row) + " is not in [0, " + std::to_string(row_count) + ")");
    blocks.emplace_back(data + row * step, block_bytes);
  }
  if (is_written) refuse_overlap(blocks, "rows");
  return blocks;
}

std::vector<std::span<std::byte>> sized_blocks_from(nb::handle object, nb::handle rows, std::size_t block_count,
                                                    bool is_written, Holds& holds) {
  if (is_list(object))
    return listed_blocks(object, rows, block_count, /*block_bytes=*/0, is_written, holds, Place::kHost);
  const Array array(object, "blocks", is_written);
  // Bytes end to end have no rows to show where a set's blocks end.
  if (array.dimensions() < 2 || array.shape()[0] == 0)
    throw bad_request("blocks: neither a list of arrays nor an array of rows");
  return blocks_from(object, rows, block_count, array.bytes() / static_cast<std::size_t>(array.shape()[0]), is_written,
                     holds);
}

}  // namespace kv::python
