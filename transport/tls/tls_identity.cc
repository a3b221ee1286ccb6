#include "transport/tls/tls_identity.h"

#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <memory>

#include "base/text/printable.h"

namespace kv {
namespace {

constexpr std::string_view kUri = "uri:", kDns = "dns:";
constexpr std::size_t kNameBytesMax = 2048, kNameCountMax = 64;

bool is_visible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

bool allows_uri(std::string_view pattern, std::string_view uri) {
  if (!pattern.ends_with("/*")) return uri == pattern;
  const std::string_view before = pattern.substr(0, pattern.size() - 1);
  return uri.size() > before.size() && uri.starts_with(before);
}

bool allows_dns(std::string_view pattern, std::string_view name) {
  if (!pattern.starts_with("*.")) return name == lower(pattern);
  const std::size_t dot = name.find('.');
  return dot != std::string_view::npos && dot > 0 && name.substr(dot) == lower(pattern.substr(1));
}

}  // namespace

std::vector<std::string> names_of(x509_st& certificate) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> found(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  std::vector<std::string> names;
  for (int i = 0; found && i < sk_GENERAL_NAME_num(found.get()) && names.size() < kNameCountMax; ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(found.get(), i);
    if (name->type != GEN_URI && name->type != GEN_DNS) continue;
    const ASN1_IA5STRING* const text = name->type == GEN_URI ? name->d.uniformResourceIdentifier : name->d.dNSName;
    const std::string_view bytes(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                                 static_cast<std::size_t>(ASN1_STRING_length(text)));
    if (bytes.empty() || bytes.size() > kNameBytesMax || !is_visible(bytes)) continue;
    names.push_back(name->type == GEN_URI ? std::string(kUri) + std::string(bytes) : std::string(kDns) + lower(bytes));
  }
  return names;
}

std::optional<std::chrono::system_clock::time_point> time_of(const asn1_string_st* time) {
  std::tm parts{};
  if (time == nullptr || ASN1_TIME_to_tm(time, &parts) != 1) return std::nullopt;
  // Year 9999 stands for "never" (RFC 5280), and is beyond the range of nanoseconds.
  constexpr std::time_t kLatest = 9'000'000'000;
  return std::chrono::system_clock::from_time_t(std::min(::timegm(&parts), kLatest));
}

std::chrono::system_clock::time_point end_of(const x509_st& certificate) {
  return time_of(X509_get0_notAfter(&certificate)).value_or(std::chrono::system_clock::time_point());
}

bool is_allowed(std::span<const std::string> names, std::span<const std::string> patterns) {
  const auto is_one = [&](const std::string& name) {
    const bool is_uri = name.starts_with(kUri);
    const std::string_view bare = std::string_view(name).substr(is_uri ? kUri.size() : kDns.size());
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      if (is_uri != (pattern.find("://") != std::string::npos)) return false;
      return is_uri ? allows_uri(pattern, bare) : allows_dns(pattern, bare);
    });
  };
  return std::any_of(names.begin(), names.end(), is_one);
}

bool is_host_of(std::span<const std::string> names, std::string_view host) {
  const std::string wanted = lower(host);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(kDns) && allows_dns(std::string_view(name).substr(kDns.size()), wanted);
  });
}

std::vector<std::string> split_patterns(std::string_view text) {
  std::vector<std::string> patterns;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string_view one = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    if (!one.empty()) patterns.emplace_back(one);
  }
  return patterns;
}

std::string check_name_pattern(std::string_view pattern) {
  const bool is_uri = pattern.find("://") != std::string_view::npos;
  const std::string_view fixed = !is_uri && pattern.starts_with("*.") ? pattern.substr(2)
                                 : is_uri && pattern.ends_with("/*")  ? pattern.substr(0, pattern.size() - 2)
                                                                      : pattern;
  const std::size_t scheme = fixed.find("://");
  const bool is_good = !fixed.empty() && pattern.size() <= kNameBytesMax && is_visible(pattern) &&
                       fixed.find('*') == std::string_view::npos &&
                       (!is_uri || (scheme != std::string_view::npos && scheme + 3 < fixed.size()));
  return is_good
             ? ""
             : "'" + printable(pattern) +
                   "', allowed are a URI such as spiffe://example.org/worker, or spiffe://example.org/workers/* for "
                   "all below it, and a DNS name, or *.example.org for all with one label more";
}

}  // namespace kv
