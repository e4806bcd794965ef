// GGUF files: arrays and metadata of three kinds under string keys.
#include <stdexcept>

#include "handles.hpp"

using namespace mlxc;

namespace {

template <class T>
const T* find(const mx::GGUFLoad& gguf, const char* key) {
  auto found = gguf.second.find(c_str(key));
  return found == gguf.second.end() ? nullptr : std::get_if<T>(&found->second);
}

template <class T>
const T& metadata(const mx::GGUFLoad& gguf, const char* key) {
  const T* value = find<T>(gguf, key);
  if (!value) throw std::out_of_range("gguf: no metadata of this type under key " + c_str(key));
  return *value;
}

const mx::array& tensor(const mx::GGUFLoad& gguf, const char* key) {
  auto found = gguf.first.find(c_str(key));
  if (found == gguf.first.end()) throw std::out_of_range("gguf: no array under key " + c_str(key));
  return found->second;
}

Strings keys(const mx::GGUFLoad& gguf) {
  Strings all;
  for (const auto& e : gguf.first) all.push_back(e.first);
  return all;
}

} // namespace

extern "C" {

mlx_io_gguf mlx_io_gguf_new(void) MLXC_RETURN({}, make<mlx_io_gguf>())
int mlx_io_gguf_free(mlx_io_gguf g) { return drop(g); }
int mlx_io_gguf_get_keys(mlx_vector_string* keys_, mlx_io_gguf g) MLXC_TRY(put(keys_, keys(c_ref(g)));)
int mlx_io_gguf_get_array(mlx_array* arr, mlx_io_gguf g, const char* key) MLXC_TRY(put(arr, tensor(c_ref(g), key));)
int mlx_io_gguf_set_array(mlx_io_gguf g, const char* key, mlx_array arr)
    MLXC_TRY(c_ref(g).first.insert_or_assign(c_str(key), c_ref(arr));)

#define METADATA(NAME, T, RESULT, VALUE, READ)                                                 \
  int mlx_io_gguf_get_metadata_##NAME(RESULT* value, mlx_io_gguf g, const char* key)           \
      MLXC_TRY(put(value, metadata<T>(c_ref(g), key));)                                        \
  int mlx_io_gguf_has_metadata_##NAME(bool* flag, mlx_io_gguf g, const char* key)              \
      MLXC_TRY(put(flag, find<T>(c_ref(g), key) != nullptr);)                                  \
  int mlx_io_gguf_set_metadata_##NAME(mlx_io_gguf g, const char* key, VALUE value)             \
      MLXC_TRY(c_ref(g).second.insert_or_assign(c_str(key), mx::GGUFMetaData(READ(value)));)
METADATA(array, mx::array, mlx_array, mlx_array, c_ref)
METADATA(string, std::string, mlx_string, const char*, c_str)
METADATA(vector_string, Strings, mlx_vector_string, mlx_vector_string, c_ref)
#undef METADATA

int mlx_save_gguf(const char* file, mlx_io_gguf g)
    MLXC_TRY(auto& gguf = c_ref(g); mx::save_gguf(c_str(file), gguf.first, gguf.second);)

} // extern "C"
