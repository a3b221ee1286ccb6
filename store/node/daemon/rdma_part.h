// store/node/daemon/rdma_part.h: opens RDMA at the start or when a device appears, and gives it to the server.
#pragma once

#include "store/node/rdma/verbs_opener.h"

namespace kv {

class Server;
struct NodeContext;
struct NodeOptions;

/// Thread safety: all calls from one thread.
class RdmaPart {
 public:
  /// Both outlive this.
  RdmaPart(const NodeOptions& options, NodeContext& node);

  /// Opens RDMA if wanted, now or when a device appears. False: the node must not start without it. `server` lives at
  /// least until stop().
  bool open(Server& server);
  /// From here on no device is given to the server. Waits for an attempt in progress, which may take minutes.
  void stop() { opener_.stop(); }

 private:
  const NodeOptions& options_;
  NodeContext& node_;
  VerbsOpener opener_;
};

}  // namespace kv
