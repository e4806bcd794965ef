#include "python_api.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct python_api py;

/* ISO C has no conversion from void * to a function pointer; POSIX promises that dlsym's result survives the copy. */
static bool find(void *library, const char *name, void *slot) {
  void *address = dlsym(library, name);
  memcpy(slot, &address, sizeof address);
  return address != NULL;
}

bool python_api_load(void *library, const char **missing) {
  struct python_api found;
#define PYTHON_FIND(result, name, parameters) \
  if (!find(library, #name, &found.name)) {   \
    *missing = #name;                         \
    return false;                             \
  }
  PYTHON_FUNCTIONS(PYTHON_FIND)
#undef PYTHON_FIND
  if (!find(library, "Py_IsFinalizing", &found.is_finalizing) &&
      !find(library, "_Py_IsFinalizing", &found.is_finalizing)) {
    *missing = "Py_IsFinalizing";
    return false;
  }
  if (!find(library, "_Py_NoneStruct", &found.none) ||
      !find(library, "PyExc_KeyboardInterrupt", &found.keyboard_interrupt)) {
    *missing = "_Py_NoneStruct";
    return false;
  }
  py = found;
  return true;
}

bool python_api_loaded(void) { return py.Py_IsInitialized != NULL; }

#ifdef __APPLE__
#define LIBPYTHON_FORMAT "libpython3.%d.dylib"
#else
#define LIBPYTHON_FORMAT "libpython3.%d.so.1.0"
#endif

/* The minor version in ".../lib/python3.11/site-packages/ort_ep/lib/...", 0 where the path has none. */
static int minor_from_path(const char *own_path) {
  const char *at = strstr(own_path, "/python3.");
  int minor = 0;
  return at && sscanf(at, "/python3.%d/", &minor) == 1 ? minor : 0;
}

static void *open_libpython(const char *own_path) {
  const char *chosen = getenv("ONNXRUNTIME_EP_MLX_LIBPYTHON");
  if (chosen && *chosen) return dlopen(chosen, RTLD_NOW | RTLD_GLOBAL);
  char path[PATH_MAX];
  int installed = minor_from_path(own_path);
  if (installed) {
    const char *prefix_end = strstr(own_path, "/python3.");
    snprintf(path, sizeof path, "%.*s/" LIBPYTHON_FORMAT, (int)(prefix_end - own_path), own_path, installed);
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library) return library;
  }
  for (int minor = 14; minor >= 11; minor--) {
    if (installed && minor != installed) continue;
    snprintf(path, sizeof path, LIBPYTHON_FORMAT, minor);
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library) return library;
  }
  return NULL;
}

bool python_open(const char *own_path, char *reason, size_t reason_size) {
  void *library = open_libpython(own_path);
  if (!library) {
    const char *error = dlerror();
    snprintf(reason, reason_size,
             "this program has no Python and no libpython could be loaded (%s); set ONNXRUNTIME_EP_MLX_LIBPYTHON to "
             "the libpython of the environment that has mlxc-py",
             error ? error : "none found");
    return false;
  }
  const char *missing = NULL;
  if (!python_api_load(library, &missing)) {
    snprintf(reason, reason_size, "the libpython that was loaded lacks %s; CPython 3.11 or newer is needed", missing);
    return false;
  }
  return true;
}

void python_start(const char *own_path) {
  if (py.Py_IsInitialized()) return;
  int *utf8_mode = dlsym(RTLD_DEFAULT, "Py_UTF8Mode");
  if (utf8_mode) *utf8_mode = 1; /* a host that has chosen no locale gets ASCII for paths otherwise */
  py.Py_InitializeEx(0); /* 0: leave the host's signal handlers alone */
  /* An embedded interpreter knows nothing of the environment this library lies in: <site>/ort_ep/lib/<library>. */
  char site[PATH_MAX], code[PATH_MAX + 64];
  snprintf(site, sizeof site, "%s", own_path);
  for (int level = 0; level < 3; level++) {
    char *slash = strrchr(site, '/');
    if (slash) *slash = '\0';
  }
  if (!strpbrk(site, "'\\\n")) {
    snprintf(code, sizeof code, "import site; site.addsitedir('%s')", site);
    py.PyRun_SimpleString(code);
  }
  py.PyEval_SaveThread();
}
