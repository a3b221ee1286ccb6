// store/node/security.h: who may reach this node, as operators see it: certificates, how long they last, handshakes.
// Certificates and the policy (access/) are read again here.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/node/access/access.h"
#include "store/node/metrics.h"
#include "transport/tls/tls_source.h"

namespace kv {

/// Connections before they have proved who they are. Thread safety: any.
struct HandshakeCounts {
  std::atomic<std::uint64_t> completed{0}, failed{0}, refused{0};
  std::atomic<std::int64_t> half_open{0};
};

/// Thread safety: all calls from any thread; check_files() and reload() block for the files.
class NodeSecurity {
 public:
  /// `tls`: nullptr without. `plain_count`: listeners beyond loopback that are neither encrypted nor authenticated.
  /// `access` outlives this; nullptr: there is no policy.
  NodeSecurity(std::shared_ptr<TlsSource> tls, std::size_t plain_count, AccessControl* access = nullptr)
      : tls_(std::move(tls)), plain_count_(plain_count), access_(access) {}

  const std::shared_ptr<TlsSource>& tls() const { return tls_; }
  bool has_files() const { return tls_ != nullptr || has_policy(); }  ///< That can be read again.
  void reload();                                                      ///< SIGHUP. Says in the log what came of it.
  void check_files();                                                 ///< The same if they have changed.

  /// Called, by whoever reads the files, after a new policy is in force. Set before the first reload.
  void on_policy(std::function<void()> call) { on_policy_ = std::move(call); }

  /// Values of the spill keys, which no session has to do with, told beside its own. Set before anybody asks.
  void watch(std::function<std::vector<NodeMetrics::Value>()> values) { watched_ = std::move(values); }

  HandshakeCounts handshakes;
  /// Without TLS, without a policy, without listeners beyond loopback and without spill keys: nothing.
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
