// The gpmstore command, run as a user runs it: its commands, their exit status and output, and what
// they say to bad input. (cli_replay_test, cli_search_test and cli_shard_test have more.)

#include <sys/stat.h>

#include <algorithm>
#include <vector>

#include "gpmstore/version.h"
#include "tests/cli_test_util.h"
#include "tests/old_pools.h"

namespace gpm {
namespace {

TEST_F(CliTest, HelpOfEveryCommandHasExamples) {
  const Ran all = Run("--help");
  EXPECT_EQ(all.status, 0);
  for (const char* command :
       {"ycsb", "replay", "info", "check", "dump", "create", "get", "put", "del", "compact",
        "upgrade", "snapshot", "restore", "search", "crash-explore", "crash-test"}) {
    EXPECT_NE(all.out.find(command), std::string::npos) << command;
    const Ran ran = Run(std::string(command) + " --help");
    EXPECT_EQ(ran.status, 0) << command;
    EXPECT_NE(ran.out.find("Examples:\n  gpmstore " + std::string(command)), std::string::npos)
        << command << ": " << ran.out;
  }
}

TEST_F(CliTest, VersionIsTheLibrarysAndInEveryReport) {
  EXPECT_EQ(Run("--version").out, "gpmstore " GPMSTORE_VERSION "\n");
  EXPECT_EQ(Version(), GPMSTORE_VERSION);
  const std::string numbers = std::to_string(GPMSTORE_VERSION_MAJOR) + "." +
                              std::to_string(GPMSTORE_VERSION_MINOR) + "." +
                              std::to_string(GPMSTORE_VERSION_PATCH);
  EXPECT_EQ(GPMSTORE_VERSION, numbers);
  const std::string pool = NewPath();
  for (const std::string& arguments :
       {"ycsb -w a --records 100 --operations 100 --keep --pool " + pool, "info " + pool,
        "check " + pool, "replay --run " GPM_TEST_DATA "/workloada.load.txt.gz" + OnExecutor(),
        "crash-test --rounds 1 --longest 10 --pool " + NewPath()}) {
    EXPECT_EQ(RunJson(arguments).value("gpmstore_version", ""), numbers) << arguments;
  }
}

TEST_F(CliTest, CompactAndUpgrade) {
  const std::string pool = NewPath();
  ASSERT_EQ(
      Run("ycsb -w load --records 100000 --value-size 100 --executor cpu --keep --pool " + pool)
          .status,
      0);
  Json info = RunJson("info " + pool);
  ASSERT_EQ(info["levels"].size(), 2u);
  EXPECT_EQ(info["levels"][0]["items"].get<int>() + info["levels"][1]["items"].get<int>(), 100'000);
  EXPECT_FALSE(info["levels"][0]["being_drained"].get<bool>());
  {
    Store store = Store::Open(pool, {.executor = ExecutorKind::kCpu});
    std::vector<std::byte> keys;
    store.ForEach([&](auto key, auto) {
      if (keys.size() < 8 * 98'000) keys.insert(keys.end(), key.begin(), key.end());
    });
    std::vector<Result> results(keys.size() / 8);
    EXPECT_EQ(store.Erase(keys, results), 0u);
    store.Close();
  }
  const auto bytes = std::filesystem::file_size(pool);
  const Ran ran = Run("compact " + pool);
  EXPECT_EQ(ran.status, 0);
  EXPECT_NE(ran.out.find("2000 items in"), std::string::npos) << ran.out;
  EXPECT_LT(std::filesystem::file_size(pool), bytes / 4);
  EXPECT_EQ(Run("check " + pool).status, 0);
  EXPECT_EQ(RunJson("info " + pool)["items"], 2000);
  EXPECT_NE(Run("upgrade " + pool).out.find("already"), std::string::npos);
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint32_t version : {1u, 2u}) {
    WriteFile(pool, test::OldPool(ReadFile(pool), version, random));
    ExpectRefused("info " + pool, "gpmstore upgrade");
    const Ran upgraded = Run("upgrade " + pool);
    EXPECT_EQ(upgraded.status, 0) << upgraded.err;
    EXPECT_NE(upgraded.out.find("now of format version 3"), std::string::npos) << upgraded.out;
    EXPECT_EQ(Run("check " + pool).status, 0);
    EXPECT_EQ(RunJson("info " + pool)["items"], 2000);
  }
  WriteFile(pool, test::OldPool(ReadFile(pool), 2, random));
  const Ran full = Run("upgrade " + pool, "ulimit -f 64;");
  EXPECT_EQ(full.status, 2);
  EXPECT_NE(full.err.find("ulimit -f"), std::string::npos) << full.err;
  EXPECT_FALSE(std::filesystem::exists(pool + ".gpmstore-upgrade"));
  EXPECT_EQ(Run("upgrade " + pool).status, 0);
  ExpectRefused("compact " + NewPath(), "no such");
  const std::string shards = NewPath();
  EXPECT_EQ(Run("create --shards 2 " + shards).status, 0);
  EXPECT_EQ(Run("put " + shards + " 42 hello").status, 0);
  EXPECT_NE(Run("compact " + shards).out.find(": 1 items in"), std::string::npos);
  ExpectRefused("upgrade " + NewPath(), "no such");
}

TEST_F(CliTest, SnapshotAndRestore) {
  const std::string pool = NewPath();
  const std::string file = NewPath();
  const std::string increment = NewPath();
  const std::string restored = NewPath();
  ASSERT_EQ(
      Run("ycsb -w load --records 20000 --value-size 100 --executor cpu --keep --pool " + pool)
          .status,
      0);
  Ran ran = Run("snapshot " + pool + " " + file);
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.out.find("20000 items in"), std::string::npos) << ran.out;
  ran = Run("restore --executor cpu " + file + " " + restored);
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.out.find("20000 items in"), std::string::npos) << ran.out;
  EXPECT_EQ(Run("check " + restored).status, 0);
  const auto lines = [&](const std::string& path) { return Run("dump " + path + " | sort").out; };
  EXPECT_EQ(lines(restored), lines(pool));
  {
    Store store = Store::Open(pool, {.executor = ExecutorKind::kCpu});
    const std::string base = NewPath();
    store.Snapshot(base);
    store.Snapshot(increment, {.base = base});
    store.Close();
  }
  const std::string folder = NewPath();
  const std::string again = NewPath();
  const std::string kept = NewPath();
  ran =
      Run("ycsb -w a --records 2000 --operations 20000 --executor cpu --snapshot-interval 0.001 "
          "--snapshot-chains 1 --keep --pool " +
          kept + " --snapshots " + folder);
  EXPECT_EQ(ran.status, 0) << ran.err;
  ran = Run("restore --executor cpu " + folder + " " + kept + ".restored");
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(lines(kept + ".restored"), lines(kept));
  ExpectRefused("ycsb -w a --snapshot-interval 5", "--snapshots");
  ExpectRefused("ycsb -w a --records 10 --executor cpu --snapshots " + folder, "has snapshots");
  ExpectRefused("restore " + NewPath() + " " + NewPath(), "can't open");
  ExpectRefused("restore " + file + " " + restored, "there is a file");
  ExpectRefused("restore " + file + " " + increment + " " + NewPath(), increment);
  ExpectRefused("restore " + increment + " " + NewPath(), "whole snapshot");
  ExpectRefused("restore " + pool + " " + NewPath(), "not a GPMStore snapshot");
  ExpectRefused("restore " + file, "At least 2");
  const std::string pipe = NewPath();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ran = Run("restore " + pipe + " " + NewPath(), "timeout 20");
  EXPECT_EQ(ran.status, 2);
  EXPECT_NE(ran.err.find(pipe + ": not a snapshot: it is no file"), std::string::npos) << ran.err;
  ExpectRefused("snapshot " + pool + " " + file, "there is a file");
  ExpectRefused("snapshot " + pool + " ''", "path is empty");
  ExpectRefused("snapshot " + file + " " + NewPath(), "not a GPMStore pool");
  ASSERT_EQ(Run("put " + pool + " 5 five").status, 0);
  const std::string compared = NewPath();
  const std::string left = compared + ".partial-0123456789abcdef";  // as one that was killed does
  WriteFile(left, "part of a snapshot");
  ran = Run("snapshot " + pool + " " + compared + " --base " + file);
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.out.find(" of 20001 items in"), std::string::npos) << ran.out;
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_EQ(Run("restore --executor cpu " + file + " " + compared + " " + again).status, 0);
  EXPECT_EQ(lines(again), lines(pool));
  ExpectRefused("snapshot " + kept + " " + NewPath() + " --base " + file, "another pool");
  ExpectRefused("snapshot " + pool + " " + NewPath() + " --base " + compared, "increment");
  ExpectRefused("snapshot pinned: " + NewPath(), "pinned");
  // Names in brackets are names.
  const std::string brackets = NewPath();
  std::filesystem::create_directory(brackets);
  const std::string there = "cd " + brackets + ";";
  EXPECT_EQ(Run("snapshot " + pool + " '[s]'", there).status, 0);
  EXPECT_EQ(Run("restore --executor cpu '[s]' '[x,y]'", there).status, 0);
  EXPECT_TRUE(std::filesystem::exists(brackets + "/[s]"));
  EXPECT_EQ(lines(brackets + "/[x,y]"), lines(pool));
}

