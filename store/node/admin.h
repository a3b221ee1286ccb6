// store/node/admin.h: the admin HTTP server: /metrics, /healthz, /readyz, /status, /config. Own thread and port, so
// that scrapes do not slow transfers and a busy node does not look dead.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "store/node/access/access.h"
#include "transport/tls/tls_source.h"

namespace kv {

struct AdminPages {
  std::function<std::string()> metrics;  ///< Prometheus text. Absent while the node starts, with health pages only.
  std::function<bool()> is_ready;        ///< Accepts work: false while starting and while draining.
  std::function<std::string()> why_not_ready = [] { return std::string("starting or draining"); };
  std::function<void(Right)> denied = {};  ///< Called for each page that the policy denies.
  /// JSON for a path and its query, as far as the peer may see; nullopt: invalid.
  using Answer =
      std::function<std::optional<std::string>(std::string_view path, std::string_view query, PeerAccess& peer)>;
  Answer status = {};                        ///< Paths below /status/. Absent: the status page is not served.
  Answer events = {};                        ///< /events.json and paths below /events/. Absent: not served.
  std::function<std::string()> config = {};  ///< JSON of all options. Absent: /config is not served.
  struct Changed {
    bool is_ok = false;
    std::string json;
  };
  /// Changes options by the query, for `who`.
  std::function<Changed(std::string_view query, const std::string& who)> set_config = {};
};

/// Serves until destroyed. Bounds: the size (8 KiB) and time (5 s) of requests, the number of connections (64: a new
/// one ends another, see AdminConnections), handshakes a second, and pages in progress.
///   1. Answers to /healthz and /readyz depend neither on clients nor on other pages. `is_ready` and `why_not_ready`
///      are called on the server's thread, `metrics` on a second, all others on a third; one call of each at a time.
/// Thread safety: one thread makes, opens and destroys it; port() from any.
class AdminServer {
 public:
  /// `tls`: HTTPS with these certificates, for clients with a certificate only; nullptr: HTTP. `access`: rights to
  /// pages, by certificate or `Authorization: Bearer TOKEN`; outlives the server; nullptr: all peers may see all pages,
  /// and only the loopback may change options. `clock`: outlives it; nullptr: its own. Errors: of bind and listen.
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
