#include "store/node/policy/access_policy.h"

#include <spdlog/fmt/fmt.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <ranges>
#include <span>
#include <sstream>

#include "base/assert.h"
#include "base/text/hex.h"
#include "base/text/printable.h"
#include "base/text/quantity.h"
#include "transport/tls/tls_identity.h"

namespace kv {
namespace {

constexpr std::string_view kUid = "unix:uid=", kGid = "unix:gid=";
constexpr std::size_t kShownBytes = 64;  ///< Shown of a refused value.

std::string shown(std::string_view value) { return "'" + printable(value.substr(0, kShownBytes)) + "'"; }

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  });
}

constexpr std::string_view kTenants = "tenants", kShares = "shares", kShareOwner = "share:";
constexpr std::uint64_t kAmountMax = std::uint64_t{1} << 52;  ///< 4 PiB; exact as a double, too.

/// A whole number; for bytes, optionally with a unit.
std::optional<std::uint64_t> amount_of(std::string_view text, bool is_bytes) {
  std::uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit(end, static_cast<std::size_t>(last - end));
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  std::uint64_t factor = 1;
  if (!unit.empty()) {
    constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
    const auto found = std::ranges::find(kUnits, unit);
    if (!is_bytes || found == std::end(kUnits)) return std::nullopt;
    factor = std::uint64_t{1} << (10 * (found - std::begin(kUnits) + 1));
  }
  return value <= kAmountMax / factor ? std::optional(value * factor) : std::nullopt;
}

/// The error in an entry of `match`, with the allowed forms; empty: valid.
std::string check_match(std::string_view who) {
  if (who == "certificate" || who == "unix" || who == "loopback" || who == "network") return "";
  if (who.starts_with("unix")) {
    const bool is_user = who.starts_with(kUid) || who.starts_with(kGid);
    if (is_user && parse_number<std::uint32_t>(who.substr(kUid.size()))) return "";
    return shown(who) + ", allowed are unix, unix:uid=NUMBER and unix:gid=NUMBER";
  }
  // The TOML reader leaves these characters where quotes or brackets do not close, or in a list with a comment.
  if (who.find_first_of("\"'[],#") != std::string_view::npos)
    return shown(who) + ", a quote, bracket, comma or # within; comments stand on lines of their own";
  const std::string wrong = check_name_pattern(who);
  return wrong.empty() ? "" : wrong + "; or certificate, unix, unix:uid=NUMBER, unix:gid=NUMBER, loopback, network";
}

bool is_meant(const std::string& who, const PeerIdentity& peer) {
  if (who == "unix") return peer.user.has_value();
  const auto number = [&who] { return parse_number<std::uint32_t>(std::string_view(who).substr(kUid.size())); };
  if (who.starts_with(kUid)) return peer.user && number() == peer.user->uid;
  if (who.starts_with(kGid)) return peer.user && number() == peer.user->gid;
  if (who == "certificate") return peer.protection == Stream::Protection::kTls;
  if (who == "loopback") return peer.protection == Stream::Protection::kLocal && !peer.user;
  if (who == "network") return peer.protection == Stream::Protection::kNone;
  return is_allowed(peer.names, std::span(&who, 1));
}

/// Adapts TOML to the reader. A list that begins on the next line is moved up to its bracket's line, which would
/// otherwise become the value; and a comment after a section's name is dropped, since the reader would reject the name.
std::string tidied(std::string_view text) {
  std::string tidy;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    const std::string_view trimmed = line.substr(0, line.find_last_not_of(" \t\r\n") + 1);
    const std::size_t first = trimmed.find_first_not_of(" \t");
    if (first < trimmed.size() && trimmed[first] == '[') {
      tidy += trimmed.substr(0, trimmed.find('#'));
      tidy += '\n';
      continue;
    }
    const bool begins_list = trimmed.ends_with('[') && trimmed.find('=') != std::string_view::npos;
    tidy += begins_list ? trimmed : line;
  }
  return tidy;
}

bool read_hash(std::string_view text, TokenHash* hash) {
  return from_hex(text, std::as_writable_bytes(std::span(*hash)));
}

}  // namespace

TokenHash token_hash(std::string_view token) {
  TokenHash hash;
  const int done = EVP_Digest(token.data(), token.size(), hash.data(), nullptr, EVP_sha256(), nullptr);
  KV_ASSERT(done == 1);
  return hash;
}

PeerIdentity PeerIdentity::of(const Stream& stream) {
  PeerIdentity peer{.protection = stream.protection(), .names = stream.peer_names(), .user = stream.peer_user()};
  peer.is_here = peer.protection == Stream::Protection::kLocal;
  return peer;
}