TEST_F(CliTest, WrongUsageIsStatus2) {
  ExpectRefused("", "subcommand");
  ExpectRefused("frobnicate", "frobnicate");
  ExpectRefused("ycsb --frobnicate", "frobnicate");
  ExpectRefused("ycsb", "-w");
  ExpectRefused("ycsb -w z", "'z'");
  ExpectRefused("ycsb -w e", "key order");
  ExpectRefused("ycsb -w a --executor tpu", "executor");
  ExpectRefused("ycsb -w a --records -1", "records");
  ExpectRefused("ycsb -w a --records many", "records");
  ExpectRefused("ycsb -w a --records 0", "record");
  ExpectRefused("ycsb -w a --batch 0 --records 10", "batch");
  ExpectRefused("ycsb -w a --theta 9", "theta");
  ExpectRefused("ycsb -w a --distribution pareto", "pareto");
  ExpectRefused("ycsb -w a --geometry 3L-2H-8S", "3L-2H-8S");
  ExpectRefused("ycsb -w a --key-size 7", "7");
  ExpectRefused("create " + NewPath() + " --key-size 0", "from 1 to 255");
  ExpectRefused("create " + NewPath() + " --key-size 256", "from 1 to 255");
  ExpectRefused("ycsb -w a --value-size 0", "0");
  ExpectRefused("ycsb -w a --value-size 16777217", "16777217");
  ExpectRefused("ycsb -w a --pool-max 12Q", "pool-max");
  ExpectRefused("ycsb -w a --growth 1", "growth");
  ExpectRefused("ycsb -w a --executor cpu --cache 0.2", "--directory");
  ExpectRefused("ycsb -w a --no-directory --cache 0.2", "--directory");
  ExpectRefused("ycsb -w erase --records 10 --operations 11", "erase");
  ExpectRefused("ycsb -P /nonexistent/properties", "/nonexistent/properties");
  ExpectRefused("ycsb -P /", "Is a directory");
  ExpectRefused("replay", "--load");
  ExpectRefused("replay --run /nonexistent/trace", "/nonexistent/trace");
  ExpectRefused("get", "POOL");
  ExpectRefused("create pinned:", "name a file");
  if (GpuCount() == 0) {
    ExpectRefused("ycsb -w a --records 10 --executor cuda", "");
    ExpectRefused("ycsb -w a --records 10 --memory device", "no usable CUDA device");
    const Ran ran = Run("ycsb -w a --records 10", "TMPDIR=/nonexistent");
    EXPECT_EQ(ran.status, 2);
    EXPECT_NE(ran.err.find("TMPDIR '/nonexistent' is none"), std::string::npos) << ran.err;
  }
}

