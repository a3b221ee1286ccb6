// store/node/admin.h: the admin HTTP server: /metrics, /healthz, /readyz. On its own thread and port, out of the data's
// way.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"

namespace kv {

struct AdminPages {
  std::function<std::string()> metrics;  ///< Prometheus text.
  std::function<bool()> is_ready;        ///< Accepts work: false while starting and while draining.
};

/// Serves until destroyed. Requests are bounded in size (8 KiB) and time (5 s), connections in number (64).
class AdminServer {
 public:
  /// Errors: system errors of bind and listen.
  static Result<std::unique_ptr<AdminServer>> start(const std::string& host, std::uint16_t port, AdminPages pages);
  ~AdminServer();
  std::uint16_t port() const;  ///< The real one.

 private:
  struct Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
