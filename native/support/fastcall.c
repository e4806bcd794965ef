// Vectorcall-like entry points for mlx-c. CPython is reached by dlsym and only through its stable ABI, so this needs
// no Python headers and one binary serves 3.11 and newer; free-threaded builds lay objects out differently and are
// refused by mlxc_support_python.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

typedef struct Object Object;
typedef struct Type Type;
typedef intptr_t Ssize;

struct Object {
  Ssize references;
  Type *type;
};

typedef struct {
  Object base;
  void *handle;
} Handle;

typedef struct {
  const char *name;
  int type;
  Ssize offset;
  int flags;
  const char *doc;
} MemberDef;

typedef struct {
  int slot;
  void *function;
} TypeSlot;

typedef struct {
  const char *name;
  int basicsize;
  int itemsize;
  unsigned flags;
  TypeSlot *slots;
} TypeSpec;

typedef struct {
  const char *name;
  void *function;
  int flags;
  const char *doc;
} MethodDef;

typedef struct {
  void *buf;
  Object *obj;
  Ssize len;
  Ssize itemsize;
  int readonly;
  int ndim;
  char *format;
  Ssize *shape;
  Ssize *strides;
  Ssize *suboffsets;
  void *internal;
} Buffer;

enum { TP_DEALLOC = 52, TP_DOC = 56, TP_MEMBERS = 72, TP_FREE = 74 };
enum { T_ULONGLONG = 18, BASETYPE = 1 << 10, METH_O = 0x8, METH_FASTCALL = 0x80 };

#define CPYTHON(X)                                                                      \
  X(Object *, PyType_FromSpec, (TypeSpec *))                                            \
  X(void *, PyType_GetSlot, (Type *, int))                                              \
  X(Object *, PyType_GenericAlloc, (Type *, Ssize))                                     \
  X(int, PyType_IsSubtype, (Type *, Type *))                                            \
  X(Object *, PyCFunction_NewEx, (MethodDef *, Object *, Object *))                     \
  X(Object *, PyCapsule_New, (void *, const char *, void *))                            \
  X(void *, PyCapsule_GetPointer, (Object *, const char *))                             \
  X(unsigned long long, PyLong_AsUnsignedLongLongMask, (Object *))                      \
  X(long, PyLong_AsLong, (Object *))                                                    \
  X(Object *, PyLong_FromSize_t, (size_t))                                              \
  X(double, PyFloat_AsDouble, (Object *))                                               \
  X(const char *, PyUnicode_AsUTF8AndSize, (Object *, Ssize *))                         \
  X(Object *, PyTuple_New, (Ssize))                                                     \
  X(int, PyTuple_SetItem, (Object *, Ssize, Object *))                                  \
  X(int, PyObject_GetBuffer, (Object *, Buffer *, int))                                 \
  X(void, PyBuffer_Release, (Buffer *))                                                 \
  X(Ssize, PySequence_Size, (Object *))                                                 \
  X(Object *, PySequence_GetItem, (Object *, Ssize))                                    \
  X(Object *, PyObject_CallFunction, (Object *, const char *, ...))                     \
  X(void, PyErr_SetString, (Object *, const char *))                                    \
  X(Object *, PyErr_Format, (Object *, const char *, ...))                              \
  X(Object *, PyErr_NoMemory, (void))                                                   \
  X(Object *, PyErr_Occurred, (void))                                                   \
  X(void, Py_IncRef, (Object *))                                                        \
  X(void, Py_DecRef, (Object *))

#define MEMBER(result, name, parameters) result(*name) parameters;
static struct {
  CPYTHON(MEMBER)
  Object **TypeError, **OverflowError, **RuntimeError;
  Object *None;
  Type *PyLong_Type;
} py;
static int ready;

static Type *handle_type;
static int (*release_array)(void *);
static void *(*new_vector)(const void *const *, size_t);
static int (*release_vector)(void *);

static _Atomic(uint64_t) epoch = 1;
static _Thread_local struct {
  void *stream;
  uint64_t epoch;  // 0: pinned
} mine;
static Object *resolver;

enum { WORDS = 16, DOUBLES = 4, INTS = 96, ITEMS = 64 };

