// decoder.cpp -- from statements to instructions: names become places, and widths are made to fit.
#include "tests/emulator/decoder.hpp"
#include "tests/emulator/matrix.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

namespace emulator {
namespace {

constexpr std::pair<std::string_view, Type> kTypes[] = {
    {"pred", Type::pred}, {"u8", Type::u8},       {"u16", Type::u16},       {"u32", Type::u32},   {"u64", Type::u64},
    {"s8", Type::s8},     {"s16", Type::s16},     {"s32", Type::s32},       {"s64", Type::s64},   {"b8", Type::b8},
    {"b16", Type::b16},   {"b32", Type::b32},     {"b64", Type::b64},       {"b128", Type::b128}, {"f16", Type::f16},
    {"bf16", Type::bf16}, {"f16x2", Type::f16x2}, {"bf16x2", Type::bf16x2}, {"f32", Type::f32},   {"f64", Type::f64}};

std::vector<std::string_view> parts_of(const std::string& opcode) {
  std::vector<std::string_view> parts;
  std::string_view rest = opcode;
  for (std::size_t dot; (dot = rest.find('.')) != std::string_view::npos; rest.remove_prefix(dot + 1))
    parts.push_back(rest.substr(0, dot));
  parts.push_back(rest);
  return parts;
}

/// The bits of a number as a value of the type.
std::uint64_t bits_of(const Argument& a, Type type) {
  if (a.kind != Argument::Kind::real) return static_cast<std::uint64_t>(a.integer);
  if (type == Type::f64 || type == Type::b64) return std::bit_cast<std::uint64_t>(a.real);
  return std::bit_cast<std::uint32_t>(static_cast<float>(a.real));
}

std::int64_t aligned(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

void run_copy_local(Warp& w, const Instruction& in) {
  const std::int64_t from = in.immediate[0] >> 32, to = in.immediate[0] & 0xffffffff;
  w.for_each_lane([&](int lane) {
    unsigned char* frame = w.local.data() + lane * w.launch->config.program->local_bytes;
    std::memmove(frame + to, frame + from, static_cast<std::size_t>(in.immediate[1]));
  });
}
void run_branch(Warp& w, const Instruction& in) { w.jump(in.target); }
void run_call(Warp& w, const Instruction& in) {
  std::uint32_t back[kLanes];
  std::fill(std::begin(back), std::end(back), w.pc + 1);
  w.set(in, 0, back);
  run_branch(w, in);
}
void run_return(Warp& w, const Instruction& in) { w.jump(w.at<std::uint32_t>(in, 0)); }
void run_exit(Warp& w, const Instruction&) { w.exit(); }
void run_trap(Warp& w, const Instruction& in) { w.fault(in, "trap"); }
void run_indexed_branch(Warp& w, const Instruction& in) {
  const auto* index = w.at<std::uint32_t>(in, 0);
  const auto* table = w.at<std::uint32_t>(in, 1);  // a constant of so many words
  std::uint32_t places[kLanes] = {};
  w.for_each_lane([&](int lane) {
    if (index[lane] >= in.immediate[0]) w.fault(in, "the index of a branch is behind its table");
    places[lane] = table[index[lane]];
  });
  w.jump(places);
}

}  // namespace

int bytes_of(Type type) {
  switch (type) {
    case Type::u8:
    case Type::s8:
    case Type::b8: return 1;
    case Type::u16:
    case Type::s16:
    case Type::b16:
    case Type::f16:
    case Type::bf16: return 2;
    case Type::u64:
    case Type::s64:
    case Type::b64:
    case Type::f64: return 8;
    case Type::b128: return 16;
    case Type::none:
    case Type::pred: return 0;
    default: return 4;
  }
}

Type type_named(std::string_view name) {
  for (const auto& [text, type] : kTypes)
    if (text == name) return type;
  return Type::none;
}

std::string Program::text_of(const Instruction& in) const {
  const auto line = static_cast<std::size_t>(in.line);
  return line >= 1 && line <= lines.size() ? lines[line - 1] : "";
}

void Decoder::unknown(const std::string& why) const {
  give_up("not known: " + opcode() + (why.empty() ? "" : " (" + why + ")"), statement_->line);
}

bool Decoder::take(std::string_view modifier) {
  if (!more() || parts_[next_part_] != modifier) return false;
  ++next_part_;
  return true;
}
std::string_view Decoder::take_any(std::initializer_list<std::string_view> modifiers) {
  for (const std::string_view modifier : modifiers)
    if (take(modifier)) return modifier;
  return {};
}
Type Decoder::take_type() {
  const Type type = more() ? type_named(parts_[next_part_]) : Type::none;
  next_part_ += type != Type::none;
  return type;
}
Type Decoder::type() {
  const Type type = take_type();
  if (type == Type::none) unknown("a type was expected");
  return type;
}

const Argument& Decoder::argument(std::size_t i) const {
  if (i >= arguments()) unknown("it lacks operands");
  return statement_->arguments[i];
}

const Decoder::Register* Decoder::register_named(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto found = scope->find(name);
    if (found != scope->end()) return &found->second;
  }
  return nullptr;
}
const Decoder::Register& Decoder::register_of(const Argument& a) const {
  const Register* found = a.kind == Argument::Kind::name && !a.negated ? register_named(a.name) : nullptr;
  if (found == nullptr) unknown("an operand that is no register: '" + a.name + "'");
  return *found;
}
const Decoder::Symbol* Decoder::symbol_named(std::string_view name) const {
  for (auto scope = symbols_.rbegin(); scope != symbols_.rend(); ++scope) {
    const auto found = scope->find(name);
    if (found != scope->end()) return &found->second;
  }
  return nullptr;
}
std::string_view Decoder::space_of(const Argument& a) const {
  const Symbol* found = symbol_named(a.name);
  return found == nullptr ? std::string_view() : found->space;
}
std::int64_t Decoder::place_of(const Argument& a) const { return symbol_named(a.name)->offset + a.integer; }

Operand Decoder::constant_of(const void* value, int bytes) {
  const std::string key(static_cast<const char*>(value), static_cast<std::size_t>(bytes));
  const auto [at, fresh] = constants_.try_emplace(key, 0);
  if (fresh) {
    constant_bytes_.resize(static_cast<std::size_t>(aligned(static_cast<std::int64_t>(constant_bytes_.size()), 64)));
    at->second = ~static_cast<Operand>(constant_bytes_.size());
    for (int lane = 0; lane < kLanes; ++lane) constant_bytes_.insert(constant_bytes_.end(), key.begin(), key.end());
  }
  return at->second;
}

Operand Decoder::temporary(Type type) {
  widths_.push_back(bytes_of(type));
  return static_cast<Operand>(widths_.size() - 1);
}

Operand Decoder::source(const Argument& a, Type type) {
  if (a.kind == Argument::Kind::integer || a.kind == Argument::Kind::real) {
    const std::uint64_t bits = bits_of(a, type);
    if (type == Type::pred) return constant<std::uint32_t>(bits != 0 ? kAllLanes : 0);
    if (type == Type::b128) unknown("a constant of 128 bits");
    return constant_of(&bits, bytes_of(type));
  }
  const Register& r = register_of(a);
  const int has = bytes_of(r.type), wants = bytes_of(type);
  if ((r.type == Type::pred) != (type == Type::pred)) unknown("an operand's type");
  if (has == wants) return r.number;
  if (has < wants) unknown("a register is too narrow");
  const Operand narrow = temporary(type);
  const Operand saved = std::exchange(guard_, kNoOperand);
  emit(widening(r.type, type), {narrow}, {r.number});
  guard_ = saved;
  return narrow;
}

Operand Decoder::destination(const Argument& a, Type type) {
  if (a.name == "_") return temporary(type);
  const Register& r = register_of(a);
  if ((r.type == Type::pred) != (type == Type::pred)) unknown("a result's type");
  if (bytes_of(r.type) == bytes_of(type)) return r.number;
  if (bytes_of(r.type) < bytes_of(type)) unknown("a register is too narrow");
  const Operand narrow = temporary(type);
  widen_.push_back({r, {narrow, type}});
  return narrow;
}

std::vector<Operand> Decoder::sources(std::size_t i, Type type) {
  const Argument& a = argument(i);
  std::vector<Operand> all;
  if (a.kind != Argument::Kind::list) return {source(a, type)};
  for (const Argument& item : a.items) all.push_back(source(item, type));
  return all;
}
std::vector<Operand> Decoder::destinations(std::size_t i, Type type) {
  const Argument& a = argument(i);
  std::vector<Operand> all;
  if (a.kind != Argument::Kind::list) return {destination(a, type)};
  for (const Argument& item : a.items) all.push_back(destination(item, type));
  return all;
}

Operand Decoder::address(std::size_t i, std::int64_t& offset) {
  const Argument& a = argument(i);
  if (a.kind != Argument::Kind::address) unknown("an address was expected");
  offset = a.integer;
  if (a.name.empty()) return constant<std::uint64_t>(0);
  if (const Register* r = register_named(a.name)) {
    if (bytes_of(r->type) == 8) return r->number;
    if (bytes_of(r->type) != 4) unknown("the width of an address");
    const Operand wide = temporary(Type::u64);
    const Operand saved = std::exchange(guard_, kNoOperand);
    emit(widening(Type::u32, Type::u64), {wide}, {r->number});
    guard_ = saved;
    return wide;
  }
  if (symbol_named(a.name) == nullptr) unknown("an address of '" + a.name + "'");
  offset = place_of(a);
  return constant<std::uint64_t>(0);
}

std::int64_t Decoder::integer(std::size_t i) const {
  if (argument(i).kind != Argument::Kind::integer) unknown("an integer was expected");
  return argument(i).integer;
}

RawInstruction& Decoder::emit(Handler run, std::vector<Operand> results, std::vector<Operand> sources) {
  RawInstruction raw;
  raw.in.run = run;
  raw.in.results = static_cast<std::uint16_t>(results.size());
  raw.in.line = statement_->line;
  raw.guard = guard_;
  raw.in.guard_negated = guard_ != kNoOperand && statement_->guard_negated;
  raw.operands = std::move(results);
  raw.operands.insert(raw.operands.end(), sources.begin(), sources.end());
  raw_.push_back(std::move(raw));
  return raw_.back();
}

/// Decodes functions one after the other.
class ModuleDecoder {
 public:
  explicit ModuleDecoder(std::string_view text) : module_(parse_ptx(text)), program_(std::make_shared<Program>()) {
    std::istringstream lines{std::string(text)};
    for (std::string line; std::getline(lines, line);) program_->lines.push_back(line);
    add_arithmetic(selects_);
    add_conversions(selects_);
    add_memory(selects_);
    add_lane_exchange(selects_);
    add_synchronisation(selects_);
    add_matrix(selects_);
    add_warpgroup_matrix(selects_);
    add_copies(selects_);
  }

