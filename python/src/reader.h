#ifndef GPM_PYTHON_SRC_READER_H_
#define GPM_PYTHON_SRC_READER_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "gpmstore/pool_reader.h"
#include "python/src/gate.h"

namespace gpm::python {

namespace nb = nanobind;

/// A PoolReader for Python.
class PyReader {
 public:
  explicit PyReader(const std::string& path);
  ~PyReader();

  std::uint32_t key_size() const { return key_size_; }
  std::uint32_t value_size() const { return value_size_; }
  bool closed() const { return gate_.closed(); }
  std::optional<nb::bytes> Get(const nb::bytes& key);
  std::optional<std::uint64_t> Find(nb::handle keys, nb::handle found, nb::handle results);
  bool ForEach(const nb::callable& visit, std::size_t rows);
  nb::dict Stats();
  void Close();

 private:
  Gate gate_;
  std::optional<PoolReader> reader_;
  std::uint32_t key_size_;
  std::uint32_t value_size_;
};

}  // namespace gpm::python

#endif  // GPM_PYTHON_SRC_READER_H_
