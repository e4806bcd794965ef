/* What the plugin's files share. Each section names the file that implements it. */
#ifndef MLX_PLUGIN_H
#define MLX_PLUGIN_H

#include "python_api.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ort_abi.h"

#if defined(__GNUC__)
#define PLUGIN_EXPORT __attribute__((visibility("default")))
#define PRINTF_LIKE(position, first) __attribute__((format(printf, position, first)))
#else
#define PLUGIN_EXPORT
#define PRINTF_LIKE(position, first)
#endif

#define DEFAULT_EP_NAME "MLXExecutionProvider"

/* The lowest ONNX Runtime minor version that has every call we make without asking. */
enum { LOWEST_ORT_MINOR = 24 };

/* ---- host.c: the ONNX Runtime that loaded us. A process may hold two, so nothing about it is global. */

struct host {
  const OrtApi *api;
  const OrtEpApi *ep_api;
  uint32_t version; /* the API version both sides know; goes into every struct we hand out */
};

/* Fills `host`; an ONNX Runtime that is too old gets a status made with its own API. */
OrtStatus *host_negotiate(struct host *host, const OrtApiBase *base);
OrtStatus *failure(const struct host *host, OrtErrorCode code, const char *format, ...) PRINTF_LIKE(3, 4);
OrtStatus *out_of_memory(const struct host *host);

/* Leaves the enclosing function with the first status that is an error. */
#define TRY(expression)                  \
  do {                                   \
    OrtStatus *try_status = (expression); \
    if (try_status) return try_status;   \
  } while (0)

/* ---- text.c: a growing byte string. After a failed allocation `failed` is set and appends do nothing. */

struct text {
  char *bytes; /* NUL-terminated once anything was appended */
  size_t length, capacity;
  bool failed;
};

void text_append(struct text *text, const char *bytes, size_t length);
void text_add(struct text *text, const char *string);
void text_format(struct text *text, const char *format, ...) PRINTF_LIKE(2, 3);
/* Appends a JSON string. Bytes that are no UTF-8 become the lone surrogates of Python's surrogateescape. */
void text_json_string(struct text *text, const char *bytes, size_t length);
bool text_is_utf8(const char *bytes, size_t length);
void text_free(struct text *text);

/* ---- lifetime.c: may Python be called, and how a process ends with sessions and threads still alive. */

void lifetime_prepare(void); /* pins the library, watches fork; idempotent */
bool lifetime_over(void);  /* the interpreter has begun to shut down */
bool lifetime_alive(void); /* Python may be called */
void lifetime_begin(void);  /* from now on Python may be called */
/* Registers the handshake with Python's atexit, once per process; the GIL is held. False with a Python error set. */
bool lifetime_register_atexit(void);
/* Runs `body` with the GIL held; false, without running it, when Python is gone. */
bool with_python(void (*body)(void *), void *argument);
/* Lets go of a reference, with or without the GIL; once Python is gone its objects are too. */
void release_anywhere(PyObject *object);
/* Within with_python: have the main thread interrupted once Python is left. */
void interrupt_at_exit(void);
OrtStatus *shutting_down(const struct host *host);
OrtStatus *run_started(const struct host *host);
void run_ended(void);
/* MLX's worker threads don't survive fork: from then on the child may not run anything that was in use. */
void mark_in_use(void);
bool forked_after_use(void);
OrtStatus *fork_failure(const struct host *host);

/* ---- convert.c: Python values from and to C; the GIL is held. Functions returning NULL leave a Python error set. */

PyObject *python_string(const char *string);
PyObject *string_dict(const struct host *host, const OrtKeyValuePairs *pairs);
bool dict_set(PyObject *dict, const char *key, PyObject *value); /* takes over `value`, NULL included */
/* Calls `callable`, taking over `first`, `second` (NULL second: one argument); a NULL first fails. */
PyObject *call_one(PyObject *callable, PyObject *first);
PyObject *call_two(PyObject *callable, PyObject *first, PyObject *second);
PyObject *attribute_of(PyObject *object, const char *name);
PyObject *call_method(PyObject *object, const char *method, PyObject *argument);
void release(PyObject *object); /* NULL is fine */
/* Turns the Python error that is set into a status. `where` tells what was being done. */
OrtStatus *python_failure(const struct host *host, const char *where);
/* The same for Compute, the only place where ORT_EP_FAIL may be answered. */
OrtStatus *compute_failure(const struct host *host, const char *where);

/* ---- graph_json.c: an OrtGraph as one JSON document, whose shape graph_json.c tells. */

struct graph_document {
  struct text json;
  const OrtNode **nodes; /* in the order of the document */
  size_t node_count;
  struct arena *arena;
  OrtValue **owned; /* tensors of attributes; the document holds their addresses */
  size_t owned_count, owned_capacity;
};

/* ONNX's number of an element type: ORT's enum has the newest types in another order. */
int onnx_element_type(ONNXTensorElementDataType type);
OrtStatus *graph_document_build(struct graph_document *document, const struct host *host, const OrtGraph *graph);
void graph_document_free(struct graph_document *document, const struct host *host);

/* ---- replay.c: the last run of a fused node, to be made without Python where inputs are alike. */

struct replay;

/* From the `replay` of what compute has returned; NULL where it has none. The GIL is held. */
struct replay *replay_create(PyObject *results);
struct replay *replay_share(struct replay *replay);
void replay_drop(struct replay *replay); /* NULL is fine; any thread */
/* False: this run has to go through Python, which also finds out what is wrong with it. `counters`: runs, nanoseconds in
   all and of those the evaluation's. */
bool replay_run(const struct replay *replay, const struct host *host, OrtKernelContext *context, int64_t *counters);

/* ---- factory.c, ep.c, compute.c: the structs ORT sees. Allocated by C, so they outlive the interpreter. */

struct factory {
  OrtEpFactory slots;
  struct host host;
  char *name;
  char *version;
  PyObject *select_devices;
  PyObject *create_ep;
  bool registered;
  struct factory *next;
};

/* `hooks` is what ort_ep.factory.attach() returned; the GIL is held. */
OrtStatus *factory_create(struct factory **out, const struct host *host, const char *registration_name,
                          PyObject *hooks);
void factory_unregister(struct factory *factory);

struct ep {
  OrtEp slots;
  struct host host;
  const char *name;
  PyObject *provider;     /* NULL when its creation failed */
  char *creation_failure; /* told by Compile, where ORT can't turn it into a silent CPU session */
  const OrtLogger *logger;
  struct ep *next;
};

OrtStatus *ep_create(struct ep **out, const struct factory *factory, const OrtSessionOptions *options,
                     const OrtLogger *logger);
void ep_release(struct ep *ep);

/* Takes over `compute`. NULL when out of memory. */
OrtNodeComputeInfo *fused_node_create(const struct host *host, PyObject *compute);
void fused_node_release(OrtNodeComputeInfo *info);

#endif
