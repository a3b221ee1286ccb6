// store/node/listen/admin.h: the admin HTTP server: metrics, health, the status page, and all answers of
// admin_answers.h. Own threads and port, so that scrapes do not slow transfers and a busy node does not look dead.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "store/node/access/access.h"
#include "store/node/status/admin_answers.h"
#include "transport/tls/tls_source.h"

namespace kv {

struct AdminPages {
  std::function<std::string()> metrics;  ///< Prometheus text. Absent while the node starts, with health pages only.
  std::function<bool()> is_ready;        ///< Accepts work: false while starting and while draining.
  std::function<std::string()> why_not_ready = [] { return std::string("starting or draining"); };
  std::function<std::string()> why_unhealthy = [] { return std::string(); };  ///< Empty: the process works.
  std::function<void(Right)> denied = {};  ///< Called for each page that the policy denies.
  /// Answers the paths that are questions, and checks their rights. Absent: these and the status page are not served.
  std::function<AdminAnswer(const AdminQuestion& question, PeerAccess& peer)> answer = {};
};

/// Serves until destroyed. Bounds: the size (8 KiB) and time (5 s) of requests, the number of connections (64: a new
/// one ends another, see AdminConnections), handshakes a second, and pages in progress.
///   1. Answers to /healthz and /readyz depend neither on clients nor on other pages. The functions that these need
///      are called on the server's thread, `metrics` on a second, all others on a third; one call of each at a time.
/// Thread safety: one thread makes, opens and destroys it; port() from any.
class AdminServer {
 public:
  /// `tls`: HTTPS with these certificates, for clients with a certificate only; nullptr: HTTP. `access`: rights to
  /// pages, by certificate or `Authorization: Bearer TOKEN`; outlives the server; nullptr: all peers have all rights.
  /// `clock`: outlives it; nullptr: its own. Errors: of bind and listen.
  static Result<std::unique_ptr<AdminServer>> start(const std::string& host, std::uint16_t port, AdminPages pages,
                                                    std::shared_ptr<TlsSource> tls = nullptr,
                                                    AccessControl* access = nullptr, Clock* clock = nullptr);
  /// Serves these pages from now on, after a start without `metrics`. Once.
  void open(AdminPages pages);
  ~AdminServer();
  std::uint16_t port() const;  ///< The actual port.

 private:
  struct Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
