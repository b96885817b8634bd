#include <gtest/gtest.h>
#include <sys/mman.h>

#include <map>

#include "pm/pool.h"
#include "pm/text.h"
#include "tests/files.h"
#include "tests/test_util.h"

/// Bad input gives a gpm::Error with the right code and a message that names the cause, and changes
/// nothing: no file appears, no pool's byte and no array is touched.
namespace gpm::test {
namespace {

class BadInputTest : public PoolTest {
 protected:
  static constexpr std::uint32_t kKeySize = 8;
  static constexpr std::uint32_t kValueSize = 100;

  /// Creating with these options is refused, naming `cause`, and leaves no file.
  void ExpectNoPool(const CreateOptions& create, const std::string& cause,
                    ErrorCode code = ErrorCode::kInvalidArgument, std::uint64_t max_bytes = 0) {
    SCOPED_TRACE(cause);
    const std::string path = NewPath();
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Store::Create(path, create, TestOpenOptions(max_bytes)); }, &message),
              code);
    EXPECT_NE(message.find(cause), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(path));
  }

  /// A closed pool with 300 items.
  std::string MakePool() {
    const std::string path = NewPath();
    Store store =
        Store::Create(path, {.key_size = kKeySize, .value_size = kValueSize}, TestOpenOptions());
    TestBatch batch(kKeySize, kValueSize);
    for (std::uint64_t i = 0; i < 300; ++i) batch.Add(Op::kInsert, i, i);
    store.Apply(batch.Mixed());
    return path;
  }

  /// Opening, and checking, a file is refused with this code, naming `cause`; the file stays as it
  /// is.
  void ExpectRefused(const std::string& path, ErrorCode code, const std::string& cause) {
    SCOPED_TRACE(cause);
    const std::string before = ReadFile(path);
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Store::Open(path, TestOpenOptions()); }, &message), code);
    EXPECT_NE(message.find(cause), std::string::npos) << message;
    EXPECT_NE(message.find(path), std::string::npos) << "should name the file: " << message;
    EXPECT_EQ(ErrorOf([&] { CheckPool(path); }, &message), code);
    EXPECT_TRUE(ReadFile(path) == before) << "the file was changed";
  }
};

TEST_F(BadInputTest, GeometryNames) {
  for (const char* good : {"1L-1H-1S", "2L-2H-8S", "1L-1H-32S", "32L-1H-1S", "4L-2H-4S"}) {
    EXPECT_EQ(GeometryName(ParseGeometry(good)), good);
  }
  for (const char* bad : {"",
                          "2L",
                          "2L-2H",
                          "2L-2H-",
                          "2L-2H-8",
                          "2L-2H-8S ",
                          " 2L-2H-8S",
                          "2L-2H-8S-1",
                          "2l-2h-8s",
                          "2H-2L-8S",
                          "0L-2H-8S",
                          "2L-0H-8S",
                          "2L-2H-0S",
                          "3L-2H-4S",
                          "2L-3H-4S",
                          "2L-2H-5S",
                          "2L-2H-16S",
                          "64L-1H-1S",
                          "1L-1H-64S",
                          "-2L-2H-8S",
                          "2L--2H-8S",
                          "2.0L-2H-8S",
                          "258L-2H-8S",
                          "4294967298L-2H-8S",
                          "99999999999999999999L-2H-8S",
                          "2L-2H-8S\n",
                          "two",
                          "+2L-2H-8S",
                          "0x2L-2H-8S"}) {
    std::string message;
    EXPECT_EQ(ErrorOf([&] { ParseGeometry(bad); }, &message), ErrorCode::kInvalidArgument) << bad;
    const bool plain = message.find(bad) != std::string::npos;
    EXPECT_TRUE(plain || message.find(Quoted(bad)) != std::string::npos)
        << "should quote the text: " << message;
  }
}

