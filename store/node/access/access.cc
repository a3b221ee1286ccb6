#include "store/node/access/access.h"

#include <cerrno>
#include <fstream>
#include <utility>

#include "base/assert.h"
#include "base/printable.h"

namespace kv {
namespace {

Result<std::string, Failure> read_text(const std::string& path) {
  const auto fail = [&](error_code why) {
    return Failure(why, "policy-file: " + printable(path) + ": cannot be read: " + why.message());
  };
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(last_errno());
  std::string text(AccessPolicy::kTextBytesMax + 1, '\0');  // one more, so that a longer file is refused and not cut
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return fail(last_errno());
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

Result<std::unique_ptr<AccessControl>, Failure> AccessControl::open(const std::string& file, Room room) {
  auto control = std::make_unique<AccessControl>();
  control->room_ = room;
  control->file_ = file;
  if (file.empty()) return control;
  if (Failure failed = control->read(FileStamp::of(file)); failed.code) return failed;
  control->reloads_ = 0;
  return control;
}

/// `seen` was looked at before the file is read: what changes in between is then seen as a change.
Failure AccessControl::read(const FileStamp& seen) {
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
  const std::lock_guard lock(mutex_);
  stamp_ = seen;
  last_failed_ = !parsed;
  if (!parsed) {
    ++failures_;
    return parsed.error();
  }
  ++reloads_;
  policy_ = std::move(*parsed);
  tenants_.set(policy_->tenants());  // before the version tells sessions to look
  version_.fetch_add(1, std::memory_order_release);
  return {};
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
  return read(FileStamp::of(file_));
}

std::optional<Failure> AccessControl::reload_if_changed() {
  if (!has_policy()) return std::nullopt;
  const std::lock_guard lock(reading_);
  const FileStamp now = FileStamp::of(file_);
  {
    const std::lock_guard state(mutex_);
    if (now == stamp_) return std::nullopt;
  }
  return read(now);
}

AccessGrant AccessControl::grant_of(const PeerIdentity& peer) const {
  if (!has_policy()) return {.roles = kAllRoles};
  const auto policy = [&] {
    const std::lock_guard lock(mutex_);
    return policy_;
  }();
  const AccessGrant* const found = policy->find(peer);
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
  values.push_back({"policy_reloads", static_cast<double>(reloads_), true, "Times that policy-file was read again"});
  values.push_back({"policy_reload_failures", static_cast<double>(failures_), true, "Reloads that found a bad file"});
  values.push_back({"policy_reload_failed", last_failed_ ? 1.0 : 0.0, false,
                    "1: policy-file is bad, and the policy in use is older than it is"});
  values.push_back({"tokens_refused", static_cast<double>(tokens_refused_.load()), true,
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

const AccessGrant& PeerAccess::grant() {
  if (control_ == nullptr) return grant_;
  // The version first: a policy that comes in between is then looked at the next time.
  if (const std::uint64_t now = control_->version(); now != version_) {
    grant_ = control_->grant_of(peer_);
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
  return peer_.text() + (grant_.section.empty() ? " (no section of the policy)" : " (section " + grant_.section + ")");
}

std::string PeerAccess::denial(std::string_view what, Right right) {
  const Roles roles = grant().roles;
  if (has_right(roles, right)) return "";
  const Roles enough = roles_with(right);
  return std::string(what) + ": the right '" + right_name(right) +
         "' is missing (roles with it: " + roles_text(enough) + "); " + who() + " has: " + roles_text(roles);
}

std::string PeerAccess::tenant_denial(std::string_view tenant) {
  const std::string& own = grant().tenant;
  if (own.empty() || own == tenant) return "";
  return "the namespace's record has the tenant '" + printable(tenant) + "', and " + who() + " belongs to '" + own +
         "'";
}

}  // namespace kv