std::string PeerIdentity::text() const {
  if (token) return "a token";
  if (user) return fmt::format("'unix:uid={},gid={}'", user->uid, user->gid);
  if (protection == Stream::Protection::kTls && names.empty()) return "a certificate without names";
  if (names.empty()) return protection == Stream::Protection::kLocal ? "'loopback'" : "'network'";
  constexpr std::size_t kNamesShown = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesShown); ++i)
    text += (i == 0 ? "'" : ",") + names[i].substr(0, 256);
  return text + "'";
}

/// Uses CLI11's TOML reader, which is lenient: an unclosed quote or list becomes part of a value. So each value is
/// checked against the allowed forms.
class AccessPolicyReader {
 public:
  Result<std::shared_ptr<const AccessPolicy>, Failure> read(std::string_view text) {
    if (text.size() > AccessPolicy::kTextBytesMax) return wrong("file", "longer than 1 MiB");
    std::istringstream input(tidied(text));
    std::vector<CLI::ConfigItem> items;
    try {
      items = CLI::ConfigTOML().from_config(input);
    } catch (const std::exception& error) {
      return wrong("file", printable(error.what()));
    }
    for (const CLI::ConfigItem& item : items) {
      if (Failure failed = item.inputs.empty() && item.name == "++" ? begin(item) : take(item); failed.code)
        return failed;
    }
    if (Failure failed = end(); failed.code) return failed;
    return std::shared_ptr<const AccessPolicy>(std::move(policy_));
  }

 private:
  using Values = std::vector<std::string>;

  static Failure wrong(const std::string& where, const std::string& what) {
    return {Errc::kBadRequest, "policy-file: " + where + ": " + what};
  }
  Failure wrong_here(const std::string& field, const std::string& what) const {
    return wrong("[" + name_ + "] " + field, what);
  }
  AccessPolicy::Section& here() { return policy_->sections_.back(); }

  Failure begin(const CLI::ConfigItem& item) {
    if (Failure failed = end(); failed.code) return failed;
    is_share_ = !item.parents.empty() && item.parents[0] == kShares;
    is_tenant_ = !item.parents.empty() && item.parents[0] == kTenants;
    if (is_tenant_ || is_share_) return begin_tenant(item);
    const std::string name = item.parents.size() == 1 ? item.parents[0] : "";
    if (!is_name(name) || name.find('.') != std::string::npos) {
      std::string given;
      for (const std::string& part : item.parents) given += (given.empty() ? "" : ".") + part;
      return wrong("[" + printable(given.substr(0, kShownBytes)) + "]",
                   "a section's name has 1 to 64 letters, digits, '-' and '_'");
    }
    if (!names_.insert(name).second) return wrong("[" + name + "]", "stands there twice");
    if (names_.size() > AccessPolicy::kSectionsMax)
      return wrong("file", fmt::format("more than {} sections", AccessPolicy::kSectionsMax));
    name_ = name;
    policy_->sections_.emplace_back().grant.section = name;
    return {};
  }

  /// [tenants.NAME] and [shares.NAME]. For the TOML reader a dot in the name would start a subsection.
  Failure begin_tenant(const CLI::ConfigItem& item) {
    parents_.clear();
    name_ = std::string(is_share_ ? kShares : kTenants) + ".";
    if (item.parents.size() == 1) return {};  // the reader's entry before the first section
    const std::string& name = item.parents[1];
    const std::string shown_name = "[" + name_ + printable(name.substr(0, kShownBytes)) + "]";
    if (item.parents.size() > 2 || !is_name(name)) {
      return wrong(shown_name, fmt::format("{} section is [{}NAME], of 1 to 64 letters, digits, '-' and '_'",
                                           is_share_ ? "a share's" : "a tenant's", name_));
    }
    const std::string owner = is_share_ ? std::string(kShareOwner) + name : name;
    for (const TenantPolicy& other : policy_->tenants_)
      if (other.holds.name == owner) return wrong(shown_name, "stands there twice");
    if (policy_->tenants_.size() == AccessPolicy::kTenantsMax)
      return wrong("file", fmt::format("more than {} tenants and shares", AccessPolicy::kTenantsMax));
    name_ += name;
    parents_ = item.parents;
    given_.clear();
    policy_->tenants_.emplace_back().holds.name = owner;
    if (is_share_) share_ = &policy_->shares_[name];
    return {};
  }

