// Groups of processes.
#include "handles.hpp"

using namespace mlxc;

extern "C" {

mlx_distributed_group mlx_distributed_group_new(void) { return {}; }
int mlx_distributed_group_free(mlx_distributed_group g) { return drop(g); }
int mlx_distributed_group_rank(mlx_distributed_group g) MLXC_RETURN(0, c_ref(g).rank())
int mlx_distributed_group_size(mlx_distributed_group g) MLXC_RETURN(0, c_ref(g).size())
int mlx_distributed_group_split(mlx_distributed_group* res, mlx_distributed_group g, int color, int key)
    MLXC_TRY(put(res, c_ref(g).split(color, key));)
// NULL asks for any back end.
bool mlx_distributed_is_available(const char* bk)
    MLXC_RETURN(false, bk ? mx::distributed::is_available(bk) : mx::distributed::is_available())

} // extern "C"
