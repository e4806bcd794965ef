/* The OrtEpFactory of one registration: devices, and an OrtEp per session. */
#include "plugin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Factories are never freed: ORT calls ReleaseEp on one after it released the factory itself. */
static struct factory *factories;
static pthread_mutex_t factories_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *get_name(const OrtEpFactory *slots) { return ((const struct factory *)slots)->name; }

static const char *get_vendor(const OrtEpFactory *slots) {
  (void)slots;
  return "mlxc-py";
}

static uint32_t get_vendor_id(const OrtEpFactory *slots) {
  (void)slots;
  return 0; /* no PCI vendor: MLX runs on whatever the machine has */
}

static const char *get_version(const OrtEpFactory *slots) {
  return ((const struct factory *)slots)->version;
}

/* ---- GetSupportedDevices */

struct devices_call {
  struct factory *factory;
  const OrtHardwareDevice *const *devices;
  size_t count;
  OrtEpDevice **out;
  size_t out_size, out_count;
  OrtStatus *status;
};

static const char *type_name(OrtHardwareDeviceType type) {
  switch (type) {
    case OrtHardwareDeviceType_CPU: return "cpu";
    case OrtHardwareDeviceType_GPU: return "gpu";
    case OrtHardwareDeviceType_NPU: return "npu";
    default: return "other";
  }
}

static PyObject *describe_device(const struct host *host, const OrtHardwareDevice *device) {
  const OrtApi *api = host->api;
  PyObject *dict = py.PyDict_New();
  if (dict && dict_set(dict, "type", python_string(type_name(api->HardwareDevice_Type(device)))) &&
      dict_set(dict, "vendor_id", py.PyLong_FromLongLong(api->HardwareDevice_VendorId(device))) &&
      dict_set(dict, "vendor", python_string(api->HardwareDevice_Vendor(device))) &&
      dict_set(dict, "device_id", py.PyLong_FromLongLong(api->HardwareDevice_DeviceId(device))) &&
      dict_set(dict, "metadata", string_dict(host, api->HardwareDevice_Metadata(device)))) {
    return dict;
  }
  release(dict);
  return NULL;
}

static PyObject *describe_devices(const struct devices_call *call) {
  PyObject *list = py.PyList_New(0);
  for (size_t i = 0; list && i < call->count; i++) {
    PyObject *device = describe_device(&call->factory->host, call->devices[i]);
    if (!device || py.PyList_Append(list, device) != 0) {
      release(list);
      list = NULL;
    }
    release(device);
  }
  return list;
}

/* Copies a dict of strings into `pairs`; false with a Python error set. */
static bool read_pairs(const struct host *host, PyObject *dict, OrtKeyValuePairs *pairs) {
  PyObject *items = dict ? py.PyDict_Items(dict) : NULL;
  Py_ssize_t count = items ? py.PySequence_Size(items) : -1;
  bool good = count >= 0;
  for (Py_ssize_t i = 0; good && i < count; i++) {
    PyObject *item = py.PySequence_GetItem(items, i);
    PyObject *key = item ? py.PySequence_GetItem(item, 0) : NULL;
    PyObject *value = item ? py.PySequence_GetItem(item, 1) : NULL;
    const char *key_text = key ? py.PyUnicode_AsUTF8AndSize(key, NULL) : NULL;
    const char *value_text = value ? py.PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
    good = key_text && value_text;
    if (good) host->api->AddKeyValuePair(pairs, key_text, value_text);
    release(value);
    release(key);
    release(item);
  }
  release(items);
  return good;
}

/* `choice` is (device index, metadata, default options). */
static OrtStatus *add_device(struct devices_call *call, PyObject *choice) {
  const struct host *host = &call->factory->host;
  PyObject *parts[3] = {NULL, NULL, NULL};
  for (Py_ssize_t i = 0; i < 3; i++) parts[i] = py.PySequence_GetItem(choice, i);
  long long index = parts[0] ? py.PyLong_AsLongLong(parts[0]) : -1;
  OrtKeyValuePairs *metadata = NULL, *options = NULL;
  host->api->CreateKeyValuePairs(&metadata);
  host->api->CreateKeyValuePairs(&options);
  OrtStatus *status = NULL;
  if (py.PyErr_Occurred() || !read_pairs(host, parts[1], metadata) || !read_pairs(host, parts[2], options)) {
    status = python_failure(host, "reading the devices that ort_ep selected");
  } else if (index < 0 || (size_t)index >= call->count || call->out_count >= call->out_size) {
    status = failure(host, ORT_FAIL, "ort_ep selected device %lld of %zu", index, call->count);
  } else {
    status = host->ep_api->CreateEpDevice(&call->factory->slots, call->devices[index], metadata, options,
                                          &call->out[call->out_count]);
    if (!status) call->out_count++;
  }
  host->api->ReleaseKeyValuePairs(metadata);
  host->api->ReleaseKeyValuePairs(options);
  for (size_t i = 0; i < 3; i++) release(parts[i]);
  return status;
}

