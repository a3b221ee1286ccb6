// store/node/membership/etcd.h: a KeyStore in etcd.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "store/node/membership/key_store.h"

namespace kv {

struct EtcdConfig {
  std::vector<std::string> endpoints;  ///< http://HOST:PORT or https://HOST:PORT, members of one etcd cluster.
  std::string ca_file;                 ///< PEM; empty: the system's. For https.
  std::string cert_file, key_file;  ///< PEM; both or neither. Read again for each connection, so they may be replaced.
  std::string user;                 ///< Empty: without login.
  std::string password_file;        ///< Its first line is used; read again for each login.
  Duration timeout = 2s;            ///< Of one request to one endpoint.
};
/// Returns "", or the error in the configuration. Reads the files.
std::string check_etcd(const EtcdConfig& config);

/// Speaks the JSON form of etcd's API v3 (3.4 and newer; https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway), which
/// needs only HTTP, over one kept connection. A request without an answer goes to the next endpoint, to each once;
/// repeated requests are harmless. Answers are bounded (8 MiB) and checked. Reads are serializable: a member that lost
/// its peers still answers them, from its own state.
class EtcdKeyStore final : public KeyStore {
 public:
  /// Requires check_etcd(config) to be empty.
  EtcdKeyStore(asio::any_io_executor executor, EtcdConfig config);
  ~EtcdKeyStore() override;

  Reply<Lease> grant(std::chrono::seconds life) override;
  Reply<bool> keep_alive(Lease lease) override;
  Reply<bool> revoke(Lease lease) override;
  Reply<bool> put(std::string key, std::string value, Lease lease) override;
  Reply<bool> put_new(std::string key, std::string value) override;
  Reply<Listing> list(std::string prefix) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kv
