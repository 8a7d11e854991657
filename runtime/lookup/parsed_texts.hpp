// parsed_texts.hpp -- ParsedTexts: parses each different text once. Thousands of rows of a database share a few
// problems and some dozens of configurations. One thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "leanattn/error.hpp"

namespace leanattn {
inline namespace v1 {

/// Remembers the result for every text that it was given.
template <class T>
class ParsedTexts {
 public:
  explicit ParsedTexts(Result<T> (*parse)(std::string_view)) : parse_(parse) {}
  /// The result lives as long as this object.
  const Result<T>& operator()(const std::string& text) {
    const auto found = parsed_.find(text);
    return found != parsed_.end() ? found->second : parsed_.emplace(text, parse_(text)).first->second;
  }

 private:
  Result<T> (*parse_)(std::string_view);
  std::unordered_map<std::string, Result<T>> parsed_;
};

}  // namespace v1
}  // namespace leanattn