  std::shared_ptr<const Program> run() {
    place_shared();
    decoder_.symbols_.emplace_back();
    for (const Variable& v : module_.variables) declare(v);
    // A function's results and parameters have places of their own, because no function calls itself.
    for (const FunctionText& f : module_.functions) {
      if (f.is_entry) continue;
      Callee& callee = callees_[f.name];
      callee.index = static_cast<int>(callees_.size()) - 1;
      for (const Variable& v : f.results) callee.results.push_back(local_place(v));
      for (const Variable& v : f.parameters) callee.parameters.push_back(local_place(v));
    }
    std::int64_t register_end = static_cast<std::int64_t>(callees_.size()) * 4 * kLanes;
    for (const bool entries : {false, true}) {
      const std::int64_t begin = register_end;
      for (const FunctionText& f : module_.functions) {
        if (f.is_entry != entries) continue;
        const std::int64_t end = function(f, entries ? begin : register_end);
        if (entries) program_->kernels.find(f.name)->second.register_bytes = end;
        register_end = entries ? register_end : end;
      }
    }
    for (const auto& [instruction, name] : calls_) {
      const auto callee = callees_.find(name);
      program_->code[instruction].target = callee->second.first;
    }
    program_->constants = decoder_.constant_bytes_;
    return program_;
  }

