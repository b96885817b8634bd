#ifndef GPM_BENCH_APPLICATION_TABLE_H_
#define GPM_BENCH_APPLICATION_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/kv_adapter.h"
#include "examples/rows.h"
#include "ycsb/buffer.h"

namespace gpm::bench {

/// What applications ask of a container, in batches of a KvAdapter. Their arrays are in host
/// memory, and are copied to where its batches are to be, and back. Thread safety: none.
class ApplicationTable {
 public:
  /// @param max_batch rows of the largest batch
  /// @throws Error(kInvalidArgument) unless it finds, inserts and updates; as ycsb::Buffer
  ApplicationTable(std::unique_ptr<KvAdapter> adapter, const Capabilities& can,
                   std::uint64_t max_batch, std::uint32_t value_bytes);

  /// Whether a container has the operations.
  static bool IsFor(const Capabilities& can);

  using Keys = std::span<const std::uint64_t>;
  /// Finds n values, in one batch; zeros where there is none. @param keys below 2^63, or ~0
  /// @return how many there are not @throws Error(kDamaged) for another outcome
  std::uint64_t Find(Keys keys, std::span<std::byte> values);
  /// Updates n values, in one batch; inserts those that there are not in another. @param keys
  /// differ
  /// @throws Error(kNoSpace); kDamaged for another outcome
  void Write(Keys keys, std::span<const std::byte> values);

  std::uint64_t items() const { return items_; }
  KvAdapter& adapter() { return *adapter_; }

 private:
  std::span<const Result> Apply(Op op, std::span<const std::byte> values,
                                std::span<std::byte> found);

  const std::unique_ptr<KvAdapter> adapter_;
  const std::uint64_t max_batch_;
  const std::uint32_t value_bytes_;
  std::uint64_t items_ = 0;
  std::vector<std::uint64_t> keys_;  ///< as the adapter has them, of the next batch
  std::vector<Result> results_;
  std::vector<std::byte> new_values_;
  // Where batches are to be, if that is not in host memory.
  bool is_elsewhere_;
  ycsb::Buffer there_keys_;
  ycsb::Buffer there_values_;
  ycsb::Buffer there_results_;
};

/// Rows of an application in a table. REQUIRES: a Row that is all zero bytes is Row{}.
template <class Row>
class TableRows : public examples::Rows<Row> {
 public:
  using typename examples::Rows<Row>::Keys;

  /// @param table outlives this
  TableRows(std::string name, ApplicationTable* table) : name_(std::move(name)), table_(*table) {}

  std::uint64_t items() const override { return table_.items(); }

 protected:
  std::uint64_t DoFind(Keys keys, std::span<Row> rows) override {
    return table_.Find(keys, std::as_writable_bytes(rows.first(keys.size())));
  }
  void DoWrite(Keys keys, std::span<const Row> rows) override {
    table_.Write(keys, std::as_bytes(rows.first(keys.size())));
  }
  void LoadCache() override { table_.adapter().LoadCaches(); }
  std::string Describe() const override { return name_; }

 private:
  const std::string name_;
  ApplicationTable& table_;
};

}  // namespace gpm::bench

#endif  // GPM_BENCH_APPLICATION_TABLE_H_