  /// For the current share.
  Failure take_share_list(const CLI::ConfigItem& item) {
    auto& list = item.name == "readers" ? share_->readers : share_->writers;
    for (const std::string& tenant : item.inputs) {
      if (tenant != "*" && !is_name(tenant))
        return wrong_here(item.name, shown(tenant) + ", allowed are names of tenants, and * for all");
      list.insert(tenant);
    }
    return {};
  }

  /// Ends the current section.
  Failure end() {
    for (const std::string_view of : {kTenants, kShares})
      if (name_.starts_with(std::string(of) + ".")) return parents_.empty() ? Failure() : end_tenant();
    if (policy_->sections_.empty()) return {};
    if (here().match.empty() && here().tokens.empty())
      return wrong_here("match", "none, and no token-sha256: the section fits nobody");
    if (!has_roles_)
      return wrong_here("roles", "not given, allowed are " + roles_text(kAllRoles) + ", and [] for none");
    if (!here().grant.tenant.empty() && has_right(here().grant.roles, Right::kForTenants))
      return wrong_here("roles", "node, which stores for all tenants, in a section that belongs to one");
    has_roles_ = false;
    return {};
  }

  Failure end_tenant() {
    const TenantLimits& holds = policy_->tenants_.back().holds;
    if (holds.name.starts_with(kShareOwner) && share_->readers.empty() && share_->writers.empty())
      return wrong_here("readers", "none, and no writers: the share is for nobody");
    if (holds.memory_bytes > holds.memory_bytes_max) return wrong_here("memory-bytes", "more than memory-bytes-max");
    if (holds.disk_bytes > holds.disk_bytes_max) return wrong_here("disk-bytes", "more than disk-bytes-max");
    return {};
  }

  Failure take_limit(const CLI::ConfigItem& item) {
    TenantPolicy& tenant = policy_->tenants_.back();
    TenantLimits& holds = tenant.holds;
    struct Field {
      std::string_view name;
      std::uint64_t* count = nullptr;
      double* rate = nullptr;
    };
    const Field fields[] = {{"memory-bytes", &holds.memory_bytes},
                            {"memory-bytes-max", &holds.memory_bytes_max},
                            {"disk-bytes", &holds.disk_bytes},
                            {"disk-bytes-max", &holds.disk_bytes_max},
                            {"leases-max", &holds.lease_count_max},
                            {"retained-bytes-max", &holds.retained_bytes_max},
                            {"namespaces-max", &holds.namespace_count_max},
                            {"sessions-max", &tenant.session_count_max},
                            {"requests-per-second", nullptr, &tenant.requests_per_second},
                            {"bytes-per-second", nullptr, &tenant.bytes_per_second}};
    // Sessions and requests belong to tenants, not to shares.
    const auto is_allowed_here = [&](const Field& field) {
      return !is_share_ || (field.rate == nullptr && field.name != "sessions-max");
    };
    const auto field = std::ranges::find_if(
        fields, [&](const Field& each) { return each.name == item.name && is_allowed_here(each); });
    if (field == std::end(fields)) {
      std::string allowed = is_share_ ? "readers, writers" : "";
      for (const Field& each : fields | std::views::filter(is_allowed_here))
        allowed += (allowed.empty() ? "" : ", ") + std::string(each.name);
      return wrong_here(shown(item.name), "allowed are " + allowed);
    }
    if (!given_.insert(item.name).second) return wrong_here(item.name, "stands there twice");
    const bool is_bytes = item.name.find("bytes") != std::string::npos;
    const auto amount = item.inputs.size() == 1 ? amount_of(item.inputs[0], is_bytes) : std::nullopt;
    if (!amount || (field->rate != nullptr && *amount == 0)) {
      return wrong_here(item.name, (item.inputs.size() == 1 ? shown(item.inputs[0]) : "a list") +
                                       std::string(", allowed is a whole number") +
                                       (is_bytes ? ", with or without KiB, MiB, GiB or TiB" : "") +
                                       (field->rate != nullptr ? ", from 1 on" : ""));
    }
    if (field->rate != nullptr) {
      *field->rate = static_cast<double>(*amount);
    } else {
      *field->count = *amount;
    }
    return {};
  }

