// transport/tls/tls_identity.h: names in certificates, and which of them are allowed.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct x509_st;

namespace kv {

/// The names that a certificate gives its owner: "uri:spiffe://example.org/worker" or "dns:worker-3.example.org". Only
/// subject alternative names count; the common name says nothing. DNS names are in lower case. A name with a byte that
/// is no visible ASCII character is left out: a zero in it would show one name to a person and another to a C program.
std::vector<std::string> names_of(x509_st& certificate);

/// The last moment at which it is good.
std::chrono::system_clock::time_point end_of(const x509_st& certificate);

/// Whether one of `names` is allowed by one of `patterns`, each of which is
///   spiffe://example.org/worker      this URI (anything with "://")
///   spiffe://example.org/workers/*   every URI that goes on behind this slash
///   worker-3.example.org             this DNS name, in any case
///   *.example.org                    every DNS name with one label more
/// Thread safety: any.
bool is_allowed(std::span<const std::string> names, std::span<const std::string> patterns);

/// Whether a certificate with these names proves to be this host: by its DNS name, or a wildcard for its first label.
bool is_host_of(std::span<const std::string> names, std::string_view host);

/// Patterns as people write them in one text, with commas between; spaces around them are dropped.
std::vector<std::string> split_patterns(std::string_view text);

/// What is wrong with a pattern, and what is allowed; empty: nothing.
std::string check_name_pattern(std::string_view pattern);

}  // namespace kv
