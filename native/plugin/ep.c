/* One OrtEp: a session's MLX provider object behind ORT's vtable. */
#include "plugin.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sessions that exist, so that a message logged too late finds nobody instead of a freed logger. */
static struct ep *live;
static pthread_mutex_t live_lock = PTHREAD_MUTEX_INITIALIZER;

PLUGIN_EXPORT int mlx_plugin_log(const void *logger, int severity, const char *message, const char *file, int line,
                                 const char *function) {
  int logged = 0;
  pthread_mutex_lock(&live_lock);
  for (struct ep *ep = live; ep; ep = ep->next) {
    if ((const void *)ep->logger != logger) continue;
    const OrtApi *api = ep->host.api;
    OrtStatus *status =
        api->Logger_LogMessage(ep->logger, (OrtLoggingLevel)severity, message, file, line, function);
    logged = status == NULL;
    if (status) api->ReleaseStatus(status);
    break;
  }
  pthread_mutex_unlock(&live_lock);
  return logged;
}

static const char *get_name(const OrtEp *slots) { return ((const struct ep *)slots)->name; }

/* ---- GetCapability */

struct capability_call {
  struct ep *ep;
  const struct graph_document *document;
  OrtEpGraphSupportInfo *support;
  OrtStatus *status;
};

static OrtStatus *fuse(const struct capability_call *call, const OrtNode *const *nodes, size_t count) {
  OrtNodeFusionOptions options = {0};
  options.ort_version_supported = call->ep->host.version;
  options.drop_constant_initializers = true; /* the plan keeps what it needs of the weights, so ORT may free them */
  return call->ep->host.ep_api->EpGraphSupportInfo_AddNodesToFuse(call->support, nodes, count, &options);
}

static OrtStatus *fuse_group(const struct capability_call *call, PyObject *group) {
  const struct host *host = &call->ep->host;
  Py_ssize_t count = py.PySequence_Size(group);
  if (count < 0) return python_failure(host, "reading the groups of get_capability");
  const OrtNode **nodes = malloc(((size_t)count + 1) * sizeof *nodes);
  if (!nodes) return out_of_memory(host);
  OrtStatus *status = NULL;
  for (Py_ssize_t i = 0; i < count && !status; i++) {
    PyObject *item = py.PySequence_GetItem(group, i);
    long long position = item ? py.PyLong_AsLongLong(item) : -1;
    release(item);
    if (py.PyErr_Occurred()) {
      status = python_failure(host, "reading the groups of get_capability");
    } else if (position < 0 || (size_t)position >= call->document->node_count) {
      status = failure(host, ORT_FAIL, "get_capability names node %lld of a graph with %zu nodes", position,
                       call->document->node_count);
    } else {
      nodes[i] = call->document->nodes[position];
    }
  }
  if (!status && count) status = fuse(call, nodes, (size_t)count);
  free(nodes);
  return status;
}

static void capability_in_python(void *argument) {
  struct capability_call *call = argument;
  const struct host *host = &call->ep->host;
  const struct text *json = &call->document->json;
  PyObject *document = py.PyBytes_FromStringAndSize(json->bytes, (Py_ssize_t)json->length);
  PyObject *groups = call_method(call->ep->provider, "get_capability", document);
  Py_ssize_t count = groups ? py.PySequence_Size(groups) : -1;
  if (count < 0) call->status = python_failure(host, "GetCapability");
  for (Py_ssize_t i = 0; i < count && !call->status; i++) {
    PyObject *group = py.PySequence_GetItem(groups, i);
    call->status = group ? fuse_group(call, group) : python_failure(host, "reading the groups of get_capability");
    release(group);
  }
  release(groups);
}

static OrtStatus *capability(struct capability_call *call, const OrtGraph *graph) {
  struct ep *ep = call->ep;
  struct graph_document document = {0};
  OrtStatus *status = graph_document_build(&document, &ep->host, graph);
  call->document = &document;
  if (!status && ep->creation_failure) {
    /* Claiming something makes ORT call Compile, whose error it does tell the user. */
    if (document.node_count) status = fuse(call, document.nodes, 1);
  } else if (!status) {
    status = with_python(capability_in_python, call) ? call->status : shutting_down(&ep->host);
  }
  graph_document_free(&document, &ep->host);
  return status;
}

static OrtStatus *get_capability(OrtEp *slots, const OrtGraph *graph, OrtEpGraphSupportInfo *support) {
  struct capability_call call = {.ep = (struct ep *)slots, .support = support};
  return capability(&call, graph);
}

/* ---- Compile */

