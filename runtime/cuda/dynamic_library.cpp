// dynamic_library.cpp -- opens libraries with dlopen, and reads the GNU build ID of a loaded object.
#include "runtime/cuda/dynamic_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstring>
#include <filesystem>

namespace leanattn {
inline namespace v1 {
namespace {

struct BuildIdSearch {
  std::uintptr_t address = 0;
  std::string build_id;
};

std::string hex(const unsigned char* bytes, std::size_t count) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

bool holds(const dl_phdr_info& object, std::uintptr_t address) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& segment = object.dlpi_phdr[i];
    const std::uintptr_t start = object.dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD && address >= start && address < start + segment.p_memsz) return true;
  }
  return false;
}

int visit(dl_phdr_info* object, std::size_t, void* data) {
  auto& search = *static_cast<BuildIdSearch*>(data);
  if (!holds(*object, search.address)) return 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* note = reinterpret_cast<const unsigned char*>(object->dlpi_addr + segment.p_vaddr);
    const auto* end = note + segment.p_memsz;
    // An ELF note has the sizes of name and descriptor, its type, and then both, padded to 4 bytes (elf(5), "Notes").
    while (note + 12 <= end) {
      std::uint32_t name_size = 0, descriptor_size = 0, type = 0;
      std::memcpy(&name_size, note, 4);
      std::memcpy(&descriptor_size, note + 4, 4);
      std::memcpy(&type, note + 8, 4);
      const std::size_t name_padded = (std::size_t{name_size} + 3) & ~std::size_t{3};
      const std::size_t descriptor_padded = (std::size_t{descriptor_size} + 3) & ~std::size_t{3};
      const auto room = static_cast<std::size_t>(end - note) - 12;
      if (name_padded > room || descriptor_padded > room - name_padded) break;
      if (type == NT_GNU_BUILD_ID && name_size == 4 && std::memcmp(note + 12, "GNU", 4) == 0) {
        search.build_id = hex(note + 12 + name_padded, descriptor_size);
        return 1;
      }
      note += 12 + name_padded + descriptor_padded;
    }
  }
  return 1;
}

}  // namespace

DynamicLibrary DynamicLibrary::open_first(std::span<const std::string> candidates, std::string* failures) {
  DynamicLibrary library;
  for (const auto& candidate : candidates) {
    library.handle_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle_ != nullptr) {
      library.name_ = candidate;
      break;
    }
    if (failures != nullptr) {
      const char* why = dlerror();
      *failures += std::string(why != nullptr ? why : candidate.c_str()) + '\n';
    }
  }
  return library;
}

void* DynamicLibrary::symbol(const char* name) const { return handle_ == nullptr ? nullptr : dlsym(handle_, name); }

std::string DynamicLibrary::path_of(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const auto path = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::string(info.dli_fname) : path.string();
}

std::string DynamicLibrary::build_id_of(const void* address) {
  BuildIdSearch search{reinterpret_cast<std::uintptr_t>(address), {}};
  dl_iterate_phdr(visit, &search);
  return search.build_id;
}

}  // namespace v1
}  // namespace leanattn