// A bound function of mlx-c that makes one array.
typedef struct {
  const char *name;
  void (*function)(void);
  Type *result;
  Object *on_error;
  MethodDef method;
  int n;         // Python arguments
  int streams;   // 1 if the last of them is a stream
  int by_value;  // whether it returns the array itself, empty where it failed
  char signature[WORDS + 1];
} Binding;

// One call's C arguments: general registers and stack in words, floating-point registers apart, as the ABIs pass them.
typedef struct {
  uint64_t word[WORDS];
  double number[DOUBLES];
  int words, numbers, used;
  int ints[INTS];
  void *vector;
  Buffer buffer;  // buffer.obj is set while one is held
} Call;

int mlxc_support_python(size_t object_size) {
  if (ready) return 0;
  if (object_size != sizeof(Object)) return -1;
#define FIND(result, name, parameters) \
  if (!(*(void **)&py.name = dlsym(RTLD_DEFAULT, #name))) return -1;
  CPYTHON(FIND)
  if (!(py.TypeError = dlsym(RTLD_DEFAULT, "PyExc_TypeError")) ||
      !(py.OverflowError = dlsym(RTLD_DEFAULT, "PyExc_OverflowError")) ||
      !(py.RuntimeError = dlsym(RTLD_DEFAULT, "PyExc_RuntimeError")) ||
      !(py.PyLong_Type = dlsym(RTLD_DEFAULT, "PyLong_Type")) ||
      !(py.None = dlsym(RTLD_DEFAULT, "_Py_NoneStruct")))
    return -1;
  ready = 1;
  return 0;
}

void mlxc_support_vectors(void *(*create)(const void *const *, size_t), int (*release)(void *)) {
  new_vector = create;
  release_vector = release;
}

void mlxc_support_set_stream(void *stream, int pinned) {
  mine.stream = stream;
  mine.epoch = pinned ? 0 : atomic_load(&epoch);
}

void mlxc_support_drop_stream(void *stream) {
  if (mine.stream == stream) mine.stream = NULL;
}

void mlxc_support_forget_streams(void) { atomic_fetch_add(&epoch, 1); }

void mlxc_support_stream_resolver(void *callable) {
  py.Py_IncRef(callable);
  if (resolver) py.Py_DecRef(resolver);
  resolver = callable;
}

void *mlxc_support_current_stream(void) {
  if (mine.stream && (!mine.epoch || mine.epoch == atomic_load_explicit(&epoch, memory_order_acquire)))
    return mine.stream;
  if (!resolver) {
    py.PyErr_SetString(*py.RuntimeError, "no stream is set for calls that name none");
    return NULL;
  }
  Object *found = py.PyObject_CallFunction(resolver, NULL);
  if (!found) return NULL;
  uint64_t stream = py.PyLong_AsUnsignedLongLongMask(found);
  py.Py_DecRef(found);
  if (!stream && !py.PyErr_Occurred()) py.PyErr_SetString(*py.RuntimeError, "the resolver of streams found none");
  return py.PyErr_Occurred() ? NULL : (void *)(uintptr_t)stream;
}

static void handle_dealloc(Object *self) {
  Type *type = self->type;
  void *handle = ((Handle *)self)->handle;
  if (handle) release_array(handle);
  ((void (*)(void *))py.PyType_GetSlot(type, TP_FREE))(self);
  py.Py_DecRef((Object *)type);
}

void *mlxc_support_handle_type(int (*release)(void *)) {
  static MemberDef members[] = {
      {"handle", T_ULONGLONG, offsetof(Handle, handle), 0, "address of the mlx_array; 0 once released"},
      {NULL, 0, 0, 0, NULL},
  };
  static TypeSlot slots[] = {
      {TP_DEALLOC, (void *)handle_dealloc},
      {TP_MEMBERS, members},
      {TP_DOC, (void *)"Owner of one mlx_array, released with the object."},
      {0, NULL},
  };
  static TypeSpec spec = {"mlxc_py._sys.support.Handle", sizeof(Handle), 0, BASETYPE, slots};
  release_array = release;
  if (!handle_type) handle_type = (Type *)py.PyType_FromSpec(&spec);
  if (handle_type) py.Py_IncRef((Object *)handle_type);
  return handle_type;
}

static int is_array(const Binding *f, Object *o) {
  return o->type == f->result || py.PyType_IsSubtype(o->type, f->result);
}

static int wrong(const Binding *f, int position, const char *wanted) {
  if (!py.PyErr_Occurred()) py.PyErr_Format(*py.TypeError, "%s: argument %d must be %s", f->name, position + 1, wanted);
  return -1;
}

static int read_int(const Binding *f, int position, Object *o, int *out) {
  long value = py.PyLong_AsLong(o);
  if (value == -1 && py.PyErr_Occurred()) return -1;
  if (value != (int)value) {
    const char *text = "%s: %ld in argument %d does not fit a 32-bit integer";
    py.PyErr_Format(*py.OverflowError, text, f->name, value, position + 1);
    return -1;
  }
  *out = (int)value;
  return 0;
}

static int add_int(const Binding *f, Call *c, int position, Object *o) {
  if (c->used == INTS) return wrong(f, position, "a shorter sequence of integers");
  return read_int(f, position, o, &c->ints[c->used++]);
}

static int add_ints(const Binding *f, Call *c, int position, Object *o) {
  int start = c->used;
  if (o != py.None) {
    if (py.PyType_IsSubtype(o->type, py.PyLong_Type)) {
      if (add_int(f, c, position, o)) return -1;
    } else {
      Ssize n = py.PySequence_Size(o);
      if (n < 0) return -1;
      for (Ssize i = 0; i < n; i++) {
        Object *item = py.PySequence_GetItem(o, i);
        if (!item) return -1;
        int failed = add_int(f, c, position, item);
        py.Py_DecRef(item);
        if (failed) return -1;
      }
    }
  }
  c->word[c->words++] = o == py.None ? 0 : (uint64_t)(uintptr_t)(c->ints + start);
  c->word[c->words++] = (uint64_t)(c->used - start);
  return 0;
}

static int add_vector(const Binding *f, Call *c, int position, Object *o) {
  Object *few[ITEMS];
  const void *few_handles[ITEMS];
  Ssize n = py.PySequence_Size(o);
  if (n < 0) return -1;
  Object **items = n <= ITEMS ? few : malloc((size_t)n * sizeof *items);
  const void **handles = n <= ITEMS ? few_handles : malloc((size_t)n * sizeof *handles);
  Ssize held = 0;
  int status = items && handles ? 0 : -1;
  if (status) py.PyErr_NoMemory();
  while (!status && held < n) {
    Object *item = py.PySequence_GetItem(o, held);
    if (!item) {
      status = -1;
      break;
    }
    items[held++] = item;
    if (is_array(f, item))
      handles[held - 1] = ((Handle *)item)->handle;
    else
      status = wrong(f, position, "a sequence of arrays");
  }
  if (!status) c->vector = new_vector(handles, (size_t)n);
  while (held) py.Py_DecRef(items[--held]);
  if (items != few) free(items);
  if (handles != few_handles) free(handles);
  c->word[c->words++] = (uint64_t)(uintptr_t)c->vector;
  return status;
}

static int add_address(const Binding *f, Call *c, int position, Object *o) {
  uint64_t address = 0;
  if (py.PyType_IsSubtype(o->type, py.PyLong_Type)) {
    address = py.PyLong_AsUnsignedLongLongMask(o);
  } else if (o != py.None) {
    if (c->buffer.obj) return wrong(f, position, "an address: one buffer is taken already");
    if (py.PyObject_GetBuffer(o, &c->buffer, 0)) return -1;  // 0: contiguous bytes
    address = (uint64_t)(uintptr_t)c->buffer.buf;
  }
  c->word[c->words++] = address;
  return 0;
}

static int add_argument(const Binding *f, Call *c, int position, Object *o) {
  switch (f->signature[position]) {
    case 'a':
      if (is_array(f, o))
        c->word[c->words++] = (uint64_t)(uintptr_t)((Handle *)o)->handle;
      else if (o == py.None)
        c->word[c->words++] = 0;
      else
        return wrong(f, position, "an array");
      return 0;
    case 'i':
    case 'b': {
      int value;
      if (read_int(f, position, o, &value)) return -1;
      c->word[c->words++] = f->signature[position] == 'b' ? value != 0 : (uint64_t)(int64_t)value;
      return 0;
    }
    case 'l': {
      uint64_t value = py.PyLong_AsUnsignedLongLongMask(o);
      if (value == UINT64_MAX && py.PyErr_Occurred()) return -1;
      c->word[c->words++] = value;
      return 0;
    }
    case 'n':
      return add_ints(f, c, position, o);
    case 'v':
      return add_vector(f, c, position, o);
    case 'o': {
      int value;
      if (o != py.None && read_int(f, position, o, &value)) return -1;
      c->word[c->words++] = o == py.None ? 0 : (uint32_t)value | (uint64_t)1 << 32;
      return 0;
    }
    case 'g':
    case 'f':
    case 'd': {
      if (o == py.None && f->signature[position] == 'g') {
        c->word[c->words++] = 0;
        return 0;
      }
      double value = py.PyFloat_AsDouble(o);
      if (value == -1.0 && py.PyErr_Occurred()) return -1;
      if (f->signature[position] == 'd') {
        c->number[c->numbers++] = value;
        return 0;
      }
      float single = (float)value;
      uint32_t bits;
      memcpy(&bits, &single, sizeof bits);
      if (f->signature[position] == 'g')
        c->word[c->words++] = bits | (uint64_t)1 << 32;
      else  // a float is the low half of the register that would carry a double
        memcpy(&c->number[c->numbers++], &(uint64_t){bits}, sizeof(double));
      return 0;
    }
    case 'p':
      return add_address(f, c, position, o);
    case 'z': {
      const char *text = o == py.None ? NULL : py.PyUnicode_AsUTF8AndSize(o, NULL);
      if (!text && o != py.None) return -1;
      c->word[c->words++] = (uint64_t)(uintptr_t)text;
      return 0;
    }
    default: {  // 's'
      uint64_t stream = o == py.None ? 0 : py.PyLong_AsUnsignedLongLongMask(o);
      if (stream == UINT64_MAX && py.PyErr_Occurred()) return -1;
      c->word[c->words++] = stream;
      return 0;
    }
  }
}

typedef uint64_t W;
typedef uintptr_t (*Few)(W, W, W, W, W, W, W, W);
typedef uintptr_t (*FewFloat)(W, W, W, W, W, W, W, W, double, double, double, double);
typedef uintptr_t (*Many)(W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, double, double, double, double);

// Arguments beyond a function's own are ignored by it: the caller clears the stack in every ABI served here. An int
// result is the low half of the register.
static uintptr_t invoke(void (*function)(void), const Call *c) {
  const W *w = c->word;
  const double *d = c->number;
  if (c->words > 8)
    return ((Many)function)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13],
                            w[14], w[15], d[0], d[1], d[2], d[3]);
  if (c->numbers) return ((FewFloat)function)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], d[0], d[1], d[2], d[3]);
  return ((Few)function)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]);
}

