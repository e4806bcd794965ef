// Transposes moved to where they cost nothing. Translated graphs transpose the data of every convolution to channels
// last and its result back; here the operations between two of them are done in the layout that the data has, so that
// the transposes meet and cancel each other.
#pragma once

#include "handles.hpp"

namespace mlxc {

// `outputs` and all they are computed from, inputs before users; not recursive: graphs are thousands of nodes deep.
Arrays in_order(const Arrays& outputs);

// Arrays of the same values as `outputs`, computed from the same leaves with fewer transposes in between.
Arrays laid_out(const Arrays& outputs);

} // namespace mlxc