TEST_F(BadInputTest, GeometryOfAPool) {
  for (const Geometry bad : {Geometry{0, 2, 8}, Geometry{2, 0, 8}, Geometry{2, 2, 0},
                             Geometry{3, 2, 4}, Geometry{2, 2, 16}, Geometry{255, 255, 255}}) {
    CreateOptions create;
    create.geometry = bad;
    ExpectNoPool(create, "32");  // says what the product may be
  }
}

TEST_F(BadInputTest, KeyAndValueSizesOfAPool) {
  for (const std::uint32_t key_size : {0u, 256u, 1u << 31}) {
    CreateOptions create;
    create.key_size = key_size;
    ExpectNoPool(create, "is not between 1 and 255 bytes");
  }
  for (const std::uint32_t value_size : {0u, kMaxValueBytes + 1, 1u << 31}) {
    CreateOptions create;
    create.value_size = value_size;
    ExpectNoPool(create, "value");
  }
}

TEST_F(BadInputTest, MaximumBelowTheFirstLevels) {
  CreateOptions create;
  ExpectNoPool(create, "", ErrorCode::kInvalidArgument, 1);
  ExpectNoPool(create, "", ErrorCode::kInvalidArgument, 4096);
  create.initial_capacity = 1'000'000;
  ExpectNoPool(create, "", ErrorCode::kInvalidArgument, 1 << 20);
}

TEST_F(BadInputTest, MaximumBelowTheInitialValues) {
  CreateOptions create;  // levels fit, the values do not
  create.value_size = 60000;
  create.initial_capacity = 10000;
  ExpectNoPool(create, "", ErrorCode::kNoSpace, std::uint64_t{64} << 20);
}

