// base/text/output.h: standard output at a program's start and end.
#pragma once

namespace kv {

/// At a program's start, before it opens anything: numbers 0 to 2 that the caller has closed are taken by /dev/null,
/// for reading only. Otherwise the next socket or eventfd would get them, and the program's output. Writing there
/// fails.
void hold_standard_numbers();

/// At a program's end: whether all that was written to standard output has arrived. Returns `status` if so. Otherwise,
/// as on a full disk, writes the reason to standard error and returns `status`, or 1 if that was 0: a script must not
/// take a part for the whole. Writes nothing to standard output afterwards. Thread safety: none.
int end_output(const char* program, int status);

}  // namespace kv
