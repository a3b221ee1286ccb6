// client/tools/ctl/doctor/rdma_loopback.h: a real transfer of a device to itself. One queue pair plays the node, whose
// memory allows no remote access; the other a client with lent memory. A WRITE and a READ, with every byte compared.
//
// Shows that driver, device, GID and memory work together, but not the wire: most devices turn such packets round.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "transport/verbs/verbs_choice.h"

namespace kv {

struct Loopback {
  enum class Step { kOpen, kRegister, kConnect, kWrite, kRead, kDone };
  Step step = Step::kOpen;                ///< The failed one, or kDone.
  error_code error;                       ///< Unset if bytes came out wrong.
  std::string why;                        ///< The provider's text for `error`; may be empty.
  std::size_t bytes = 0;                  ///< Of each direction.
  std::optional<std::size_t> wrong_byte;  ///< Index of the first one.
  Duration write_time{}, read_time{};
};
std::string_view name_of(Loopback::Step step);

/// Takes at most `deadline` for each direction. Connecting may block the thread while it waits for the network.
asio::awaitable<Loopback> run_loopback(verbs::Device& device, const verbs::Attachment& attachment, std::size_t bytes,
                                       Clock& clock, Duration deadline);

}  // namespace kv
