// store/node/status/page_text.h: the files of store/node/page/, made at build time (embed_page.cmake).
#pragma once

#include <span>
#include <string_view>

namespace kv::page_text {

extern const std::string_view kDocument;
extern const std::span<const std::string_view> kStyles, kScripts;  ///< In order of inclusion.

}  // namespace kv::page_text
