// store/node/admin.h: the admin HTTP server: /metrics, /healthz, /readyz, /status, /config. It has its own thread and
// port, so that neither a scrape slows a transfer nor a busy node looks dead.
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
  std::function<std::string()> metrics;  ///< Prometheus text. Without it the node starts: nothing else is answered yet.
  std::function<bool()> is_ready;        ///< Accepts work: false while starting and while draining.
  std::function<std::string()> why_not_ready = [] { return std::string("starting or draining"); };  ///< For people.
  std::function<void(Right)> denied = {};  ///< Told of each page that the policy denies.
  /// JSON for a path, with what stands behind its '?', of what the peer sees; nothing if there is none.
  using Answer =
      std::function<std::optional<std::string>(std::string_view path, std::string_view query, PeerAccess& peer)>;
  Answer status = {};  ///< Paths below /status/. Without it the status page is not served.
  Answer events = {};  ///< /events.json and paths below /events/. Without it there are none of these.
  std::function<std::string()> config = {};  ///< JSON of all options. Without it there is none of the two.
  struct Changed {
    bool is_ok = false;
    std::string json;
  };
  /// Changes options as the query says, for `who`.
  std::function<Changed(std::string_view query, const std::string& who)> set_config = {};
};

/// Serves until destroyed. Requests are bounded in size (8 KiB) and time (5 s), connections in number (64: a new one
/// ends another, see AdminConnections), handshakes in a second, pages that are being made.
///   1. Whether /healthz and /readyz are answered depends on no client, and on no page. `is_ready` and `why_not_ready`
///      are called on the server's thread, `metrics` on another, all others on a third; one call of each at a time.
/// Thread safety: one thread makes, opens and destroys it; port() from any.
class AdminServer {
 public:
  /// `tls`: HTTPS with these certificates, and only for those who show one; nullptr: HTTP. `access`: who may see which
  /// page, known by certificate or `Authorization: Bearer TOKEN`; outlives the server; nullptr: everybody may see all,
  /// and change something from the loopback only. `clock`: outlives it; nullptr: its own. Errors: system errors of bind
  /// and listen.
  static Result<std::unique_ptr<AdminServer>> start(const std::string& host, std::uint16_t port, AdminPages pages,
                                                    std::shared_ptr<TlsSource> tls = nullptr,
                                                    AccessControl* access = nullptr, Clock* clock = nullptr);
  /// A server that was started without `metrics`, while the node started, has these pages from now on. Once.
  void open(AdminPages pages);
  ~AdminServer();
  std::uint16_t port() const;  ///< The real one.

 private:
  struct Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
