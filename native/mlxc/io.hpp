// Readers and writers over a C table of functions. A lazily loaded array keeps its reader alive.
#pragma once

#include "handles.hpp"

namespace mlxc {

struct CReader : mx::io::Reader {
  void* descriptor;
  mlx_io_vtable table;

  CReader(void* d, mlx_io_vtable t);
  ~CReader() override;
  bool is_open() const override { return table.is_open(descriptor); }
  bool good() const override { return table.good(descriptor); }
  size_t tell() override { return table.tell(descriptor); }
  void seek(int64_t offset, std::ios_base::seekdir from) override;
  void read(char* data, size_t n) override { table.read(descriptor, data, n); }
  void read(char* data, size_t n, size_t offset) override { table.read_at_offset(descriptor, data, n, offset); }
  std::string label() const override;
};

struct CWriter : mx::io::Writer {
  void* descriptor;
  mlx_io_vtable table;

  CWriter(void* d, mlx_io_vtable t);
  ~CWriter() override;
  bool is_open() const override { return table.is_open(descriptor); }
  bool good() const override { return table.good(descriptor); }
  size_t tell() override { return table.tell(descriptor); }
  void seek(int64_t offset, std::ios_base::seekdir from) override;
  void write(const char* data, size_t n) override { table.write(descriptor, data, n); }
  std::string label() const override;
};

} // namespace mlxc
