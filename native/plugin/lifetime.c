/* ORT frees sessions from inside Py_FinalizeEx and may still be running others on daemon threads then. So every way
   into Python passes through here, and Python's atexit waits until all are out before it lets the interpreter die. */
#include "plugin.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#ifndef __APPLE__
#include <sys/syscall.h>
#endif

enum { SHUTDOWN_LIMIT_MS = 5000, SHUTDOWN_GRACE_MS = 10 };

static atomic_bool alive;     /* Python may be called */
static atomic_bool shut_down; /* the handshake began: never alive again */
static atomic_int callbacks;  /* threads inside with_python */
static atomic_int runs;       /* runs between OnRunStart and OnRunEnd */
static _Thread_local int callbacks_here, runs_here;
static atomic_bool in_use, forked_in_use;

static bool on_main_thread(void) {
#ifdef __APPLE__
  return pthread_main_np() != 0;
#else
  return (pid_t)syscall(SYS_gettid) == getpid();
#endif
}

/* Before 3.14 CPython ends a thread that wants the GIL too late with pthread_exit, whose unwinding aborts the process
   in ORT's C++ frames. Such a thread sleeps here for ever instead, which is what 3.14 does itself. */
static void park(void *unused) {
  (void)unused;
  for (;;) pause();
}

static void forget_other_threads(void) {
  atomic_store(&callbacks, 0);
  atomic_store(&runs, 0);
  callbacks_here = 0; /* a fork from inside a callback: what the child then leaves is not counted in it */
  runs_here = 0;
  if (atomic_load(&in_use)) atomic_store(&forked_in_use, true);
}

static void prepare(void) {
  /* Unregistering makes ORT dlclose us while sessions still hold pointers to our functions. */
  Dl_info here;
  if (dladdr(&callbacks, &here) && here.dli_fname) dlopen(here.dli_fname, RTLD_NOW | RTLD_NODELETE);
  pthread_atfork(NULL, NULL, forget_other_threads);
}

void lifetime_prepare(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, prepare);
}

/* In one order with the counters: who counts itself in and then finds it alive is waited for. */
bool lifetime_alive(void) { return atomic_load(&alive); }

bool lifetime_over(void) { return atomic_load(&shut_down); }

void lifetime_begin(void) { atomic_store(&alive, true); }

static void sleep_ms(int milliseconds) {
  struct timespec duration = {.tv_nsec = milliseconds * 1000000L};
  nanosleep(&duration, NULL);
}

static PyObject *handshake(PyObject *self, PyObject *arguments) {
  (void)self;
  (void)arguments;
  atomic_store(&shut_down, true);
  atomic_store(&alive, false);
  PyThreadState *state = py.PyEval_SaveThread();
  for (int waited = 0; waited < SHUTDOWN_LIMIT_MS; waited++) {
    if (atomic_load(&callbacks) == 0 && atomic_load(&runs) == 0) break;
    sleep_ms(1);
  }
  /* Threads that have just left OnRunEnd get back into Python now, where they are stopped safely. */
  sleep_ms(SHUTDOWN_GRACE_MS);
  py.PyEval_RestoreThread(state);
  py.Py_IncRef(py.none);
  return py.none;
}

bool lifetime_register_atexit(void) {
  static PyMethodDef method = {"mlx_plugin_shutdown", handshake, METH_NOARGS, NULL};
  static bool registered;
  if (registered) return true;
  PyObject *function = py.PyCFunction_NewEx(&method, NULL, NULL);
  PyObject *atexit_module = py.PyImport_ImportModule("atexit");
  PyObject *result = atexit_module ? call_method(atexit_module, "register", function) : NULL;
  if (!atexit_module) release(function);
  release(atexit_module);
  release(result);
  registered = result != NULL;
  return registered;
}

/* Not at once: what is released before Python is left may run a finaliser, which would swallow the interrupt. */
static _Thread_local bool interrupted;

void interrupt_at_exit(void) { interrupted = true; }

bool with_python(void (*body)(void *), void *argument) {
  atomic_fetch_add(&callbacks, 1);
  callbacks_here++;
  const bool usable = lifetime_alive() && py.Py_IsInitialized() && !py.is_finalizing();
  if (usable) {
    pthread_cleanup_push(park, NULL);
    int gil = py.PyGILState_Ensure();
    body(argument);
    if (interrupted) {
      interrupted = false;
      py.PyErr_SetInterrupt();
    }
    py.PyGILState_Release(gil);
    pthread_cleanup_pop(0);
  }
  if (callbacks_here > 0) {
    callbacks_here--;
    atomic_fetch_sub(&callbacks, 1);
  }
  return usable;
}

static void release_in_python(void *object) { release(object); }

void release_anywhere(PyObject *object) { with_python(release_in_python, object); }

OrtStatus *shutting_down(const struct host *host) {
  return failure(host, ORT_FAIL, "the Python interpreter is shutting down");
}

OrtStatus *run_started(const struct host *host) {
  if (!lifetime_alive()) {
    if (!on_main_thread()) park(NULL);
    return shutting_down(host);
  }
  atomic_fetch_add(&runs, 1);
  runs_here++;
  return NULL;
}

void run_ended(void) {
  if (runs_here > 0) {
    runs_here--;
    atomic_fetch_sub(&runs, 1);
  }
  if (!lifetime_alive() && !on_main_thread()) park(NULL);
}

void mark_in_use(void) { atomic_store_explicit(&in_use, true, memory_order_relaxed); }

bool forked_after_use(void) { return atomic_load_explicit(&forked_in_use, memory_order_relaxed); }

OrtStatus *fork_failure(const struct host *host) {
  return failure(host, ORT_FAIL,
                 "this process was forked after MLX had been used, and MLX can't run in such a child: start workers "
                 "with the multiprocessing method 'spawn' or 'forkserver'");
}
