// client/c/read_request.h: a C caller's request as the client's, after all checks (request_rules.h).
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstddef>
#include <optional>
#include <span>

#include "client/archive/archive_transfer.h"
#include "client/c/c_status.h"
#include "client/c/request_rules.h"
#include "client/kvstore.h"
#include "client/request.h"

namespace kv::c_api {

/// This thread's trace, set by kvs_traceparent().
TraceContext& trace_of_thread() noexcept;

/// Bit in the count of a call with an answer in words: its length alone was of use, since it did not fit.
inline constexpr std::size_t kDoesNotFit = std::size_t{1} << 63;

/// A request, with all that it borrows besides the caller's own lists. Refuses a wrong one.
class ReadRequest {
 public:
  /// `calls`: a queue or client, for a namespace's size.
  template <class Calls>
  ReadRequest(const kvs_request* given, const Calls& calls) : given_(read_struct(given, "request")) {
    read(takes_space(given_.op) ? calls.size_of(Space{given_.space}) : SpaceSize());
  }
  ReadRequest(const ReadRequest&) = delete;
  ReadRequest& operator=(const ReadRequest&) = delete;

  const Request& request() const { return request_; }
  const kvs_request& given() const { return given_; }
  /// Export and import, which handle files on the caller's thread: not a Request.
  bool is_of_file() const { return given_.op == KVS_OP_CONTEXT_EXPORT || given_.op == KVS_OP_CONTEXT_IMPORT; }
  ContextExportOptions export_options() const;
  ContextImportOptions import_options() const;

 private:
  void read(SpaceSize size);
  void read_blocks(SpaceSize size);
  void read_lists();
  void read_record();
  void make_work();

  kvs_request given_;
  Request request_;
  // Small lists, as in most calls, do not allocate.
  boost::container::small_vector<std::span<std::byte>, 64> to_;
  boost::container::small_vector<std::span<const std::byte>, 64> from_;
  std::optional<NamespaceRecord> record_;
  Work work_;
};

}  // namespace kv::c_api