TEST_F(CliTest, PutGetDel) {
  const std::string pool = NewPath();
  ExpectRefused("put " + pool + " 1 x", pool);  // put creates nothing
  EXPECT_FALSE(std::filesystem::exists(pool));
  ASSERT_EQ(Run("create " + pool + " --value-size 16").status, 0);
  ExpectRefused("create " + pool, pool);

  EXPECT_EQ(Run("get " + pool + " 17").status, 1);
  EXPECT_EQ(Run("del " + pool + " 17").status, 1);
  EXPECT_EQ(Run("put " + pool + " 17 'hello world'").status, 0);
  Ran ran = Run("get " + pool + " 17");
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.out, "hello world\n");
  EXPECT_EQ(Run("get " + pool + " 17 --hex").out, "0x68656c6c6f20776f726c640000000000\n");
  EXPECT_EQ(Run("put " + pool + " 17 0x00ff").status, 0);  // replaces
  EXPECT_EQ(Run("get " + pool + " 17").out, "0x00ff0000000000000000000000000000\n");
  EXPECT_EQ(Run("put " + pool + " 18446744073709551615 last").status, 0);
  EXPECT_EQ(Run("put " + pool + " 0 first").status, 0);
  EXPECT_EQ(Run("get " + pool + " 18446744073709551615").out, "last\n");
  EXPECT_EQ(Run("del " + pool + " 17").status, 0);
  ran = Run("get " + pool + " 17");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("17"), std::string::npos);
  EXPECT_EQ(Run("dump " + pool).out, "0\tfirst\n18446744073709551615\tlast\n");

  ExpectRefused("put " + pool + " 18446744073709551616 x", "2^64 - 1");
  ExpectRefused("put " + pool + " text x", "decimal");
  ExpectRefused("put " + pool + " 1 'seventeen bytes!!'", "17 bytes");
  ExpectRefused("put " + pool + " 1 0x123", "pairs");
  ExpectRefused("put " + pool + " 1 0xzz", "hex digits");
  EXPECT_EQ(RunJson("check " + pool)["items"], 2);
}

