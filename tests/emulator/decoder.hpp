// decoder.hpp -- Decoder: the instruction at hand, as the files that know instructions see it. One thread.
#pragma once

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/emulator/machine.hpp"
#include "tests/emulator/program.hpp"
#include "tests/emulator/ptx_text.hpp"

namespace emulator {

enum class Type : std::uint8_t {
  none,
  pred,
  u8,
  u16,
  u32,
  u64,
  s8,
  s16,
  s32,
  s64,
  b8,
  b16,
  b32,
  b64,
  b128,
  f16,
  bf16,
  f16x2,
  bf16x2,
  f32,
  f64
};
int bytes_of(Type type);
Type type_named(std::string_view name);
inline bool is_signed(Type type) { return type >= Type::s8 && type <= Type::s64; }
inline bool is_float(Type type) { return type >= Type::f16; }

/// An instruction whose operands are still numbers of registers.
struct RawInstruction {
  Instruction in;
  std::vector<Operand> operands;  ///< results first; registers, constants as they stay, or kFixed + a place
  Operand guard = kNoOperand;
  bool ends = false;                 ///< nothing falls through
  std::vector<std::string> targets;  ///< labels
  std::string callee;
  std::vector<std::uint32_t> places;  ///< of the labels
};
constexpr Operand kFixed = 1 << 28;

class Decoder {
 public:
  const std::string& opcode() const { return statement_->opcode; }

  // Modifiers, from the left. What nobody takes is unknown to the emulator.
  bool take(std::string_view modifier);
  /// Takes whichever of these is next; "" if none is.
  std::string_view take_any(std::initializer_list<std::string_view> modifiers);
  Type take_type();  ///< Type::none where the next modifier is no type
  Type type();       ///< the next modifier, which must be a type
  bool more() const { return next_part_ < parts_.size(); }

  std::size_t arguments() const { return statement_->arguments.size(); }
  const Argument& argument(std::size_t i) const;

  // Operands. A register of another width than the type's is converted on the way.
  Operand source(const Argument& a, Type type);
  Operand source(std::size_t i, Type type) { return source(argument(i), type); }
  Operand destination(const Argument& a, Type type);
  Operand destination(std::size_t i, Type type) { return destination(argument(i), type); }
  std::vector<Operand> sources(std::size_t i, Type type);       ///< of a list, or of one
  std::vector<Operand> destinations(std::size_t i, Type type);  ///< of a list, or of one
  Operand temporary(Type type);
  template <class T>
  Operand constant(T value) {
    return constant_of(&value, sizeof value);
  }
  /// The register of an address, as u64, and its offset.
  Operand address(std::size_t i, std::int64_t& offset);
  std::int64_t integer(std::size_t i) const;
  /// The space of a variable that the operand or address names; "" if it names none.
  std::string_view space_of(const Argument& a) const;
  std::int64_t place_of(const Argument& a) const;
  /// Keeps a register at one place for all of the function.
  void pin(Operand number) { pinned_.insert(number); }

  RawInstruction& emit(Handler run, std::vector<Operand> results, std::vector<Operand> sources);

  [[noreturn]] void unknown(const std::string& why = "") const;

 private:
  friend class ModuleDecoder;
  struct Register {
    Operand number;
    Type type;
  };
  struct Symbol {
    std::string space;
    std::int64_t offset;
  };
  const Register* register_named(std::string_view name) const;
  const Register& register_of(const Argument& a) const;
  const Symbol* symbol_named(std::string_view name) const;
  Operand constant_of(const void* value, int bytes);

  const Statement* statement_ = nullptr;
  std::vector<std::string_view> parts_;
  std::size_t next_part_ = 0;
  std::vector<std::map<std::string, Register, std::less<>>> scopes_;
  std::vector<std::map<std::string, Symbol, std::less<>>> symbols_;
  std::vector<int> widths_;  // of registers: bytes a lane; 0: a predicate
  std::map<std::string, Operand> constants_;
  std::vector<unsigned char> constant_bytes_;
  std::vector<RawInstruction> raw_;
  std::vector<std::pair<Register, std::pair<Operand, Type>>> widen_;  // after the instruction at hand
  std::set<Operand> pinned_;
  Operand guard_ = kNoOperand;
};

using Select = void (*)(Decoder&);
/// What decodes instructions, by the first part of their opcodes.
using Selects = std::map<std::string_view, Select>;
void add_arithmetic(Selects& selects);
void add_conversions(Selects& selects);
void add_memory(Selects& selects);
void add_lane_exchange(Selects& selects);
void add_synchronisation(Selects& selects);
void add_matrix(Selects& selects);
void add_warpgroup_matrix(Selects& selects);
void add_copies(Selects& selects);
void select_store_async(Decoder& decoder);

/// Copies a register of the first type, with its sign where that has one, to a register of the second.
Handler widening(Type from, Type to);

/// Places for the registers of a function, of so many bytes a lane: those that are never alive together share them.
/// Pinned ones have one for themselves. Returns the end of the places, which start at `begin`.
std::int64_t place_registers(const std::vector<RawInstruction>& code, const std::vector<int>& widths,
                             const std::set<Operand>& pinned, std::int64_t begin, std::vector<Operand>& places);

}  // namespace emulator
