# Writes the files of the page as C++ strings: cmake -DOUT=FILE -DFOLDER=... -DSTYLES=a.css -DSCRIPTS="a.js b.js" -P embed_page.cmake
function(literal name result)
  file(READ ${FOLDER}/${name} text)
  foreach(mark [[)kvpage"]] "</script" "</style" "<!--")  # ends of the literal, of the element, and what changes how a script is read
    string(FIND "${text}" "${mark}" at)
    if(NOT at EQUAL -1 AND NOT name MATCHES "\\.html$")
      message(FATAL_ERROR "${name} must not contain ${mark}")
    endif()
  endforeach()
  set(${result} "R\"kvpage(${text})kvpage\"" PARENT_SCOPE)
endfunction()

function(list_of names result)
  set(all "")
  separate_arguments(names)
  foreach(name IN LISTS names)
    literal(${name} one)
    string(APPEND all "    // ${name}\n    ${one},\n")
  endforeach()
  set(${result} "${all}" PARENT_SCOPE)
endfunction()

literal(index.html document)
list_of("${STYLES}" styles)
list_of("${SCRIPTS}" scripts)
file(WRITE ${OUT} "// Made by store/node/page/embed_page.cmake.
#include \"store/node/status/page_text.h\"

#include <array>

namespace kv::page_text {
namespace {
constexpr std::string_view kEachStyle[] = {
${styles}};
constexpr std::string_view kEachScript[] = {
${scripts}};
}  // namespace

const std::string_view kDocument = ${document};
const std::span<const std::string_view> kStyles = kEachStyle, kScripts = kEachScript;

}  // namespace kv::page_text
")