TEST_F(CliTest, LongKeysAreTextOrHex) {
  const std::string pool = NewPath();
  ASSERT_EQ(Run("create " + pool + " --key-size 16 --value-size 4 --geometry 1L-2H-16S").status, 0);
  EXPECT_EQ(Run("put " + pool + " zebra z").status, 0);
  EXPECT_EQ(Run("put " + pool + " 0xff01 f").status, 0);
  EXPECT_EQ(Run("put " + pool + " aardvark a").status, 0);
  EXPECT_EQ(Run("get " + pool + " aardvark").out, "a\n");
  EXPECT_EQ(Run("get " + pool + " 0x7a65627261").out, "z\n");  // zebra
  EXPECT_EQ(Run("dump " + pool).out,
            "aardvark\ta\n"
            "zebra\tz\n"
            "0xff010000000000000000000000000000\tf\n");
  ExpectRefused("put " + pool + " seventeen-letters x", "17 bytes");
  const Json info = RunJson("info " + pool);
  EXPECT_EQ(info["geometry"], "1L-2H-16S");
  EXPECT_EQ(info["key_size"], 16);
  EXPECT_EQ(info["value_size"], 4);
  EXPECT_EQ(info["items"], 3);
  EXPECT_EQ(info["clean"], true);
}

TEST_F(CliTest, KeysThatAreNotWholeWords) {
  const std::string pool = NewPath();
  ASSERT_EQ(Run("create " + pool + " --key-size 36 --value-size 8").status, 0);
  const std::string digest(34, 'd');
  for (const char* tail : {"aa", "ab", "ba"}) {
    EXPECT_EQ(Run("put " + pool + " " + digest + tail + " " + tail).status, 0);
  }
  EXPECT_EQ(Run("put " + pool + " 0x00 zeros").status, 0);
  EXPECT_EQ(Run("get " + pool + " " + digest + "ab").out, "ab\n");
  EXPECT_EQ(Run("get " + pool + " " + digest + "bb").status, 1);
  EXPECT_EQ(Run("del " + pool + " " + digest + "ba").status, 0);
  EXPECT_EQ(Run("dump " + pool).out,
            "0x" + std::string(72, '0') + "\tzeros\n" + digest + "aa\taa\n" + digest + "ab\tab\n");
  ExpectRefused("put " + pool + " " + digest + "abc x", "37 bytes");
  EXPECT_EQ(RunJson("info " + pool)["key_size"], 36);
  const std::string snapshot = NewPath();
  const std::string restored = NewPath();
  EXPECT_EQ(Run("snapshot " + pool + " " + snapshot).status, 0);
  EXPECT_EQ(Run("restore " + snapshot + " " + restored).status, 0);
  EXPECT_EQ(Run("dump " + restored).out, Run("dump " + pool).out);

  // Lines of a trace name keys by their text, as get does.
  const std::string trace = NewPath();
  WriteFile(trace, "INSERT usertable user7 [ field0=new ]\nDELETE usertable user8\n");
  EXPECT_EQ(Run("replay --run " + trace + " --pool " + pool + OnExecutor()).status, 0);
  EXPECT_EQ(Run("get " + pool + " user7").out, "new\n");
  ExpectRefused("replay --run " + trace + " --key-size 4", "5 bytes");
  EXPECT_EQ(RunJson("replay --run " + trace + " --key-size 5" + OnExecutor())["store"]["key_size"],
            5);
  EXPECT_EQ(RunJson("ycsb -w a --records 500 --operations 500 --verify all --key-size 33" +
                    OnExecutor())["run"]["wrong"],
            0);
}