static Object *finish(const Binding *f, const Call *c, void *const *out) {
  uintptr_t returned = invoke(f->function, c);
  if (f->by_value ? returned != 0 : (int)returned == 0) {
    void *made = f->by_value ? (void *)returned : *out;
    Handle *result = (Handle *)py.PyType_GenericAlloc(f->result, 0);
    if (result)
      result->handle = made;
    else
      release_array(made);
    return (Object *)result;
  }
  Object *unexpected = py.PyObject_CallFunction(f->on_error, "s", f->name);
  if (unexpected) {
    py.Py_DecRef(unexpected);
    py.PyErr_SetString(*py.RuntimeError, f->name);
  }
  return NULL;
}

static Object *call(Object *self, Object *const *args, Ssize n) {
  const Binding *f = py.PyCapsule_GetPointer(self, NULL);
  if (n != f->n && n != f->n - f->streams)
    return py.PyErr_Format(*py.TypeError, "%s takes %d arguments, %zd given", f->name, f->n, n);
  void *made = NULL;
  Call c;
  memset(c.word, 0, sizeof c.word);
  memset(c.number, 0, sizeof c.number);
  c.words = c.numbers = c.used = 0;
  c.vector = NULL;
  c.buffer.obj = NULL;
  if (!f->by_value) c.word[c.words++] = (uint64_t)(uintptr_t)&made;
  int status = 0;
  for (int i = 0; i < n && !status; i++) status = add_argument(f, &c, i, args[i]);
  if (!status && f->streams) {
    if (n < f->n) c.word[c.words++] = 0;
    uint64_t *stream = &c.word[c.words - 1];
    if (!*stream && !(*stream = (uint64_t)(uintptr_t)mlxc_support_current_stream())) status = -1;
  }
  Object *result = status ? NULL : finish(f, &c, &made);
  if (c.vector) release_vector(c.vector);
  if (c.buffer.obj) py.PyBuffer_Release(&c.buffer);
  return result;
}

