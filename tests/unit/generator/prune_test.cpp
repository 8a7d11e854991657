// What an emitted kernel keeps of its modules: the branches that are taken, and what its entry point reaches.
#include "generator/prune/prune.hpp"

#include <gtest/gtest.h>

#include <regex>

namespace leanattn {
namespace {

std::string resolved(std::string_view source) { return resolve_branches(source, 900); }

TEST(ResolveBranches, AKnownConditionLeavesTheBranchThatIsTaken) {
  constexpr std::string_view kSource = R"(constexpr int kPages = 0;
void f() {
  if constexpr (kPages > 0) {
    g();
  } else {
    h();
    i();
  }
  j();
}
)";
  EXPECT_EQ(resolved(kSource), R"(constexpr int kPages = 0;
void f() {
  h();
  i();
  j();
}
)");
}

TEST(ResolveBranches, ABranchThatIsNotTakenGoesWithItsComments) {
  constexpr std::string_view kSource = R"(constexpr bool kAppend = false;
void f() {
  g();
  // New tokens come first.
  if constexpr (kAppend) append();  // into the cache
  h();
}
)";
  EXPECT_EQ(resolved(kSource), R"(constexpr bool kAppend = false;
void f() {
  g();
  h();
}
)");
}

TEST(ResolveBranches, NothingFollowsAReturnThatIsNowUnconditional) {
  constexpr std::string_view kSource = R"(constexpr int kBytes = 1;
int f(int x) {
  if constexpr (kBytes == 1) return x;
  const int y = 2 * x;
  return y;
}
int g() { return 1; }
)";
  EXPECT_EQ(resolved(kSource), R"(constexpr int kBytes = 1;
int f(int x) {
  return x;
}
int g() { return 1; }
)");
}

TEST(ResolveBranches, BranchesInsideABranchAreResolvedWhereverTheyStand) {
  constexpr std::string_view kSource = R"(constexpr bool kYes = true, kNo = false;
int f() {
  if constexpr (kYes) {
    if constexpr (kNo) first();
    g();
    if constexpr (kYes) {
      h();
      // The last one.
      if constexpr (kNo) last();
    }
  }
  return 1;
}
int after() { return 2; }
)";
  EXPECT_EQ(resolved(kSource), R"(constexpr bool kYes = true, kNo = false;
int f() {
  g();
  h();
  return 1;
}
int after() { return 2; }
)");
}

TEST(ResolveBranches, TheBodyOfALoopStaysOneStatement) {
  constexpr std::string_view kSource = R"(constexpr bool kTwo = true, kNone = false;
void f() {
  for (int i = 0; i < 2; i++)
    if constexpr (kTwo) {
      g();
      h();
    }
  for (int i = 0; i < 2; i++)
    if constexpr (kNone) g();
  i();
}
)";
  const std::string text = resolved(kSource);
  EXPECT_TRUE(std::regex_search(text, std::regex("i\\+\\+\\)\\s*\\{\\s*g\\(\\);\\s*h\\(\\);\\s*\\}"))) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("i\\+\\+\\)\\s*\\{\\}\\s*i\\(\\);"))) << text;
}

TEST(ResolveBranches, WhatIsNotKnownStays) {
  for (const std::string_view source :
       {"template <int kWords>\nvoid f() {\n  if constexpr (kWords > 1) g();\n}\n",
        "constexpr int kWords = 4;\ntemplate <int kWords>\nvoid f() {\n  if constexpr (kWords > 1) g();\n}\n",
        "void f(int x) {\n  if (x > 1) {\n    g();\n  } else {\n    h();\n  }\n}\n",
        "constexpr int kBytes = sizeof(int);\nvoid f() {\n  if constexpr (kBytes == 4) g();\n}\n",
        "constexpr int kBytes = 1;\nvoid f() {\n  constexpr int kBytes = 2;\n  if constexpr (kBytes == 1) g();\n}\n",
        "const char* f() { return \"if constexpr (true) { x } // \"; }\n"})
    EXPECT_EQ(resolved(source), source);
}

TEST(ResolveBranches, ConditionsAreEvaluatedAsCppDoes) {
  const auto taken = [](std::string_view condition) {
    const std::string text = resolved(
        "enum { kA, kB = 3, kC };\nconstexpr int kOne = 1, kSeven = 7;\nconstexpr float kHalf = 0.5f;\n"
        "void f() {\n  if constexpr (" +
        std::string(condition) + ") yes();\n}\n");
    EXPECT_EQ(text.find("if constexpr"), std::string::npos) << condition;
    return text.find("yes()") != std::string::npos;
  };
  for (const std::string_view yes :
       {"kOne", "!kA", "kB == 3 && kC == 4", "kSeven / 2 == 3", "kSeven % 4 == 3", "kHalf > 0", "unknown || kOne",
        "kOne + kSeven * 2 == 15", "(kOne ? kB : kC) == 3", "kA == 0 || unknown(kA, 2)"})
    EXPECT_TRUE(taken(yes)) << yes;
  for (const std::string_view no : {"kA", "!kOne", "kOne && kA", "unknown && kA", "kSeven <= 6", "-kOne > kA"})
    EXPECT_FALSE(taken(no)) << no;
}