struct compile_call {
  struct ep *ep;
  const struct graph_document *documents;
  const OrtNode *const *fused_nodes;
  size_t count;
  OrtNodeComputeInfo **infos;
  OrtStatus *status;
};

static bool append(PyObject *list, PyObject *item) {
  bool done = item && py.PyList_Append(list, item) == 0;
  release(item);
  return done;
}

static OrtStatus *fused_names(const struct compile_call *call, PyObject *names) {
  const struct host *host = &call->ep->host;
  for (size_t i = 0; i < call->count; i++) {
    const char *name = NULL;
    TRY(host->api->Node_GetName(call->fused_nodes[i], &name));
    if (!append(names, python_string(name))) return python_failure(host, "Compile");
  }
  return NULL;
}

static OrtStatus *keep_callables(const struct compile_call *call, PyObject *callables) {
  const struct host *host = &call->ep->host;
  Py_ssize_t given = py.PySequence_Size(callables);
  if (given < 0) return python_failure(host, "reading the result of compile");
  if ((size_t)given != call->count) {
    return failure(host, ORT_FAIL, "compile gave %zd callables for %zu subgraphs", given, call->count);
  }
  for (size_t i = 0; i < call->count; i++) {
    PyObject *callable = py.PySequence_GetItem(callables, (Py_ssize_t)i);
    if (!callable) return python_failure(host, "reading the result of compile");
    call->infos[i] = fused_node_create(host, callable);
    if (!call->infos[i]) return out_of_memory(host);
  }
  return NULL;
}

static void compile_in_python(void *argument) {
  struct compile_call *call = argument;
  const struct host *host = &call->ep->host;
  PyObject *graphs = py.PyList_New(0), *names = py.PyList_New(0);
  bool complete = graphs && names;
  for (size_t i = 0; i < call->count && complete; i++) {
    const struct text *json = &call->documents[i].json;
    complete = append(graphs, py.PyBytes_FromStringAndSize(json->bytes, (Py_ssize_t)json->length));
  }
  if (!complete) call->status = python_failure(host, "Compile");
  if (!call->status) call->status = fused_names(call, names);
  PyObject *method = call->status ? NULL : attribute_of(call->ep->provider, "compile");
  if (!method) {
    release(graphs);
    release(names);
    if (!call->status) call->status = python_failure(host, "Compile");
    return;
  }
  PyObject *callables = call_two(method, graphs, names);
  call->status = callables ? keep_callables(call, callables) : python_failure(host, "Compile");
  release(callables);
  release(method);
}

static OrtStatus *compile(OrtEp *slots, const OrtGraph **graphs, const OrtNode **fused_nodes,
                                       size_t count, OrtNodeComputeInfo **infos, OrtNode **context_nodes) {
  (void)context_nodes;
  struct ep *ep = (struct ep *)slots;
  for (size_t i = 0; i < count; i++) infos[i] = NULL;
  if (ep->creation_failure) return ep->host.api->CreateStatus(ORT_FAIL, ep->creation_failure);

  struct graph_document *documents = calloc(count + 1, sizeof *documents);
  if (!documents) return out_of_memory(&ep->host);
  OrtStatus *status = NULL;
  for (size_t i = 0; i < count && !status; i++) {
    status = graph_document_build(&documents[i], &ep->host, graphs[i]);
  }
  if (!status) {
    struct compile_call call = {
        .ep = ep, .documents = documents, .fused_nodes = fused_nodes, .count = count, .infos = infos};
    status = with_python(compile_in_python, &call) ? call.status : shutting_down(&ep->host);
  }
  for (size_t i = 0; i < count; i++) {
    graph_document_free(&documents[i], &ep->host);
    if (!status) continue;
    fused_node_release(infos[i]);
    infos[i] = NULL;
  }
  free(documents);
  return status;
}

static void release_infos(OrtEp *slots, OrtNodeComputeInfo **infos, size_t count) {
  (void)slots;
  for (size_t i = 0; i < count; i++) fused_node_release(infos[i]);
}

/* ---- runs */

static OrtStatus *on_run_start(OrtEp *slots, const OrtRunOptions *options) {
  (void)options;
  return run_started(&((struct ep *)slots)->host);
}

static OrtStatus *on_run_end(OrtEp *slots, const OrtRunOptions *options, bool synchronize) {
  (void)slots;
  (void)options;
  (void)synchronize;
  run_ended();
  return NULL;
}

/* ---- life */

