#include "store/node/status/page.h"

#include <openssl/evp.h>

#include <array>
#include <string_view>

#include "base/assert.h"
#include "store/node/status/page_text.h"

namespace kv {
namespace {

/// The form in which a policy names an element by its text: 'sha256-BASE64'.
std::string source_of(std::string_view text) {
  std::array<unsigned char, 32> digest;
  std::array<unsigned char, 45> base64;
  KV_ASSERT(EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr) == 1);
  const int length = EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(digest.size()));
  return "'sha256-" + std::string(reinterpret_cast<const char*>(base64.data()), static_cast<std::size_t>(length)) + "'";
}

void replace(std::string& text, std::string_view mark, std::string_view with) {
  const std::size_t at = text.find(mark);
  KV_ASSERT(at != std::string::npos);
  text.replace(at, mark.size(), with);
}

StatusPage make_page() {
  std::string style = "\n", script = "\n";
  for (const std::string_view part : page_text::kStyles) style += part;
  for (const std::string_view part : page_text::kScripts) script += part;
  StatusPage page{.html = std::string(page_text::kDocument), .policy = {}};
  replace(page.html, "<style></style>", "<style>" + style + "</style>");
  replace(page.html, "<script></script>", "<script>" + script + "</script>");
  page.policy = "default-src 'none'; script-src " + source_of(script) + "; style-src " + source_of(style) +
                "; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                "require-trusted-types-for 'script'; trusted-types 'none'";
  return page;
}

}  // namespace

const StatusPage& status_page() {
  static const StatusPage page = make_page();
  return page;
}

}  // namespace kv