TEST_F(CliTest, YcsbSearchesByAnAttribute) {
  const std::string on = OnExecutor();
  const std::string pool = NewPath();
  const std::string small = " --records 2000 --operations 2000 --batch 300 --verify all";
  const Json json = RunJson("ycsb -w ghsh2 --value-size 24 --keep --pool " + pool + small + on);
  EXPECT_EQ(json["run"]["wrong"], 0);
  EXPECT_EQ(json["run"]["verified"], 2000);
  EXPECT_EQ(json["workload"]["mix"]["search"], 0.5);
  EXPECT_GT(json["run"]["outcomes"]["search"]["ok"], 800);
  EXPECT_GT(json["run"]["latency_us"]["search"]["count"], 800);
  const Ran ran = Run("ycsb -w ghsh3" + small + on);
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.out.find("outcomes search"), std::string::npos) << ran.out;

  ExpectRefused("ycsb -w ghsh2 --value-size 23" + small + on, "at least 24 bytes");
  ExpectRefused("ycsb -w ghsh2 --shards 2" + small + on, "one pool");
  const std::string plain = NewPath();
  ASSERT_EQ(Run("ycsb -w load --records 2000 --keep --pool " + plain + on).status, 0);
  ExpectRefused("ycsb -w ghsh2 --pool " + plain + small + on, "record:8:8");
}

