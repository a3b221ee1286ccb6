// store/node/access/security.h: certificates, their expiry, handshakes; rereads certificates and policy.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "store/node/access/access.h"
#include "store/node/metrics.h"
#include "transport/tls/tls_source.h"

namespace kv {

/// Connections without a proved identity yet. Thread safety: any.
struct HandshakeCounts {
  std::atomic<std::uint64_t> completed{0}, failed{0}, refused{0};
  std::atomic<std::int64_t> half_open{0};
};

/// Thread safety: all calls from any thread; check_files() and reload() block on file reads.
class NodeSecurity {
 public:
  /// `tls`: nullptr without. `plain_count`: unencrypted network listeners. `access`: outlives this, or nullptr.
  NodeSecurity(std::shared_ptr<TlsSource> tls, std::size_t plain_count, AccessControl* access = nullptr)
      : tls_(std::move(tls)), plain_count_(plain_count), access_(access) {}

  const std::shared_ptr<TlsSource>& tls() const { return tls_; }
  bool has_files() const { return tls_ != nullptr || has_policy(); }
  void reload();       ///< For SIGHUP. Logs the result.
  void check_files();  ///< The same if files have changed.

  /// Called after a new policy is in force, on the thread that read it. Set before the first reload.
  void on_policy(std::function<void()> call) { on_policy_ = std::move(call); }

  /// Adds values of the disk keys to stats(). Set before the first call of stats().
  void watch(std::function<std::vector<NodeMetrics::Value>()> values) { watched_ = std::move(values); }

  HandshakeCounts handshakes;
  /// Empty without TLS, policy, listeners beyond loopback and disk keys.
  std::vector<NodeMetrics::Value> stats() const;

 private:
  const std::shared_ptr<TlsSource> tls_;
  bool has_policy() const { return access_ != nullptr && access_->has_policy(); }

  void told_policy(const Failure& failure);

  const std::size_t plain_count_;
  AccessControl* const access_;
  std::function<void()> on_policy_ = [] {};
  std::function<std::vector<NodeMetrics::Value>()> watched_ = [] { return std::vector<NodeMetrics::Value>(); };
};

}  // namespace kv
