/* One fused node at run time: inputs to Python as addresses, results of Python into outputs that ORT allocates. */
#include "plugin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANK = 64, COPY_WITHOUT_GIL = 1 << 18 };

struct fused_node {
  OrtNodeComputeInfo slots;
  struct host host;
  PyObject *compute;
  int64_t *counters;     /* NULL: everything goes through Python */
  struct replay *replay; /* of the last run that went through Python */
  pthread_mutex_t lock;  /* of `replay` */
};

struct compute_call {
  struct fused_node *node;
  OrtKernelContext *context;
  OrtStatus *status;
};

static PyObject *shape_tuple(const int64_t *dims, size_t rank) {
  PyObject *shape = py.PyTuple_New((Py_ssize_t)rank);
  for (size_t i = 0; shape && i < rank; i++) {
    PyObject *dim = py.PyLong_FromLongLong(dims[i]);
    if (dim) {
      py.PyTuple_SetItem(shape, (Py_ssize_t)i, dim);
    } else {
      release(shape);
      shape = NULL;
    }
  }
  return shape;
}

/* (address, element type, shape), or None for an absent optional. NULL with a status or with a Python error set. */
static PyObject *input_entry(const struct compute_call *call, size_t index, OrtStatus **status) {
  const OrtApi *api = call->node->host.api;
  const OrtValue *value = NULL;
  *status = api->KernelContext_GetInput(call->context, index, &value);
  if (*status) return NULL;
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  const int64_t *dims = NULL;
  size_t rank = 0;
  const void *data = NULL;
  if (value) *status = api->GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank);
  if (*status) {
    int has_value = 1;
    OrtStatus *unknown = api->HasValue(value, &has_value);
    if (unknown) api->ReleaseStatus(unknown);
    if (unknown || has_value) return NULL;
    api->ReleaseStatus(*status);
    *status = NULL;
    value = NULL;
  }
  if (!value) {
    py.Py_IncRef(py.none);
    return py.none;
  }
  if (type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) { /* std::string objects are nobody else's business */
    *status = api->GetTensorData(value, &data);
    if (*status) return NULL;
  }
  PyObject *parts[] = {py.PyLong_FromVoidPtr((void *)(uintptr_t)data),
                       py.PyLong_FromLongLong(onnx_element_type(type)), shape_tuple(dims, rank)};
  PyObject *entry = parts[0] && parts[1] && parts[2] ? py.PyTuple_New(3) : NULL;
  for (Py_ssize_t i = 0; i < 3; i++) {
    if (entry) {
      py.PyTuple_SetItem(entry, i, parts[i]);
    } else {
      release(parts[i]);
    }
  }
  return entry;
}

static PyObject *gather_inputs(const struct compute_call *call, OrtStatus **status) {
  size_t count = 0;
  *status = call->node->host.api->KernelContext_GetInputCount(call->context, &count);
  PyObject *inputs = *status ? NULL : py.PyTuple_New((Py_ssize_t)count);
  for (size_t i = 0; inputs && i < count; i++) {
    PyObject *entry = input_entry(call, i, status);
    if (entry) {
      py.PyTuple_SetItem(inputs, (Py_ssize_t)i, entry);
    } else {
      release(inputs);
      inputs = NULL;
    }
  }
  return inputs;
}

static bool item_as_int(PyObject *sequence, Py_ssize_t index, long long *out) {
  PyObject *item = py.PySequence_GetItem(sequence, index);
  if (!item) return false;
  *out = py.PyLong_AsLongLong(item);
  release(item);
  return *out != -1 || !py.PyErr_Occurred();
}

/* The bytes are at `data`, or `fill` is called with the address where they are wanted. */
struct result {
  int64_t dims[MAX_RANK];
  size_t rank;
  const void *data;
  PyObject *fill;
  size_t size;
};

/* The result's tuple keeps what `fill` borrows from it. */
static bool read_source(PyObject *entry, struct result *result) {
  PyObject *source = py.PySequence_GetItem(entry, 1);
  if (!source) return false;
  result->data = NULL;
  result->fill = py.PyCallable_Check(source) ? source : NULL;
  if (!result->fill) result->data = py.PyLong_AsVoidPtr(source);
  release(source);
  return result->fill || result->data || !py.PyErr_Occurred();
}

static bool read_result(PyObject *entry, struct result *result) {
  PyObject *shape = py.PySequence_GetItem(entry, 0);
  Py_ssize_t rank = shape ? py.PySequence_Size(shape) : -1;
  bool good = rank >= 0 && rank <= MAX_RANK;
  for (Py_ssize_t i = 0; good && i < rank; i++) {
    long long dim = 0;
    good = item_as_int(shape, i, &dim);
    result->dims[i] = dim;
  }
  release(shape);
  long long size = 0;
  good = good && read_source(entry, result) && item_as_int(entry, 2, &size);
  result->rank = good ? (size_t)rank : 0;
  result->size = (size_t)size;
  return good;
}

static void copy(void *to, const void *from, size_t size) {
  if (!size) return;
  if (size < COPY_WITHOUT_GIL) {
    memcpy(to, from, size);
    return;
  }
  PyThreadState *state = py.PyEval_SaveThread();
  memcpy(to, from, size);
  py.PyEval_RestoreThread(state);
}

