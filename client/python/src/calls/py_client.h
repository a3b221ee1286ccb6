// client/python/src/calls/py_client.h: the client as Python sees it.
#pragma once

#include <memory>
#include <utility>

#include "client/python/src/calls/caller.h"
#include "client/python/src/calls/results.h"

namespace kv::python {

/// Used with the GIL held.
class PyClient final : public Caller {
 public:
  PyClient(ClientConfig config, std::chrono::microseconds busy_poll)
      : config_(std::move(config)), core_(ClientCore::make(config_, busy_poll)) {}
  PyClient(const PyClient&) = delete;
  PyClient& operator=(const PyClient&) = delete;
  ~PyClient() {
    const nb::error_scope kept;  // close() may run Python while an exception passes
    core_->close();
  }

  const ClientConfig& config() const { return config_; }
  const std::shared_ptr<ClientCore>& core() const override { return core_; }
  nb::object make(const Request& request, Holds) override {
    const Completion end = core_->run(request);
    check(*core_, end);
    return result_of(end, request.hashes.size());
  }

 private:
  const ClientConfig config_;
  const std::shared_ptr<ClientCore> core_;
};

}  // namespace kv::python
