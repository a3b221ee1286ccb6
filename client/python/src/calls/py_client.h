// client/python/src/calls/py_client.h: the client as Python sees it. Begins and starts calls; calls.h lists the calls.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/python/src/allocation.h"
#include "client/python/src/calls/device_memory.h"
#include "client/python/src/calls/py_call.h"
#include "client/python/src/io_client.h"

namespace kv::python {

/// All calls hold the GIL. A call: begin(), its arguments into the call's state, start().
class PyClient {
 public:
  PyClient(ClientConfig config, double busy_poll);
  PyClient(const PyClient&) = delete;
  PyClient& operator=(const PyClient&) = delete;
  ~PyClient() { close(); }

  const ClientConfig& config() const { return config_; }
  const std::shared_ptr<IoClient>& io() const { return io_; }
  bool is_closed() const { return is_closed_; }
  bool is_forked() const { return io_->is_forked(); }
  void check_open() const;

  /// Cancels the calls in flight and closes the connections. Memory still in use stays mapped; a device's is out of
  /// RDMA devices' reach.
  void close();

  PyCall begin(bool at_once = false);
  PyCall begin(nb::handle hashes, bool at_once);

  /// Starts `make(client, state)`, an Async<T>. Checks first, since Python may have closed the client while reading the
  /// arguments; the GIL is held from then on.
  template <class Make>
  PyCall start(PyCall call, Make make) {
    using T = typename std::invoke_result_t<const Make&, Client&, Call&>::value_type::value_type;
    check_open();
    io_->start<T>(call.state,
                  [make = std::move(make), state = call.state.get()](Client& client) { return make(client, *state); });
    call.has_started = true;
    return call;
  }
  /// Begins and starts a call of a plain function of the client, whose result, if any, is the call's.
  template <class Function>
  PyCall ask(Function function) {
    PyCall call = begin();
    check_open();
    io_->run(call.state, [function = std::move(function)](Client& client) -> std::pair<error_code, Outcome> {
      if constexpr (std::is_void_v<std::invoke_result_t<const Function&, Client&>>) {
        function(client);
        return {};
      } else {
        return {{}, function(client)};
      }
    });
    call.has_started = true;
    return call;
  }

  /// Requires an open client of this process. Ctrl-C ends the wait at once; the unfinished memory is then freed by
  /// itself.
  std::shared_ptr<LentMemory> allocate(std::size_t bytes);
  /// A device's memory that this client lends. Look before start(): reading a call's other arguments may run Python.
  DeviceRegions& device_regions() { return device_regions_; }

 private:
  const ClientConfig config_;
  std::shared_ptr<IoClient> io_;
  const nb::object trace_ = nb::module_::import_("kvstore._trace").attr("current");
  std::shared_ptr<Orphans> orphans_ = std::make_shared<Orphans>();
  std::vector<std::weak_ptr<LentMemory>> memory_;
  DeviceRegions device_regions_;
  bool is_closed_ = false;
};

}  // namespace kv::python
