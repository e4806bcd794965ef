#include "io.hpp"

#include <cstdio>
#include <stdexcept>

namespace mlxc {
namespace {

int whence(std::ios_base::seekdir from) {
  if (from == std::ios_base::beg) return SEEK_SET;
  return from == std::ios_base::end ? SEEK_END : SEEK_CUR;
}

std::string label_of(const mlx_io_vtable& table, void* descriptor) {
  const char* text = table.label ? table.label(descriptor) : nullptr;
  return text ? text : "C stream";
}

} // namespace

CReader::CReader(void* d, mlx_io_vtable t) : descriptor(d), table(t) {
  if (!t.is_open || !t.good || !t.tell || !t.seek || !t.read || !t.read_at_offset)
    bad_argument("the reader's table lacks functions");
}
CReader::~CReader() {
  if (table.free) table.free(descriptor);
}
void CReader::seek(int64_t offset, std::ios_base::seekdir from) { table.seek(descriptor, offset, whence(from)); }
std::string CReader::label() const { return label_of(table, descriptor); }

CWriter::CWriter(void* d, mlx_io_vtable t) : descriptor(d), table(t) {
  if (!t.is_open || !t.good || !t.tell || !t.seek || !t.write) bad_argument("the writer's table lacks functions");
}
CWriter::~CWriter() {
  if (table.free) table.free(descriptor);
}
void CWriter::seek(int64_t offset, std::ios_base::seekdir from) { table.seek(descriptor, offset, whence(from)); }
std::string CWriter::label() const { return label_of(table, descriptor); }

} // namespace mlxc

using namespace mlxc;

extern "C" {

#define STREAM(H, CLASS)                                                                              \
  H H##_new(void* desc, mlx_io_vtable table) MLXC_RETURN({}, make<H>(std::make_shared<CLASS>(desc, table))) \
  int H##_descriptor(void** desc, H io) MLXC_TRY(put_value(desc, c_ref(io)->descriptor);)             \
  int H##_tostring(mlx_string* res, H io) MLXC_TRY(put(res, c_ref(io)->label());)                     \
  int H##_free(H io) { return drop(io); }
STREAM(mlx_io_reader, CReader)
STREAM(mlx_io_writer, CWriter)
#undef STREAM

} // extern "C"
