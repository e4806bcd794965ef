// Exported and imported functions; pictures of a graph.
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "handles.hpp"

using namespace mlxc;

namespace {

using Draw = void (*)(std::ostream&, mx::NodeNamer, const Arrays&);

void draw(Draw function, std::FILE* file, mlx_node_namer namer, const Arrays& outputs) {
  if (!file) bad_argument("NULL FILE");
  std::ostringstream stream;
  function(stream, c_ref_or_empty(namer), outputs);
  const auto text = stream.str();
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size())
    throw std::runtime_error("cannot write to the file");
}

} // namespace

extern "C" {

mlx_function_exporter mlx_function_exporter_new(const char* file, mlx_closure fun, bool shapeless)
    MLXC_RETURN({}, make<mlx_function_exporter>(mx::exporter(c_str(file), c_ref(fun), shapeless)))
int mlx_function_exporter_free(mlx_function_exporter x) { return drop(x); }
int mlx_function_exporter_apply(mlx_function_exporter x, mlx_vector_array args) MLXC_TRY(c_ref(x)(c_ref(args));)
int mlx_function_exporter_apply_kwargs(
    mlx_function_exporter x, mlx_vector_array args, mlx_map_string_to_array kwargs)
    MLXC_TRY(c_ref(x)(c_ref(args), c_ref(kwargs));)

mlx_imported_function mlx_imported_function_new(const char* file)
    MLXC_RETURN({}, make<mlx_imported_function>(mx::import_function(c_str(file))))
int mlx_imported_function_free(mlx_imported_function f) { return drop(f); }
int mlx_imported_function_apply(mlx_vector_array* res, mlx_imported_function f, mlx_vector_array args)
    MLXC_TRY(put(res, c_ref(f)(c_ref(args)));)
int mlx_imported_function_apply_kwargs(
    mlx_vector_array* res, mlx_imported_function f, mlx_vector_array args, mlx_map_string_to_array kwargs)
    MLXC_TRY(put(res, c_ref(f)(c_ref(args), c_ref(kwargs)));)

mlx_node_namer mlx_node_namer_new(void) MLXC_RETURN({}, make<mlx_node_namer>())
int mlx_node_namer_free(mlx_node_namer n) { return drop(n); }
int mlx_node_namer_set_name(mlx_node_namer n, mlx_array arr, const char* name)
    MLXC_TRY(c_ref(n).set_name(c_peek(arr), c_str(name));)
int mlx_node_namer_get_name(const char** res, mlx_node_namer n, mlx_array arr)
    MLXC_TRY(put_value(res, c_ref(n).get_name(c_peek(arr)).c_str());)

int mlx_export_to_dot(FILE* os, mlx_node_namer namer, mlx_vector_array outputs)
    MLXC_TRY(draw(&mx::export_to_dot, os, namer, c_ref(outputs));)
int mlx_print_graph(FILE* os, mlx_node_namer namer, mlx_vector_array outputs)
    MLXC_TRY(draw(&mx::print_graph, os, namer, c_ref(outputs));)

} // extern "C"
