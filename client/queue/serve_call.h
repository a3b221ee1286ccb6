// client/queue/serve_call.h: what each operation asks of the client.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <string>

#include "client/queue/call_entry.h"

namespace kv {

class ClientThread;

/// Makes the call on the client's I/O thread, with its results in entry.end. Returns why it failed, or kCancelled if it
/// was cut short. `waits_while_away`: as in CompletionQueueOptions.
asio::awaitable<error_code> serve_call(ClientThread& thread, CallEntry& entry, bool waits_while_away);

/// The text for Completion::reason. Told at the end, since a node's last error may change; empty if that fails.
std::string reason_in(const Completion& end, Client& client);

}  // namespace kv
