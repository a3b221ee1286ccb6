// A Store against a naive model of it: a tree of maps, where every use marks every block, and eviction looks at every
// block. All results, not only the invariants, must be equal as long as all blocks have one size. Bytes are checked
// when blocks are pinned and when they are let go.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <list>

#include "store_fixture.h"

namespace kv {
namespace {

constexpr std::size_t kModelBlockBytes = 192;  // a stride of 192, no checksum of several stripes: small and many
constexpr std::size_t kSlots = 40;
using Status = CommitStatus;

struct Node {
  Node* parent = nullptr;
  std::map<BlockHash, Node*> children;
  BlockHash hash;
  std::uint64_t content = 0;
  std::uint64_t used = 0;
  int pins = 0;
  bool is_linked = true, is_retained = false;
};

struct ModelLease {
  LeaseId id;
  SessionId session;
  Node* node;
  TimePoint end;
};
struct ModelMove {
  PinnedPrefix pinned;
  std::vector<Node*> nodes;
};
struct ModelPut {
  PutId id;
  SessionId session;
  Node* root;
  Node* tail;
  std::vector<BlockHash> hashes;  // of the offered chain
  std::size_t stored_count, committed_count = 0;
  std::deque<std::pair<IncomingBlock, std::uint64_t>> incoming;  // with the content written
};

class StoreModelTest : public StoreFixture {
 protected:
  // -- the model
  std::vector<std::unique_ptr<Node>> roots;
  std::vector<std::unique_ptr<Node>> nodes;  // all that hold a slot
  std::list<ModelLease> model_leases;
  std::list<ModelMove> moves;
  std::list<ModelPut> puts;
  std::uint64_t use_count = 0, evicted_count = 0;
  std::size_t incoming_count = 0, retained_count = 0;
  std::vector<LeaseId> stale_leases;

  std::vector<Node*> walk(Node* root, std::span<const BlockHash> hashes) {
    std::vector<Node*> found;
    for (const BlockHash& hash : hashes) {
      const auto it = root->children.find(hash);
      if (it == root->children.end()) break;
      found.push_back(root = it->second);
    }
    return found;
  }
  void use(Node* last) {
    ++use_count;
    for (Node* node = last; node != nullptr && node->parent != nullptr; node = node->parent) node->used = use_count;
  }
  void free_node(Node* node) {
    std::erase_if(nodes, [&](const auto& other) { return other.get() == node; });
  }
  void let_go(Node* node) {
    ASSERT_GT(node->pins, 0);
    if (--node->pins == 0 && !node->is_linked) free_node(node);
  }
  bool evict_one() {
    Node* oldest = nullptr;
    for (const auto& node : nodes)
      if (node->is_linked && node->children.empty() && node->pins == 0 &&
          (oldest == nullptr || node->used < oldest->used))
        oldest = node.get();
    if (oldest == nullptr) return false;
    oldest->parent->children.erase(oldest->hash);
    free_node(oldest);
    ++evicted_count;
    return true;
  }
  bool take_slot() {
    while (nodes.size() + incoming_count >= kSlots)
      if (!evict_one()) return false;
    ++incoming_count;
    return true;
  }
  std::size_t drop_below(Node* node) {
    std::size_t count = 1;
    for (const auto& [hash, child] : std::map(node->children)) count += drop_below(child);
    node->parent->children.erase(node->hash);
    node->children.clear();
    node->is_linked = false;
    if (node->is_retained) {
      node->is_retained = false;
      --node->pins;
      --retained_count;
    }
    if (node->pins == 0) free_node(node);
    return count;
  }
  /// Bytes of all that leases keep once `more` (may be nullptr) is leased too.
  std::size_t leased_bytes(Node* more) {
    std::set<Node*> kept;
    const auto keep = [&](Node* node) {
      if (!node->is_linked) return void(kept.insert(node));
      for (; node->parent != nullptr; node = node->parent) kept.insert(node);
    };
    for (const ModelLease& lease : model_leases) keep(lease.node);
    if (more != nullptr) keep(more);
    return kept.size() * kModelBlockBytes;
  }
  void expire() {
    while (!model_leases.empty() && model_leases.front().end <= now) end_lease(model_leases.begin());
  }
  void end_lease(std::list<ModelLease>::iterator it) {
    let_go(it->node);
    stale_leases.push_back(it->id);
    model_leases.erase(it);
  }

