// transport/tls/tls_identity.h: names in certificates, and rules that allow them.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct asn1_string_st;
struct x509_st;

namespace kv {

/// The names of a certificate's owner: "uri:spiffe://example.org/worker" or "dns:worker-3.example.org". Only subject
/// alternative names count, not the common name. DNS names are in lower case. A name with a byte that is no visible
/// ASCII character is skipped: a zero in it would show one name to a person and another to a C program.
std::vector<std::string> names_of(x509_st& certificate);

/// End of its validity; long past if unreadable.
std::chrono::system_clock::time_point end_of(const x509_st& certificate);
/// An ASN1_TIME, or 2255 if it is later; nullopt if there is none or it is unreadable.
std::optional<std::chrono::system_clock::time_point> time_of(const asn1_string_st* time);

/// Whether one of `names` is allowed by one of `patterns`, each of which is
///   spiffe://example.org/worker      this URI (anything with "://")
///   spiffe://example.org/workers/*   every URI that goes on behind this slash
///   worker-3.example.org             this DNS name, in any case
///   *.example.org                    every DNS name with one label more
/// Thread safety: any.
bool is_allowed(std::span<const std::string> names, std::span<const std::string> patterns);

/// Whether a certificate with these names proves this host: by its DNS name, or a wildcard for its first label.
bool is_host_of(std::span<const std::string> names, std::string_view host);

/// Splits patterns at commas; spaces around them are dropped.
std::vector<std::string> split_patterns(std::string_view text);

/// Describes the error in a pattern, and the allowed forms; empty: valid.
std::string check_name_pattern(std::string_view pattern);

}  // namespace kv
