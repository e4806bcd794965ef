// What every processor of the architecture has: SSE2, NEON.
#define MLXC_ISA baseline
#define MLXC_LANES 4
#include "table.hpp"
