#include "client/tools/bench/loads/load.h"

#include <algorithm>
#include <utility>

namespace kv {
namespace {

constexpr std::size_t kDocumentsMax = 256;  ///< Older ones get no requests.

/// Percent of chats that continue, by turns so far: longer ones more often, as in public traces.
constexpr std::uint64_t kChatGoesOn[] = {45, 55, 62, 66, 70};

constexpr auto kLater = [](const auto& a, const auto& b) {
  return std::pair(a.at_ms, a.order) > std::pair(b.at_ms, b.order);
};

}  // namespace

std::optional<TraceRequest> Load::next() {
  if (made_count_ == request_count_) return std::nullopt;
  std::uint64_t at = arrival_ms_;
  std::unique_ptr<Session> session;
  if (!waiting_.empty() && waiting_.front().at_ms <= arrival_ms_) {
    std::ranges::pop_heap(waiting_, kLater);
    at = waiting_.back().at_ms;
    session = std::move(waiting_.back().session);
    waiting_.pop_back();
  } else {
    const LoadKind kind = kind_now();
    session = begin(kind);
    arrival_ms_ += random_.exponential(arrival_gap_ms(kind)) / rate_;
  }
  std::optional<std::uint64_t> gap;
  TraceRequest request = step(*session, at, &gap);
  ++made_count_;
  if (gap) {
    waiting_.push_back({at + *gap, step_count_++, std::move(session)});
    std::ranges::push_heap(waiting_, kLater);
  }
  return request;
}

/// Kind of sessions that begin now. The last quarter of `phases` is a mixture, drawn in begin().
LoadKind Load::kind_now() const {
  if (kind_ != LoadKind::kPhases) return kind_;
  constexpr LoadKind kinds[] = {LoadKind::kChat, LoadKind::kAgent, LoadKind::kDocuments, LoadKind::kChatOneShot};
  return kinds[made_count_ * std::size(kinds) / request_count_];
}

/// Between two starts of sessions. Chosen for one to three requests a second.
std::uint64_t Load::arrival_gap_ms(LoadKind kind) const {
  switch (kind) {
    case LoadKind::kChat: return 833;
    case LoadKind::kAgent: return 5'000;
    case LoadKind::kDocuments: return 1'667;
    case LoadKind::kOneShot: return 1'333;
    case LoadKind::kChatOneShot: return 667;
    case LoadKind::kAgentChat: return 1'111;
    case LoadKind::kDocumentsOneShot: return 1'000;
    case LoadKind::kMixed: return 1'000;
    case LoadKind::kPhases: break;
  }
  KV_ASSERT(false);
  return 0;
}

std::unique_ptr<Load::Session> Load::begin(LoadKind kind) {
  switch (kind) {
    case LoadKind::kChatOneShot: return begin(random_.chance(50) ? LoadKind::kChat : LoadKind::kOneShot);
    case LoadKind::kAgentChat: return begin(random_.chance(5) ? LoadKind::kAgent : LoadKind::kChat);
    case LoadKind::kDocumentsOneShot: return begin(random_.chance(50) ? LoadKind::kDocuments : LoadKind::kOneShot);
    case LoadKind::kMixed: {
      const std::uint64_t part = random_.below(100);
      return begin(part < 40   ? LoadKind::kChat
                   : part < 45 ? LoadKind::kAgent
                   : part < 70 ? LoadKind::kDocuments
                               : LoadKind::kOneShot);
    }
    default: break;
  }
  auto session = std::make_unique<Session>(Session{.kind = kind, .prompt = {}});
  Prompt& prompt = session->prompt;
  if (kind == LoadKind::kChat) {
    prompt = shared(chat_systems_, random_.rank(7), 8, 1, 6);
  } else if (kind == LoadKind::kAgent) {
    prompt = shared(agent_systems_, random_.below(5), 5, 6, 20);
    grow(prompt, random_.between(kBlockTokens, 4 * kBlockTokens));
    session->requests_left = random_.between(10, 60);
  } else if (kind == LoadKind::kDocuments) {
    if (documents_.empty() || random_.chance(25)) {
      documents_.push_back(shared(reader_systems_, 0, 1, 2, 2));
      grow(documents_.back(), random_.between(10 * kBlockTokens, 120 * kBlockTokens));
      if (documents_.size() > kDocumentsMax) documents_.pop_front();
    }
    const std::size_t back = std::min<std::size_t>(random_.exponential(15), documents_.size() - 1);
    prompt = documents_[documents_.size() - 1 - back];
    session->requests_left = random_.between(1, 6);
  } else {
    prompt = shared(one_shot_systems_, random_.rank(29), 30, 1, 10);
    grow(prompt, 256 + random_.lognormal(4'352, 90));
  }
  return session;
}

/// The session's next request, and the gap to the one after it, if there is one.
TraceRequest Load::step(Session& session, std::uint64_t at_ms, std::optional<std::uint64_t>* gap_ms) {
  Prompt& prompt = session.prompt;
  ++session.request_count;
  switch (session.kind) {
    case LoadKind::kChat: {
      grow(prompt, 16 + random_.lognormal(1'376, 100));
      const std::uint64_t reply = 1 + random_.lognormal(624, 80);
      TraceRequest request = ask(prompt, at_ms, reply);
      const std::size_t turn = std::min<std::size_t>(session.request_count, std::size(kChatGoesOn));
      if (random_.chance(kChatGoesOn[turn - 1])) *gap_ms = random_.lognormal(121'500, 90);
      if (*gap_ms) grow(prompt, reply);
      return request;
    }
    case LoadKind::kAgent: {
      const std::uint64_t call = 1 + random_.lognormal(180, 70);
      TraceRequest request = ask(prompt, at_ms, call);
      if (--session.requests_left > 0) *gap_ms = random_.lognormal(7'400, 80);
      if (*gap_ms) grow(prompt, call + random_.lognormal(620, 80));  // and the tool's answer
      return request;
    }
    case LoadKind::kDocuments: {
      Prompt question = prompt;  // each question follows the document alone
      grow(question, 8 + random_.lognormal(60, 60));
      if (--session.requests_left > 0) *gap_ms = random_.lognormal(33'000, 100);
      return ask(question, at_ms, 1 + random_.lognormal(250, 70));
    }
    default: return ask(prompt, at_ms, 1 + random_.lognormal(200, 90));
  }
}

TraceRequest Load::ask(const Prompt& prompt, std::uint64_t at_ms, std::uint64_t output_tokens) {
  TraceRequest request{
      .timestamp_ms = at_ms, .input_length = prompt.tokens, .output_length = output_tokens, .hash_ids = prompt.ids};
  if (prompt.tokens % kBlockTokens != 0) request.hash_ids.push_back(id_count_++);
  return request;
}

void Load::grow(Prompt& prompt, std::uint64_t tokens) {
  prompt.tokens += tokens;
  while (prompt.ids.size() < prompt.tokens / kBlockTokens) prompt.ids.push_back(id_count_++);
}

/// One of `count` prompts that many sessions begin with, created on first use.
Load::Prompt Load::shared(std::vector<Prompt>& prompts, std::size_t index, std::size_t count, std::uint64_t blocks_min,
                          std::uint64_t blocks_max) {
  while (prompts.size() < count) {
    grow(prompts.emplace_back(), random_.between(blocks_min * kBlockTokens, blocks_max * kBlockTokens + 256));
  }
  return prompts.at(index);
}

}  // namespace kv