TEST_F(BadInputTest, MaximumBelowTheFile) {
  const std::string path = MakePool();
  const std::string before = ReadFile(path);
  EXPECT_EQ(ErrorOf([&] { Store::Open(path, TestOpenOptions(8192)); }),
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(ReadFile(path) == before);
}

TEST_F(BadInputTest, PathsThatCantBeCreated) {
  const std::string path = MakePool();
  const std::string before = ReadFile(path);
  std::string message;
  EXPECT_EQ(ErrorOf([&] { Store::Create(path, {}, TestOpenOptions()); }, &message),
            ErrorCode::kExists);
  EXPECT_NE(message.find(path), std::string::npos) << message;
  EXPECT_TRUE(ReadFile(path) == before);
  EXPECT_TRUE(ErrorOf([&] { Store::Create(path + "/below", {}, TestOpenOptions()); }).has_value());
  EXPECT_TRUE(ErrorOf([&] {
                Store::Create(NewPath() + "/no/such/directory", {}, TestOpenOptions());
              }).has_value());
  EXPECT_TRUE(ErrorOf([&] { Store::Create("", {}, TestOpenOptions()); }).has_value());
}

TEST_F(BadInputTest, PathsWithAZeroByte) {
  const std::string path = MakePool();
  const std::string beyond = path + std::string("\0x", 2);
  const std::string missing = NewPath();
  OpenOptions open = TestOpenOptions();
  const auto refused = [](auto&& call) { EXPECT_EQ(ErrorOf(call), ErrorCode::kInvalidArgument); };
  refused([&] { Store::Open(beyond, open); });
  refused([&] { Store::Create(missing + std::string("\0x", 2), {}, open); });
  refused([&] { CheckPool(beyond); });
  {
    Store store = Store::Open(path, open);
    refused([&] { store.Snapshot(missing + std::string("\0x", 2)); });
  }
  open.snapshot.path = missing + std::string("\0x", 2);
  refused([&] { Store::Open(path, open); });
  EXPECT_FALSE(std::filesystem::exists(missing));
}

TEST_F(BadInputTest, PathsThatCantBeOpened) {
  std::string message;
  const std::string missing = NewPath();
  EXPECT_EQ(ErrorOf([&] { Store::Open(missing, TestOpenOptions()); }, &message),
            ErrorCode::kNotFound);
  EXPECT_NE(message.find(missing), std::string::npos) << message;
  EXPECT_FALSE(std::filesystem::exists(missing));
  EXPECT_EQ(ErrorOf([&] { CheckPool(missing); }), ErrorCode::kNotFound);
  const std::string directory = std::filesystem::path(missing).parent_path();
  EXPECT_TRUE(ErrorOf([&] { Store::Open(directory, TestOpenOptions()); }).has_value());
  EXPECT_EQ(ErrorOf([&] { Store::Open("pinned:", TestOpenOptions()); }),
            ErrorCode::kInvalidArgument);
}

TEST_F(BadInputTest, PoolInUse) {
  const std::string path = MakePool();
  Store store = Store::Open(path, TestOpenOptions());
  std::string message;
  EXPECT_EQ(ErrorOf([&] { Store::Open(path, TestOpenOptions()); }, &message), ErrorCode::kBusy);
  EXPECT_NE(message.find(path), std::string::npos) << message;
  EXPECT_EQ(ErrorOf([&] { CheckPool(path); }), ErrorCode::kBusy);
  EXPECT_EQ(store.Stats().items, 300u);
}

TEST_F(BadInputTest, FilesThatAreNoPool) {
  std::mt19937_64 random(TestSeed());
  std::string noise(1 << 20, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  for (const std::string& bytes : {std::string("hello\n"), std::string(8192, 'x'), noise,
                                   std::string(1 << 16, '\0'), std::string(4096, '\0')}) {
    const std::string path = NewPath();
    WriteFile(path, bytes);
    ExpectRefused(path, ErrorCode::kDamaged, "");
  }
  const std::string path = NewPath();
  WriteFile(path, "");
  ExpectRefused(path, ErrorCode::kDamaged, "");
}

TEST_F(BadInputTest, OneCorruptedSuperblockCopyIsBridged) {
  const std::string original = ReadFile(MakePool());
  for (const std::size_t copy : {0, 1}) {
    const std::string path = NewPath();
    std::string bytes = original;
    for (std::size_t i = 0; i < 64; ++i) bytes[copy * kSuperblockBytes + 100 + i] ^= 0x55;
    WriteFile(path, bytes);
    // The other copy is in force, or the one before it: in both cases a pool with all its items,
    // as closing in order was the only change between the two.
    Store store = Store::Open(path, TestOpenOptions());
    EXPECT_EQ(store.Stats().items, 300u);
    store.Close();
    ExpectSound(path, 300);
  }
}

TEST_F(BadInputTest, BothSuperblockCopiesCorrupted) {
  const std::string original = ReadFile(MakePool());
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 50; ++round) {
    std::string bytes = original;
    for (const std::size_t copy : {0, 1}) {
      bytes[copy * kSuperblockBytes + random() % kSuperblockBytes] ^=
          static_cast<char>(1 << random() % 8);
    }
    const std::string path = NewPath();
    WriteFile(path, bytes);
    ExpectRefused(path, ErrorCode::kDamaged, "");
    std::filesystem::remove(path);
  }
}

TEST_F(BadInputTest, PoolOfAnotherVersion) {
  std::string bytes = ReadFile(MakePool());
  for (const std::size_t copy : {0, 1}) bytes[copy * kSuperblockBytes + 8] = 7;
  const std::string path = NewPath();
  WriteFile(path, bytes);
  ExpectRefused(path, ErrorCode::kDamaged, "version 7");
}

TEST_F(BadInputTest, TruncatedPool) {
  const std::string original = ReadFile(MakePool());
  const auto pool_end = [&] {
    const std::string path = NewPath();
    WriteFile(path, original);
    return UsedEnd(Pool::Open(path, Pool::Options{0, true})->superblock());
  }();
  for (const std::uint64_t bytes :
       {std::uint64_t{1}, std::uint64_t{4095}, std::uint64_t{4096}, std::uint64_t{8191},
        std::uint64_t{8192}, std::uint64_t{12288}, pool_end - 4096, pool_end - 1}) {
    const std::string path = NewPath();
    WriteFile(path, original.substr(0, bytes));
    ExpectRefused(path, ErrorCode::kDamaged, "");
  }
}

TEST_F(BadInputTest, BatchArraysThatDoNotMatch) {
  const std::string path = MakePool();
  Store store = Store::Open(path, TestOpenOptions());
  TestBatch inserts(kKeySize, kValueSize);
  for (std::uint64_t i = 0; i < 10; ++i) inserts.Add(Op::kInsert, 1000 + i, i);
  const Batch good = inserts.Mixed();
  std::vector<Batch> bad(9, good);
  bad[0].keys = good.keys.first(9 * kKeySize);
  bad[1].keys = {};
  bad[2].values = good.values.first(10 * kValueSize - 1);
  bad[3].values = good.values.first(kValueSize);
  bad[4].found = good.found.first(9 * kValueSize);
  bad[5].results = good.results.first(9);
  bad[6].ops = good.ops.first(9);
  bad[7].results = {};
  bad[8].ops = {};
  bad[8].op = Op::kInsert;
  bad[8].values = {};
  for (std::size_t i = 0; i < bad.size(); ++i) {
    SCOPED_TRACE(i);
    inserts.Mixed();  // resets the outputs, which stay where they are
    std::string message;
    EXPECT_EQ(ErrorOf([&] { store.Apply(bad[i]); }, &message), ErrorCode::kInvalidArgument);
    EXPECT_EQ(ErrorOf([&] { store.ApplyAsync(bad[i]).Wait(); }), ErrorCode::kInvalidArgument);
    for (std::size_t j = 0; j < inserts.size(); ++j) {
      EXPECT_NE(inserts.result(j), Result::kOk) << "an array was written";
    }
  }
  const auto refused = [&](auto&& call) { EXPECT_EQ(ErrorOf(call), ErrorCode::kInvalidArgument); };
  refused([&] { store.Find(good.keys.first(8), good.found, good.results); });
  refused([&] { store.Find(good.keys, good.found.first(8), good.results); });
  refused([&] { store.Insert(good.keys, {}, good.results); });
  refused([&] { store.Update(good.keys, {}, good.results); });
  refused([&] { store.Upsert(good.keys, good.values.first(7), good.results); });
  refused([&] { store.Erase(good.keys.first(79), good.results); });
  EXPECT_EQ(store.Stats().items, 300u);
  store.Close();
  ExpectSound(path, 300);
}

TEST_F(BadInputTest, ArraysThatCantBeReached) {
  Store store = Store::Open(MakePool(), TestOpenOptions());
  const StoreStats before = store.Stats();
  std::vector<std::byte> keys(10 * kKeySize);
  std::vector<std::byte> values(10 * kValueSize);
  std::vector<Result> results(10);
  const std::span<const std::byte> null_keys(static_cast<const std::byte*>(nullptr), keys.size());
  EXPECT_EQ(ErrorOf([&] { store.Insert(null_keys, values, results); }),
            ErrorCode::kInvalidArgument);
  // What GPU memory looks like to the host: address space that it may not touch.
  void* forbidden = mmap(nullptr, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(forbidden, MAP_FAILED);
  const std::span<const std::byte> no_keys(static_cast<const std::byte*>(forbidden), keys.size());
  if (TestExecutor() == ExecutorKind::kCpu) {
    std::string message;
    EXPECT_EQ(ErrorOf([&] { store.Insert(no_keys, values, results); }, &message),
              ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find("'keys'"), std::string::npos) << message;
    // Kinds, which a store looks at before others do: of values in cells and inline, and where it
    // makes room for a batch.
    const std::span<const Op> no_ops(static_cast<const Op*>(forbidden), results.size());
    for (const std::uint32_t value_size : {8u, kValueSize}) {
      for (const std::uint64_t capacity : {0, 10}) {
        OpenOptions open = TestOpenOptions();
        open.capacity = {.items = capacity};
        CreateOptions create;
        create.key_size = kKeySize;
        create.value_size = value_size;
        Store other = Store::Create(NewPath(), create, open);
        const auto rows = std::span(values).first(10 * value_size);
        for (int k = 0; k < 2; ++k) {  // the second one finds no room
          EXPECT_EQ(
              ErrorOf(
                  [&] {
                    other.Apply({.ops = no_ops, .keys = keys, .values = rows, .results = results});
                  },
                  &message),
              ErrorCode::kInvalidArgument);
          EXPECT_NE(message.find("'ops'"), std::string::npos) << message;
          for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = std::byte(i);
          other.Insert(keys, rows, results);
        }
      }
    }
  }
  munmap(forbidden, 1 << 16);
  EXPECT_EQ(store.Stats().items, before.items);
}

/// Null pointers with a length, and addresses beside them.
TEST_F(BadInputTest, ArraysThatAreNull) {
  CreateOptions create = Shape(kKeySize, kValueSize);
  create.attributes = {{.name = "a", .offset = 0, .bytes = 8}};
  OpenOptions open = TestOpenOptions();
  open.capacity.items = 10;
  Store store = Store::Create(NewPath(), create, open);
  TestBatch batch(kKeySize, kValueSize);
  for (std::uint64_t i = 0; i < 10; ++i) batch.Add(Op::kInsert, i, i);
  ASSERT_EQ(batch.CallFor(store, Op::kInsert), 0u);
  TestBatch more(kKeySize, kValueSize);
  for (std::uint64_t i = 0; i < 10; ++i) more.Add(Op::kInsert, 100 + i, i);
  const Batch inserts = more.Mixed();
  const auto refused = [&](const char* name, auto&& call) {
    std::string message;
    EXPECT_EQ(ErrorOf(call, &message), ErrorCode::kInvalidArgument) << name;
    EXPECT_NE(message.find(name), std::string::npos) << message;
  };
  const auto null_bytes = [](std::size_t n, std::uintptr_t at = 0) {
    return std::span<std::byte>(reinterpret_cast<std::byte*>(at), n);
  };
  const std::span<std::uint64_t> null_words(static_cast<std::uint64_t*>(nullptr), 2);
  Bytes rows(10 * kKeySize);
  std::uint64_t counts[1], offsets[2];
  const std::uint32_t attributes[1] = {0};
  const std::uint64_t bounds[2] = {0, ~std::uint64_t{0}};
  const std::vector<Query> queries(1);
  const auto search = [&](const char* name, Matches matches) {
    refused(name, [&] { store.Search(queries, 10, &matches); });
    const QueryArray array{.attributes = attributes, .bounds = bounds};
    refused(name, [&] { store.Search(array, 10, &matches); });
  };
  search("counts", {.counts = null_words.first(1)});
  search("offsets", {.counts = counts, .offsets = null_words, .keys = rows});
  search("keys", {.counts = counts, .offsets = offsets, .keys = null_bytes(rows.size())});
  Matches matches{.counts = counts};
  refused("bounds", [&] {
    store.Search(QueryArray{.attributes = attributes, .bounds = null_words}, 10, &matches);
  });
  const std::span<const std::uint32_t> null_places(static_cast<std::uint32_t*>(nullptr), 1);
  refused("attributes", [&] {
    store.Search(QueryArray{.attributes = null_places, .bounds = bounds}, 10, &matches);
  });
  Exporter exporter = store.Export();
  refused("keys", [&] { exporter.Next(null_bytes(kKeySize), {}); });
  refused("values",
          [&] { exporter.Next(std::span(rows).first(kKeySize), null_bytes(kValueSize)); });
  exporter = Exporter();
  const auto insert = [&](Evicted evicted) {
    store.InsertAndEvict(inserts.keys, inserts.values, inserts.results, &evicted);
  };
  refused("evicted keys", [&] { insert({.keys = null_bytes(rows.size())}); });
  refused("evicted values", [&] { insert({.keys = rows, .values = null_bytes(10 * kValueSize)}); });
  const InitialValue initial = InitialValue::Constant(null_bytes(kValueSize, 64));
  refused("initial.row", [&] {
    store.FindOrInsert(inserts.keys, initial, Element::kNone, {}, {}, inserts.results);
  });
  if (TestExecutor() == ExecutorKind::kCpu) {
    refused("keys", [&] {
      store.Insert(null_bytes(inserts.keys.size(), 4), inserts.values, inserts.results);
    });
  }
  EXPECT_EQ(store.Stats().items, 10u);
  EXPECT_EQ(store.Stats().evicted, 0u);
}

TEST_F(BadInputTest, KindThatIsNone) {
  const std::string path = MakePool();
  Store store = Store::Open(path, TestOpenOptions());
  TestBatch batch(kKeySize, kValueSize);
  for (std::uint64_t i = 0; i < 10; ++i) batch.Add(Op::kInsert, 1000 + i, i);
  Batch bad = batch.Mixed();
  bad.ops = {};
  bad.op = static_cast<Op>(99);
  EXPECT_EQ(ErrorOf([&] { store.Apply(bad); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.Stats().items, 300u);
}

// Each size is carried out by other kernels, which keep kinds in fewer bits, or beside others.
TEST_F(BadInputTest, KindsThatAreNoneAmongOthersChangeNothing) {
  const std::string path = MakePool();
  Store store = Store::Open(path, TestOpenOptions());
  const auto contents = [&] {
    std::map<std::uint64_t, std::string> items;
    store.ForEach([&](auto key, auto value) { items[KeyNumber(key)] = AsString(value); });
    return items;
  };
  const auto before = contents();
  EXPECT_EQ(before.size(), 300u);
  for (const std::size_t n : {100u, 6000u, 20'000u, 140'000u}) {
    TestBatch batch(kKeySize, kValueSize);
    for (std::size_t i = 0; i < n; ++i) {
      const auto kind = static_cast<Op>(i % 2 == 0 ? 0 : kOpKinds + i / 2 % (256 - kOpKinds));
      batch.Add(kind, i % 1000, i);
    }
    store.Apply(batch.Mixed());
    for (std::size_t i = 1; i < n; i += 2) {
      ASSERT_EQ(batch.result(i), Result::kInvalid) << i << " of " << n;
    }
    EXPECT_EQ(contents(), before) << n;
  }
}

TEST_F(BadInputTest, OptionsThatAreNone) {
  const auto refused = [&](const OpenOptions& open, const std::string& cause) {
    const std::string path = NewPath();
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Store::Create(path, {}, open); }, &message),
              ErrorCode::kInvalidArgument);
    EXPECT_NE(message.find(cause), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(path));
  };
  OpenOptions open = TestOpenOptions();
  open.executor = static_cast<ExecutorKind>(9);
  refused(open, "executor");
  open = TestOpenOptions();
  open.cache.directory = true;
  open.cache.policy = static_cast<CachePolicy>(77);
  refused(open, "policy");
}

TEST_F(BadInputTest, ExecutorThatIsNotThere) {
  OpenOptions cuda;
  cuda.executor = ExecutorKind::kCuda;
  if (GpuCount() == 0) {
    const std::string path = NewPath();
    std::string message;
    EXPECT_EQ(ErrorOf([&] { Store::Create(path, {}, cuda); }, &message), ErrorCode::kUnsupported);
    EXPECT_NE(message.find("CUDA"), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(path));
    const std::string existing = MakePool();
    const std::string before = ReadFile(existing);
    EXPECT_EQ(ErrorOf([&] { Store::Open(existing, cuda); }), ErrorCode::kUnsupported);
    EXPECT_TRUE(ReadFile(existing) == before);
    EXPECT_EQ(Store::Open(existing, TestOpenOptions()).Stats().items, 300u);
  } else {
    cuda.device = 1000;
    const std::string path = NewPath();
    EXPECT_TRUE(ErrorOf([&] { Store::Create(path, {}, cuda); }).has_value());
    EXPECT_FALSE(std::filesystem::exists(path));
  }
}

}  // namespace
}  // namespace gpm::test