static bool fill_in_python(PyObject *fill, void *to) {
  PyObject *arguments = py.PyTuple_New(1), *address = py.PyLong_FromVoidPtr(to);
  bool good = arguments && address;
  if (good) {
    py.PyTuple_SetItem(arguments, 0, address);
  } else {
    release(address);
  }
  PyObject *done = good ? py.PyObject_CallObject(fill, arguments) : NULL;
  release(arguments);
  release(done);
  return done != NULL;
}

static OrtStatus *write_output(const struct compute_call *call, size_t index, PyObject *entry) {
  const struct host *host = &call->node->host;
  if (entry == py.none) return NULL;
  struct result result;
  if (!read_result(entry, &result)) return compute_failure(host, "reading the result of compute");
  OrtValue *output = NULL;
  TRY(host->api->KernelContext_GetOutput(call->context, index, result.dims, result.rank, &output));
  if (!output) return NULL; /* an optional output that nobody reads */
  size_t expected = 0;
  TRY(host->api->GetTensorSizeInBytes(output, &expected));
  if (expected != result.size) {
    return failure(host, ORT_FAIL, "output %zu of a compiled subgraph has %zu bytes where its ONNX type needs %zu",
                   index, result.size, expected);
  }
  void *data = NULL;
  TRY(host->api->GetTensorMutableData(output, &data));
  if (!result.fill) {
    copy(data, result.data, result.size);
  } else if (result.size && !fill_in_python(result.fill, data)) {
    return compute_failure(host, "copying a result of compute");
  }
  return NULL;
}

static OrtStatus *write_outputs(const struct compute_call *call, PyObject *results) {
  const struct host *host = &call->node->host;
  size_t count = 0;
  TRY(host->api->KernelContext_GetOutputCount(call->context, &count));
  Py_ssize_t given = py.PySequence_Size(results);
  if (given < 0) return compute_failure(host, "reading the results of compute");
  if ((size_t)given != count) {
    return failure(host, ORT_FAIL, "a compiled subgraph gave %zd outputs instead of %zu", given, count);
  }
  for (size_t i = 0; i < count; i++) {
    PyObject *entry = py.PySequence_GetItem(results, (Py_ssize_t)i);
    if (!entry) return compute_failure(host, "reading the results of compute");
    OrtStatus *status = write_output(call, i, entry);
    release(entry);
    if (status) return status;
  }
  return NULL;
}

static void remember(struct fused_node *node, struct replay *replay) {
  pthread_mutex_lock(&node->lock);
  struct replay *before = node->replay;
  node->replay = replay;
  pthread_mutex_unlock(&node->lock);
  replay_drop(before);
}

static void compute_in_python(void *argument) {
  struct compute_call *call = argument;
  PyObject *inputs = gather_inputs(call, &call->status);
  if (call->status) return;
  PyObject *results = call_one(call->node->compute, inputs);
  if (!results) {
    call->status = compute_failure(&call->node->host, "Compute");
    return;
  }
  call->status = write_outputs(call, results);
  if (call->node->counters) remember(call->node, replay_create(results));
  release(results);
}

static bool replayed(struct fused_node *node, OrtKernelContext *context) {
  pthread_mutex_lock(&node->lock);
  struct replay *replay = replay_share(node->replay);
  pthread_mutex_unlock(&node->lock);
  bool done = replay && lifetime_alive() && replay_run(replay, &node->host, context, node->counters);
  replay_drop(replay);
  return done;
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *context) {
  (void)state;
  struct compute_call call = {.node = (struct fused_node *)info, .context = context};
  if (forked_after_use()) return fork_failure(&call.node->host);
  if (replayed(call.node, context)) return NULL;
  if (!with_python(compute_in_python, &call)) return shutting_down(&call.node->host);
  return call.status;
}

static OrtStatus *create_state(OrtNodeComputeInfo *info, OrtNodeComputeContext *context, void **state) {
  (void)context;
  *state = info;
  return NULL;
}

static void release_state(OrtNodeComputeInfo *info, void *state) {
  (void)info;
  (void)state;
}

OrtNodeComputeInfo *fused_node_create(const struct host *host, PyObject *compute_function) {
  struct fused_node *node = calloc(1, sizeof *node);
  if (!node) {
    release(compute_function);
    return NULL;
  }
  node->slots.ort_version_supported = host->version;
  node->slots.CreateState = create_state;
  node->slots.Compute = compute;
  node->slots.ReleaseState = release_state;
  node->host = *host;
  node->compute = compute_function;
  pthread_mutex_init(&node->lock, NULL);
  PyObject *address = attribute_of(compute_function, "counters");
  if (address) node->counters = py.PyLong_AsVoidPtr(address);
  release(address);
  py.PyErr_Clear(); /* any callable will do, but only one that counts is run without Python */
  return &node->slots;
}

void fused_node_release(OrtNodeComputeInfo *info) {
  struct fused_node *node = (struct fused_node *)info;
  if (!node) return;
  replay_drop(node->replay);
  pthread_mutex_destroy(&node->lock);
  release_anywhere(node->compute);
  free(node);
}
