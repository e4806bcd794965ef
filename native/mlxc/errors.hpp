// How a C++ exception becomes a return code and a message for the error handler.
#pragma once

namespace mlxc {

// Inside `catch (...)`: hands the message of the current exception to the error handler; returns 1.
int fail() noexcept;

// Gives a message to the error handler; it is text, never a format.
void report(const char* message) noexcept;

[[noreturn]] void empty_handle(const char* type);
[[noreturn]] void bad_argument(const char* what);

} // namespace mlxc

// Body of an `int` function of the C API: 0, or 1 after an exception.
#define MLXC_TRY(...)        \
  {                          \
    try {                    \
      __VA_ARGS__            \
      return 0;              \
    } catch (...) {          \
      return mlxc::fail();   \
    }                        \
  }

// Body of a function of the C API that returns a value: the expression, or `failed` after an exception.
#define MLXC_RETURN(failed, ...) \
  {                              \
    try {                        \
      return __VA_ARGS__;        \
    } catch (...) {              \
      mlxc::fail();              \
      return failed;             \
    }                            \
  }
