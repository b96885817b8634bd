#ifndef GPM_TESTS_SNAPSHOT_FIXTURE_H_
#define GPM_TESTS_SNAPSHOT_FIXTURE_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/store_impl.h"
#include "tests/test_util.h"

/// What the tests of snapshots share.
namespace gpm::test {

/// Names the tests of each shape of keys and values.
struct SnapshotShape {
  const char* name;
  std::uint32_t key_size;
  std::uint32_t value_size;
};
inline constexpr SnapshotShape kSnapshotShapes[] = {
    {"Inline", 8, 8},          {"Cells", 8, 40},    {"LongKeys", 32, 128},
    {"LongKeysInline", 32, 5}, {"Padded", 36, 128}, {"PaddedInline", 33, 5}};

class SnapshotTest : public PoolTest {
 protected:
  std::vector<std::string> Files() {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(NewPath()).parent_path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  /// Restores a chain, and expects the model's items, in a sound pool.
  void ExpectRestores(const std::vector<std::string>& files, const Model& model) {
    const std::string path = NewPath();
    {
      Store store = Store::Restore(files, path, TestOpenOptions());
      ExpectContents(store, model);
      if (TestExecutor() == ExecutorKind::kCpu) {
        EXPECT_EQ(store.impl()->CountMisplacedCells(), 0u);
      }
      store.Close();
    }
    ExpectSound(path, model.size());
    std::filesystem::remove(path);
  }
};

class SnapshotShapeTest : public SnapshotTest, public ::testing::WithParamInterface<SnapshotShape> {
 protected:
  CreateOptions Create() const { return Shape(GetParam().key_size, GetParam().value_size); }
};

}  // namespace gpm::test

#endif  // GPM_TESTS_SNAPSHOT_FIXTURE_H_
