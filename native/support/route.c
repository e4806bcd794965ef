// Points imports of an already mapped ELF library elsewhere, by writing its GOT slots: works in whichever order the
// library and the replacement were loaded, which symbol interposition does not.
#define _GNU_SOURCE
#include "support.h"

#if !defined(__linux__) || !(defined(__x86_64__) || defined(__aarch64__))

int mlxc_support_route(const char *library, const char *const *names, void *const *targets, size_t n, int *slots) {
  (void)library, (void)names, (void)targets, (void)n, (void)slots;
  return MLXC_ROUTE_NOT_APPLICABLE;
}

#else

#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { JUMP_SLOT = R_X86_64_JUMP_SLOT, GLOB_DAT = R_X86_64_GLOB_DAT, ABSOLUTE = R_X86_64_64 };
#else
enum { JUMP_SLOT = R_AARCH64_JUMP_SLOT, GLOB_DAT = R_AARCH64_GLOB_DAT, ABSOLUTE = R_AARCH64_ABS64 };
#endif

typedef struct {
  _Atomic(void *) *slot;
  void *target;
} Write;

typedef struct {
  dev_t device;
  ino_t inode;
  const char *const *names;
  void *const *targets;
  size_t n;
  int *slots;
  Write *writes;
  size_t found, room;
  int result;
} Request;

// What the loader knows of a mapped library.
typedef struct {
  uintptr_t base;
  const ElfW(Sym) *symbols;
  const char *strings;
  const ElfW(Rela) *tables[2];
  size_t sizes[2];
  uintptr_t relro, relro_end;  // whole pages that the loader made read-only after relocation
} Image;

static pthread_mutex_t routing = PTHREAD_MUTEX_INITIALIZER;

static uintptr_t page_of(const void *address) {
  return (uintptr_t)address & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
}

static int read_image(const struct dl_phdr_info *info, Image *image) {
  const ElfW(Dyn) *dynamic = NULL;
  *image = (Image){.base = info->dlpi_addr};
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *header = &info->dlpi_phdr[i];
    uintptr_t start = info->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_DYNAMIC) dynamic = (const ElfW(Dyn) *)start;
    if (header->p_type == PT_GNU_RELRO) {
      image->relro = page_of((void *)start);
      image->relro_end = page_of((void *)(start + header->p_memsz));
    }
  }
  ElfW(Sxword) kind = DT_RELA;
  for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
    // glibc has relocated these addresses in place, musl has not.
    uintptr_t address = dynamic->d_un.d_ptr;
    if (address < image->base) address += image->base;
    switch (dynamic->d_tag) {
      case DT_SYMTAB: image->symbols = (const ElfW(Sym) *)address; break;
      case DT_STRTAB: image->strings = (const char *)address; break;
      case DT_RELA: image->tables[0] = (const ElfW(Rela) *)address; break;
      case DT_RELASZ: image->sizes[0] = dynamic->d_un.d_val; break;
      case DT_JMPREL: image->tables[1] = (const ElfW(Rela) *)address; break;
      case DT_PLTRELSZ: image->sizes[1] = dynamic->d_un.d_val; break;
      case DT_PLTREL: kind = (ElfW(Sxword))dynamic->d_un.d_val; break;
    }
  }
  return image->symbols && image->strings && kind == DT_RELA ? 0 : MLXC_ROUTE_MALFORMED;
}

static int find_slots(const Image *image, Request *r) {
  for (int t = 0; t < 2; t++) {
    const ElfW(Rela) *end = image->tables[t] + image->sizes[t] / sizeof(ElfW(Rela));
    for (const ElfW(Rela) *entry = image->tables[t]; entry && entry < end; entry++) {
      unsigned long kind = ELF64_R_TYPE(entry->r_info);
      if (kind != JUMP_SLOT && kind != GLOB_DAT && !(kind == ABSOLUTE && !entry->r_addend)) continue;
      const ElfW(Sym) *symbol = &image->symbols[ELF64_R_SYM(entry->r_info)];
      if (symbol->st_shndx != SHN_UNDEF) continue;
      const char *name = image->strings + symbol->st_name;
      size_t i = 0;
      while (i < r->n && strcmp(name, r->names[i])) i++;
      if (i == r->n) continue;
      if (r->found == r->room) return MLXC_ROUTE_MALFORMED;
      r->writes[r->found++] = (Write){(void *)(image->base + entry->r_offset), r->targets[i]};
      r->slots[i]++;
    }
  }
  return 0;
}

static int write_slots(const Image *image, const Request *r) {
  size_t page_size = (size_t)sysconf(_SC_PAGESIZE);
  int status = 0;
  for (size_t i = 0; i < r->found && !status; i++)
    if (mprotect((void *)page_of(r->writes[i].slot), page_size, PROT_READ | PROT_WRITE)) status = MLXC_ROUTE_PROTECTED;
  for (size_t i = 0; i < r->found && !status; i++)
    atomic_store_explicit(r->writes[i].slot, r->writes[i].target, memory_order_release);
  for (size_t i = 0; i < r->found; i++) {
    uintptr_t page = page_of(r->writes[i].slot);
    if (page >= image->relro && page < image->relro_end) (void)mprotect((void *)page, page_size, PROT_READ);
  }
  return status;
}

static int visit(struct dl_phdr_info *info, size_t size, void *argument) {
  (void)size;
  Request *r = argument;
  struct stat file;
  if (!info->dlpi_name || !*info->dlpi_name || stat(info->dlpi_name, &file)) return 0;
  if (file.st_dev != r->device || file.st_ino != r->inode) return 0;
  Image image;
  r->result = read_image(info, &image);
  if (!r->result) r->result = find_slots(&image, r);
  if (!r->result) r->result = write_slots(&image, r);
  return 1;
}

int mlxc_support_route(const char *library, const char *const *names, void *const *targets, size_t n, int *slots) {
  struct stat file;
  memset(slots, 0, n * sizeof *slots);
  for (size_t i = 0; i < n; i++)
    if (!targets[i]) return MLXC_ROUTE_NO_TARGET;
  if (stat(library, &file)) return MLXC_ROUTE_NOT_MAPPED;
  size_t room = 4 * n;  // a name has one PLT slot and rarely a data slot besides
  Write *writes = malloc(room * sizeof *writes);
  if (!writes) return MLXC_ROUTE_MALFORMED;
  Request r = {file.st_dev, file.st_ino, names, targets, n, slots, writes, 0, room, MLXC_ROUTE_NOT_MAPPED};
  pthread_mutex_lock(&routing);
  dl_iterate_phdr(visit, &r);
  pthread_mutex_unlock(&routing);
  free(writes);
  if (r.result < 0) {
    memset(slots, 0, n * sizeof *slots);
    return r.result;
  }
  int routed = 0;
  for (size_t i = 0; i < n; i++) routed += slots[i] > 0;
  return routed;
}

#endif
