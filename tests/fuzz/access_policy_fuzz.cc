// A policy file is refused with words, or gives each peer what one of its sections says; and nobody more.
#include <array>
#include <string>

#include "base/assert.h"
#include "store/node/policy/access_policy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kv;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto policy = AccessPolicy::parse(text);
  if (!policy) {
    KV_ASSERT(policy.error() == Errc::kBadRequest && policy.error().text.starts_with("policy-file: "));
    KV_ASSERT(policy.error().text.size() < 4096);
    return 0;
  }
  // A share is for tenants that its lists name, or all that are tenants; never for a client without one.
  for (const char* const name : {"a", "b", "prompts"}) {
    const SharePolicy* const share = (*policy)->find_share(name);
    if (share == nullptr) continue;
    KV_ASSERT(text.find(name) != std::string::npos && !(share->readers.empty() && share->writers.empty()));
    KV_ASSERT(!share->is_reader("") && !share->is_writer(""));
    for (const auto* const list : {&share->readers, &share->writers}) {
      for (const std::string& tenant : *list) KV_ASSERT(text.find(tenant) != std::string::npos);
    }
    KV_ASSERT(share->is_reader("not named anywhere") == share->readers.contains("*"));
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
    KV_ASSERT(grant->tenant.empty() || !has_right(grant->roles, Right::kForTenants));
    for (const PolicyRole role : kEachRole) {
      const bool has = (grant->roles & static_cast<Roles>(role)) != 0;
      KV_ASSERT(!has || text.find(policy_role_name(role)) != std::string::npos);
    }
  }
  return 0;
}