 private:
  struct Place {
    std::string name;
    std::int64_t offset, bytes;
  };
  struct Callee {
    int index = 0;
    std::uint32_t first = 0;
    std::vector<Place> results, parameters;
  };

  static std::int64_t bytes(const Variable& v) { return v.count * std::max(1, bytes_of(type_named(v.type))); }

  /// Gives the module's static shared variables their places. Dynamic shared memory starts behind them.
  void place_shared() {
    std::int64_t& end = program_->shared_bytes;
    std::int64_t dynamic_alignment = 16;
    end = kReservedShared;
    const auto place = [&](const Variable& v) {
      if (v.space != "shared") return;
      if (v.is_extern) {
        dynamic_alignment = std::max<std::int64_t>(dynamic_alignment, v.alignment);
      } else {
        end = aligned(end, std::max({v.alignment, bytes_of(type_named(v.type)), 1}));
        shared_places_[v.name] = end;
        end += bytes(v);
      }
    };
    for (const Variable& v : module_.variables) place(v);
    for (const FunctionText& f : module_.functions)
      for (const Statement& s : f.body)
        if (s.kind == Statement::Kind::declaration) place(s.variable);
    end = aligned(end, dynamic_alignment);
  }

  Place local_place(const Variable& v) {
    program_->local_bytes = aligned(program_->local_bytes, 16);
    const Place place{v.name, program_->local_bytes, bytes(v)};
    program_->local_bytes += aligned(bytes(v), 16);
    return place;
  }