// A builtin function whose self is a capsule of `state`.
static Object *callable(MethodDef *method, void *state) {
  Object *capsule = py.PyCapsule_New(state, NULL, NULL);
  if (!capsule) return NULL;
  Object *function = py.PyCFunction_NewEx(method, capsule, NULL);
  py.Py_DecRef(capsule);
  return function;
}

void *mlxc_support_bind(const char *name, void (*function)(void), const char *signature, void *result, void *on_error) {
  int by_value = *signature == '=';
  signature += by_value;
  size_t length = strlen(signature);
  int words = !by_value, numbers = 0;
  for (const char *s = signature; *s; s++) {
    numbers += *s == 'f' || *s == 'd';
    words += *s == 'n' ? 2 : *s != 'f' && *s != 'd';
  }
#if defined(__APPLE__) && defined(__aarch64__)
  int most = 9;  // stack arguments are packed at their own size there; the first one is at the same place either way
#else
  int most = WORDS;
#endif
  if (words > most || numbers > DOUBLES)
    return py.PyErr_Format(*py.TypeError, "%s: too many arguments for a fast call", name);
  Binding *f = calloc(1, sizeof *f);  // lives as long as the process, as the functions bound here do
  if (!f) return py.PyErr_NoMemory();
  f->name = strdup(name);
  f->function = function;
  f->result = result;
  f->on_error = on_error;
  f->n = (int)length;
  f->by_value = by_value;
  f->streams = length && signature[length - 1] == 's';
  memcpy(f->signature, signature, length + 1);
  f->method = (MethodDef){f->name, (void *)call, METH_FASTCALL, NULL};
  py.Py_IncRef(result);
  py.Py_IncRef(on_error);
  return callable(&f->method, f);
}

