#include "cli/flags/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>

#include "cache/files.hpp"

namespace leanattn {
inline namespace v1 {
namespace {

constexpr std::size_t kLargestText = std::size_t{16} << 20;
constexpr std::string_view kGzipMagic = "\x1f\x8b";

/// The state of zlib, which frees itself.
struct Inflation {
  z_stream stream{};
  Inflation() = default;
  Inflation(const Inflation&) = delete;
  Inflation& operator=(const Inflation&) = delete;
  ~Inflation() { ::inflateEnd(&stream); }
};

/// What gzip made of a text, turned back: at most `most` bytes. Errors: invalid_argument, with the reason.
Result<std::string> unpacked(std::string_view packed, std::size_t most) {
  constexpr int kGzip = 16;  // added to the size of the window: the format is gzip's
  const auto refuse = [](std::string why) { return fail(ErrorCode::invalid_argument, std::move(why)); };
  Inflation inflation;
  z_stream& stream = inflation.stream;
  if (::inflateInit2(&stream, kGzip + MAX_WBITS) != Z_OK) return fail(ErrorCode::out_of_memory, "zlib cannot start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string text;
  char part[1 << 16];
  for (;;) {
    stream.next_out = reinterpret_cast<Bytef*>(part);
    stream.avail_out = sizeof part;
    const int status = ::inflate(&stream, Z_NO_FLUSH);
    text.append(part, sizeof part - stream.avail_out);
    if (text.size() > most) return refuse(fmt::format("this is larger than {} MiB when it is unpacked", most >> 20));
    if (status == Z_STREAM_END) {
      if (stream.avail_in == 0) return text;
      ::inflateReset(&stream);  // Compressed files may follow each other in one.
    } else if (status == Z_BUF_ERROR || (status == Z_OK && stream.avail_in == 0 && stream.avail_out > 0)) {
      return refuse("what gzip made of it is cut off");
    } else if (status != Z_OK) {
      return refuse(fmt::format("gzip cannot have made this ({})", stream.msg != nullptr ? stream.msg : "damaged"));
    }
  }
}

}  // namespace

Result<std::string> read_given(std::string_view flag, const std::string& file) {
  Result<std::string> text = detail::read_file(file, kLargestText);
  if (text && text->starts_with(kGzipMagic)) {
    text = unpacked(*text, kLargestText);
    if (!text) text.error().message = file + ": " + text.error().message;
  }
  if (!text) {
    text.error().message = fmt::format("{} {}", flag, text.error().message);
    text.error().code = ErrorCode::invalid_argument;
  }
  return text;
}

Result<void> check_out(const std::filesystem::path& file) {
  const FileDescriptor descriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666));
  if (descriptor) return {};
  return fail(ErrorCode::invalid_argument,
              detail::with_errno(fmt::format("--out {}: cannot be written", file.string()), errno));
}

Result<void> write_out(const std::filesystem::path& file, std::string_view text) {
  Result<void> written = detail::replace_file(file, text);
  if (!written) written.error().message = "--out " + written.error().message;
  return written;
}

int put_kernel(const Console& console, const std::string& file, const std::string& kernel, std::string_view text) {
  if (file.empty()) {
    print(text);
    return kExitOk;
  }
  if (const Result<void> written = write_out(file, text); !written) return report_error(written.error());
  note(console, fmt::format("{} has the kernel {} ({} bytes).", file, kernel, text.size()));
  return kExitOk;
}

}  // namespace v1
}  // namespace leanattn