  void declare(const Variable& v) {
    auto& symbols = decoder_.symbols_.back();
    if (v.space == "reg") {
      const Type type = type_named(v.type);
      if (type == Type::none) give_up("a register of type " + v.type, 0);
      for (std::int64_t i = 0; i < (v.is_family ? v.count : 1); ++i) {
        const std::string name = v.is_family ? v.name + std::to_string(i) : v.name;
        decoder_.widths_.push_back(bytes_of(type));
        decoder_.scopes_.back()[name] = {static_cast<Operand>(decoder_.widths_.size() - 1), type};
      }
    } else if (v.space == "shared") {
      symbols[v.name] = {"shared", v.is_extern ? program_->shared_bytes : shared_places_.at(v.name)};
    } else if (v.space == "local" || v.space == "param") {
      symbols[v.name] = {"local", local_place(v).offset};
    } else if (v.space == "global" || v.space == "const") {
      auto& globals = program_->globals;
      globals.resize(static_cast<std::size_t>(aligned(static_cast<std::int64_t>(globals.size()), 256)));
      symbols[v.name] = {"global", static_cast<std::int64_t>(globals.size())};
      const int width = std::max(1, bytes_of(type_named(v.type)));
      globals.resize(globals.size() + static_cast<std::size_t>(bytes(v)));
      unsigned char* to = globals.data() + symbols[v.name].offset;
      for (std::size_t i = 0; i < v.initial.size(); ++i) {
        if (!v.initial_names[i].empty()) give_up("a variable that holds an address: " + v.name, 0);
        std::memcpy(to + static_cast<std::int64_t>(i) * width, &v.initial[i], static_cast<std::size_t>(width));
      }
    } else {
      give_up("a variable in space " + v.space, 0);
    }
  }