static void select_in_python(void *argument) {
  struct devices_call *call = argument;
  const struct host *host = &call->factory->host;
  PyObject *choices = call_one(call->factory->select_devices, describe_devices(call));
  Py_ssize_t count = choices ? py.PySequence_Size(choices) : -1;
  if (count < 0) call->status = python_failure(host, "selecting devices");
  for (Py_ssize_t i = 0; i < count && !call->status; i++) {
    PyObject *choice = py.PySequence_GetItem(choices, i);
    call->status = choice ? add_device(call, choice) : python_failure(host, "selecting devices");
    release(choice);
  }
  release(choices);
}

static OrtStatus *get_supported_devices(OrtEpFactory *slots, const OrtHardwareDevice *const *devices,
                                                     size_t count, OrtEpDevice **out, size_t out_size,
                                                     size_t *out_count) {
  struct devices_call call = {.factory = (struct factory *)slots,
                              .devices = devices,
                              .count = count,
                              .out = out,
                              .out_size = out_size};
  *out_count = 0;
  if (!with_python(select_in_python, &call)) return shutting_down(&call.factory->host);
  if (call.status) {
    for (size_t i = 0; i < call.out_count; i++) call.factory->host.ep_api->ReleaseEpDevice(out[i]);
    return call.status;
  }
  *out_count = call.out_count;
  return NULL;
}

/* ---- sessions */

static OrtStatus *create_ep(OrtEpFactory *slots, const OrtHardwareDevice *const *devices,
                                         const OrtKeyValuePairs *const *metadata, size_t count,
                                         const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **out) {
  (void)devices;
  (void)metadata;
  (void)count;
  struct ep *ep = NULL;
  *out = NULL;
  TRY(ep_create(&ep, (const struct factory *)slots, options, logger));
  *out = &ep->slots;
  return NULL;
}

static void release_ep(OrtEpFactory *slots, OrtEp *ep) {
  (void)slots;
  ep_release((struct ep *)ep);
}

/* ORT calls this slot without asking whether it is there; our tensors live in its own memory. */
static OrtStatus *create_data_transfer(OrtEpFactory *slots, OrtDataTransferImpl **out) {
  (void)slots;
  *out = NULL;
  return NULL;
}

/* ---- life */

/* The name ORT knows the EP by: the registration name where that is one, else our own. */
static const char *ep_name(const char *registration_name) {
  static const char suffix[] = "ExecutionProvider";
  size_t length = strlen(registration_name), tail = sizeof suffix - 1;
  bool is_name = length > tail && strcmp(registration_name + length - tail, suffix) == 0;
  return is_name ? registration_name : DEFAULT_EP_NAME;
}

static char *string_attribute(PyObject *object, const char *name) {
  PyObject *attribute = attribute_of(object, name);
  const char *text = attribute ? py.PyUnicode_AsUTF8AndSize(attribute, NULL) : NULL;
  char *copy = text ? strdup(text) : NULL;
  release(attribute);
  return copy;
}

static void destroy(struct factory *factory) {
  release(factory->select_devices);
  release(factory->create_ep);
  free(factory->name);
  free(factory->version);
  free(factory);
}

/* False when another registration already owns this EP name. */
static bool enlist(struct factory *factory) {
  pthread_mutex_lock(&factories_lock);
  bool taken = false;
  for (struct factory *other = factories; other; other = other->next) {
    taken = taken || (other->registered && strcmp(other->name, factory->name) == 0);
  }
  if (!taken) {
    factory->registered = true;
    factory->next = factories;
    factories = factory;
  }
  pthread_mutex_unlock(&factories_lock);
  return !taken;
}

OrtStatus *factory_create(struct factory **out, const struct host *host, const char *registration_name,
                          PyObject *hooks) {
  struct factory *factory = calloc(1, sizeof *factory);
  if (!factory) return out_of_memory(host);
  factory->host = *host;
  factory->slots.ort_version_supported = host->version;
  factory->slots.GetName = get_name;
  factory->slots.GetVendor = get_vendor;
  factory->slots.GetVendorId = get_vendor_id;
  factory->slots.GetVersion = get_version;
  factory->slots.GetSupportedDevices = get_supported_devices;
  factory->slots.CreateEp = create_ep;
  factory->slots.ReleaseEp = release_ep;
  factory->slots.CreateDataTransfer = create_data_transfer;
  factory->name = strdup(ep_name(registration_name));
  factory->version = string_attribute(hooks, "version");
  factory->select_devices = attribute_of(hooks, "select_devices");
  factory->create_ep = attribute_of(hooks, "create_ep");
  OrtStatus *status = NULL;
  if (!factory->version || !factory->select_devices || !factory->create_ep) {
    status = python_failure(host, "reading the hooks of ort_ep.factory");
  } else if (!factory->name) {
    status = out_of_memory(host);
  } else if (!enlist(factory)) {
    status = failure(host, ORT_FAIL,
                     "an execution provider named %s is registered already; use it, unregister it first, or register "
                     "under another name that ends in ExecutionProvider",
                     factory->name);
  }
  if (status) {
    destroy(factory);
    return status;
  }
  *out = factory;
  return NULL;
}

void factory_unregister(struct factory *factory) {
  pthread_mutex_lock(&factories_lock);
  factory->registered = false;
  pthread_mutex_unlock(&factories_lock);
}
