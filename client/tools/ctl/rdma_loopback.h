// client/tools/ctl/rdma_loopback.h: a real transfer of a device to itself, as a node
// would do it. One queue pair plays the node, whose memory nobody may touch; the other
// plays a client that has lent memory. A WRITE and a READ, and every byte compared.
//
// The transfer shows that driver, device, GID and memory work together. It says nothing of the network between two
// machines: most devices turn such packets round before the wire.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "transport/verbs/verbs_choice.h"

namespace kv {

struct Loopback {
  enum class Step { kOpen, kRegister, kConnect, kWrite, kRead, kDone };
  Step step = Step::kOpen;                ///< The one that went wrong, or kDone.
  error_code error;                       ///< None if bytes came out wrong.
  std::string why;                        ///< What the provider said about `error`; may be empty.
  std::size_t bytes = 0;                  ///< Of each direction.
  std::optional<std::size_t> wrong_byte;  ///< Where the first one is.
  Duration write_time{}, read_time{};
};
std::string_view name_of(Loopback::Step step);

/// Takes at most `deadline` for each direction. Connecting may block the thread while it waits for the network.
asio::awaitable<Loopback> run_loopback(verbs::Device& device, const verbs::Attachment& attachment, std::size_t bytes,
                                       Clock& clock, Duration deadline);

}  // namespace kv
