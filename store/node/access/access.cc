#include "store/node/access/access.h"

#include <spdlog/fmt/fmt.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "base/assert.h"
#include "base/text/printable.h"

namespace kv {
namespace {

Result<std::string, Failure> read_text(const std::string& path) {
  const auto fail = [&](error_code why) {
    return Failure(why, "policy-file: " + printable(path) + ": cannot be read: " + why.message());
  };
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(last_errno());
  std::string text(AccessPolicy::kTextBytesMax + 1, '\0');  // one more, to refuse longer files instead of cutting them
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return fail(last_errno());
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

Result<std::unique_ptr<AccessControl>, Failure> AccessControl::open(const std::string& file, Room room,
                                                                    const std::string& secret_file) {
  auto control = std::make_unique<AccessControl>();
  control->room_ = room;
  control->file_ = file;
  control->secret_file_ = secret_file;
  if (file.empty() && !secret_file.empty()) {
    return Failure(Errc::kBadRequest,
                   "tenant-secret-file: " + printable(secret_file) + ": no policy-file says who belongs to a tenant");
  }
  if (file.empty()) return control;
  if (Failure failed = control->read(control->look()); failed.code) return failed;
  control->reloads_ = 0;
  return control;
}

/// `seen` was taken before the file is read, so that a later change is noticed.
Failure AccessControl::read(const Seen& seen) {
  KV_ASSERT(has_policy());
  const auto text = read_text(file_);
  auto parsed = text ? AccessPolicy::parse(*text) : text.error();
  const Room room = [this] {
    const std::lock_guard lock(mutex_);
    return room_;
  }();
  if (parsed) {
    if (Failure failed = (*parsed)->check_room(room.memory_bytes, room.disk_bytes); failed.code) parsed = failed;
  }
  std::shared_ptr<const TenantSecret> secret;
  if (parsed && !secret_file_.empty()) {
    if (auto from_file = TenantSecret::read(secret_file_)) {
      secret = std::make_shared<const TenantSecret>(*std::move(from_file));
    } else {
      parsed = from_file.error();
    }
  }
  const std::lock_guard lock(mutex_);
  seen_ = seen;
  last_failed_ = !parsed;
  if (!parsed) {
    ++failures_;
    return parsed.error();
  }
  ++reloads_;
  policy_ = std::move(*parsed);
  secret_ = std::move(secret);
  secret_epoch_.store(secret_ ? secret_->epoch() : 0, std::memory_order_release);
  tenants_.set(policy_->tenants());  // before the new version makes sessions look
  version_.fetch_add(1, std::memory_order_release);
  return {};
}

AccessControl::Seen AccessControl::look() const {
  return {FileStamp::of(file_), secret_file_.empty() ? FileStamp() : FileStamp::of(secret_file_)};
}

std::string AccessControl::set_room(Room room) {
  const std::lock_guard reading(reading_);
  const std::lock_guard lock(mutex_);
  if (policy_) {
    if (Failure failed = policy_->check_room(room.memory_bytes, room.disk_bytes); failed.code) return failed.text;
  }
  room_ = room;
  return "";
}

Failure AccessControl::reload() {
  const std::lock_guard lock(reading_);
  return read(look());
}

std::optional<Failure> AccessControl::reload_if_changed() {
  if (!has_policy()) return std::nullopt;
  const std::lock_guard lock(reading_);
  const Seen now = look();
  {
    const std::lock_guard state(mutex_);
    if (now == seen_) return std::nullopt;
  }
  return read(now);
}

std::shared_ptr<const AccessPolicy> AccessControl::policy() const {
  const std::lock_guard lock(mutex_);
  return policy_;
}

std::shared_ptr<const TenantSecret> AccessControl::secret() const {
  const std::lock_guard lock(mutex_);
  return secret_;
}

AccessGrant AccessControl::grant_of(const PeerIdentity& peer) const {
  if (!has_policy()) return {.roles = kAllRoles};
  const auto in_force = policy();
  const AccessGrant* const found = in_force->find(peer);
  return found == nullptr ? AccessGrant() : *found;
}

std::vector<TenantLimits> AccessControl::tenant_limits() const {
  const std::lock_guard lock(mutex_);
  std::vector<TenantLimits> limits;
  if (policy_ == nullptr) return limits;
  for (const TenantPolicy& tenant : policy_->tenants()) limits.push_back(tenant.holds);
  return limits;
}

std::vector<NodeMetrics::Value> AccessControl::stats() const {
  std::vector<NodeMetrics::Value> values;
  if (network_listeners_ > 0) {
    values.push_back({"network_listeners_without_policy", has_policy() ? 0 : static_cast<double>(network_listeners_),
                      false, "Listeners beyond loopback where whoever is let in may do everything (no policy-file)"});
  }
  if (!has_policy()) return values;
  const std::lock_guard lock(mutex_);
  values.push_back({"policy_reloads", reloads_, true, "Times that policy-file was read again"});
  values.push_back({"policy_reload_failures", failures_, true, "Reloads that found a bad file"});
  values.push_back({"policy_reload_failed", last_failed_, false,
                    "1: policy-file is bad, and the policy in use is older than it is"});
  values.push_back({"tokens_refused", tokens_refused_, true,
                    "Tokens that the policy does not know, or that came in plain text over a network"});
  return values;
}

PeerAccess::~PeerAccess() {
  if (is_counted_ && rates_) rates_->leave();
}

void PeerAccess::identify(PeerIdentity peer) {
  peer_ = std::move(peer);
  version_ = 0;
}

std::unique_ptr<PeerAccess> PeerAccess::again() const {
  auto other = std::make_unique<PeerAccess>(control_);
  other->identify(peer_);
  return other;
}

const AccessGrant& PeerAccess::grant() {
  if (control_ == nullptr) return grant_;
  // The version first: a policy that arrives in between is then noticed at the next call.
  if (const std::uint64_t now = control_->version(); now != version_) {
    grant_ = control_->grant_of(peer_);
    policy_ = control_->policy();
    version_ = now;
    auto rates = grant_.tenant.empty() ? nullptr : control_->tenants().find(grant_.tenant);
    if (is_counted_ && rates != rates_) {
      if (rates_) rates_->leave();
      if (rates) rates->enter_anyway();
    }
    rates_ = std::move(rates);
  }
  return grant_;
}

std::string PeerAccess::begin_session() {
  grant();
  const std::string why = rates_ ? rates_->enter() : "";
  is_counted_ = why.empty();
  return why;
}

std::string PeerAccess::take_request(TimePoint now) { return rates_ ? rates_->take_request(now) : ""; }

std::string PeerAccess::may_move(TimePoint now) { return rates_ ? rates_->may_move(now) : ""; }

void PeerAccess::moved(std::uint64_t bytes) {
  if (rates_) rates_->moved(bytes);
}

std::string PeerAccess::who() const {
  if (!is_watched()) return peer_.is_here ? "loopback" : "network";
  return peer_.text() + (grant_.section.empty() ? " (no section of the policy)" : " (section " + grant_.section + ")");
}

std::string PeerAccess::denial(std::string_view what, const Rule& rule) {
  if (rule.is_local && !is_watched() && !peer_.is_here) {
    return "without a policy (policy-file) nothing is changed from beyond this machine's loopback: run kvstorectl "
           "there, or give the node a policy";
  }
  const AccessGrant& own = grant();
  if (!has_right(own.roles, rule.right)) {
    return fmt::format("{}: the right '{}' is missing (roles with it: {}); {} has: {}", what, right_name(rule.right),
                       roles_text(roles_with(rule.right)), who(), roles_text(own.roles));
  }
  if (rule.scope != Scope::kNode || own.tenant.empty()) return "";
  return fmt::format("{}: concerns the whole node, which is for those who belong to no tenant; {} belongs to '{}'",
                     what, who(), own.tenant);
}

std::string PeerAccess::erase_denial(const SpaceOwner& owner) {
  const std::string& own = tenant();
  if (own.empty() || own == owner.tenant) return "";
  return who() + " belongs to '" + own + "', and operates on that alone";
}

bool PeerAccess::sees(const SpaceOwner& owner) {
  const std::string& own = tenant();
  if (own.empty()) return true;
  return owner.share.empty() ? owner.tenant == own : share_denial(owner.share, Right::kBlocks).empty();
}

std::string PeerAccess::sight() {
  const AccessGrant& own = grant();
  return fmt::format("{} {} {}", version_, own.roles, own.tenant);
}

bool PeerAccess::sees_blocks(const SpaceOwner& owner) {
  return space_denial(owner, Right::kRead).empty() || space_denial(owner, Right::kObserve).empty();
}

SpaceOwner owner_named(std::string_view name) {
  constexpr std::string_view kShare = "share:";
  if (name.starts_with(kShare)) return {.share = std::string(name.substr(kShare.size()))};
  return {.tenant = std::string(name)};
}

SpaceOwner owner_of(const NamespaceRecord& stored) {
  SpaceOwner owner{.share = std::string(stored.field(NamespaceRecord::kShare))};
  if (owner.share.empty()) owner.tenant = stored.owner();
  owner.is_salted = !stored.field(NamespaceRecord::kNodeSalt).empty();
  return owner;
}

Result<StoredSpace, Failure> PeerAccess::stored(const NamespaceRecord& asked) {
  const auto bad = [](const std::string& why) { return Failure(Errc::kBadRequest, why); };
  const std::string vouched(asked.field(NamespaceRecord::kNodeTenant)), named(asked.field("tenant"));
  const auto secret = is_watched() ? control_->secret() : nullptr;
  if (!asked.field(NamespaceRecord::kNodeSalt).empty()) return bad("field \"node_salt\" is added by nodes, never sent");
  if (!vouched.empty() && !secret) return bad("field \"node_tenant\" is for nodes that have a tenant-secret-file");
  const AccessGrant& own = grant();
  SpaceOwner owner{.share = std::string(asked.field(NamespaceRecord::kShare))};
  if (!owner.share.empty()) {
    if (!named.empty() || !vouched.empty())
      return bad("field \"tenant\" is not allowed beside \"share\": what is shared belongs to no tenant");
  } else if (!vouched.empty()) {
    if (!named.empty() && named != vouched) return bad("field \"node_tenant\" is not the record's tenant");
    owner.tenant = vouched;
  } else {
    // With a secret, a record may leave out its tenant: the node has identified it.
    owner.tenant = secret && named.empty() ? own.tenant : named;
  }
  owner.is_salted = secret != nullptr && (!owner.share.empty() || !vouched.empty() || !own.tenant.empty());
  if (const std::string why = space_denial(owner, Right::kBlocks); !why.empty())
    return Failure(Errc::kPermissionDenied, why);
  if (!owner.is_salted) return StoredSpace{asked, std::move(owner)};
  owner.epoch = secret->epoch();
  const bool is_shared = !owner.share.empty();
  auto record = asked.with({{std::string(NamespaceRecord::kNodeTenant), owner.tenant},
                            {std::string(NamespaceRecord::kNodeSalt),
                             is_shared ? secret->salt_of_share(owner.share) : secret->salt_of_tenant(owner.tenant)}});
  if (!record) return record.error();  // already at the maximum length
  return StoredSpace{*std::move(record), std::move(owner)};
}

std::string PeerAccess::space_denial(const SpaceOwner& owner, Right right) {
  if (!is_watched()) return "";
  const AccessGrant& own = grant();
  if (!own.tenant.empty() && owner.share.empty()) {
    if (own.tenant == owner.tenant) return "";
    return fmt::format("the namespace's record has the tenant '{}', and {} belongs to '{}'", printable(owner.tenant),
                       who(), own.tenant);
  }
  if (owner.share.empty() && !owner.is_salted) return "";
  if (!own.tenant.empty()) return share_denial(owner.share, right);
  // A peer without a tenant. An operator's right was checked before; nodes store for all tenants and read for none.
  if (right == Right::kOperate) return "";
  if (right == Right::kBlocks && has_right(own.roles, Right::kOperate)) return "";
  if (right != Right::kRead && has_right(own.roles, Right::kForTenants)) return "";
  if (!owner.share.empty()) return share_denial(owner.share, right);
  if (right == Right::kRead) return "a tenant's blocks are for its own clients, and " + who() + " belongs to no tenant";
  return fmt::format("the right '{}' is missing (roles with it: {}); {} has: {}", right_name(Right::kForTenants),
                     roles_text(roles_with(Right::kForTenants)), who(), roles_text(own.roles));
}

/// The text is the same for unknown shares, so that names of shares cannot be tried out.
std::string PeerAccess::share_denial(const std::string& share, Right right) {
  const SharePolicy* const found = policy_ == nullptr ? nullptr : policy_->find_share(share);
  const std::string& tenant = grant_.tenant;
  const bool reads = found != nullptr && found->is_reader(tenant),
             writes = found != nullptr && found->is_writer(tenant);
  if (right == Right::kRead ? reads : right == Right::kBlocks ? reads || writes : writes) return "";
  const char* const missing = right == Right::kRead ? "read" : right == Right::kBlocks ? "read or write" : "write";
  return fmt::format("the right '{}' in the share '{}' is missing; {}{}", missing, printable(share), who(),
                     tenant.empty() ? " belongs to no tenant" : " belongs to '" + tenant + "'");
}

}  // namespace kv
