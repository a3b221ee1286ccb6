// client/link/session/link_spaces.h: the namespaces that are open on one session.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/link/call.h"

namespace kv {

/// A namespace's handle is the session's: another session, or another life of the node, means another namespace by it.
///   1. At most one open request per namespace is under way.
///   2. handle() is what this session's node said last, and only while state() is kYes.
///   3. After a failure nothing is asked for backoff_max, unless there is no other way.
/// Thread safety: none; on the client's executor. Belongs to its session.
class LinkSpaces {
 public:
  class Listener {
   public:
    /// An open request has ended. `text`: the node's, if it said no.
    virtual void open_ended(std::uint32_t space, error_code why, const std::string& text) = 0;

   protected:
    ~Listener() = default;
  };
  enum class State : std::uint8_t { kNo, kPending, kYes };

  LinkSpaces(CallSession& session, Listener& listener);
  ~LinkSpaces();

  State state(std::uint32_t space) const;
  std::uint32_t handle(std::uint32_t space) const;  ///< Requires state() == kYes.
  bool can_open(std::uint32_t space) const;         ///< Or its record is over the node's limit.
  /// Asks the node; Listener::open_ended() follows. Does nothing if the namespace is open or being opened, if the
  /// session is full, or if opening failed a short while ago and `must` is false.
  void open(std::uint32_t space, bool must);
  /// The node no longer takes the handle; without one: whichever it is. False: it was forgotten before.
  bool forget(std::uint32_t space, std::optional<std::uint32_t> handle = std::nullopt);

 private:
  class OpenCall;

  CallSession& session_;
  Listener& listener_;
  std::vector<std::unique_ptr<OpenCall>> opens_;  ///< By Space; nullptr: not asked for yet.
};

}  // namespace kv