TEST(ResolveBranches, DirectivesFollowTheArchitecture) {
  constexpr std::string_view kSource = R"(#if defined(__CUDACC__)
#define DEVICE __device__
#else
#define DEVICE
#endif
#if !defined(DEVICE)
#define DEVICE
#endif
#if __CUDA_ARCH__ >= 890
fast
#else
slow
#endif
#pragma unroll
)";
  EXPECT_EQ(resolve_branches(kSource, 900), "#define DEVICE __device__\nfast\n#pragma unroll\n");
  EXPECT_EQ(resolve_branches(kSource, 800), "#define DEVICE __device__\nslow\n#pragma unroll\n");
}

TEST(Shorten, AFunctionOfOneStatementTakesOneLine) {
  constexpr std::string_view kSource = R"(LEAN_DEVICE int f(int x) {
  return 2 * x;
}
struct S {
  LEAN_DEVICE int g() const {
    return 1;
  }
  const auto twice = [&] {
    g();
  };
};
LEAN_DEVICE int h(int x) {
  return x;  // said of this
}
LEAN_DEVICE int i(int x) {
  x++;
  return x;
}
if (x) {
  f();
}
)";
  EXPECT_EQ(shorten(kSource), R"(LEAN_DEVICE int f(int x) { return 2 * x; }
struct S {
  LEAN_DEVICE int g() const { return 1; }
  const auto twice = [&] { g(); };
};
LEAN_DEVICE int h(int x) {
  return x;  // said of this
}
LEAN_DEVICE int i(int x) {
  x++;
  return x;
}
if (x) {
  f();
}
)");
  const std::string wide = "LEAN_DEVICE int f(int x) {\n  return " + std::string(90, 'x') + ";\n}\n";
  EXPECT_EQ(shorten(wide), wide) << "it does not fit into 120 columns";
}

TEST(Shorten, ALoopAndItsPragmaTakeOneLine) {
  const std::string wide = "#pragma unroll\n    for (" + std::string(110, 'x') + ")\n";
  EXPECT_EQ(
      shorten("  f();\n#pragma unroll\n    for (int i = 0; i < 2; i++) {\n#pragma unroll 1\n      for (;;) g();\n" +
              wide),
      "  f();\n    LEAN_UNROLL for (int i = 0; i < 2; i++) {\n#pragma unroll 1\n      for (;;) g();\n" + wide);
}

TEST(Shorten, CallsOfFunctionsThatDoNothingGo) {
  constexpr std::string_view kSource = R"(LEAN_DEVICE void begin(int) {
}
LEAN_DEVICE void end(int) {}
LEAN_DEVICE void work(int) { done(); }
struct S {
  LEAN_DEVICE void work_done() {}
};
void kernel(S s) {
  begin(1);
  begin_with(2);
  work(3);
  s.work_done();
  end(4);
}
)";
  EXPECT_EQ(shorten(kSource), R"(LEAN_DEVICE void begin(int) {}
LEAN_DEVICE void end(int) {}
LEAN_DEVICE void work(int) { done(); }
struct S {
  LEAN_DEVICE void work_done() {}
};
void kernel(S s) {
  begin_with(2);
  work(3);
  s.work_done();
}
)");
}

constexpr std::string_view kModules = R"(//// a.cuh -- numbers.

// What b is made of.
constexpr int kA = 1;
constexpr int kB = 2 * kA, kUnused = 3;
constexpr int kLonely = 4;
constexpr int kSize = 8;
static_assert(sizeof(Pair) == kSize, "kept with Pair, and keeps kSize");
static_assert(kLonely == 4, "gone with kLonely");

//// b.cuh -- what nobody needs.

template <class T>
void unreached(T x) {
  reached();
}
enum { kFirst, kSecond };

//// c.cuh -- the kernel.

struct alignas(16) Pair {
  int x, y;
};
// Calls nothing.
int reached(Pair p) { return p.x + kB; }
extern "C" __global__ void __launch_bounds__(kA) kernel(int* out) { *out = reached({1, 2}); }
)";

TEST(RemoveUnreached, OnlyWhatTheKernelReachesStaysAndWhatItsChecksName) {
  EXPECT_EQ(remove_unreached(kModules), R"(//// a.cuh -- numbers.

// What b is made of.
constexpr int kA = 1;
constexpr int kB = 2 * kA, kUnused = 3;
constexpr int kSize = 8;
static_assert(sizeof(Pair) == kSize, "kept with Pair, and keeps kSize");

//// c.cuh -- the kernel.
struct alignas(16) Pair {
  int x, y;
};
// Calls nothing.
int reached(Pair p) { return p.x + kB; }
extern "C" __global__ void __launch_bounds__(kA) kernel(int* out) { *out = reached({1, 2}); }
)");
}

TEST(RemoveUnreached, IsDoneOnce) {
  const std::string once = remove_unreached(kModules);
  EXPECT_EQ(remove_unreached(once), once);
}

}  // namespace
}  // namespace leanattn
