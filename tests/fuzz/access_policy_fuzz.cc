// A policy file is refused with words, or gives each peer what one of its sections says; and nobody more.
#include <array>
#include <string>

#include "base/assert.h"
#include "store/node/access/access_policy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto policy = AccessPolicy::parse(text);
  if (!policy) {
    KV_ASSERT(policy.error() == Errc::kBadRequest && policy.error().text.starts_with("policy-file: "));
    KV_ASSERT(policy.error().text.size() < 4096);
    return 0;
  }
  using Protection = Stream::Protection;
  const std::array peers = {
      PeerIdentity{},
      PeerIdentity{.protection = Protection::kLocal},
      PeerIdentity{.protection = Protection::kLocal, .user = Stream::User{0, 0}},
      PeerIdentity{.protection = Protection::kTls, .names = {"dns:a.b", "uri:spiffe://a/b"}},
      PeerIdentity{.protection = Protection::kTls, .names = {}},
      PeerIdentity{.protection = Protection::kLocal, .token = TokenHash{}},
  };
  for (const PeerIdentity& peer : peers) {
    const AccessGrant* const grant = (*policy)->find(peer);
    if (grant == nullptr) continue;
    KV_ASSERT(!grant->section.empty() && grant->roles <= kAllRoles);
    KV_ASSERT(text.find("[" + grant->section) != std::string::npos || text.find('"') != std::string::npos);
    for (const PolicyRole role : kEachRole) {
      const bool has = (grant->roles & static_cast<Roles>(role)) != 0;
      KV_ASSERT(!has || text.find(policy_role_name(role)) != std::string::npos);
    }
  }
  return 0;
}
