#include "store/node/access/security.h"

#include <spdlog/spdlog.h>

#include "store/node/access/audit.h"

namespace kv {
namespace {

double seconds_of(TlsCredentials::Time time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

void tell(const Failure& failure, const TlsCredentials& now) {
  if (failure.code) {
    spdlog::error("certificates: not reloaded, those in use stay: {}", failure.text);
  } else {
    spdlog::info(
        "certificates: reloaded for new connections; cert={} ends in {} days", now.config().cert_file,
        std::chrono::duration_cast<std::chrono::hours>(now.cert_ends() - std::chrono::system_clock::now()).count() /
            24);
  }
}

void tell(const Failure& failure, const AccessControl& access) {
  if (failure.code) spdlog::error("policy: not reloaded, the one in use stays: {}", failure.text);
  audit_policy(access.file(), failure.code ? "refused" : "ok");
}

}  // namespace

void NodeSecurity::reload() {
  if (tls_) tell(tls_->reload(), *tls_->current());
  if (has_policy()) told_policy(access_->reload());
}

void NodeSecurity::check_files() {
  if (tls_) {
    if (const auto changed = tls_->reload_if_changed()) tell(*changed, *tls_->current());
  }
  if (has_policy()) {
    if (const auto changed = access_->reload_if_changed()) told_policy(*changed);
  }
}

void NodeSecurity::told_policy(const Failure& failure) {
  tell(failure, *access_);
  if (!failure.code) on_policy_();
}

std::vector<NodeMetrics::Value> NodeSecurity::stats() const {
  std::vector<NodeMetrics::Value> values = watched_();
  if (access_ != nullptr) {
    const auto own = access_->stats();
    values.insert(values.end(), own.begin(), own.end());
  }
  if (tls_ || plain_count_ > 0) {
    values.push_back(
        {"plaintext_network_listeners", plain_count_, false,
         "Listeners beyond loopback that neither encrypt nor authenticate (plaintext-on-trusted-network)"});
  }
  if (!tls_) return values;
  const auto now = tls_->current();
  const TlsSource::Stats files = tls_->stats();
  const auto add = [&](const char* name, const auto& value, bool is_counter, const char* help) {
    values.push_back({name, value, is_counter, help});
  };
  add("tls_cert_expiry_timestamp_seconds", seconds_of(now->cert_ends()), false,
      "When the first certificate of the node's chain in use ends, in seconds since 1970");
  add("tls_ca_expiry_timestamp_seconds", seconds_of(now->ca_ends()), false,
      "When the CA that the node's chain leads to ends, in seconds since 1970");
  if (const auto ends = now->crl_ends()) {
    add("tls_crl_expiry_timestamp_seconds", seconds_of(*ends), false,
        "When the first list of tls-crl has to be replaced, in seconds since 1970");
  }
  add("tls_reloads", files.reloads, true, "Certificates read again since the start");
  add("tls_reload_failures", files.failures, true, "Reloads that found a bad file");
  add("tls_reload_failed", files.last_failed, false, "1: the files are bad, and what is in use is older than they are");
  add("tls_handshakes", handshakes.completed, true, "Connections to tls:// listeners that proved who they are");
  add("tls_handshake_failures", handshakes.failed, true, "Connections to tls:// listeners that did not");
  add("tls_handshakes_refused", handshakes.refused, true,
      "Connections closed at once, since too many had not proved who they are, or had begun to (tls-handshakes-max, "
      "tls-handshakes-per-second)");
  add("tls_half_open", handshakes.half_open, false, "Connections that have not proved who they are yet");
  return values;
}

}  // namespace kv
