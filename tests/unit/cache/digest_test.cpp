// digest_test.cpp -- Sha256 against another implementation (Python's hashlib), over every way that fields can fall on
// its buffer.
#include "cache/digest.hpp"

#include <gtest/gtest.h>

#include <string>

namespace leanattn {
namespace {

using detail::hex;
using detail::Sha256;

TEST(Sha256, IsOverTheFieldsInTheirOrderWhereverTheyFall) {
  Sha256 all;
  std::string digests;
  for (std::size_t length = 0; length < 2300; ++length) {
    const std::string text(length, static_cast<char>('a' + length % 26));
    digests += hex(Sha256().text(text).number(-2).text("").text("end").finish());
  }
  EXPECT_EQ(hex(all.text(digests).finish()), "993f5766126da60a881e485b3d13c61d2ca83574cf70752ef561ff48e02b424e");
}

TEST(Sha256, OfManyFieldsBeginsAnewWithEachObject) {
  for (int round = 0; round < 2; ++round) {
    Sha256 sha;
    for (int i = 0; i < 1000; ++i) sha.number(i);
    EXPECT_EQ(hex(sha.finish()), "702746827e553786bb026ac120cb58745fef3d3f554c33891809001cc37639f0");
  }
}

}  // namespace
}  // namespace leanattn
