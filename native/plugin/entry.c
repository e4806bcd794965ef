/* The two symbols ONNX Runtime looks up in the library. */
#include "plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

PLUGIN_EXPORT OrtStatus *CreateEpFactories(const char *registration_name, const OrtApiBase *base,
                                           const OrtLogger *logger, OrtEpFactory **factories, size_t max_factories,
                                           size_t *count);
PLUGIN_EXPORT OrtStatus *ReleaseEpFactory(OrtEpFactory *factory);

struct attach_call {
  const struct host *host;
  const char *registration_name;
  const char *library_path;
  struct factory *factory;
  OrtStatus *status;
};

static void attach_in_python(void *argument) {
  struct attach_call *call = argument;
  PyObject *module = py.PyImport_ImportModule("ort_ep.factory");
  if (!module) {
    call->status = python_failure(call->host, "importing ort_ep.factory (is mlxc-py installed in this Python?)");
    return;
  }
  PyObject *hooks = call_method(module, "attach", python_string(call->library_path));
  if (hooks && lifetime_register_atexit()) {
    call->status = factory_create(&call->factory, call->host, call->registration_name, hooks);
  } else {
    call->status = python_failure(call->host, "attaching ort_ep");
  }
  release(hooks);
  release(module);
}

static bool own_path(char *path) {
  static const char anchor; /* any address of this library will do */
  Dl_info here;
  return dladdr(&anchor, &here) && here.dli_fname && realpath(here.dli_fname, path);
}

static OrtStatus *enter_python(const struct host *host, const char *library_path) {
  if (lifetime_over()) return shutting_down(host);
  const char *missing = NULL;
  if (!python_api_loaded() && !python_api_load(RTLD_DEFAULT, &missing)) {
    char reason[PATH_MAX + 256];
    if (!python_open(library_path, reason, sizeof reason)) return failure(host, ORT_FAIL, "%s", reason);
  }
  python_start(library_path);
  lifetime_begin();
  return NULL;
}

OrtStatus *CreateEpFactories(const char *registration_name, const OrtApiBase *base, const OrtLogger *logger,
                             OrtEpFactory **factories, size_t max_factories, size_t *count) {
  (void)logger;
  *count = 0;
  lifetime_prepare();
  struct host host;
  TRY(host_negotiate(&host, base));
  if (!host.api) return NULL; /* nothing to make a status with; no factory at all is an error ORT reports */
  if (max_factories < 1) return failure(&host, ORT_INVALID_ARGUMENT, "ONNX Runtime has no room for a factory");

  char path[PATH_MAX];
  if (!own_path(path)) return failure(&host, ORT_FAIL, "the plugin library can't find its own path");
  TRY(enter_python(&host, path));
  struct attach_call call = {.host = &host, .registration_name = registration_name, .library_path = path};
  if (!with_python(attach_in_python, &call)) return shutting_down(&host);
  if (call.status) return call.status;
  factories[0] = &call.factory->slots;
  *count = 1;
  return NULL;
}

OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
  if (factory) factory_unregister((struct factory *)factory);
  return NULL;
}
