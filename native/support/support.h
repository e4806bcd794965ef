// libmlxc_support: the C that the Python runtime rests on. Links neither libpython, libmlx nor libmlxc,
// so one build serves every CPython and also an official libmlxc.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define MLXC_SUPPORT_API __attribute__((visibility("default")))
#else
#define MLXC_SUPPORT_API
#endif

// ---- route.c: point a mapped library's imports elsewhere

enum {
  MLXC_ROUTE_NOT_APPLICABLE = -1,  // not an ELF platform that this knows (macOS)
  MLXC_ROUTE_NOT_MAPPED = -2,      // no library of that path is mapped
  MLXC_ROUTE_MALFORMED = -3,       // its dynamic section lacks what is needed, or memory is short
  MLXC_ROUTE_NO_TARGET = -4,       // a target is NULL: nothing was changed
  MLXC_ROUTE_PROTECTED = -5,       // a slot could not be made writable: nothing was changed
};

// Makes `library`'s imports of names[i] resolve to targets[i]. Returns how many of the n names it imports, all of
// them routed, or one of the codes above; slots[i] receives the number of slots of names[i]. All or nothing.
// Idempotent; any thread; other threads may be calling through the slots meanwhile.
MLXC_SUPPORT_API int mlxc_support_route(const char *library, const char *const *names, void *const *targets, size_t n,
                                        int *slots);

// ---- owner.c: release of host memory that MLX reads in place

// A record to pass as `payload` of mlx_array_new_data_managed_payload; NULL when memory is short.
MLXC_SUPPORT_API void *mlxc_support_owner_new(uint64_t token);
// The matching `dtor`, called once: queues the token. Any thread, no GIL, also after Python has ended.
MLXC_SUPPORT_API void mlxc_support_owner_release(void *owner);
// Moves up to n queued tokens to `tokens` and returns how many; call again while it returns n. Any thread.
MLXC_SUPPORT_API size_t mlxc_support_drain(uint64_t *tokens, size_t n);

// ---- fastcall.c: calls of mlx-c functions without ctypes' cost per argument (all with the GIL held)

// Once per process: finds CPython's functions. 0, or -1 on a CPython whose object layout this does not know.
MLXC_SUPPORT_API int mlxc_support_python(size_t object_size);
// The type `Handle` whose objects own one mlx_array each; `release` is mlx_array_free. One type per process.
// This and all below need mlxc_support_python first; objects are new references, or NULL with an exception.
MLXC_SUPPORT_API void *mlxc_support_handle_type(int (*release)(void *));
// A callable for an mlx-c function `int f(mlx_array* res, ...)`; `signature` has one letter per argument after res:
//   a array or None   v sequence of arrays   n int, sequence of ints or None (two C arguments)
//   i int, enum       b bool                 l size_t, uint64_t (modulo 2**64)
//   o optional int    g optional float       f float    d double    z str or None   p address, buffer or None
//   s stream (last, may lack)
// For a function `mlx_array f(...)` it starts with `=`. The callable returns a new `result` object, or calls
// on_error(name), which must raise.
MLXC_SUPPORT_API void *mlxc_support_bind(const char *name, void (*function)(void), const char *signature, void *result,
                                         void *on_error);
// A callable of one Handle: function(array) as an int (`wide`: a size_t, else an int), or, with `count`, the tuple of
// that many ints at function(array). For a released array it is on_empty(handle object), which should raise.
MLXC_SUPPORT_API void *mlxc_support_reader(const char *name, void *function, size_t (*count)(void *), int wide,
                                           void *on_empty);
// The same for an array's data: function(array) where both conditions hold of it, else on_unfit(handle object).
MLXC_SUPPORT_API void *mlxc_support_data_reader(void *function, int (*available)(unsigned char *, void *),
                                                int (*contiguous)(unsigned char *, void *), void *on_unfit);
// What sequences of arrays are packed with: mlx_vector_array_new_data and mlx_vector_array_free.
MLXC_SUPPORT_API void mlxc_support_vectors(void *(*create)(const void *const *, size_t), int (*release)(void *));
// What calls use that name no stream, per thread. A stream set here holds until it is set again, or, unless pinned,
// until forget_streams, after which each thread calls resolver() once more: it returns the handle as a Python int and
// should set it here.
MLXC_SUPPORT_API void mlxc_support_set_stream(void *stream, int pinned);
MLXC_SUPPORT_API void mlxc_support_forget_streams(void);
// To call before a stream's handle is freed, on the thread that it may be set on: nothing else clears it there.
MLXC_SUPPORT_API void mlxc_support_drop_stream(void *stream);
MLXC_SUPPORT_API void mlxc_support_stream_resolver(void *resolver);
// The stream that such a call would use now; NULL with an exception when there is none.
MLXC_SUPPORT_API void *mlxc_support_current_stream(void);
