// Closures: C callbacks as C++ functions, and the other way round.
//
// A callback borrows its inputs; the handles for its results start empty, and what it puts there is taken over.
#include <stdexcept>

#include "handles.hpp"

using namespace mlxc;

namespace {

using VA = mlx_vector_array;

template <class Handle>
Handle lend(const target_t<Handle>& object) {
  return Handle{const_cast<target_t<Handle>*>(&object)};
}

// A result handle that a callback fills.
template <class Handle>
struct Result {
  Handle handle{};

  Result() = default;
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  ~Result() { drop(handle); }

  target_t<Handle> take() {
    if (!handle.ctx)
      throw std::runtime_error(std::string("the callback left its ") + Target<Handle>::name + " result empty");
    return std::move(c_ref(handle));
  }
};

void check(int rc) {
  if (rc) throw std::runtime_error("mlx_closure returned a non-zero value");
}

template <class Function>
Function need(Function f) {
  if (!f) bad_argument("NULL function");
  return f;
}

// Appends the payload to the arguments; the payload lives as long as any copy of the closure.
template <class Function>
auto with_payload(Function f, void* payload, void (*dtor)(void*)) {
  std::shared_ptr<void> owner(payload, [dtor](void* p) {
    if (dtor) dtor(p);
  });
  return [f, owner](auto... args) { return f(args..., owner.get()); };
}

template <class F>
Closure closure(F f) {
  return [f](const Arrays& inputs) {
    Result<VA> out;
    check(f(&out.handle, lend<VA>(inputs)));
    return out.take();
  };
}

template <class F>
KwargsClosure kwargs_closure(F f) {
  return [f](const Arrays& inputs, const ArrayMap& kwargs) {
    Result<VA> out;
    check(f(&out.handle, lend<VA>(inputs), lend<mlx_map_string_to_array>(kwargs)));
    return out.take();
  };
}

template <class F>
mx::ValueAndGradFn value_and_grad_closure(F f) {
  return [f](const Arrays& inputs) {
    Result<VA> values, gradients;
    check(f(&values.handle, &gradients.handle, lend<VA>(inputs)));
    return std::make_pair(values.take(), gradients.take());
  };
}

template <class F>
CustomClosure custom_closure(F f) {
  return [f](const Arrays& a, const Arrays& b, const Arrays& c) {
    Result<VA> out;
    check(f(&out.handle, lend<VA>(a), lend<VA>(b), lend<VA>(c)));
    return out.take();
  };
}

template <class F>
CustomJvp custom_jvp(F f) {
  return [f](const Arrays& primals, const Arrays& tangents, const Ints& argnums) {
    Result<VA> out;
    check(f(&out.handle, lend<VA>(primals), lend<VA>(tangents), argnums.data(), argnums.size()));
    return out.take();
  };
}

template <class F>
CustomVmap custom_vmap(F f) {
  return [f](const Arrays& inputs, const Ints& axes) {
    Result<VA> out;
    Result<mlx_vector_int> out_axes;
    check(f(&out.handle, &out_axes.handle, lend<VA>(inputs), axes.data(), axes.size()));
    return std::make_pair(out.take(), out_axes.take());
  };
}

Closure unary(int (*f)(mlx_array*, const mlx_array)) {
  return [f](const Arrays& inputs) {
    if (inputs.size() != 1) throw std::invalid_argument("the closure takes one array");
    Result<mlx_array> out;
    check(f(&out.handle, lend<mlx_array>(inputs[0])));
    return Arrays{out.take()};
  };
}

} // namespace

extern "C" {

#define CLOSURE(H, MAKE, ...)                                                                        \
  H H##_new(void) { return {}; }                                                                     \
  int H##_free(H c) { return drop(c); }                                                              \
  int H##_set(H* d, H s) MLXC_TRY(put(d, c_ref(s));)                                                 \
  H H##_new_func(int (*fun)(__VA_ARGS__)) MLXC_RETURN({}, make<H>(MAKE(need(fun))))                  \
  H H##_new_func_payload(int (*fun)(__VA_ARGS__, void*), void* payload, void (*dtor)(void*))         \
      MLXC_RETURN({}, make<H>(MAKE(with_payload(need(fun), payload, dtor))))
CLOSURE(mlx_closure, closure, VA*, const VA)
CLOSURE(mlx_closure_kwargs, kwargs_closure, VA*, const VA, const mlx_map_string_to_array)
CLOSURE(mlx_closure_value_and_grad, value_and_grad_closure, VA*, VA*, const VA)
CLOSURE(mlx_closure_custom, custom_closure, VA*, const VA, const VA, const VA)
CLOSURE(mlx_closure_custom_jvp, custom_jvp, VA*, const VA, const VA, const int*, size_t)
CLOSURE(mlx_closure_custom_vmap, custom_vmap, VA*, mlx_vector_int*, const VA, const int*, size_t)
#undef CLOSURE

mlx_closure mlx_closure_new_unary(int (*fun)(mlx_array*, const mlx_array))
    MLXC_RETURN({}, make<mlx_closure>(unary(need(fun))))

int mlx_closure_apply(VA* res, mlx_closure c, VA x) MLXC_TRY(put(res, c_ref(c)(c_ref(x)));)
int mlx_closure_kwargs_apply(VA* res, mlx_closure_kwargs c, VA x, mlx_map_string_to_array kwargs)
    MLXC_TRY(put(res, c_ref(c)(c_ref(x), c_ref(kwargs)));)
int mlx_closure_value_and_grad_apply(VA* res_0, VA* res_1, mlx_closure_value_and_grad c, VA x)
    MLXC_TRY(put(res_0, res_1, c_ref(c)(c_ref(x)));)
int mlx_closure_custom_apply(VA* res, mlx_closure_custom c, VA x0, VA x1, VA x2)
    MLXC_TRY(put(res, c_ref(c)(c_ref(x0), c_ref(x1), c_ref(x2)));)
int mlx_closure_custom_jvp_apply(VA* res, mlx_closure_custom_jvp c, VA x0, VA x1, const int* n, size_t size)
    MLXC_TRY(put(res, c_ref(c)(c_ref(x0), c_ref(x1), c_span<Ints>(n, size)));)
int mlx_closure_custom_vmap_apply(
    VA* res_0, mlx_vector_int* res_1, mlx_closure_custom_vmap c, VA x, const int* n, size_t size)
    MLXC_TRY(put(res_0, res_1, c_ref(c)(c_ref(x), c_span<Ints>(n, size)));)

mlx_compile_cache mlx_compile_cache_new(void) { return {}; }
int mlx_compile_cache_free(mlx_compile_cache c) { return drop(c); }

} // extern "C"
