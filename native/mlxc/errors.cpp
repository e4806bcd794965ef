// The error handler of the process.
#include "errors.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

#include "generated/mlxc.h"

namespace mlxc {
namespace {

struct Handler {
  mlx_error_handler_func call;
  void* data;
  void (*dtor)(void*);

  Handler(mlx_error_handler_func f, void* d, void (*free_data)(void*)) : call(f), data(d), dtor(free_data) {}
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;
  ~Handler() {
    if (dtor) dtor(data);
  }
};

// Both live until the process is gone: errors are still reported while it exits.
std::mutex& handler_lock() {
  static auto* lock = new std::mutex;
  return *lock;
}
std::shared_ptr<Handler>& handler() {
  static auto* slot = new std::shared_ptr<Handler>;
  return *slot;
}

} // namespace

void report(const char* message) noexcept {
  std::shared_ptr<Handler> current;
  {
    std::lock_guard lock(handler_lock());
    current = handler();
  }
  if (current && current->call) {
    current->call(message, current->data);
    return;
  }
  // mlx-c's default: nobody listens, so the program ends.
  std::fputs("MLX error: ", stdout);
  std::fputs(message, stdout);
  std::fputs("\n", stdout);
  std::exit(-1);
}

int fail() noexcept {
  try {
    throw;
  } catch (const std::exception& e) {
    report(e.what());
  } catch (...) {
    report("unknown C++ exception");
  }
  return 1;
}

void empty_handle(const char* type) { throw std::invalid_argument(std::string("expected a non-empty ") + type); }

void bad_argument(const char* what) { throw std::invalid_argument(what); }

} // namespace mlxc

extern "C" {

void mlx_set_error_handler(mlx_error_handler_func call, void* data, void (*dtor)(void*)) {
  try {
    auto next = std::make_shared<mlxc::Handler>(call, data, dtor);
    {
      std::lock_guard lock(mlxc::handler_lock());
      mlxc::handler().swap(next);
    }
    // The old handler's dtor runs here, outside the lock: it may call back into the API.
  } catch (...) {
    mlxc::fail();
  }
}

void _mlx_error(const char* file, int line, const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int size = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  try {
    std::string text(size > 0 ? size_t(size) : 0, '\0');
    if (size > 0) std::vsnprintf(text.data(), text.size() + 1, format, again);
    text += std::string(" at ") + (file ? file : "") + ":" + std::to_string(line);
    mlxc::report(text.c_str());
  } catch (...) {
    mlxc::fail();
  }
  va_end(again);
}

} // extern "C"
