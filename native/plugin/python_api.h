/* CPython's stable ABI, found at run time: no Python.h, no link to libpython, so one binary serves every CPython
   and a host without Python can still load it. */
#ifndef MLX_PLUGIN_PYTHON_API_H
#define MLX_PLUGIN_PYTHON_API_H

/* Before the first system header, so every file includes ours first: dladdr, strdup, RTLD_DEFAULT. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stddef.h>

typedef struct python_object PyObject;
typedef struct python_thread PyThreadState;
typedef ptrdiff_t Py_ssize_t;
typedef PyObject *(*PyCFunction)(PyObject *self, PyObject *arguments);

typedef struct {
  const char *name;
  PyCFunction function;
  int flags;
  const char *doc;
} PyMethodDef;

enum { METH_NOARGS = 4 };

#define PYTHON_FUNCTIONS(F)                                                                  \
  F(int, Py_IsInitialized, (void))                                                           \
  F(void, Py_InitializeEx, (int))                                                            \
  F(int, PyGILState_Ensure, (void))                                                          \
  F(void, PyGILState_Release, (int))                                                         \
  F(PyThreadState *, PyEval_SaveThread, (void))                                              \
  F(void, PyEval_RestoreThread, (PyThreadState *))                                           \
  F(void, Py_IncRef, (PyObject *))                                                           \
  F(void, Py_DecRef, (PyObject *))                                                           \
  F(PyObject *, PyImport_ImportModule, (const char *))                                       \
  F(int, PyRun_SimpleString, (const char *))                                                 \
  F(PyObject *, PyObject_GetAttr, (PyObject *, PyObject *))                                  \
  F(PyObject *, PyUnicode_InternFromString, (const char *))                                  \
  F(PyObject *, PyObject_CallObject, (PyObject *, PyObject *))                               \
  F(int, PyCallable_Check, (PyObject *))                                                     \
  F(PyObject *, PyObject_Str, (PyObject *))                                                  \
  F(PyObject *, PyCFunction_NewEx, (PyMethodDef *, PyObject *, PyObject *))                  \
  F(PyObject *, PyTuple_New, (Py_ssize_t))                                                   \
  F(int, PyTuple_SetItem, (PyObject *, Py_ssize_t, PyObject *))                              \
  F(PyObject *, PyList_New, (Py_ssize_t))                                                    \
  F(int, PyList_Append, (PyObject *, PyObject *))                                            \
  F(PyObject *, PyDict_New, (void))                                                          \
  F(PyObject *, PyDict_Items, (PyObject *))                                                  \
  F(int, PyDict_SetItem, (PyObject *, PyObject *, PyObject *))                               \
  F(Py_ssize_t, PySequence_Size, (PyObject *))                                               \
  F(PyObject *, PySequence_GetItem, (PyObject *, Py_ssize_t))                                \
  F(PyObject *, PyLong_FromLongLong, (long long))                                            \
  F(long long, PyLong_AsLongLong, (PyObject *))                                              \
  F(PyObject *, PyLong_FromVoidPtr, (void *))                                                \
  F(void *, PyLong_AsVoidPtr, (PyObject *))                                                  \
  F(PyObject *, PyBytes_FromStringAndSize, (const char *, Py_ssize_t))                       \
  F(int, PyBytes_AsStringAndSize, (PyObject *, char **, Py_ssize_t *))                       \
  F(PyObject *, PyUnicode_DecodeUTF8, (const char *, Py_ssize_t, const char *))              \
  F(const char *, PyUnicode_AsUTF8AndSize, (PyObject *, Py_ssize_t *))                       \
  F(PyObject *, PyErr_Occurred, (void))                                                      \
  F(void, PyErr_Clear, (void))                                                               \
  F(void, PyErr_Fetch, (PyObject **, PyObject **, PyObject **))                              \
  F(void, PyErr_NormalizeException, (PyObject **, PyObject **, PyObject **))                 \
  F(int, PyErr_GivenExceptionMatches, (PyObject *, PyObject *))                              \
  F(void, PyErr_SetInterrupt, (void))                                                        \
  F(void, PyErr_WriteUnraisable, (PyObject *))

struct python_api {
#define PYTHON_FIELD(result, name, parameters) result(*name) parameters;
  PYTHON_FUNCTIONS(PYTHON_FIELD)
#undef PYTHON_FIELD
  int (*is_finalizing)(void); /* Py_IsFinalizing from 3.13, _Py_IsFinalizing before */
  PyObject *none;
  PyObject **keyboard_interrupt;
};

extern struct python_api py;

/* Looks the table up in `library` (a dlopen handle or RTLD_DEFAULT). On failure `py` is unchanged and `*missing`
   names the first absent symbol. */
bool python_api_load(void *library, const char **missing);
bool python_api_loaded(void);

/* For a host without Python: loads libpython and fills the table, or writes into `reason` why not. */
bool python_open(const char *own_path, char *reason, size_t reason_size);
/* Where no interpreter runs yet: starts one that can import from the site-packages this library lies in. */
void python_start(const char *own_path);

#endif
