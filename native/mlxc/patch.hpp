// Words that the loader has filled in and protected: entries of virtual and of import tables.
#pragma once

namespace mlxc {

// Writes an aligned word, also into a page that is read-only once relocated. False where that is not allowed.
bool patch(void** entry, void* value);

} // namespace mlxc
