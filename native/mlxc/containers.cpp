// Strings, vectors and maps.
#include <stdexcept>

#include "handles.hpp"

using namespace mlxc;

namespace {

template <class Map>
struct Cursor {
  typename Map::iterator at;
};

template <class Vector, class Data, class Read>
Vector read_all(const Data* data, size_t n, Read read) {
  if (!data && n) bad_argument("NULL data with a non-zero size");
  Vector v;
  v.reserve(n);
  for (size_t i = 0; i < n; ++i) v.push_back(read(data[i]));
  return v;
}

template <class Vector>
void append(Vector& to, Vector more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

int same_int(int value) { return value; }

void give_text(const char** result, const std::string& text) { put_value(result, text.c_str()); }

} // namespace

extern "C" {

mlx_string mlx_string_new(void) { return {}; }
mlx_string mlx_string_new_data(const char* text) MLXC_RETURN({}, make<mlx_string>(c_str(text)))
int mlx_string_set(mlx_string* d, mlx_string s) MLXC_TRY(put(d, c_ref(s));)
const char* mlx_string_data(mlx_string s) MLXC_RETURN(nullptr, c_ref(s).c_str())
int mlx_string_free(mlx_string s) { return drop(s); }

#define VECTOR(H, DATA, VALUE, READ)                                                                          \
  H H##_new(void) MLXC_RETURN({}, make<H>())                                                                  \
  int H##_set(H* d, H s) MLXC_TRY(put(d, c_ref(s));)                                                          \
  int H##_free(H v) { return drop(v); }                                                                       \
  H H##_new_data(DATA data, size_t n) MLXC_RETURN({}, make<H>(read_all<target_t<H>>(data, n, READ)))          \
  H H##_new_value(VALUE x) MLXC_RETURN({}, make<H>(size_t(1), READ(x)))                                       \
  int H##_set_data(H* v, DATA data, size_t n) MLXC_TRY(put(v, read_all<target_t<H>>(data, n, READ));)         \
  int H##_set_value(H* v, VALUE x) MLXC_TRY(put(v, target_t<H>(size_t(1), READ(x)));)                         \
  int H##_append_data(H v, DATA data, size_t n)                                                               \
      MLXC_TRY(append(c_ref(v), read_all<target_t<H>>(data, n, READ));)                                       \
  int H##_append_value(H v, VALUE x) MLXC_TRY(c_ref(v).push_back(READ(x));)                                   \
  size_t H##_size(H v) MLXC_RETURN(0, c_ref(v).size())
VECTOR(mlx_vector_array, const mlx_array*, mlx_array, c_ref<mlx_array>)
VECTOR(mlx_vector_vector_array, const mlx_vector_array*, mlx_vector_array, c_ref<mlx_vector_array>)
VECTOR(mlx_vector_int, int*, int, same_int)
VECTOR(mlx_vector_string, const char**, const char*, c_str)
VECTOR(mlx_vector_stream, const mlx_stream*, mlx_stream, c_ref<mlx_stream>)
#undef VECTOR

int mlx_vector_array_get(mlx_array* res, mlx_vector_array v, size_t i) MLXC_TRY(put(res, c_ref(v).at(i));)
int mlx_vector_vector_array_get(mlx_vector_array* res, mlx_vector_vector_array v, size_t i)
    MLXC_TRY(put(res, c_ref(v).at(i));)
int mlx_vector_int_get(int* res, mlx_vector_int v, size_t i) MLXC_TRY(put(res, c_ref(v).at(i));)
int mlx_vector_string_get(char** res, mlx_vector_string v, size_t i) MLXC_TRY(put_value(res, c_ref(v).at(i).data());)
int mlx_vector_stream_get(mlx_stream* res, mlx_vector_stream v, size_t i) MLXC_TRY(put(res, c_ref(v).at(i));)

// `get` of a missing key and `next` at the end return 2 and leave the error handler alone.
#define MAP(H, VALUE, RESULT, READ, GIVE)                                                                       \
  H H##_new(void) MLXC_RETURN({}, make<H>())                                                                    \
  int H##_set(H* d, H s) MLXC_TRY(put(d, c_ref(s));)                                                            \
  int H##_free(H m) { return drop(m); }                                                                         \
  int H##_insert(H m, const char* key, VALUE value) MLXC_TRY(c_ref(m).insert_or_assign(c_str(key), READ(value));) \
  int H##_get(RESULT* value, H m, const char* key) MLXC_TRY(                                                    \
      auto& map = c_ref(m);                                                                                     \
      auto found = map.find(c_str(key));                                                                        \
      if (found == map.end()) return 2;                                                                         \
      GIVE(value, found->second);)                                                                              \
  H##_iterator H##_iterator_new(H m)                                                                            \
      MLXC_RETURN({}, H##_iterator{new Cursor<target_t<H>>{c_ref(m).begin()}, m.ctx})                           \
  int H##_iterator_free(H##_iterator it) MLXC_TRY(delete static_cast<Cursor<target_t<H>>*>(it.ctx);)            \
  int H##_iterator_next(const char** key, RESULT* value, H##_iterator it) MLXC_TRY(                             \
      if (!it.ctx || !it.map_ctx) empty_handle(#H "_iterator");                                                 \
      auto& at = static_cast<Cursor<target_t<H>>*>(it.ctx)->at;                                                 \
      if (at == static_cast<target_t<H>*>(it.map_ctx)->end()) return 2;                                         \
      GIVE(value, at->second);                                                                                  \
      give_text(key, at->first);                                                                                \
      ++at;)
MAP(mlx_map_string_to_array, mlx_array, mlx_array, c_ref, put)
MAP(mlx_map_string_to_string, const char*, const char*, c_str, give_text)
#undef MAP

} // extern "C"
