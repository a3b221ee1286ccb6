// Namespace records, and the hashes of a namespace's blocks.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <map>
#include <string>

#include "client/python/src/bind.h"
#include "client/python/src/buffers.h"
#include "client/python/src/errors.h"
#include "client/python/src/numpy_arrays.h"
#include "client/python/src/without_gil.h"
#include "index/namespace_record.h"

namespace kv::python {
namespace {

NamespaceRecord checked(const Result<NamespaceRecord, Failure>& record) {
  if (!record) throw bad_request(record.error().text);
  return *record;
}

nb::object hash_array(std::vector<BlockHash> hashes) {
  const std::size_t count = hashes.size();
  return numpy_of<std::uint8_t>(std::move(hashes), {count, sizeof(BlockHash)});
}

nb::bytes bytes_of(std::span<const std::byte> bytes) { return nb::bytes(bytes.data(), bytes.size()); }

std::vector<BlockHash> chain_of(const NamespaceRecord& record, std::span<const std::uint32_t> tokens,
                                std::span<const std::byte> extra, std::span<const std::byte> after) {
  if (record.is_set()) throw bad_request("hash_chain: the blocks of a set have no chain");
  BlockHash root = record.digest();
  if (!after.empty()) {
    if (after.size() != sizeof root) throw bad_request("after: not the 32 bytes of a block hash");
    std::memcpy(&root, after.data(), sizeof root);
  }
  return hash_chain(root, tokens, record.block_size(), extra);
}

}  // namespace

void bind_namespace(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<NamespaceRecord>(module, "Record")
      .def(
          "__init__",
          [](NamespaceRecord* self, std::map<std::string, std::string> fields) {
            new (self) NamespaceRecord(checked(NamespaceRecord::from_fields(std::move(fields))));
          },
          "fields"_a)
      .def(
          "__init__",
          [](NamespaceRecord* self, const std::string& text) {
            new (self) NamespaceRecord(checked(NamespaceRecord::parse(text)));
          },
          "text"_a)
      .def_prop_ro("text", [](const NamespaceRecord& record) { return record.text(); })
      .def_prop_ro("block_bytes", &NamespaceRecord::block_bytes)
      .def_prop_ro("block_size", &NamespaceRecord::block_size)
      .def_prop_ro("is_set", &NamespaceRecord::is_set)
      .def_prop_ro("id", [](const NamespaceRecord& record) { return bytes_of(record.id().bytes); })
      .def_prop_ro("digest", [](const NamespaceRecord& record) { return bytes_of(record.digest().bytes); })
      .def(
          "hash_chain",
          [](const NamespaceRecord& record, nb::handle tokens, nb::handle extra, nb::handle after) {
            const Numbers<std::uint32_t> numbers(tokens, "tokens");
            Holds holds;
            const auto bytes = [&](nb::handle object, const char* name) -> std::span<const std::byte> {
              if (object.is_none()) return {};
              return holds.emplace_back(object, name, /*is_written=*/false).all_bytes();
            };
            const auto extra_bytes = bytes(extra, "extra"), after_bytes = bytes(after, "after");
            return hash_array(
                run_without_gil([&] { return chain_of(record, numbers.values(), extra_bytes, after_bytes); }));
          },
          "tokens"_a, nb::kw_only(), "extra"_a = nb::none(), "after"_a = nb::none());
  module.def(
      "checksum_seeds",
      [](const NamespaceRecord& record, nb::handle hashes) {
        if (record.is_set()) throw bad_request("checksum_seeds: a set's depend on each block's length");
        std::vector<std::uint64_t> seeds;
        for (const BlockHash& hash : hashes_from(hashes, "hashes"))
          seeds.push_back(checksum_seed(record.callers_id(), hash));
        return numpy_of<std::uint64_t>(std::move(seeds));
      },
      "record"_a, "hashes"_a);
  module.def(
      "hashes", [](nb::handle hashes) { return hash_array(hashes_from(hashes, "hashes")); }, "of"_a);
  module.def(
      "extra_digest",
      [](nb::handle extra) {
        const Array array(extra, "extra", /*is_written=*/false);
        return bytes_of(extra_digest(array.all_bytes()).bytes);
      },
      "extra"_a);
  module.def(
      "sha256",
      [](nb::handle data) {
        const Array array(data, "data", /*is_written=*/false);
        return bytes_of(sha256(array.all_bytes()).bytes);
      },
      "data"_a);
}

}  // namespace kv::python
