// Devices and streams.
#include <sstream>
#include <stdexcept>

#include "handles.hpp"

using namespace mlxc;

namespace {

template <class T>
std::string text_of(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

const std::variant<std::string, size_t>& entry(const DeviceInfo& info, const char* key) {
  auto found = info.find(c_str(key));
  if (found == info.end()) throw std::out_of_range("device info has no key " + c_str(key));
  return found->second;
}

template <class T>
const T& value(const DeviceInfo& info, const char* key) {
  const auto* held = std::get_if<T>(&entry(info, key));
  if (!held) throw std::invalid_argument("device info: value of another type under key " + c_str(key));
  return *held;
}

Strings keys(const DeviceInfo& info) {
  Strings all;
  for (const auto& e : info) all.push_back(e.first);
  return all;
}

} // namespace

extern "C" {

mlx_device mlx_device_new(void) { return {}; }
mlx_device mlx_device_new_type(mlx_device_type type, int index)
    MLXC_RETURN({}, make<mlx_device>(c_device_type(type), index))
int mlx_device_free(mlx_device d) { return drop(d); }
int mlx_device_set(mlx_device* d, mlx_device s) MLXC_TRY(put(d, c_ref(s));)
int mlx_device_tostring(mlx_string* res, mlx_device d) MLXC_TRY(put(res, text_of(c_ref(d)));)
bool mlx_device_equal(mlx_device a, mlx_device b) MLXC_RETURN(false, c_ref(a) == c_ref(b))
int mlx_device_get_index(int* res, mlx_device d) MLXC_TRY(put(res, c_ref(d).index);)
int mlx_device_get_type(mlx_device_type* res, mlx_device d)
    MLXC_TRY(put_value(res, c_ref(d).type == mx::Device::cpu ? MLX_CPU : MLX_GPU);)

mlx_device_info mlx_device_info_new(void) { return {}; }
int mlx_device_info_get(mlx_device_info* res, mlx_device d) MLXC_TRY(put(res, mx::device_info(c_ref(d)));)
int mlx_device_info_free(mlx_device_info info) { return drop(info); }
int mlx_device_info_has_key(bool* res, mlx_device_info info, const char* key)
    MLXC_TRY(put(res, c_ref(info).count(c_str(key)) != 0);)
int mlx_device_info_is_string(bool* res, mlx_device_info info, const char* key)
    MLXC_TRY(put(res, std::holds_alternative<std::string>(entry(c_ref(info), key)));)
int mlx_device_info_get_string(const char** res, mlx_device_info info, const char* key)
    MLXC_TRY(put_value(res, value<std::string>(c_ref(info), key).c_str());)
int mlx_device_info_get_size(size_t* res, mlx_device_info info, const char* key)
    MLXC_TRY(put(res, value<size_t>(c_ref(info), key));)
int mlx_device_info_get_keys(mlx_vector_string* res, mlx_device_info info) MLXC_TRY(put(res, keys(c_ref(info)));)

mlx_stream mlx_stream_new(void) { return {}; }
mlx_stream mlx_stream_new_device(mlx_device d) MLXC_RETURN({}, make<mlx_stream>(mx::new_stream(c_ref(d))))
mlx_stream mlx_stream_new_thread_unsafe(mlx_device d)
    MLXC_RETURN({}, make<mlx_stream>(mx::new_thread_unsafe_stream(c_ref(d))))
mlx_stream mlx_default_cpu_stream_new(void)
    MLXC_RETURN({}, make<mlx_stream>(mx::default_stream(mx::Device::cpu)))
mlx_stream mlx_default_gpu_stream_new(void)
    MLXC_RETURN({}, make<mlx_stream>(mx::default_stream(mx::Device::gpu)))
int mlx_stream_set(mlx_stream* d, mlx_stream s) MLXC_TRY(put(d, c_ref(s));)
int mlx_stream_free(mlx_stream s) { return drop(s); }
int mlx_stream_tostring(mlx_string* res, mlx_stream s) MLXC_TRY(put(res, text_of(c_ref(s)));)
bool mlx_stream_equal(mlx_stream a, mlx_stream b) MLXC_RETURN(false, c_ref(a) == c_ref(b))
int mlx_stream_get_device(mlx_device* res, mlx_stream s) MLXC_TRY(put(res, c_ref(s).device);)
int mlx_stream_get_index(int* res, mlx_stream s) MLXC_TRY(put(res, c_ref(s).index);)

int mlx_synchronize(mlx_stream s) MLXC_TRY(await(c_ref(s));)
int mlx_synchronize_default(void) MLXC_TRY(await(mx::default_stream(mx::default_device()));)
int mlx_synchronize_thread_local(mlx_stream_thread_local s)
    MLXC_TRY(await(mx::stream_from_thread_local_stream(c_ref(s)));)

mlx_stream_thread_local mlx_stream_thread_local_new(mlx_device d)
    MLXC_RETURN({}, make<mlx_stream_thread_local>(mx::new_thread_local_stream(c_ref(d))))
int mlx_stream_thread_local_set(mlx_stream_thread_local* d, mlx_stream_thread_local s) MLXC_TRY(put(d, c_ref(s));)
int mlx_stream_thread_local_free(mlx_stream_thread_local s) { return drop(s); }

} // extern "C"
