// client/link/session/link_spaces.h: the namespaces open on one session.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/link/call.h"

namespace kv {

/// A handle is valid in its session only: elsewhere, or in another life of the node, it means another namespace.
///   1. At most one open request per namespace is in progress.
///   2. handle() is the node's latest in this session, and valid only while state() is kYes.
///   3. After a failure, requests pause for backoff_max, unless all sessions lack the namespace.
/// Thread safety: none; on the client's executor. Belongs to its session.
class LinkSpaces {
 public:
  enum class State : std::uint8_t { kNo, kPending, kYes };

  explicit LinkSpaces(CallSession& session);
  ~LinkSpaces();

  State state(std::uint32_t space) const;
  std::uint32_t handle(std::uint32_t space) const;  ///< Requires state() == kYes.
  bool can_open(std::uint32_t space) const;         ///< False: its record is over the node's limit.
  /// Asks the node; CallSession::open_ended() follows. Has no effect if the namespace is open or being opened, the
  /// session is full, or opening failed a short while ago and `must` is false.
  void open(std::uint32_t space, bool must);
  /// The node has dropped the handle, or any handle if none is given. False: already forgotten.
  bool forget(std::uint32_t space, std::optional<std::uint32_t> handle = std::nullopt);

 private:
  class OpenCall;

  CallSession& session_;
  std::vector<std::unique_ptr<OpenCall>> opens_;  ///< By Space; nullptr: not requested yet.
};

}  // namespace kv
