// client/python/src/calls/py_client.h: the client as Python sees it.
#pragma once

#include <memory>
#include <utility>

#include "client/python/src/calls/client_core.h"

namespace kv::python {

/// Used with the GIL held.
class PyClient {
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
  const std::shared_ptr<ClientCore>& core() const { return core_; }

 private:
  const ClientConfig config_;
  const std::shared_ptr<ClientCore> core_;
};

}  // namespace kv::python