// A bound function of mlx-c that reads a property of one array.
typedef struct {
  void *function;
  size_t (*count)(void *);
  int wide;
  Object *on_empty;
  MethodDef method;
  int (*conditions[2])(unsigned char *, void *);
} Reader;

static Object *read_one(Object *self, Object *array) {
  const Reader *r = py.PyCapsule_GetPointer(self, NULL);
  if (!py.PyType_IsSubtype(array->type, handle_type)) {
    py.PyErr_Format(*py.TypeError, "%s takes an array", r->method.name);
    return NULL;
  }
  void *handle = ((Handle *)array)->handle;
  int met = handle != NULL;
  for (int i = 0; met && i < 2 && r->conditions[i]; i++) {
    unsigned char flag = 0;
    met = !r->conditions[i](&flag, handle) && flag;
  }
  if (!met) return py.PyObject_CallFunction(r->on_empty, "O", array);
  if (!r->count) {
    if (r->wide) return py.PyLong_FromSize_t(((size_t(*)(void *))r->function)(handle));
    return py.PyLong_FromSize_t(((unsigned (*)(void *))r->function)(handle));
  }
  Ssize n = (Ssize)r->count(handle);
  const int *sizes = ((const int *(*)(void *))r->function)(handle);
  Object *shape = py.PyTuple_New(n);
  for (Ssize i = 0; shape && i < n; i++) py.PyTuple_SetItem(shape, i, py.PyLong_FromSize_t((size_t)sizes[i]));
  return shape;
}

void *mlxc_support_reader(const char *name, void *function, size_t (*count)(void *), int wide, void *on_empty) {
  Reader *r = calloc(1, sizeof *r);
  if (!r) return py.PyErr_NoMemory();
  MethodDef method = {strdup(name), (void *)read_one, METH_O, NULL};
  *r = (Reader){function, count, wide, on_empty, method, {NULL, NULL}};
  py.Py_IncRef(on_empty);
  return callable(&r->method, r);
}

void *mlxc_support_data_reader(void *function, int (*available)(unsigned char *, void *),
                               int (*contiguous)(unsigned char *, void *), void *on_unfit) {
  Reader *r = calloc(1, sizeof *r);
  if (!r) return py.PyErr_NoMemory();
  MethodDef method = {"data", (void *)read_one, METH_O, NULL};
  *r = (Reader){function, NULL, 1, on_unfit, method, {available, contiguous}};
  py.Py_IncRef(on_unfit);
  return callable(&r->method, r);
}