  // -- the steps
  std::mt19937_64 random;
  static constexpr const char* kModels[] = {"a", "b"};
  std::vector<SpaceId> spaces;
  std::uint64_t churn = 0;
  bool same_hash_everywhere = false;

  std::uint64_t below(std::uint64_t bound) { return random() % bound; }
  std::vector<BlockHash> random_chain() {  // of a tree with three children a node, and short chains likely
    std::vector<BlockHash> hashes;
    std::uint64_t path = 0;
    const std::size_t length = 1 + below(1 + below(16));
    for (std::size_t i = 0; i < length; ++i) {
      path = path * 4 + 1 + (below(3) == 0 ? 1 + below(2) : 0);
      hashes.push_back(hash_of(same_hash_everywhere ? path % 4 : path));
    }
    return hashes;
  }
  SessionId random_session() { return SessionId{1 + below(3)}; }

  void step() {
    const std::size_t which = below(spaces.size());
    Node* root = roots[which].get();
    const SpaceId space = open(kModelBlockBytes, kModels[which]);
    if (space != spaces[which]) {  // it was forgotten, so nothing of it was in use
      ASSERT_TRUE(root->children.empty());
      for (const ModelPut& put : puts) ASSERT_NE(put.root, root);
      ASSERT_EQ(store->match(spaces[which], {}, {}, now).error(), Errc::kNoNamespace);
      spaces[which] = space;
    }
    if (below(4) == 0) {  // takes the place of one that is idle
      const bool has_room = store->open(make_record("other " + std::to_string(++churn), kModelBlockBytes)).has_value();
      ASSERT_TRUE(has_room) << "one of three is idle";
      spaces[which] = open(kModelBlockBytes, kModels[which]);
      return;
    }
    const auto hashes = random_chain();
    const auto found = walk(root, hashes);
    Node* last = found.empty() ? nullptr : found.back();
    switch (below(20)) {
      case 0:
      case 1:
      case 2: {
        const SessionId session = random_session();
        const bool lease = below(2) == 0;
        expire();
        const auto match = store->match(space, hashes, {.session = session, .lease = lease}, now).value();
        ASSERT_EQ(match.memory_block_count, walk(root, hashes).size());
        use(last);
        const auto mine = std::count_if(model_leases.begin(), model_leases.end(),
                                        [&](const auto& other) { return other.session == session; });
        const std::size_t kept = leased_bytes(nullptr), with_this = leased_bytes(last);
        const bool is_over =
            with_this > kept && static_cast<double>(with_this) >
                                    config.leased_fraction_max * static_cast<double>(store->stats().capacity_bytes);
        const bool is_busy = is_over || model_leases.size() >= config.lease_count_max ||
                             static_cast<std::size_t>(mine) >= config.lease_count_per_session_max;
        ASSERT_EQ(match.lease != LeaseId{}, lease && last != nullptr && !is_busy);
        ASSERT_EQ(match.lease_error, lease && last != nullptr && is_busy ? Errc::kBusy : Errc{});
        if (match.lease != LeaseId{}) {
          ++last->pins;
          model_leases.push_back({match.lease, session, last, now + config.lease_duration});
        }
        break;
      }
      case 3: {
        if (!model_leases.empty() && below(4) != 0) {
          auto it = model_leases.begin();
          std::advance(it, below(model_leases.size()));
          ASSERT_EQ(store->release(SessionId{9}, it->id).error(), Errc::kStaleLease);
          ASSERT_TRUE(store->release(it->session, it->id));
          end_lease(it);
        } else if (!stale_leases.empty()) {
          ASSERT_EQ(store->release(random_session(), stale_leases[below(stale_leases.size())]).error(),
                    Errc::kStaleLease);
        }
        break;
      }
      case 4:
      case 5: {
        ModelMove move;
        auto lease = model_leases.end();
        if (!model_leases.empty() && below(2) == 0) lease = std::next(model_leases.begin(), below(model_leases.size()));
        const bool is_live = lease != model_leases.end();
        move.pinned =
            store
                ->pin_prefix(space, hashes,
                             {.session = is_live ? lease->session : kAlice, .lease = is_live ? lease->id : LeaseId{}},
                             now)
                .value();
        move.nodes = found;
        use(last);
        for (Node* node : found) ++node->pins;
        if (is_live) end_lease(lease);
        ASSERT_EQ(move.pinned.blocks.size(), found.size());
        check_bytes(move);
        moves.push_back(std::move(move));
        break;
      }
      case 6:
      case 7: {
        if (moves.empty() || (moves.size() < 6 && below(2) == 0)) break;
        const auto it = std::next(moves.begin(), below(moves.size()));
        check_bytes(*it);
        store->unpin(it->pinned);
        for (Node* node : it->nodes) let_go(node);
        moves.erase(it);
        break;
      }
      case 8:
      case 9:
      case 10:
      case 11: {
        expire();
        const auto here = walk(root, hashes);
        const SessionId session = random_session();
        const auto plan = store->offer(space, hashes, {.session = session}, now).value();
        use(here.empty() ? nullptr : here.back());
        ASSERT_EQ(plan.stored_count, here.size());
        ASSERT_EQ(plan.put == PutId{}, here.size() == hashes.size());
        if (plan.put == PutId{}) break;
        puts.push_back({plan.put, session, root, here.empty() ? root : here.back(), hashes, here.size(), 0, {}});
        if (puts.back().tail != root) ++puts.back().tail->pins;
        check_incoming(puts.back(), plan);
        break;
      }
      case 12:
      case 13:
      case 14:
      case 15: {
        if (puts.empty()) break;
        const auto it = std::next(puts.begin(), below(puts.size()));
        if (it->incoming.empty()) {
          if (it->stored_count + it->committed_count < it->hashes.size() && below(2) == 0) {
            expire();
            check_incoming(*it, store->offer_more(it->id, now).value());
          } else {
            end_put(it);
          }
        } else {
          commit(*it);
        }
        break;
      }
      case 16: {
        if (!puts.empty() && below(3) == 0) end_put(std::next(puts.begin(), below(puts.size())));
        break;
      }
      case 17: {
        if (below(3) != 0) {
          const bool fits =
              retained_count + static_cast<std::size_t>(std::count_if(found.begin(), found.end(),
                                                                      [](Node* node) { return !node->is_retained; })) <=
              kSlots / 4;
          const auto kept = store->retain(space, hashes);
          const bool is_new = std::any_of(found.begin(), found.end(), [](Node* node) { return !node->is_retained; });
          ASSERT_EQ(kept.has_value(), fits || !is_new);
          if (!kept) break;
          ASSERT_EQ(*kept, found.size());
          for (Node* node : found) {
            if (node->is_retained) continue;
            node->is_retained = true;
            ++node->pins;
            ++retained_count;
          }
        } else {
          const auto had = std::count_if(found.begin(), found.end(), [](Node* node) { return node->is_retained; });
          ASSERT_EQ(store->unretain(space, hashes).value(), static_cast<std::size_t>(had));
          for (Node* node : found) {
            if (!node->is_retained) continue;
            node->is_retained = false;
            --node->pins;
            --retained_count;
          }
        }
        break;
      }
      case 18: {
        if (below(40) == 0) {
          std::size_t count = 0;
          for (const auto& [hash, child] : std::map(root->children)) count += drop_below(child);
          ASSERT_EQ(store->drop(space, {}).value(), count);
        } else if (below(3) == 0) {
          const std::size_t count = found.size() == hashes.size() ? drop_below(last) : 0;
          ASSERT_EQ(store->drop(space, hashes).value(), count);
        } else {
          ASSERT_EQ(store->touch(space, hashes, now).value(), found.size());
          use(last);
        }
        break;
      }
      case 19: {
        if (below(10) == 0) {
          const SessionId session = random_session();
          store->end_session(session);
          for (auto it = model_leases.begin(); it != model_leases.end();) {
            const auto at = it++;
            if (at->session == session) end_lease(at);
          }
          for (auto it = puts.begin(); it != puts.end();) {
            const auto at = it++;
            if (at->session == session) forget_put(at);
          }
        } else {
          now += Duration(below(200'000'000));
          if (below(2) == 0) {
            store->expire_leases(now);
            expire();
          }
        }
        break;
      }
    }
  }

