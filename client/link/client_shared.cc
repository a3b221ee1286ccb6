#include "client/link/client_shared.h"

#include <utility>

namespace kv {
namespace {

std::uint64_t random_seed() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

}  // namespace

ClientShared::ClientShared(asio::any_io_executor e, ClientConfig c, Network& n, Clock& k, verbs::Provider* v)
    : executor(std::move(e)),
      config(std::move(c)),
      network(n),
      clock(k),
      deadlines(k, executor),
      memory(config.region_bytes_max),
      verbs(executor, k, {.names = config.rdma_devices, .traffic_class = config.rdma_traffic_class}, v),
      random(config.seed != 0 ? config.seed : random_seed()) {}

ClientShared::~ClientShared() = default;

}  // namespace kv