  /// Decodes a function, whose registers start at `begin`, and returns where they end.
  std::int64_t function(const FunctionText& f, std::int64_t begin) {
    decoder_.scopes_.assign(1, {});
    decoder_.symbols_.emplace_back();
    decoder_.widths_.clear();
    decoder_.raw_.clear();
    decoder_.pinned_.clear();
    labels_.clear();
    return_register_ = kNoOperand;
    const auto first = static_cast<std::uint32_t>(program_->code.size());
    if (f.is_entry) {
      Kernel& kernel = program_->kernels[f.name];
      kernel = {f.name, first, {}, 0, 0, f.max_threads, f.ctas_per_sm, f.cluster};
      for (const Variable& v : f.parameters) {
        const int width = std::max({v.alignment, bytes_of(type_named(v.type)), 1});
        kernel.parameter_bytes = aligned(kernel.parameter_bytes, width);
        kernel.parameters.push_back({kernel.parameter_bytes, bytes(v)});
        decoder_.symbols_.back()[v.name] = {"parameter", kernel.parameter_bytes};
        kernel.parameter_bytes += bytes(v);
      }
    } else {
      Callee& callee = callees_[f.name];
      callee.first = first;
      return_register_ = kFixed + callee.index * 4 * kLanes;
      for (const auto* places : {&callee.results, &callee.parameters})
        for (const Place& place : *places) decoder_.symbols_.back()[place.name] = {"local", place.offset};
    }
    // Branch targets and labels first: branches go forward as well.
    for (const Statement& s : f.body)
      if (s.kind == Statement::Kind::branch_targets) targets_[s.label] = &s;
    for (const Statement& s : f.body) statement(s);
    decoder_.symbols_.pop_back();
    return finish(first, begin);
  }

  void statement(const Statement& s) {
    switch (s.kind) {
      case Statement::Kind::begin_scope:
        decoder_.scopes_.emplace_back();
        decoder_.symbols_.emplace_back();
        return;
      case Statement::Kind::end_scope:
        decoder_.scopes_.pop_back();
        decoder_.symbols_.pop_back();
        return;
      case Statement::Kind::declaration: declare(s.variable); return;
      case Statement::Kind::label: labels_[s.label] = static_cast<std::uint32_t>(decoder_.raw_.size()); return;
      case Statement::Kind::branch_targets: return;
      case Statement::Kind::instruction: break;
    }
    decoder_.statement_ = &s;
    decoder_.parts_ = parts_of(s.opcode);
    decoder_.next_part_ = 1;
    decoder_.guard_ = kNoOperand;
    if (!s.guard.empty()) {
      Argument guard;
      guard.name = s.guard;
      decoder_.guard_ = decoder_.source(guard, Type::pred);
    }
    if (!control(s)) {
      const auto select = selects_.find(decoder_.parts_[0]);
      if (select == selects_.end()) decoder_.unknown();
      select->second(decoder_);
    }
    if (decoder_.more()) decoder_.unknown("'" + std::string(decoder_.parts_[decoder_.next_part_]) + "'");
    for (const auto& [to, from] : std::exchange(decoder_.widen_, {}))
      decoder_.emit(widening(from.second, to.type), {to.number}, {from.first});
  }

  /// Branches, calls and ends.
  bool control(const Statement& s) {
    Decoder& d = decoder_;
    const std::string_view word = d.parts_[0];
    if (word == "bra") {
      d.take("uni");
      RawInstruction& raw = d.emit(run_branch, {}, {});
      raw.targets = {s.arguments.at(0).name};
      raw.ends = true;
    } else if (word == "brx") {
      if (!d.take("idx")) d.unknown();
      d.take("uni");
      const Operand index = d.source(0, Type::u32);
      RawInstruction& raw = d.emit(run_indexed_branch, {}, {index});
      raw.ends = true;
      for (const Argument& target : targets_.at(s.arguments.at(1).name)->arguments) raw.targets.push_back(target.name);
    } else if (word == "ret" || word == "exit") {
      d.take("uni");
      const bool ends = word == "exit" || return_register_ == kNoOperand;
      (ends ? d.emit(run_exit, {}, {}) : d.emit(run_return, {}, {return_register_})).ends = true;
    } else if (word == "trap") {
      d.emit(run_trap, {}, {}).ends = true;
    } else if (word == "call") {
      call(s);
    } else {
      return false;
    }
    return true;
  }

