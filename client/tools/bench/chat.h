// client/tools/bench/chat.h: `kvstore-bench chat`: conversations that grow turn by turn behind one system prompt.
#pragma once

#include <CLI/CLI.hpp>

namespace kv {

void add_chat_command(CLI::App& app);

}  // namespace kv