  void check_bytes(const ModelMove& move) {
    for (std::size_t i = 0; i < move.nodes.size(); ++i) {
      ASSERT_TRUE(has_bytes(move.pinned.blocks[i].bytes, move.nodes[i]->content));
      ASSERT_EQ(move.pinned.blocks[i].checksums[0], mix(move.nodes[i]->content));
    }
  }
  void check_incoming(ModelPut& put, const OfferPlan& plan) {
    std::size_t next = put.stored_count + put.committed_count + put.incoming.size();
    ASSERT_FALSE(plan.again);
    for (const auto& block : plan.incoming) {
      ASSERT_TRUE(take_slot());
      ASSERT_EQ(block.index, next);
      const std::uint64_t content = mix(hash_prefix(put.hashes[next])) + below(2);  // so that some conflict
      fill_bytes(block.bytes, content);
      put.incoming.emplace_back(block, content);
      ++next;
    }
    ASSERT_EQ(plan.refused_count, put.hashes.size() - next);
    if (plan.refused_count > 0) {
      ASSERT_FALSE(take_slot());
    }
  }
  void commit(ModelPut& put) {
    const auto [block, content] = put.incoming.front();
    put.incoming.pop_front();
    ASSERT_TRUE(has_bytes(block.bytes, content));  // nobody else wrote there
    const auto status = store->commit(put.id, std::vector<std::uint64_t>{mix(content)}, now);
    --incoming_count;
    const BlockHash hash = put.hashes[put.stored_count + put.committed_count++];
    if (!put.tail->is_linked) {
      ASSERT_EQ(status, Status::kRefused);
      return;
    }
    Node* node = nullptr;
    if (const auto it = put.tail->children.find(hash); it != put.tail->children.end()) {
      node = it->second;
      ASSERT_EQ(status, node->content == content ? Status::kAlreadyStored : Status::kConflict);
    } else {
      ASSERT_EQ(status, Status::kStored);
      nodes.push_back(std::make_unique<Node>());
      node = nodes.back().get();
      node->parent = put.tail;
      node->hash = hash;
      node->content = content;
      put.tail->children[hash] = node;
    }
    use(node);
    ++node->pins;
    if (put.tail != put.root) let_go(put.tail);
    put.tail = node;
  }
  void end_put(std::list<ModelPut>::iterator it) {
    store->end_put(it->id);
    forget_put(it);
  }
  void forget_put(std::list<ModelPut>::iterator it) {
    incoming_count -= it->incoming.size();
    if (it->tail != it->root) let_go(it->tail);
    puts.erase(it);
  }

