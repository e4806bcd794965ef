// Chains of elementwise operations in one pass over memory: a tape's nodes with fewer, larger ones in their place.
#pragma once

#include "tape.hpp"

namespace mlxc {

// The nodes with every group of float32 arithmetic on one shape as a single node, or as part of the convolution before it,
// for the CPU. Slots are numbered anew; `inputs` (their shapes) are the first ones, `outputs` are brought up to date, and
// what nobody reads is left out.
std::vector<TapeNode> fused(
    std::vector<TapeNode> nodes, const std::vector<mx::Shape>& inputs, const Arrays& constants, std::vector<int>& outputs);

} // namespace mlxc
