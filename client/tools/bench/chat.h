// client/tools/bench/chat.h: `kvstore-bench chat`: conversations that grow turn by turn behind one system prompt.
#pragma once

namespace CLI {
class App;
}

namespace kv {

void add_chat_command(CLI::App& app);

}  // namespace kv
