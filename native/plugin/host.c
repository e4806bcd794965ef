#include "plugin.h"

#include <stdarg.h>
#include <stdio.h>

OrtStatus *host_negotiate(struct host *host, const OrtApiBase *base) {
  const char *text = base->GetVersionString();
  unsigned major = 0, minor = 0;
  /* GetApi(n) answers every n up to the runtime's minor version and prints a complaint above it, so ask exactly. */
  if (sscanf(text, "%u.%u", &major, &minor) != 2) minor = 0;
  if (major > 1) minor = ORT_API_VERSION;
  host->version = minor < ORT_API_VERSION ? minor : ORT_API_VERSION;
  host->api = base->GetApi(host->version ? host->version : 1);
  if (!host->api) return NULL;
  if (minor < LOWEST_ORT_MINOR) {
    return failure(host, ORT_FAIL,
                   "needs onnxruntime >= 1.%d, this is %s: install a newer one (pip install -U onnxruntime)",
                   LOWEST_ORT_MINOR, text);
  }
  host->ep_api = host->api->GetEpApi();
  return NULL;
}

OrtStatus *failure(const struct host *host, OrtErrorCode code, const char *format, ...) {
  char text[1024];
  int used = snprintf(text, sizeof text, "%s: ", DEFAULT_EP_NAME);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
  va_end(arguments);
  return host->api->CreateStatus(code, text);
}

OrtStatus *out_of_memory(const struct host *host) { return failure(host, ORT_FAIL, "out of memory"); }
