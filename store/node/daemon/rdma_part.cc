#include "store/node/daemon/rdma_part.h"

#include <spdlog/spdlog.h>

#include "store/node/daemon/cannot_start.h"
#include "store/node/listen/server.h"
#include "store/node/options/config.h"
#include "store/node/session/core/node_context.h"

namespace kv {
namespace {

/// Runs on the main thread at the start, or later on the opener's. Sessions get RDMA through the server, which posts to
/// their threads; node.verbs is atomic for the metrics.
void begin_verbs(VerbsNode& opened, NodeContext& node, Server& server) {
  for (std::size_t i = 0; i < opened.device_count(); ++i) {
    const auto device = opened.device(i);
    const auto at = device ? (*device)->open.attach() : Result<verbs::Attachment, Failure>(device.error());
    if (at) {
      spdlog::info("rdma: device={} port={} gid={} index={} mtu_bytes={}", at->device, at->port,
                   verbs::text_of(at->gid.gid), at->gid.index, at->mtu_bytes);
    } else {
      spdlog::warn("rdma: waiting for device={}: {}", opened.wish(i).device, at.error().text);
    }
  }
  if (!opened.unused().empty()) spdlog::info("rdma: not used: {}", opened.unused());
  node.verbs = &opened;
  server.begin_verbs(opened);
}

}  // namespace

RdmaPart::RdmaPart(const NodeOptions& options, NodeContext& node)
    : options_(options),
      node_(node),
      opener_(options.verbs, node.store.with([](Store& each) { return each.memory(); }), node.clock) {}

bool RdmaPart::open(Server& server) {
  constexpr Duration kPause = 5s;
  if (options_.rdma == NodeOptions::Rdma::kOff) return true;
  const auto made = opener_.open();
  if (made) {
    begin_verbs(**made, node_, server);
  } else if (options_.rdma == NodeOptions::Rdma::kOn) {
    return cannot_start("rdma: on, but " + made.error().text);
  } else {
    spdlog::info("rdma: not available, blocks move by TCP and shared memory: {}", made.error().text);
  }
  opener_.keep_trying(kPause, [&node = node_, &server](VerbsNode& opened) { begin_verbs(opened, node, server); });
  return true;
}

}  // namespace kv