TEST_F(CliTest, YcsbRunsAndReports) {
  const std::string directory = NewPath();
  std::filesystem::create_directory(directory);
  const std::string json_path = NewPath();
  const Ran ran =
      Run("ycsb -w a --records 5000 --operations 4000 --batch 512 --verify all --json " +
              json_path + OnExecutor(),
          test::TestExecutor() == ExecutorKind::kCpu ? "TMPDIR=" + directory : "");
  ASSERT_EQ(ran.status, 0) << ran.err;
  for (const char* text : {"executor", "medium", "load:", "run:", "Mops/s", "p99.9", "outcomes"}) {
    EXPECT_NE(ran.out.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(ran.err, "");  // no progress where stderr is no terminal
  EXPECT_TRUE(std::filesystem::is_empty(directory)) << "the temporary pool was left behind";

  const Json json = Json::parse(ReadFile(json_path));
  EXPECT_EQ(json["workload"]["records"], 5000);
  EXPECT_EQ(json["load"]["operations"], 5000);
  EXPECT_EQ(json["load"]["outcomes"]["insert"]["ok"], 5000);
  EXPECT_EQ(json["run"]["operations"], 4000);
  EXPECT_EQ(json["run"]["batches"], 8);
  EXPECT_EQ(json["run"]["verified"], 4000);
  EXPECT_EQ(json["run"]["wrong"], 0);
  EXPECT_GT(json["run"]["mops"], 0);
  EXPECT_GE(json["run"]["latency_us"]["find"]["p99"], json["run"]["latency_us"]["find"]["p50"]);
  EXPECT_EQ(json["run"]["latency_us"]["batch"]["count"], 8);
  EXPECT_EQ(json["store"]["items"], 5000);
  EXPECT_EQ(json["store"]["executor"], Executor());
  const int finds = json["run"]["outcomes"]["find"]["ok"];
  const int updates = json["run"]["outcomes"]["update"]["ok"];
  EXPECT_EQ(finds + updates, 4000);
}

TEST_F(CliTest, YcsbWithACapacity) {
  const std::string run = "ycsb -w a --records 5000 --operations 4000 --batch 500 --capacity 2000";
  for (const std::string policy : {"lru", "lfu", "oldest"}) {
    const Ran ran = Run(run + " --verify none --json - --capacity-policy " + policy + OnExecutor());
    ASSERT_EQ(ran.status, 0) << ran.err;
    const Json store = Json::parse(ran.out)["store"];
    const std::uint64_t items = store["items"];
    EXPECT_LE(items, 2000u);
    EXPECT_EQ(store["capacity"]["items"], 2000);
    EXPECT_EQ(store["capacity"]["evicted"], 5000 - items);
  }
  ExpectRefused(run, "--verify none");
  ExpectRefused("ycsb -w a --records 100 --capacity-policy lfu", "--capacity");
  ExpectRefused("ycsb -w a --records 100 --capacity 0", "capacity");
}

TEST_F(CliTest, YcsbKeepsAndReusesAPool) {
  const std::string pool = NewPath();
  const std::string on = OnExecutor() + " --pool " + pool;
  // A pool that the run creates goes with it.
  ASSERT_EQ(Run("ycsb -w load --records 100" + on).status, 0);
  EXPECT_FALSE(std::filesystem::exists(pool));
  Json json =
      RunJson("ycsb -w load --records 3000 --value-size 40 --initial-capacity 0 --keep" + on);
  EXPECT_EQ(json["store"]["items"], 3000);
  EXPECT_GT(json["store"]["resizes"], 0);
  EXPECT_FALSE(json.contains("run"));
  // One that was there is used as it is, not loaded again, and stays.
  json = RunJson("ycsb -w c --operations 1000 --verify all" + on);
  EXPECT_EQ(json["workload"]["records"], 3000);
  EXPECT_FALSE(json.contains("load"));
  EXPECT_EQ(json["run"]["outcomes"]["find"]["ok"], 1000);
  EXPECT_EQ(json["run"]["wrong"], 0);
  json = RunJson("ycsb -w insert --operations 500 --verify all" + on);
  EXPECT_EQ(json["run"]["outcomes"]["insert"]["ok"], 500);
  EXPECT_EQ(RunJson("ycsb -w c --value-size 40 --geometry 2L-2H-8S --operations 10 --records 9" +
                    on)["run"]["operations"],
            10);
  json = RunJson("ycsb -w erase --records 3000 --operations 1000" + on);
  EXPECT_EQ(json["run"]["outcomes"]["erase"]["ok"], 1000);
  json = RunJson("ycsb -w find-missing --operations 100 --records 3000" + on);
  EXPECT_EQ(json["run"]["outcomes"]["find"]["not-found"], 100);
  EXPECT_EQ(RunJson("check " + pool)["items"], 2500);
  // What the command line says explicitly must be what it is.
  ExpectRefused("ycsb -w c --value-size 41" + on, "40");
  ExpectRefused("ycsb -w c --key-size 16" + on, "--key-size");
  ExpectRefused("ycsb -w c --geometry 1L-2H-16S" + on, "2L-2H-8S");
  EXPECT_TRUE(std::filesystem::exists(pool));
}

TEST_F(CliTest, YcsbReadsPropertyFiles) {
  const std::string file = NewPath();
  WriteFile(file,
            "recordcount=600\noperationcount=700\nreadproportion=0\nupdateproportion=0\n"
            "readmodifywriteproportion=1\nrequestdistribution=uniform\nfieldcount=3\n"
            "fieldlength=10\n");
  Json json = RunJson("ycsb -P " + file + OnExecutor());
  EXPECT_EQ(json["load"]["operations"], 600);
  EXPECT_EQ(json["run"]["operations"], 700);
  EXPECT_EQ(json["run"]["store_operations"], 1400);
  EXPECT_EQ(json["run"]["latency_us"]["read-modify-write"]["count"], 700);
  EXPECT_EQ(json["store"]["value_size"], 30);
  EXPECT_EQ(json["workload"]["distribution"], "uniform");
  // The command line wins.
  json = RunJson("ycsb -w c --records 50 --operations 60 --value-size 8 --distribution latest -P " +
                 file + OnExecutor());
  EXPECT_EQ(json["load"]["operations"], 50);
  EXPECT_EQ(json["run"]["outcomes"]["find"]["ok"], 60);
  EXPECT_EQ(json["store"]["value_size"], 8);
  EXPECT_EQ(json["workload"]["distribution"], "latest");
  WriteFile(file, "recordcount=1\nscanproportion=0.95\n");
  ExpectRefused("ycsb -P " + file, file + ":2");
  // Few draws of these are within the records.
  for (const char* rule : {"frac=1e12", "percentile=1e-300\nexponential.frac=1"}) {
    WriteFile(file, std::string("recordcount=10\noperationcount=100\nfieldlength=1\n"
                                "requestdistribution=exponential\nexponential.") +
                        rule + "\n");
    EXPECT_EQ(RunJson("ycsb -P " + file + OnExecutor())["run"]["operations"], 100) << rule;
  }
  // Values are as long as a pool's may be.
  WriteFile(file, "recordcount=2\nfieldcount=2\nfieldlength=40000\n");
  EXPECT_EQ(RunJson("ycsb -P " + file + OnExecutor())["store"]["value_size"], 80000);
  WriteFile(file, "recordcount=2\nfieldcount=2\nfieldlength=8388609\n");
  ExpectRefused("ycsb -P " + file, "from 1 to 16777216");
}

TEST_F(CliTest, YcsbIsTheSameForASeed) {
  const auto contents = [&](const std::string& options) {
    const std::string pool = NewPath();
    EXPECT_EQ(
        Run("ycsb -w a --records 300 --operations 500 --keep --pool " + pool + options).status, 0);
    return Run("dump " + pool).out;
  };
  const std::string one = contents(" --seed 5 --batch 64 --threads 1");
  EXPECT_EQ(std::count(one.begin(), one.end(), '\n'), 300);
  EXPECT_EQ(one, contents(" --seed 5 --batch 500 --threads 2" + OnExecutor()));
  EXPECT_NE(one, contents(" --seed 6 --batch 64 --threads 1"));
}

TEST_F(CliTest, ReportsReplaceNothingThatTheCommandUses) {
  const std::string pool = NewPath();
  const std::string shards = NewPath();
  const std::string snapshots = NewPath();
  const std::string trace = NewPath();
  const std::string properties = NewPath();
  const std::string link = NewPath();
  const std::string folder_link = NewPath();
  const std::string fresh = NewPath();
  const std::string make = "ycsb -w load --records 100 --executor cpu --keep --pool ";
  ASSERT_EQ(Run(make + pool + " --snapshots " + snapshots).status, 0);
  ASSERT_EQ(Run(make + shards + " --shards 2").status, 0);
  WriteFile(trace, "INSERT 1\n");
  WriteFile(properties, "recordcount=10\n");
  std::filesystem::create_hard_link(pool, link);
  std::filesystem::create_directory_symlink(shards, folder_link);
  const std::string shard = shards + "/000001-0000.pool";
  const std::string before = ReadFile(pool) + ReadFile(shard) + ReadFile(snapshots + "/MANIFEST");

  for (const std::string name : {"info ", "check "}) {
    ExpectRefused(name + pool + " --json " + pool, "--json and POOL are the same file");
    ExpectRefused(name + pool + " --json " + link, "--json and POOL are the same file");
    ExpectRefused(name + shard + " --json " + folder_link + "/000001-0000.pool", "the same file");
    ExpectRefused(name + shards + " --json " + shard, "is in the folder of POOL");
    ExpectRefused(name + folder_link + " --json " + shards + "/new", "is in the folder of POOL");
  }
  const std::string ycsb = "ycsb -w a --operations 10 --executor cpu ";
  ExpectRefused(ycsb + "--pool " + pool + " --json " + pool, "--json and --pool");
  ExpectRefused(ycsb + "--keep --pool " + fresh + " --json " + fresh, "--json and --pool");
  ExpectRefused(ycsb + "--pool " + shards + " --json " + shard, "in the folder of --pool");
  ExpectRefused(
      ycsb + "--pool " + pool + " --snapshots " + snapshots + " --json " + snapshots + "/MANIFEST",
      "in the folder of --snapshots");
  ExpectRefused("ycsb -P " + properties + " --json " + properties, "--json and --property-file");
  const std::string replay = "replay --executor cpu --run " + trace;
  ExpectRefused(replay + " --json " + trace, "--json and --run are the same file");
  ExpectRefused("replay --load " + trace + " --json " + trace, "--json and --load");
  ExpectRefused(replay + " --pool " + pool + " --json " + pool, "--json and --pool");
  ExpectRefused(replay + " --pool " + pool + " --results " + link, "--results and --pool");
  ExpectRefused(replay + " --pool " + shards + " --results " + shard, "in the folder of --pool");
  ExpectRefused("crash-test --pool " + fresh + " --json " + fresh, "--json and --pool");
  // Names of a file that is not there yet.
  const Ran ran = Run(replay + " --pool r --json ./r", "cd " + shards + "/..;");
  EXPECT_EQ(ran.status, 2) << ran.err;
  EXPECT_FALSE(std::filesystem::exists(shards + "/../r"));

  EXPECT_FALSE(std::filesystem::exists(fresh));
  EXPECT_FALSE(std::filesystem::exists(shards + "/new"));
  EXPECT_EQ(ReadFile(trace), "INSERT 1\n");
  EXPECT_EQ(ReadFile(properties), "recordcount=10\n");
  EXPECT_EQ(ReadFile(pool) + ReadFile(shard) + ReadFile(snapshots + "/MANIFEST"), before);
  EXPECT_EQ(Run("check " + shards + " --json " + fresh).status, 0);
}

TEST_F(CliTest, InfoAndCheckOfDamagedPools) {
  const std::string pool = NewPath();
  ASSERT_EQ(Run("ycsb -w load --records 2000 --value-size 100 --executor cpu --keep --pool " + pool)
                .status,
            0);
  EXPECT_EQ(Run("check " + pool).status, 0);
  EXPECT_NE(Run("info " + pool).out.find("2000 in"), std::string::npos);

  // A value reference that leads nowhere is a broken slot: check says which.
  {
    const std::unique_ptr<Pool> opened = Pool::Open(pool, {});
    const Superblock& superblock = opened->superblock();
    const std::uint64_t bucket_bytes = opened->bucket_bytes();
    auto* const level =
        reinterpret_cast<std::uint64_t*>(opened->base() + superblock.levels[0].offset);
    std::uint64_t* slot = nullptr;
    for (std::uint64_t bucket = 0; slot == nullptr && bucket < superblock.levels[0].buckets;
         ++bucket) {
      std::uint64_t* const words = level + bucket * bucket_bytes / 8;
      for (std::uint32_t i = 0; slot == nullptr && i < superblock.geometry.slots; ++i) {
        if (words[i] > 1) slot = words + superblock.geometry.slots + i;
      }
    }
    ASSERT_NE(slot, nullptr);
    *slot = ~std::uint64_t{0} - 15;
  }
  const Ran check = Run("check " + pool);
  EXPECT_EQ(check.status, 1);
  EXPECT_NE(check.out.find("defect: "), std::string::npos) << check.out;
  EXPECT_NE(check.out.find("slot"), std::string::npos) << check.out;
  const Ran json = Run("check " + pool + " --json -");
  EXPECT_EQ(json.status, 1);
  EXPECT_EQ(Json::parse(json.out)["sound"], false);
  EXPECT_EQ(Run("info " + pool).status, 0);

  // No superblock: nothing can be opened, and the check says no.
  WriteFile(pool, std::string(100'000, 'x'));
  EXPECT_EQ(Run("check " + pool).status, 1);
  for (const char* command : {"info ", "dump "}) ExpectRefused(command + pool, pool);
  ExpectRefused("get " + pool + " 1", pool);
  ExpectRefused("ycsb -w c --pool " + pool, pool);
  EXPECT_EQ(ReadFile(pool), std::string(100'000, 'x'));
  for (const char* command : {"info ", "dump ", "check "}) {
    ExpectRefused(std::string(command) + "/nonexistent/pool", "/nonexistent/pool");
  }
}

TEST_F(CliTest, PoolInUseIsRefused) {
  const std::string pool = NewPath();
  Store store = Store::Create(pool, {}, test::TestOpenOptions());
  for (const char* command : {"info ", "dump ", "check ", "ycsb -w a --records 10 --pool "}) {
    ExpectRefused(command + pool, pool);
  }
}

TEST_F(CliTest, CrashTestKeepsWhatIsNotItsOwn) {
  const std::string pool = NewPath();
  const std::string snapshots = pool + ".1.snapshots";
  ASSERT_EQ(Run("ycsb -w load --records 100 --executor cpu --snapshots " + snapshots).status, 0);
  WriteFile(pool + ".answers", "mine");
  const std::string command = "crash-test --rounds 2 --longest 10 --pool " + pool;
  ExpectRefused(command, pool + ".answers: is there already");
  ExpectRefused(command + ".1", snapshots + ": is there already");
  ExpectRefused(command + " --jobs 2", snapshots + ": is there already");
  EXPECT_FALSE(std::filesystem::exists(pool));
  EXPECT_FALSE(std::filesystem::exists(pool + ".snapshots"));
  EXPECT_EQ(ReadFile(pool + ".answers"), "mine");
  EXPECT_NE(Run("restore --executor cpu " + snapshots + " " + NewPath()).out.find("100 items"),
            std::string::npos);
}

TEST_F(CliTest, FullPoolIsStatus2) {
  const std::string pool = NewPath();
  ExpectRefused("ycsb -w load --records 500000 --initial-capacity 0 --pool-max 8M --pool " + pool,
                "--pool-max");
  EXPECT_FALSE(std::filesystem::exists(pool));
}

}  // namespace
}  // namespace gpm
