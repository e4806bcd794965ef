/* A run of a fused node that needs no Python: inputs of the same forms as in the run before, given to the same tape of
   libmlxc. Whatever is unusual or fails is left to Python, which runs it once more and can tell why.

   ort_ep/direct.py describes a run in 64-bit words:
     mlxc_py_tape_fill, tape, inputs, outputs
     each input: UNREAD | ABSENT | element type, whether the tape gets it, rank, dims...,
                 bytes that have to be the same, and these in whole words
     each output: bytes, rank, dims... */
#include "plugin.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { UNREAD = -1, ABSENT = 0, MOST_PORTS = 512 };

typedef int (*fill_function)(void *const *results, size_t count, int64_t *spent, void *tape, const void *const *data,
                             size_t inputs);

struct replay {
  atomic_int holders;
  PyObject *tape; /* keeps what the words have the address of */
  fill_function fill;
  void *handle;
  int64_t inputs, outputs;
  int64_t words[];
};

static struct replay *parsed(PyObject *bytes, PyObject *tape) {
  enum { HEADER = 4 };
  char *content = NULL;
  Py_ssize_t size = 0;
  if (py.PyBytes_AsStringAndSize(bytes, &content, &size) || (size_t)size < HEADER * sizeof(int64_t)) return NULL;
  int64_t header[HEADER];
  memcpy(header, content, sizeof header);
  if (header[2] > MOST_PORTS || header[3] > MOST_PORTS) return NULL;
  struct replay *replay = malloc(sizeof *replay + (size_t)size - sizeof header);
  if (!replay) return NULL;
  atomic_init(&replay->holders, 1);
  uintptr_t fill = (uintptr_t)header[0];
  memcpy(&replay->fill, &fill, sizeof fill); /* ISO C has no conversion to a function pointer */
  replay->handle = (void *)(uintptr_t)header[1];
  replay->inputs = header[2];
  replay->outputs = header[3];
  memcpy(replay->words, content + sizeof header, (size_t)size - sizeof header);
  py.Py_IncRef(tape);
  replay->tape = tape;
  return replay;
}

struct replay *replay_create(PyObject *results) {
  struct replay *replay = NULL;
  PyObject *pair = attribute_of(results, "replay");
  if (pair && pair != py.none) {
    PyObject *bytes = py.PySequence_GetItem(pair, 0), *tape = py.PySequence_GetItem(pair, 1);
    if (bytes && tape) replay = parsed(bytes, tape);
    release(bytes);
    release(tape);
  }
  release(pair);
  py.PyErr_Clear(); /* results of another kind have none */
  return replay;
}

struct replay *replay_share(struct replay *replay) {
  if (replay) atomic_fetch_add_explicit(&replay->holders, 1, memory_order_relaxed);
  return replay;
}

void replay_drop(struct replay *replay) {
  if (!replay || atomic_fetch_sub_explicit(&replay->holders, 1, memory_order_acq_rel) > 1) return;
  release_anywhere(replay->tape);
  free(replay);
}

/* Reads the words of one input; whether the value is as they say. `*data`: what the tape gets, if it does. */
static bool same_input(const int64_t **words, const struct host *host, OrtKernelContext *context, size_t index,
                       const void **data, size_t *count) {
  const int64_t *word = *words, wanted = *word++;
  const OrtValue *value = NULL;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  const int64_t *dims = NULL;
  size_t rank = 0;
  *words = word;
  if (wanted == UNREAD) return true;
  OrtStatus *status = host->api->KernelContext_GetInput(context, index, &value);
  if (!status && wanted == ABSENT) return !value;
  if (!status && value) status = host->api->GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank);
  const void *content = NULL;
  if (!status && value) status = host->api->GetTensorData(value, &content);
  if (status) host->api->ReleaseStatus(status);
  if (status || !value) return false;
  const bool given = *word++;
  if (onnx_element_type(type) != wanted || rank != (size_t)*word++) return false;
  for (size_t i = 0; i < rank; i++)
    if (dims[i] != *word++) return false;
  const size_t size = (size_t)*word++;
  if (memcmp(content, word, size)) return false;
  *words = word + (size + 7) / 8;
  if (given) data[(*count)++] = content;
  return true;
}

/* The memory of one output; NULL where nobody reads it. */
static bool output_memory(const int64_t **words, const struct host *host, OrtKernelContext *context, size_t index,
                          void **memory) {
  const size_t size = (size_t)(*words)[0], rank = (size_t)(*words)[1];
  const int64_t *dims = *words + 2;
  *words = dims + rank;
  *memory = NULL;
  OrtValue *value = NULL;
  size_t allocated = size;
  OrtStatus *status = host->api->KernelContext_GetOutput(context, index, dims, rank, &value);
  if (!status && value) status = host->api->GetTensorSizeInBytes(value, &allocated);
  if (!status && value) status = host->api->GetTensorMutableData(value, memory);
  if (status) host->api->ReleaseStatus(status);
  return !status && allocated == size;
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

bool replay_run(const struct replay *replay, const struct host *host, OrtKernelContext *context, int64_t *counters) {
  const int64_t began = now(), *words = replay->words;
  const void *data[MOST_PORTS];
  void *memory[MOST_PORTS];
  size_t count = 0;
  int64_t evaluating = 0;
  for (int64_t i = 0; i < replay->inputs; i++)
    if (!same_input(&words, host, context, (size_t)i, data, &count)) return false;
  for (int64_t i = 0; i < replay->outputs; i++)
    if (!output_memory(&words, host, context, (size_t)i, &memory[i])) return false;
  if (replay->fill(memory, (size_t)replay->outputs, &evaluating, replay->handle, data, count)) return false;
  __atomic_fetch_add(&counters[0], 1, __ATOMIC_RELAXED);
  __atomic_fetch_add(&counters[1], now() - began, __ATOMIC_RELAXED);
  __atomic_fetch_add(&counters[2], evaluating, __ATOMIC_RELAXED);
  return true;
}
