// What a newcomer does with the gpmstore command in the first hour: options that do nothing, files
// that can't be written, pools that are not what was meant, texts and numbers of any length.

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include "cli/work_pool.h"
#include "tests/cli_test_util.h"

namespace gpm {
namespace {

using CliFirstHourTest = CliTest;

const std::string kWorkloadA = GPM_WORKLOADS "/workloada";

TEST_F(CliFirstHourTest, OnlyThePoolThatARunMadeIsRemoved) {
  const std::string pool = NewPath();
  const auto make = [&](bool keep) {
    auto made = std::make_unique<cli::WorkPool>(pool, keep, test::TestExecutor());
    made->Create({}, test::TestOpenOptions()).Close();
    return made;
  };
  make(false);
  EXPECT_FALSE(std::filesystem::exists(pool));
  // Somebody else's file has the name at the end.
  for (const bool removed_before : {true, false}) {
    auto made = make(false);
    const std::string other = NewPath();
    WriteFile(other, "somebody else's");
    if (removed_before) std::filesystem::remove(pool);
    std::filesystem::rename(other, pool);
    made.reset();
    ASSERT_EQ(ReadFile(pool), "somebody else's");
    std::filesystem::remove(pool);
  }
  make(true);
  EXPECT_TRUE(std::filesystem::exists(pool));
  cli::WorkPool(pool, false, test::TestExecutor()).Open(test::TestOpenOptions()).Close();
  EXPECT_TRUE(std::filesystem::exists(pool));
}

TEST_F(CliFirstHourTest, APoolWithoutTheRecordsAskedForIsRefused) {
  const std::string pool = NewPath();
  const std::string on = OnExecutor() + " --pool " + pool;
  ASSERT_EQ(Run("ycsb -w load --records 3000 --value-size 40 --keep" + on).status, 0);
  EXPECT_EQ(Run("ycsb -w c --records 3000 --operations 10" + on).status, 0);
  ExpectRefused("ycsb -w c --records 3001 --operations 10" + on, "3000 items");
  // Another size of records, or order, than the file's.
  const std::string file = NewPath();
  WriteFile(file, "recordcount=3000\noperationcount=10\nfieldcount=1\nfieldlength=41\n");
  ExpectRefused("ycsb -P " + file + on, "41");
  WriteFile(file, "recordcount=3000\noperationcount=10\nfieldcount=1\nfieldlength=40\n");
  EXPECT_EQ(Run("ycsb -P " + file + on).status, 0);
  WriteFile(file, ReadFile(file) + "insertorder=ordered\n");
  ExpectRefused("ycsb -P " + file + on, "only 0 are there");
  // Inserts that would find their keys there.
  EXPECT_EQ(Run("ycsb -w d --records 3000 --operations 500" + on).status, 0);
  ExpectRefused("ycsb -w d --records 3000 --operations 500" + on, "record 3000");
  EXPECT_EQ(Run("ycsb -w d --operations 500" + on).status, 0);
  // Items enough, but not those records.
  EXPECT_EQ(Run("ycsb -w erase --records 3000 --operations 20" + on).status, 0);
  ExpectRefused("ycsb -w c --records 3000 --operations 10" + on, "--records");
  EXPECT_EQ(Run("ycsb -w find-missing --records 3000 --operations 10" + on).status, 0);
  EXPECT_TRUE(std::filesystem::exists(pool));
}

TEST_F(CliFirstHourTest, NoSpaceIsStatus2AndSaysHowMany) {
  const std::string report = NewPath();
  const Ran ran = Run("ycsb -w insert --records 1000 --operations 200000 --pool-max 8M --json " +
                      report + OnExecutor());
  EXPECT_EQ(ran.status, 2);
  EXPECT_NE(ran.out.find("no-space"), std::string::npos) << ran.out;
  const Json json = Json::parse(ReadFile(report));
  const std::uint64_t count = json["run"]["outcomes"]["insert"]["no-space"];
  EXPECT_NE(ran.err.find(std::to_string(count) + " of 200000"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("--pool-max"), std::string::npos) << ran.err;

  const std::string trace = NewPath();
  std::string lines;
  for (int i = 0; i < 60'000; ++i)
    lines += "INSERT usertable u" + std::to_string(i) + " [ f=" + std::string(120, 'v') + " ]\n";
  WriteFile(trace, lines);
  const Ran replay = Run("replay --initial-capacity 0 --pool-max 4M --run " + trace + OnExecutor());
  EXPECT_EQ(replay.status, 2);
  EXPECT_NE(replay.err.find("no space"), std::string::npos) << replay.err;
}

TEST_F(CliFirstHourTest, ReportsThatCannotBeWrittenAreRefusedFirst) {
  const std::string pool = NewPath();
  const std::string trace = NewPath();
  WriteFile(trace, "INSERT 1\n");
  const std::string directory = NewPath();
  std::filesystem::create_directory(directory);
  for (const std::string& place : {std::string("/nonexistent/report"), directory}) {
    ExpectRefused("ycsb -w load --records 10 --keep --pool " + pool + " --json " + place, place);
    ExpectRefused("replay --run " + trace + " --pool " + pool + " --json " + place, place);
    ExpectRefused("replay --run " + trace + " --pool " + pool + " --results " + place, place);
    ExpectRefused("crash-test --rounds 1 --pool " + pool + " --json " + place, place);
    EXPECT_FALSE(std::filesystem::exists(pool));
  }
  ASSERT_EQ(Run("create " + pool).status, 0);
  for (const char* command : {"info ", "check "}) {
    ExpectRefused(command + pool + " --json /nonexistent/report", "--json");
  }
  // A run that fails later leaves an old report as it was, and no new one.
  const std::string report = NewPath();
  ExpectRefused("ycsb -P /nonexistent/file --json " + report, "/nonexistent/file");
  EXPECT_FALSE(std::filesystem::exists(report));
  WriteFile(report, "old");
  ExpectRefused("ycsb -P /nonexistent/file --json " + report, "/nonexistent/file");
  EXPECT_EQ(ReadFile(report), "old");
}

TEST_F(CliFirstHourTest, WhatVerifyFoundIsShown) {
  const std::string run = "ycsb -w c --records 1000 --operations 3200 --verify ";
  const Json all = RunJson(run + "all" + OnExecutor());
  EXPECT_EQ(all["verify"], "all");
  EXPECT_EQ(all["run"]["verified"], 3200);
  EXPECT_EQ(all["run"]["values_compared"], 3200);
  EXPECT_EQ(RunJson(run + "sample" + OnExecutor())["run"]["values_compared"], 200);
  const Json none = RunJson(run + "none" + OnExecutor());
  EXPECT_EQ(none["run"]["verified"], 0);
  EXPECT_EQ(none["run"]["values_compared"], 0);
  const Ran ran = Run(run + "all" + OnExecutor());
  EXPECT_NE(ran.out.find("3200 results, 3200 values compared, 0 wrong"), std::string::npos)
      << ran.out;

  // Another record's value.
  const std::string pool = NewPath();
  const std::string on = OnExecutor() + " --pool " + pool;
  ASSERT_EQ(Run("ycsb -w load --records 1 --value-size 16 --keep" + on).status, 0);
  const std::string key = Run("dump " + pool).out;
  ASSERT_EQ(Run("put " + pool + " " + key.substr(0, key.find('\t')) + " wrong").status, 0);
  const Ran wrong = Run("ycsb -w find --operations 10 --verify all --json -" + on);
  EXPECT_EQ(wrong.status, 1);
  const Json json = Json::parse(wrong.out);
  EXPECT_EQ(json["run"]["values_compared"], 10);
  EXPECT_EQ(json["run"]["wrong"], 10);
  EXPECT_NE(json["run"]["first_wrong"].get<std::string>().find("record 0"), std::string::npos);
}

TEST_F(CliFirstHourTest, OptionsWithoutEffectAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"-w a --executor cpu --cache 0.5", "--cache has no effect"},
      {"-w a --executor cpu --cache-bytes 1M", "--cache-bytes has no effect"},
      {"-w a --executor cpu --cache-policy lru", "--cache-policy has no effect"},
      {"-w a --executor cpu --cache-interval 7", "--cache-interval has no effect"},
      {"-w a --no-directory --cache-bytes 1M", "--no-directory"},
      {"-w a --executor cpu --directory --cache-policy lru", "--cache"},
      {"-w a --directory --cache 0 --cache-interval 7", "--cache-interval has no effect"},
      {"-w a --directory --cache 0.2 --cache-policy off", "--cache has no effect"},
      {"-w a --records 9 --directory --cache 0.2 --value-size 8", "slots themselves"},
      {"-w load --operations 7", "--operations has no effect"},
      {"-w load --theta 0.7", "--theta has no effect"},
      {"-w insert --distribution zipf", "--distribution has no effect"},
      {"-w find --theta 0.7", "uniform"},
      {"-w a --keep --pool pinned:", "--keep has no effect"},
  };
  for (const auto& [arguments, reason] : cases) {
    ExpectRefused("ycsb " + std::string(arguments), reason);
  }
  if (GpuCount() == 0) ExpectRefused("ycsb -w a --cache 0.5", "--directory");
  const std::string trace = NewPath();
  const std::string pool = NewPath();
  WriteFile(trace, "INSERT 1\n");
  ExpectRefused("replay --executor cuda --threads 2 --run " + trace, "--threads has no effect");
  ASSERT_EQ(Run("create " + pool).status, 0);
  for (const std::string& command : {"replay --run " + trace, std::string("ycsb -w a")}) {
    ExpectRefused(command + " --initial-capacity 7 --pool " + pool, "--initial-capacity");
    ExpectRefused(command + " --geometry 1L-2H-16S --pool " + pool, "2L-2H-8S");
  }
  // What asks for nothing, and gets it, is no mistake.
  EXPECT_EQ(Run("ycsb -w a --records 9 --operations 9 --executor cpu --cache 0").status, 0);
  EXPECT_EQ(Run("ycsb -w a --records 9 --operations 9 --executor cpu --cache-policy off").status,
            0);
  EXPECT_EQ(
      Run("ycsb -w a --records 9 --operations 9 --directory --cache-policy lru --cache 1").status,
      0);
}

TEST_F(CliFirstHourTest, APoolThatIsRemovedPromisesNothing) {
  const std::string run = "ycsb -w load --records 10" + OnExecutor();
  EXPECT_EQ(Run(run).out.find("survives"), std::string::npos);
  EXPECT_EQ(Run(run + "--pool " + NewPath()).out.find("survives"), std::string::npos);
  const std::string kept = Run(run + "--keep --pool " + NewPath()).out;
  EXPECT_NE(kept.find("survives"), std::string::npos) << kept;
}

TEST_F(CliFirstHourTest, AFullStandardOutputIsStatus2) {
  const std::string pool = NewPath();
  const std::string trace = NewPath();
  WriteFile(trace, "INSERT 1\n");
  ASSERT_EQ(Run("create " + pool).status, 0);
  ASSERT_EQ(Run("put " + pool + " 1 one").status, 0);
  for (const std::string& command :
       {std::string("--help"), std::string("--version"), std::string("dump --help"),
        std::string("ycsb -w load --records 10"), std::string("ycsb -w load --records 10 --json -"),
        "replay --run " + trace, "replay --results - --run " + trace, "info " + pool,
        "check " + pool, "dump " + pool, "get " + pool + " 1",
        std::string("crash-explore --states 10")}) {
    const Ran ran = Run(command, "", "/dev/full");
    EXPECT_EQ(ran.status, 2) << command;
    EXPECT_NE(ran.err.find("gpmstore: "), std::string::npos) << command << ": " << ran.err;
  }
  // Also of what is larger than the stream's buffer, it is said why.
  const std::string large = NewPath();
  ASSERT_EQ(Run("create --value-size 10000 " + large).status, 0);
  ASSERT_EQ(Run("put " + large + " 1 " + std::string(10'000, 'v')).status, 0);
  const Ran ran = Run("dump " + large, "", "/dev/full");
  EXPECT_NE(ran.err.find("No space left"), std::string::npos) << ran.err;
}

TEST_F(CliFirstHourTest, AClosedStandardStreamIsNoPool) {
  const std::string pool = NewPath();
  // Of a pool that got the descriptor 2, the message that it is full would replace the superblock.
  const std::string full =
      "ycsb -w insert --records 1000 --operations 20000 --pool-max 1M --executor cpu --keep "
      "--pool " +
      pool;
  EXPECT_EQ(Run(full + " > " + NewPath() + " <&- 2>&- #").status, 2);
  EXPECT_EQ(ReadFile(pool).substr(0, 8), "GPMSTOR1");
  // What can't be written is an error still.
  EXPECT_EQ(Run("check " + pool + " >&- #").status, 2);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(CliFirstHourTest, LackOfMemoryNamesNoOptionThatIsNotThere) {
  const std::string pool = NewPath();
  ASSERT_EQ(Run("create --value-size 16777216 " + pool).status, 0);
  for (const char* key : {"1", "2", "3"})
    ASSERT_EQ(Run("put " + pool + " " + key + " x").status, 0);
  int too_little = 0;
  for (int megabytes = 60; megabytes <= 400; megabytes += 20) {
    const Ran ran = Run("dump " + pool, "ulimit -v " + std::to_string(megabytes * 1000) + ";");
    if (ran.status != 3) continue;
    EXPECT_EQ(ran.err, "gpmstore: out of memory\n");
    ++too_little;
  }
  EXPECT_GT(too_little, 0);
}
#endif

TEST_F(CliFirstHourTest, ReplayWritesResultsToStandardOutput) {
  const std::string trace = NewPath();
  const std::string report = NewPath();
  WriteFile(trace, "INSERT usertable user1 [ field0=one ]\nREAD usertable user1 [ <all fields>]\n");
  const Ran ran = Run("replay --results - --json " + report + " --run " + trace + OnExecutor());
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.out, "INSERT\tuser1\tok\nREAD\tuser1\tok\tone\n");
  EXPECT_EQ(Json::parse(ReadFile(report))["run"]["operations"], 2);
  ExpectRefused("replay --results - --json - --run " + trace, "standard output");
}

TEST_F(CliFirstHourTest, ALimitOfTheFileSizeIsAnError) {
  const std::string pool = NewPath();
  ASSERT_EQ(Run("create " + pool).status, 0);
  const std::string limited = "ulimit -f 4096;";  // blocks of 512 or 1024 bytes
  const Ran ran = Run("ycsb -w load --records 200000 --executor cpu --pool " + pool, limited);
  EXPECT_EQ(ran.status, 2) << ran.err;
  EXPECT_NE(ran.err.find("no room"), std::string::npos) << ran.err;
  EXPECT_EQ(Run("check " + pool).status, 0);
  const std::string none = NewPath();
  const Ran create = Run("create --initial-capacity 1000000 " + none, limited);
  EXPECT_EQ(create.status, 2) << create.err;
  EXPECT_NE(create.err.find("ulimit -f"), std::string::npos) << create.err;
  EXPECT_FALSE(std::filesystem::exists(none));
  // Nor do other files end the command, here the standard output.
  const Ran output = Run("ycsb --help", "ulimit -f 1; ");
  EXPECT_EQ(output.status, 2) << output.status;
}

TEST_F(CliFirstHourTest, TextIsShownAsTextAndReadBack) {
  for (const char* key_size : {"8", "16"}) {
    const std::string pool = NewPath();
    const std::string copy = NewPath();
    const std::string create = std::string(" --value-size 24 --key-size ") + key_size;
    ASSERT_EQ(Run("create " + pool + create).status, 0);
    ASSERT_EQ(Run("create " + copy + create).status, 0);
    const std::pair<std::string, std::string> values[] = {
        {"plain", "plain"}, {"größe — 日本 🙂", "größe — 日本 🙂"},
        {"0x307831", ""},    // "0x1", which put would read as hex
        {"0x1b5b324a", ""},  // an escape sequence
        {"0xc3", ""},        // half a character
        {"0xe280ae61", ""},  // right-to-left override
        {"0xeda080", ""},    // a surrogate
        {"0xc28561", ""},    // next line, a control
        {"0xc0af", ""},      // longer than need be
        {"0x610062", ""},    // a zero inside
        {"0x61096a", ""},    // a tab
    };
    int key = 1;
    for (const auto& [written, shown] : values) {
      const std::string at = std::to_string(key++);
      ASSERT_EQ(Run("put " + pool + " " + at + " '" + written + "'").status, 0) << written;
      const std::string got = Run("get " + pool + " " + at).out;
      if (shown.empty()) {
        std::string hex = written;
        hex.resize(2 + 2 * 24, '0');
        EXPECT_EQ(got, hex + "\n");
      } else {
        EXPECT_EQ(got, shown + "\n");
      }
    }
    if (std::string(key_size) == "16") {
      ASSERT_EQ(Run("put " + pool + " 'ключ' value").status, 0);
      ASSERT_EQ(Run("put " + pool + " 0x00 zero").status, 0);
      ASSERT_EQ(Run("put " + pool + " 0x3078 hex").status, 0);
    }
    const std::string dump = Run("dump " + pool).out;
    std::istringstream lines(dump);
    std::string line;
    while (std::getline(lines, line)) {
      const std::size_t tab = line.find('\t');
      ASSERT_EQ(Run("put " + copy + " '" + line.substr(0, tab) + "' '" + line.substr(tab + 1) + "'")
                    .status,
                0)
          << line;
    }
    EXPECT_NE(dump.find("\tgröße — 日本 🙂\n"), std::string::npos) << dump;
    EXPECT_EQ(Run("dump " + copy).out, dump);
    EXPECT_EQ(RunJson("check " + copy)["items"], RunJson("check " + pool)["items"]);
  }
}

TEST_F(CliFirstHourTest, MessagesAreShortAndNameTheOption) {
  const std::string text(100'000, 'A');
  const std::string path = NewPath();
  const std::string pool = NewPath();
  ASSERT_EQ(Run("create " + pool).status, 0);
  WriteFile(path, "INSERT usertable user" + text + "1 [ f=x ]\n");
  const std::string properties = NewPath();
  WriteFile(properties, "recordcount=" + text + "\n");
  for (const std::string& arguments :
       {text, "ycsb -w " + text, "ycsb -w a " + text, "ycsb -w a --distribution " + text,
        "ycsb -w a --executor=" + text, "ycsb -w a --geometry " + text,
        "ycsb -w a --records " + text, "ycsb -w a --pool-max " + text, "ycsb --" + text,
        "ycsb -P " + text, "ycsb -P " + properties, "replay --run " + path, "get " + text + " 1",
        "get " + pool + " " + text, "put " + pool + " 1 0x" + text + "x",
        "stress --seconds " + text, "ycsb -w a --json /nonexistent/" + text}) {
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.status, 2) << arguments.substr(0, 100);
    EXPECT_LT(ran.err.size(), 500u) << ran.err.substr(0, 500);
    EXPECT_NE(ran.err.find("gpmstore: "), std::string::npos) << ran.err;
  }
  const std::string long_key = NewPath();
  ASSERT_EQ(Run("create --key-size 128 " + long_key).status, 0);
  EXPECT_LT(Run("get " + long_key + " " + std::string(100, 'k')).err.size(), 300u);

  const std::pair<const char*, const char*> cases[] = {
      {"ycsb -w a --records 1e308", "--records: '1e308'"},
      {"ycsb -w a --records -1", "--records: '-1'"},
      {"ycsb -w a --records 18446744073709551615", "--records"},
      {"ycsb -w a --operations 1e308", "--operations: '1e308'"},
      {"ycsb -w a --batch 0", "--batch: '0'"},
      {"ycsb -w a --theta 1e308", "--theta: '1e308'"},
      {"ycsb -w a --theta nan", "--theta: 'nan'"},
      {"ycsb -w a --cache 1e308", "--cache: '1e308'"},
      {"ycsb -w a --seed -1", "--seed: '-1'"},
      {"ycsb -w a --key-size 7", "--key-size"},
      // (CLI11 would take them for octal numbers, and -1 for 2^64 - 1.)
      {"ycsb -w a --value-size 010", "--value-size: '010' has a leading zero"},
      {"ycsb -w a --records 08", "--records: '08' has a leading zero"},
      {"crash-test --rounds 010", "--rounds: '010' has a leading zero"},
      {"ycsb -w a --pool-max 010M", "--pool-max: '010M' has a leading zero"},
      {"ycsb -w a --pool-max -1", "--pool-max: '-1' is not a number of bytes"},
      {"ycsb -w a --cache-bytes -1", "--cache-bytes: '-1' is not a number of bytes"},
      {"ycsb -w a --value-size 0", "--value-size: '0'"},
      {"ycsb -w a --geometry 3L-2H-8S", "--geometry"},
      {"replay --batch 0 --run x", "--batch: '0'"},
      {"stress --seconds -1", "--seconds: '-1'"},
      {"stress --round-seconds 1e308", "--round-seconds: '1e308'"},
      {"crash-explore --seconds -1", "--seconds: '-1'"},
      {"crash-explore --seed -1", "--seed: '-1'"},
  };
  for (const auto& [arguments, reason] : cases) {
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.status, 2) << arguments;
    EXPECT_NE(ran.err.find(reason), std::string::npos) << arguments << ": " << ran.err;
    EXPECT_LT(ran.err.size(), 300u) << ran.err;
  }
}

TEST_F(CliFirstHourTest, CheckSaysWhatItCannotSee) {
  const std::string pool = NewPath();
  ASSERT_EQ(Run("create " + pool).status, 0);
  const Ran ran = Run("check " + pool);
  EXPECT_EQ(ran.status, 0);
  EXPECT_NE(ran.out.find("checksum"), std::string::npos) << ran.out;
  EXPECT_NE(Run("check --help").out.find("checksum"), std::string::npos);
}

TEST_F(CliFirstHourTest, WorkloadsOfTheRepositoryRun) {
  for (const char* name : {"/workloada", "/workloadb", "/workloadc"}) {
    const Ran ran = Run("ycsb -P " GPM_WORKLOADS + std::string(name) + OnExecutor());
    EXPECT_EQ(ran.status, 0) << name << ": " << ran.err;
    EXPECT_EQ(ran.err, "") << name;
    EXPECT_NE(ran.out.find("1000 records, 1000 operations"), std::string::npos) << ran.out;
  }
}

TEST_F(CliFirstHourTest, MisspeltPropertiesWarn) {
  const std::string file = NewPath();
  WriteFile(file, ReadFile(kWorkloadA) + "recordcuont=5\n");
  const Ran ran = Run("ycsb -P " + file + OnExecutor());
  EXPECT_EQ(ran.status, 0);
  EXPECT_NE(ran.err.find("warning: " + file), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("'recordcuont'"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("recordcount?"), std::string::npos) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
}

TEST_F(CliFirstHourTest, TraceKeysThatAreOneKeyAreRefused) {
  const std::string load = NewPath();
  const std::string run = NewPath();
  const std::string pool = NewPath();
  WriteFile(load, "INSERT user1\n");
  WriteFile(run, "READ user1\nREAD item1\n");
  ExpectRefused("replay --load " + load + " --run " + run + " --pool " + pool, run + ":2: ");
  EXPECT_FALSE(std::filesystem::exists(pool));
}

}  // namespace
}  // namespace gpm