  void check_all() {
    ASSERT_EQ(store->check(), "");
    const StoreStats stats = store->stats();
    ASSERT_EQ(stats.evicted_blocks, evicted_count);
    ASSERT_EQ(stats.incoming_count, incoming_count);
    ASSERT_EQ(stats.lease_count, model_leases.size());
    ASSERT_EQ(stats.leased_bytes, leased_bytes(nullptr));
    ASSERT_EQ(stats.allocated_bytes, (nodes.size() + incoming_count) * kModelBlockBytes);
    ASSERT_EQ(stats.block_count, static_cast<std::size_t>(std::count_if(
                                     nodes.begin(), nodes.end(), [](const auto& node) { return node->is_linked; })));
    ASSERT_EQ(stats.pinned_count, static_cast<std::size_t>(std::count_if(
                                      nodes.begin(), nodes.end(), [](const auto& node) { return node->pins > 0; })));
  }

  void run(std::uint64_t seed, int steps) {
    random.seed(seed);
    config.lease_duration = 1s;
    config.lease_count_max = 12;
    config.lease_count_per_session_max = 5;
    config.retained_fraction_max = 0.25;
    config.leased_fraction_max = static_cast<double>(below(kSlots + 1)) / kSlots;
    config.namespace_count_max = 3;
    config.curve = {.is_on = true, .one_in = 2, .block_count_max = 64};
    create(kSlots * kModelBlockBytes);
    for (const char* model : kModels) {
      spaces.push_back(open(kModelBlockBytes, model));
      roots.push_back(std::make_unique<Node>());
    }
    for (int i = 0; i < steps; ++i) {
      step();
      if (i % 3 == 0) store->learn();
      if (HasFatalFailure()) FAIL() << "at step " << i;
      if (i % 50 == 0) check_all();
      if (HasFatalFailure()) FAIL() << "at step " << i;
    }
    while (!puts.empty()) end_put(puts.begin());
    while (!moves.empty()) {
      check_bytes(moves.front());
      store->unpin(moves.front().pinned);
      for (Node* node : moves.front().nodes) let_go(node);
      moves.pop_front();
    }
    now += 1h;
    store->expire_leases(now);
    expire();
    check_all();
  }
};

TEST_F(StoreModelTest, AgreesWithANaiveModelOnRandomCalls) { run(test_seed(), 200'000); }

TEST_F(StoreModelTest, AgreesWithANaiveModelWhenEveryBlockHasTheSameFewHashes) {
  same_hash_everywhere = true;
  run(test_seed(), 100'000);
}

}  // namespace
}  // namespace kv
