// client/tools/bench/loads/load.h: requests of typical users, for synthetic traces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <string_view>
#include <vector>

#include "client/tools/bench/loads/load_random.h"
#include "client/tools/bench/trace/trace_reader.h"

namespace kv {

enum class LoadKind : std::uint8_t {
  kChat,       ///< Turns minutes apart behind one of 8 system prompts; many end after one.
  kAgent,      ///< 10 to 60 calls of a model and its tools, seconds apart, behind one of 5 long system prompts.
  kDocuments,  ///< A few questions about a long document, soon followed by other sessions' questions about it.
  kOneShot,    ///< Calls that do not come back, behind one of 30 system prompts, some much used.
  kChatOneShot,
  kAgentChat,
  kDocumentsOneShot,  ///< Two kinds at once.
  kMixed,             ///< All four at once.
  kPhases,  ///< Chats, then agents, then documents, then chats and one-shot calls: a quarter of the requests each.
};
inline constexpr std::string_view kLoadNames[] = {
    "chat", "agent", "documents", "one-shot", "chat-one-shot", "agent-chat", "documents-one-shot", "mixed", "phases"};

/// Generates the requests of a load in order of arrival. Equal kinds, seeds and request counts make equal loads, on
/// every machine. Ids are as in recorded traces: one per 512 tokens of the input, with one parent and one depth. With a
/// `rate` of n, sessions begin n times as often, each at its usual pace, which needs larger caches. The last block of a
/// request is its own unless it is full. Sessions are independent of any cache.
class Load {
 public:
  static constexpr std::uint64_t kBlockTokens = 512;

  Load(LoadKind kind, std::uint64_t request_count, std::uint64_t seed, std::uint64_t rate = 1)
      : kind_(kind), request_count_(request_count), rate_(rate), random_(seed) {}

  std::optional<TraceRequest> next();  ///< nullopt: the load has ended.

 private:
  struct Prompt {
    std::vector<std::uint64_t> ids;  ///< Of the full blocks.
    std::uint64_t tokens = 0;
  };
  struct Session {
    LoadKind kind;
    Prompt prompt;
    std::uint64_t request_count = 0, requests_left = 0;  ///< Left: of an agent or a reader, fixed at the start.
  };
  struct Step {
    std::uint64_t at_ms, order;
    std::unique_ptr<Session> session;
  };

  LoadKind kind_now() const;
  std::uint64_t arrival_gap_ms(LoadKind kind) const;
  std::unique_ptr<Session> begin(LoadKind kind);
  TraceRequest step(Session& session, std::uint64_t at_ms, std::optional<std::uint64_t>* gap_ms);
  TraceRequest ask(const Prompt& prompt, std::uint64_t at_ms, std::uint64_t output_tokens);
  void grow(Prompt& prompt, std::uint64_t tokens);
  Prompt shared(std::vector<Prompt>& prompts, std::size_t index, std::size_t count, std::uint64_t blocks_min,
                std::uint64_t blocks_max);

  LoadKind kind_;
  std::uint64_t request_count_, rate_;
  LoadRandom random_;
  std::uint64_t made_count_ = 0, step_count_ = 0, id_count_ = 0, arrival_ms_ = 0;
  std::vector<Step> waiting_;  ///< A heap; the earliest first.
  std::vector<Prompt> chat_systems_, agent_systems_, reader_systems_, one_shot_systems_;
  std::deque<Prompt> documents_;
};

}  // namespace kv
