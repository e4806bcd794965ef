#include "patch.hpp"

#include <cstdint>

#include <sys/mman.h>
#include <unistd.h>
#ifdef __linux__
#include <link.h>
#endif

namespace mlxc {

namespace {

// Whether the loader made a page read-only after relocation: only such a page may be protected again, because others
// hold variables, too.
bool relocated_read_only(uintptr_t page) {
#ifdef __linux__
  auto visit = [](dl_phdr_info* info, size_t, void* argument) {
    const auto wanted = *static_cast<uintptr_t*>(argument);
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& header = info->dlpi_phdr[i];
      const uintptr_t start = info->dlpi_addr + header.p_vaddr;
      const uintptr_t mask = ~(uintptr_t(sysconf(_SC_PAGESIZE)) - 1);
      if (header.p_type == PT_GNU_RELRO && wanted >= (start & mask) && wanted < ((start + header.p_memsz) & mask)) return 1;
    }
    return 0;
  };
  return dl_iterate_phdr(visit, &page) != 0;
#else
  return true;
#endif
}

} // namespace

bool patch(void** entry, void* value) {
  const auto page_size = size_t(sysconf(_SC_PAGESIZE));
  const auto page = reinterpret_cast<uintptr_t>(entry) & ~(page_size - 1); // an aligned word lies in one page
  auto* start = reinterpret_cast<void*>(page);
  if (mprotect(start, page_size, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(entry, value, __ATOMIC_RELEASE);
  if (relocated_read_only(page)) mprotect(start, page_size, PROT_READ);
  return true;
}

} // namespace mlxc
