// program.hpp -- a PTX module as arrays of instructions that a warp executes for its 32 lanes at once. Any thread may
// read a program; nothing changes it once it is decoded.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace emulator {

constexpr int kLanes = 32;
constexpr std::uint32_t kAllLanes = 0xffffffffu;

struct Warp;
struct Instruction;
using Handler = void (*)(Warp&, const Instruction&);

/// Where a register's 32 values start in the warp's register file; if negative, the complement of where a constant's
/// start among the program's. A predicate is one word, whose bits are the lanes.
using Operand = std::int32_t;
constexpr Operand kNoOperand = INT32_MIN;

struct Instruction {
  Handler run = nullptr;
  const Operand* operands = nullptr;  ///< results first
  std::uint16_t results = 0, count = 0;
  Operand guard = kNoOperand;
  bool guard_negated = false;
  bool names_pinned = false;       ///< an operand may be an accumulator of a matrix instruction that is not done
  std::uint32_t target = 0;        ///< of a branch or a call
  std::int64_t immediate[2] = {};  ///< offsets of addresses, and what else the handler knows
  int line = 0;
};

struct Parameter {
  std::int64_t offset, bytes;
};

/// An entry of a module.
struct Kernel {
  std::string name;
  std::uint32_t first = 0;  ///< instruction
  std::vector<Parameter> parameters;
  std::int64_t parameter_bytes = 0, register_bytes = 0;
  int max_threads = 0, ctas_per_sm = 0, cluster = 1;
};

struct Program {
  std::vector<Instruction> code;
  std::deque<std::vector<Operand>> operands;
  std::vector<unsigned char> constants;  ///< each 32 times, for the lanes
  std::map<std::string, Kernel, std::less<>> kernels;
  std::int64_t local_bytes = 0;   ///< of a lane: local variables, and what functions are given and give back
  std::int64_t shared_bytes = 0;  ///< of a CTA, where its dynamic shared memory starts
  std::vector<unsigned char> globals;
  std::vector<std::string> lines;  ///< of the text, for reports

  /// The text of an instruction's line.
  std::string text_of(const Instruction& in) const;
};

/// Shared memory starts behind what the driver keeps for itself.
constexpr std::int64_t kReservedShared = 1024;

/// Ends the process where the text has something that the emulator does not know.
std::shared_ptr<const Program> decode(std::string_view ptx);

}  // namespace emulator
