// The gpmstore command on a store over several pools.

#include <filesystem>

#include "tests/cli_test_util.h"

namespace gpm {
namespace {

class CliShardTest : public CliTest {
 protected:
  /// A path in quotes needs none: the tests' have no blanks.
  std::string Created(const std::string& options) {
    const std::string folder = NewPath();
    const Ran ran = Run("create " + folder + " " + options);
    EXPECT_EQ(ran.status, 0) << ran.err;
    return folder;
  }
  std::string Dump(const std::string& pool) {
    const Ran ran = Run("dump " + pool);
    EXPECT_EQ(ran.status, 0) << ran.err;
    return ran.out;
  }
};

TEST_F(CliShardTest, ItemsOfAFolder) {
  const std::string folder = Created("--shards 3 --value-size 8");
  std::string all;
  for (int key = 10; key < 30; ++key) {
    const std::string item = std::to_string(key);
    EXPECT_EQ(Run("put " + folder + " " + item + " v" + item).status, 0);
    all += item + "\tv" + item + "\n";
  }
  EXPECT_EQ(Run("get " + folder + " 17").out, "v17\n");
  EXPECT_EQ(Run("get " + folder + " 99").status, 1);
  EXPECT_EQ(Dump(folder), all);
  EXPECT_EQ(Run("del " + folder + " 17").status, 0);
  EXPECT_EQ(Run("del " + folder + " 17").status, 1);
  EXPECT_EQ(Run("get " + folder + " 17").status, 1);
  const Json info = RunJson("info " + folder);
  ASSERT_EQ(info.at("shards").size(), 3u);
  std::uint64_t items = 0;
  for (const Json& shard : info.at("shards")) items += shard.at("items").get<std::uint64_t>();
  EXPECT_EQ(items, 19u);
  EXPECT_NE(Run("info " + folder).out.find("000001-0002.pool"), std::string::npos);

  const std::string before = Dump(folder);
  EXPECT_EQ(Run("reshard " + folder + " --shards 5").out, folder + ": 5 shards\n");
  EXPECT_EQ(Dump(folder), before);
  EXPECT_EQ(RunJson("info " + folder).at("shards").size(), 5u);
  EXPECT_EQ(Run("check " + folder).status, 0);

  const std::string snapshot = NewPath();
  EXPECT_EQ(Run("snapshot " + folder + " " + snapshot).status, 0);
  ExpectRefused("snapshot " + folder + " " + NewPath() + " --base " + snapshot, "--base");
  const std::string restored = NewPath();
  EXPECT_EQ(Run("restore " + snapshot + " " + restored + OnExecutor()).status, 0);
  EXPECT_EQ(Dump(restored), before);
}

TEST_F(CliShardTest, CheckSeesAKeyInAShardThatIsNotItsOwn) {
  const std::string folder = Created("--shards 2 --value-size 8");
  const std::string pool = folder + "/000001-0000.pool";
  for (int key = 0; key < 16; ++key) {  // past the manifest
    EXPECT_EQ(Run("put " + pool + " " + std::to_string(key) + " v").status, 0);
  }
  const Ran ran = Run("check " + folder);
  EXPECT_EQ(ran.status, 1);
  EXPECT_NE(ran.out.find("belong to another shard"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("broken"), std::string::npos) << ran.out;
  // With its own copy of each key, too, the store can't be divided anew.
  const std::string other = folder + "/000001-0001.pool";
  for (int key = 0; key < 16; ++key) {
    EXPECT_EQ(Run("put " + other + " " + std::to_string(key) + " w").status, 0);
  }
  ExpectRefused("reshard " + folder + " --shards 3", folder + ": a key is in more than one shard");
}

TEST_F(CliShardTest, CheckSaysNoToAFolderWithADamagedManifest) {
  const std::string folder = Created("--shards 2");
  const std::string manifest = folder + "/manifest.json";
  const std::string text = ReadFile(manifest);
  std::string later = text;
  later.replace(later.find("version\": 1") + 10, 1, "2");
  for (const std::string& damaged : {text.substr(0, 100), std::string(), later}) {
    WriteFile(manifest, damaged);
    const Ran ran = Run("check " + folder);
    EXPECT_EQ(ran.status, 1) << ran.err;
    EXPECT_NE(ran.out.find("defect: " + manifest), std::string::npos) << ran.out;
    const Ran as_json = Run("check " + folder + " --json -");
    EXPECT_EQ(as_json.status, 1) << as_json.err;
    EXPECT_EQ(Json::parse(as_json.out).at("sound"), false);
  }
}

TEST_F(CliShardTest, CheckLooksAtEachShardBesideOneThatIsDamaged) {
  const std::string folder = Created("--shards 3 --value-size 8");
  const std::string other = Created("--shards 3 --value-size 8");
  const std::string pool = folder + "/000001-0000.pool";
  for (int key = 0; key < 30; ++key) {
    EXPECT_EQ(Run("put " + folder + " " + std::to_string(key) + " v").status, 0);
  }
  const std::string whole = ReadFile(pool);
  const auto expect_defect = [&](const std::string& text) {
    const Ran ran = Run("check " + folder + " --json -");
    EXPECT_EQ(ran.status, 1) << text << ": " << ran.err;
    const Json shards = Json::parse(ran.out).at("shards");
    ASSERT_EQ(shards.size(), 3u);
    EXPECT_EQ(shards[0].at("sound"), false);
    EXPECT_NE(shards[0].at("defects").dump().find(text), std::string::npos) << ran.out;
    for (const int i : {1, 2}) {
      EXPECT_EQ(shards[i].at("sound"), true) << ran.out;
      EXPECT_GT(shards[i].at("items"), 0) << ran.out;
    }
  };
  WriteFile(pool, std::string(100'000, 'x'));
  expect_defect("not a GPMStore pool");
  WriteFile(pool, whole.substr(0, 10'000));
  expect_defect(pool);
  WriteFile(pool, ReadFile(other + "/000001-0000.pool"));
  expect_defect("not the pool of shard 0");
  std::filesystem::remove(pool);
  expect_defect(pool);
  WriteFile(pool, whole);
  EXPECT_EQ(Run("check " + folder).status, 0);
}

TEST_F(CliShardTest, WrongUseIsRefused) {
  const std::string folder = Created("--shards 2");
  ExpectRefused("create " + folder + " --shards 2", "already");
  ExpectRefused("create " + NewPath() + " --shards 0", "--shards");
  ExpectRefused("create '' --shards 2", "path is empty");
  ExpectRefused("create " + NewPath() + " --shards 1025", "--shards");
  ExpectRefused("reshard " + folder, "--shards");
  ExpectRefused("reshard " + NewPath() + " --shards 2", "no such folder");
  ExpectRefused("ycsb -w a --records 10 --shards 3 --pool " + folder + OnExecutor(),
                "2 shards, not 3");
  ExpectRefused("ycsb -w a --records 10 --shards 3 --pool pinned:" + OnExecutor(), "pinned");
  std::filesystem::rename(folder + "/000001-0001.pool", folder + "/away");
  for (const char* command : {"info ", "dump "}) {
    ExpectRefused(command + folder, "000001-0001.pool: the pool of shard 1 is missing");
  }
  ExpectRefused("get " + folder + " 1", "000001-0001.pool");
  ExpectRefused("put " + folder + " 1 v", "000001-0001.pool");
}

TEST_F(CliShardTest, DevicesThatCantBeAreRefused) {
  const std::string folder = Created("--shards 2");
  const std::string snapshot = NewPath();
  EXPECT_EQ(Run("snapshot " + folder + " " + snapshot).status, 0);
  const std::string makes = NewPath();
  const std::string ycsb = "ycsb -w a --records 10 --operations 10 --pool ";
  const std::vector<std::string> commands = {
      "create " + makes + " --shards 2",
      "reshard " + folder + " --shards 3",
      "restore " + snapshot + " " + makes,
      ycsb + makes + " --shards 2",
      ycsb + folder,
      "replay --run " GPM_TEST_DATA "/workloada.run.txt.gz --shards 2 --pool " + makes};
  for (const std::string& command : commands) {
    for (const char* list :
         {"' '", "a", "0,", ",0", "0,,0", "-1", "'0 0'", "1.5", "0x1", "'0;1'", "99999999999"}) {
      ExpectRefused(command + " --devices=" + list, "must be numbers of CUDA devices");
    }
    const int there = GpuCount();
    ExpectRefused(command + " --devices " + std::to_string(there),
                  "no CUDA device " + std::to_string(there));
  }
  for (std::size_t i = 2; i < commands.size(); ++i) {
    ExpectRefused(commands[i] + " --executor cpu --devices 0", "executor cpu uses no GPU");
  }
  EXPECT_FALSE(std::filesystem::exists(makes));
  EXPECT_EQ(RunJson("info " + folder).at("shards").size(), 2u);
}

TEST_F(CliShardTest, ShardsUseTheDevices) {
  if (test::TestExecutor() != ExecutorKind::kCuda) GTEST_SKIP() << "of executor cuda";
  const std::string all = GpuCount() > 1 ? "0,1" : "0,0";
  const std::string folder = Created("--shards 3 --devices " + all);
  const std::string options = "ycsb -w a --records 2000 --operations 2000 --verify all --pool ";
  EXPECT_EQ(RunJson(options + folder + OnExecutor() + "--devices " + all).at("run").at("wrong"), 0);
  ExpectRefused(options + NewPath() + OnExecutor() + "--devices 0", "it is one pool");
  ExpectRefused("create " + NewPath() + " --devices 0", "it is one pool");
  EXPECT_EQ(Run("reshard " + folder + " --shards 2 --devices 0").status, 0);
}

TEST_F(CliShardTest, YcsbOverShards) {
  const std::string folder = NewPath();
  const std::string options =
      "ycsb -w a --records 2000 --operations 2000 --batch 500 --verify all" + OnExecutor();
  const Json json = RunJson(options + "--shards 3 --keep --pool " + folder);
  EXPECT_EQ(json.at("store").at("items"), 2000);
  EXPECT_EQ(json.at("run").at("wrong"), 0);
  EXPECT_EQ(RunJson("info " + folder).at("shards").size(), 3u);
  EXPECT_FALSE(RunJson(options + "--pool " + folder).contains("load"));  // it is there
  const std::string gone = NewPath();
  RunJson(options + "--shards 2 --pool " + gone);
  EXPECT_FALSE(std::filesystem::exists(gone));
  EXPECT_EQ(RunJson(options + "--shards 2").at("pool"), "(temporary)");
}

TEST_F(CliShardTest, ReplayOverShardsEqualsOnePool) {
  const std::string traces = "replay --load " GPM_TEST_DATA
                             "/workloada.load.txt.gz --run " GPM_TEST_DATA "/workloada.run.txt.gz" +
                             OnExecutor();
  const std::string one = NewPath();
  EXPECT_EQ(Run(traces + "--results " + one).status, 0);
  const std::string several = NewPath();
  const std::string folder = NewPath();
  EXPECT_EQ(Run(traces + "--shards 4 --results " + several + " --pool " + folder).status, 0);
  EXPECT_EQ(ReadFile(one), ReadFile(several));
  EXPECT_EQ(Run("check " + folder).status, 0);
}

}  // namespace
}  // namespace gpm