  Failure take(const CLI::ConfigItem& item) {
    if (item.inputs.empty() && item.name == "--") return {};
    if (is_share_ && item.parents == parents_ && (item.name == "readers" || item.name == "writers"))
      return take_share_list(item);
    if ((is_tenant_ || is_share_) && item.parents == parents_) return take_limit(item);
    if (policy_->sections_.empty() || item.parents.size() != 1 || item.parents[0] != name_)
      return wrong(shown(item.name), "stands in no section; a section begins with its [name]");
    if (item.name == "match") return take_match(item.inputs);
    if (item.name == "token-sha256") return take_tokens(item.inputs);
    if (item.name == "tenant") return take_tenant(item.inputs);
    if (item.name == "roles") return take_roles(item.inputs);
    return wrong_here(shown(item.name), "allowed are match, token-sha256, tenant and roles");
  }
  Failure take_match(const Values& values) {
    for (const std::string& who : values) {
      if (const std::string why = check_match(who); !why.empty()) return wrong_here("match", why);
      here().match.push_back(who);
    }
    return {};
  }
  /// A refused value is not shown: it may be the token itself.
  Failure take_tokens(const Values& values) {
    for (const std::string& value : values) {
      TokenHash hash;
      if (!read_hash(value, &hash)) {
        return wrong_here("token-sha256", fmt::format("{} characters, allowed are the 64 hexadecimal digits of a "
                                                      "token's SHA-256 (printf %s TOKEN | sha256sum)",
                                                      value.size()));
      }
      if (!tokens_.insert(hash).second) return wrong_here("token-sha256", "the same token stands there twice");
      here().tokens.push_back(hash);
    }
    return {};
  }
  Failure take_tenant(const Values& values) {
    if (values.size() != 1 || !is_name(values[0]) || !here().grant.tenant.empty()) {
      return wrong_here("tenant", (values.size() == 1 ? shown(values[0]) : fmt::format("{} values", values.size())) +
                                      ", allowed is one name of 1 to 64 letters, digits, '-', '_' and '.'");
    }
    here().grant.tenant = values[0];
    return {};
  }
  Failure take_roles(const Values& values) {
    has_roles_ = true;
    for (const std::string& value : values) {
      const auto role = find_role(value);
      if (!role) return wrong_here("roles", shown(value) + ", allowed are " + roles_text(kAllRoles));
      here().grant.roles = static_cast<Roles>(here().grant.roles | static_cast<Roles>(*role));
    }
    return {};
  }

  std::shared_ptr<AccessPolicy> policy_ = std::make_shared<AccessPolicy>();
  std::string name_;
  bool is_tenant_ = false;            ///< The current section is a tenant's,
  bool is_share_ = false;             ///< or a share's:
  SharePolicy* share_ = nullptr;      ///< this one,
  std::vector<std::string> parents_;  ///< as the TOML reader names it,
  std::set<std::string> given_;       ///< with these fields so far.
  bool has_roles_ = false;
  std::set<std::string> names_;
  std::set<TokenHash> tokens_;
};

Result<std::shared_ptr<const AccessPolicy>, Failure> AccessPolicy::parse(std::string_view text) {
  return AccessPolicyReader().read(text);
}

const SharePolicy* AccessPolicy::find_share(std::string_view name) const {
  const auto found = shares_.find(name);
  return found == shares_.end() ? nullptr : &found->second;
}

Failure AccessPolicy::check_room(std::uint64_t memory_bytes, std::uint64_t disk_bytes) const {
  std::uint64_t memory = 0, disk = 0;
  for (const TenantPolicy& tenant : tenants_) {  // each is at most kAmountMax, so the sums do not wrap
    memory += tenant.holds.memory_bytes;
    disk += tenant.holds.disk_bytes;
  }
  const auto fail = [](const std::string& field, std::uint64_t sum, std::uint64_t room, const std::string& of) {
    return Failure(Errc::kBadRequest,
                   fmt::format("policy-file: tenants: {}: {} in all, more than the {} of {}", field, sum, room, of));
  };
  if (memory > memory_bytes) return fail("memory-bytes", memory, memory_bytes, "this node's capacity");
  if (disk > disk_bytes) return fail("disk-bytes", disk, disk_bytes, "this node's disk-capacity");
  return {};
}

const AccessGrant* AccessPolicy::find(const PeerIdentity& peer) const {
  if (peer.token) {
    const AccessGrant* found = nullptr;
    for (const Section& section : sections_) {  // no early exit: constant time
      for (const TokenHash& each : section.tokens) {
        if (CRYPTO_memcmp(each.data(), peer.token->data(), each.size()) == 0) found = &section.grant;
      }
    }
    return found;
  }
  for (const Section& section : sections_) {
    if (std::ranges::any_of(section.match, [&](const std::string& who) { return is_meant(who, peer); }))
      return &section.grant;
  }
  return nullptr;
}

}  // namespace kv
