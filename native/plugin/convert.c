#include "plugin.h"

#include <string.h>

void release(PyObject *object) {
  if (object) py.Py_DecRef(object);
}

PyObject *python_string(const char *string) {
  if (!string) string = "";
  return py.PyUnicode_DecodeUTF8(string, (Py_ssize_t)strlen(string), "surrogateescape");
}

bool dict_set(PyObject *dict, const char *key, PyObject *value) {
  PyObject *name = value ? python_string(key) : NULL;
  bool done = name && py.PyDict_SetItem(dict, name, value) == 0;
  release(name);
  release(value);
  return done;
}

PyObject *string_dict(const struct host *host, const OrtKeyValuePairs *pairs) {
  PyObject *dict = py.PyDict_New();
  const char *const *keys = NULL, *const *values = NULL;
  size_t count = 0;
  if (pairs) host->api->GetKeyValuePairs(pairs, &keys, &values, &count);
  for (size_t i = 0; dict && i < count; i++) {
    if (!dict_set(dict, keys[i], python_string(values[i]))) {
      release(dict);
      dict = NULL;
    }
  }
  return dict;
}

static PyObject *call_with(PyObject *callable, PyObject **values, Py_ssize_t count) {
  PyObject *arguments = py.PyTuple_New(count);
  bool complete = arguments != NULL;
  for (Py_ssize_t i = 0; i < count; i++) {
    complete = complete && values[i];
    if (!arguments) {
      release(values[i]);
    } else if (values[i]) {
      py.PyTuple_SetItem(arguments, i, values[i]);
    }
  }
  PyObject *result = complete ? py.PyObject_CallObject(callable, arguments) : NULL;
  release(arguments);
  return result;
}

PyObject *call_one(PyObject *callable, PyObject *first) { return call_with(callable, &first, 1); }

PyObject *call_two(PyObject *callable, PyObject *first, PyObject *second) {
  PyObject *values[] = {first, second};
  return call_with(callable, values, 2);
}

PyObject *attribute_of(PyObject *object, const char *name) {
  /* Python's cache of methods keeps the names it was asked for: a new string each time would hold on to whole arenas. */
  PyObject *interned = py.PyUnicode_InternFromString(name);
  PyObject *attribute = interned ? py.PyObject_GetAttr(object, interned) : NULL;
  release(interned);
  return attribute;
}

PyObject *call_method(PyObject *object, const char *method, PyObject *argument) {
  PyObject *callable = attribute_of(object, method);
  if (!callable) {
    release(argument);
    return NULL;
  }
  PyObject *result = call_one(callable, argument);
  release(callable);
  return result;
}

/* The code that the exception asks for in `ort_status_code`, 0 where it asks for none. */
static long long wanted_code(PyObject *exception) {
  PyObject *attribute = attribute_of(exception, "ort_status_code");
  long long code = attribute ? py.PyLong_AsLongLong(attribute) : 0;
  release(attribute);
  py.PyErr_Clear();
  return code > ORT_OK && code <= 64 ? code : 0;
}

static void append_string(struct text *text, PyObject *string) {
  Py_ssize_t length = 0;
  const char *bytes = string ? py.PyUnicode_AsUTF8AndSize(string, &length) : NULL;
  if (bytes) text_append(text, bytes, (size_t)length);
  if (!bytes) text_add(text, "(text not available)");
  py.PyErr_Clear();
  release(string);
}

static OrtStatus *describe(const struct host *host, const char *where, bool may_fall_back) {
  PyObject *type = NULL, *exception = NULL, *traceback = NULL;
  py.PyErr_Fetch(&type, &exception, &traceback);
  if (!type) return failure(host, ORT_FAIL, "%s: failed without a Python exception", where);
  py.PyErr_NormalizeException(&type, &exception, &traceback);

  long long code = wanted_code(exception);
  struct text text = {0};
  text_add(&text, DEFAULT_EP_NAME ": ");
  if (!code) { /* an exception that nobody worded for the user: say what it is and where it came from */
    text_add(&text, where);
    text_add(&text, ": ");
    append_string(&text, attribute_of(type, "__name__"));
    text_add(&text, ": ");
    code = ORT_FAIL;
  }
  append_string(&text, py.PyObject_Str(exception));

  if (py.PyErr_GivenExceptionMatches(exception, *py.keyboard_interrupt)) {
    /* ORT reports our status as its own error; the interrupt itself must still reach the main thread. */
    interrupt_at_exit();
    may_fall_back = false;
  }
  if (code == ORT_EP_FAIL && !may_fall_back) code = ORT_FAIL;
  OrtStatus *status = text.failed ? out_of_memory(host) : host->api->CreateStatus((OrtErrorCode)code, text.bytes);
  text_free(&text);
  release(type);
  release(exception);
  release(traceback);
  py.PyErr_Clear();
  return status;
}

OrtStatus *python_failure(const struct host *host, const char *where) { return describe(host, where, false); }

OrtStatus *compute_failure(const struct host *host, const char *where) { return describe(host, where, true); }
