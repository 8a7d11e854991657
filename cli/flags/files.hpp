// files.hpp -- the files that flags name: read with a bound, decompressed, written whole. One thread at a time.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "cli/console/console.hpp"
#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// The text of the file that `flag` names, unpacked if it was compressed by gzip: a regular file or a pipe. The file
/// and the text have at most 16 MiB. Errors: invalid_argument; the message names flag, file and reason.
Result<std::string> read_given(std::string_view flag, const std::string& file);

/// Makes `text` the contents of the file that --out names (detail::replace_file). Errors: those of replace_file; the
/// message names flag, file and reason.
Result<void> write_out(const std::filesystem::path& file, std::string_view text);
/// Whether write_out() could write the file now, so that minutes are not spent for nothing; makes an empty one where
/// there is none. Errors: those of write_out().
Result<void> check_out(const std::filesystem::path& file);
/// Prints the text of a kernel, or writes it to the file that --out names, unless that is empty. Returns the exit code.
int put_kernel(const Console& console, const std::string& file, const std::string& kernel, std::string_view text);

}  // namespace v1
}  // namespace leanattn
