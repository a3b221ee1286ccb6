// client/tools/ctl/rdma_loopback.h: a real transfer of a device to itself, as a node would do it: one queue pair plays
// the node, which may be touched by nobody, the other a client that has lent memory; a WRITE and a READ, every byte
// compared.
//
// It shows that driver, device, GID and memory work together. What is between two machines it does not show: most
// devices turn such packets round before the wire.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "transport/verbs/verbs_choice.h"

namespace kv {

struct Loopback {
  enum class Step { kOpen, kRegister, kConnect, kWrite, kRead, kDone };
  Step step = Step::kOpen;                ///< That went wrong, or kDone.
  error_code error;                       ///< None if bytes came out wrong.
  std::string why;                        ///< What the provider said of `error`; may be empty.
  std::size_t bytes = 0;                  ///< Of each direction.
  std::optional<std::size_t> wrong_byte;  ///< The first.
  Duration write_time{}, read_time{};
};
std::string_view name_of(Loopback::Step step);

/// Takes `deadline` for each direction at most. Connecting may block the thread, which may wait for the network.
asio::awaitable<Loopback> run_loopback(verbs::Device& device, const verbs::Attachment& attachment, std::size_t bytes,
                                       Clock& clock, Duration deadline);

}  // namespace kv