static void tell(PyObject *provider, const char *name) {
  PyObject *method = attribute_of(provider, name);
  PyObject *result = method ? py.PyObject_CallObject(method, NULL) : NULL;
  if (!result) py.PyErr_WriteUnraisable(provider); /* nothing that failed here makes the session wrong */
  release(result);
  release(method);
}

static void ready_in_python(void *argument) { tell(argument, "session_ready"); }

static OrtStatus *on_session_ready(OrtEp *slots) {
  struct ep *ep = (struct ep *)slots;
  if (ep->provider) with_python(ready_in_python, ep->provider);
  return NULL;
}

struct creation_call {
  struct ep *ep;
  const struct factory *factory;
  const OrtKeyValuePairs *entries;
};

/* The session's entries that are options of this EP, without their prefix: "ep.<lower-case name>.". */
static PyObject *own_options(const struct creation_call *call) {
  const struct host *host = &call->ep->host;
  char prefix[256];
  int length = snprintf(prefix, sizeof prefix, "ep.%s.", call->ep->name);
  if (length < 0 || (size_t)length >= sizeof prefix) return py.PyDict_New();
  for (char *at = prefix; *at; at++) *at = (char)tolower((unsigned char)*at);

  PyObject *options = py.PyDict_New();
  const char *const *keys = NULL, *const *values = NULL;
  size_t count = 0;
  host->api->GetKeyValuePairs(call->entries, &keys, &values, &count);
  for (size_t i = 0; options && i < count; i++) {
    if (strncmp(keys[i], prefix, (size_t)length) != 0) continue;
    if (!dict_set(options, keys[i] + length, python_string(values[i]))) {
      release(options);
      options = NULL;
    }
  }
  return options;
}

static void remember_failure(struct ep *ep, OrtStatus *status) {
  ep->creation_failure = strdup(ep->host.api->GetErrorMessage(status));
  ep->host.api->ReleaseStatus(status);
}

static void create_in_python(void *argument) {
  struct creation_call *call = argument;
  struct ep *ep = call->ep;
  PyObject *logger = py.PyLong_FromVoidPtr((void *)(uintptr_t)ep->logger);
  ep->provider = call_two(call->factory->create_ep, own_options(call), logger);
  if (!ep->provider) remember_failure(ep, python_failure(&ep->host, "creating the provider"));
}

OrtStatus *ep_create(struct ep **out, const struct factory *factory, const OrtSessionOptions *options,
                     const OrtLogger *logger) {
  struct ep *ep = calloc(1, sizeof *ep);
  if (!ep) return out_of_memory(&factory->host);
  ep->host = factory->host;
  ep->name = factory->name;
  ep->logger = logger;
  ep->slots.ort_version_supported = factory->host.version;
  ep->slots.GetName = get_name;
  ep->slots.GetCapability = get_capability;
  ep->slots.Compile = compile;
  ep->slots.ReleaseNodeComputeInfos = release_infos;
  ep->slots.OnRunStart = on_run_start;
  ep->slots.OnRunEnd = on_run_end;
  ep->slots.OnSessionInitializationEnd = on_session_ready; /* asked for by 1.27 and newer */
  /* IsConcurrentRunSupported stays unset: answering false deadlocks ORT's session mutex against the GIL. */

  struct creation_call call = {.ep = ep, .factory = factory};
  OrtKeyValuePairs *entries = NULL;
  OrtStatus *status = factory->host.api->GetSessionOptionsConfigEntries(options, &entries);
  if (status) {
    free(ep);
    return status;
  }
  call.entries = entries;
  pthread_mutex_lock(&live_lock);
  ep->next = live;
  live = ep;
  pthread_mutex_unlock(&live_lock);
  if (forked_after_use()) {
    remember_failure(ep, fork_failure(&ep->host));
  } else {
    mark_in_use();
    if (!with_python(create_in_python, &call)) remember_failure(ep, shutting_down(&ep->host));
  }
  factory->host.api->ReleaseKeyValuePairs(entries);
  if (!ep->provider && !ep->creation_failure) {
    ep_release(ep);
    return out_of_memory(&factory->host);
  }
  *out = ep;
  return NULL;
}

static void close_in_python(void *argument) {
  tell(argument, "close");
  release(argument);
}

void ep_release(struct ep *ep) {
  if (!ep) return;
  pthread_mutex_lock(&live_lock);
  for (struct ep **link = &live; *link; link = &(*link)->next) {
    if (*link != ep) continue;
    *link = ep->next;
    break;
  }
  pthread_mutex_unlock(&live_lock);
  if (ep->provider) with_python(close_in_python, ep->provider);
  free(ep->creation_failure);
  free(ep);
}