  void call(const Statement& s) {
    Decoder& d = decoder_;
    d.take("uni");
    const bool has_results = s.arguments.at(0).kind == Argument::Kind::list;
    const std::string& name = s.arguments.at(has_results ? 1 : 0).name;
    const auto callee = callees_.find(name);
    if (callee == callees_.end()) d.unknown("a call of " + name);
    const auto copy = [&](std::int64_t from, std::int64_t to, std::int64_t size) {
      RawInstruction& raw = d.emit(run_copy_local, {}, {});
      raw.in.immediate[0] = from << 32 | to;
      raw.in.immediate[1] = size;
    };
    const std::size_t given = has_results ? 2 : 1;
    for (std::size_t i = 0; s.arguments.size() > given && i < s.arguments[given].items.size(); ++i) {
      const Argument& a = s.arguments[given].items[i];
      if (d.space_of(a) != "local") d.unknown("an argument that is no variable");
      copy(d.place_of(a), callee->second.parameters.at(i).offset, callee->second.parameters[i].bytes);
    }
    RawInstruction& raw = d.emit(run_call, {kFixed + callee->second.index * 4 * kLanes}, {});
    raw.callee = name;
    for (std::size_t i = 0; has_results && i < s.arguments[0].items.size(); ++i) {
      const Place& result = callee->second.results.at(i);
      copy(result.offset, d.place_of(s.arguments[0].items[i]), result.bytes);
    }
  }

  /// Resolves labels and places registers.
  std::int64_t finish(std::uint32_t first, std::int64_t begin) {
    std::vector<RawInstruction>& raws = decoder_.raw_;
    if (raws.empty() || !raws.back().ends) {
      raws.emplace_back().in.run = run_exit;
      raws.back().ends = true;
    }
    for (RawInstruction& raw : raws) {
      for (const std::string& target : raw.targets) {
        const auto label = labels_.find(target);
        if (label == labels_.end()) give_up("no label " + target, raw.in.line);
        raw.places.push_back(label->second);
      }
    }
    // Copies of accumulators may be made while their matrix instruction is on its way.
    for (bool grows = true; grows;) {
      grows = false;
      for (const RawInstruction& raw : raws)
        if (raw.in.run == kCopy32 && decoder_.pinned_.contains(raw.operands[1]))
          grows |= decoder_.pinned_.insert(raw.operands[0]).second;
    }
    std::vector<Operand> places;
    const std::int64_t end = place_registers(raws, decoder_.widths_, decoder_.pinned_, begin, places);
    const auto place = [&](Operand o) {
      return o == kNoOperand || o < 0 ? o : o >= kFixed ? o - kFixed : places[static_cast<std::size_t>(o)];
    };
    for (RawInstruction& raw : raws) {
      if (raw.in.run == run_indexed_branch) {
        std::vector<std::uint32_t> table;
        for (const std::uint32_t to : raw.places) table.push_back(first + to);
        raw.in.immediate[0] = static_cast<std::int64_t>(table.size());
        raw.operands.push_back(decoder_.constant_of(table.data(), static_cast<int>(table.size() * 4)));
      } else if (!raw.places.empty()) {
        raw.in.target = first + raw.places[0];
      }
      if (!raw.callee.empty()) calls_.emplace_back(program_->code.size(), raw.callee);
      for (Operand& o : raw.operands) {
        raw.in.names_pinned = raw.in.names_pinned || decoder_.pinned_.contains(o);
        o = place(o);
      }
      raw.in.guard = place(raw.guard);
      raw.in.count = static_cast<std::uint16_t>(raw.operands.size());
      raw.in.operands = program_->operands.emplace_back(std::move(raw.operands)).data();
      program_->code.push_back(raw.in);
    }
    return end;
  }

  ModuleText module_;
  std::shared_ptr<Program> program_;
  Selects selects_;
  Decoder decoder_;
  std::map<std::string, Callee> callees_;
  std::map<std::string, std::uint32_t> labels_;
  std::map<std::string, const Statement*> targets_;
  std::vector<std::pair<std::size_t, std::string>> calls_;
  std::map<std::string, std::int64_t> shared_places_;
  Operand return_register_ = kNoOperand;
};

std::shared_ptr<const Program> decode(std::string_view ptx) { return ModuleDecoder(ptx).run(); }

}  // namespace emulator
