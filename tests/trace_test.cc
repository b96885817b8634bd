// Reading traces, and replaying them against a dictionary that applies the lines one by one.

#include "ycsb/trace.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <vector>

#include "tests/test_util.h"
#include "ycsb/replay.h"

namespace gpm::ycsb {
namespace {

using test::ErrorOf;

std::string DataPath(const std::string& name) { return std::string(GPM_TEST_DATA "/") + name; }

class TraceFileTest : public test::PoolTest {
 protected:
  std::string Write(const std::string& text, bool compressed = false) {
    const std::string path = NewPath();
    if (compressed) {
      const gzFile file = gzopen(path.c_str(), "wb");
      EXPECT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
                static_cast<int>(text.size()));
      gzclose(file);
    } else {
      std::ofstream(path, std::ios::binary) << text;
    }
    return path;
  }

  /// The message of the error that reading the text must give.
  std::string Refused(const std::string& text, ErrorCode code = ErrorCode::kInvalidArgument) {
    std::string message;
    const std::string path = Write(text);
    EXPECT_EQ(ErrorOf([&] { Trace::Read(path); }, &message), code) << text;
    EXPECT_EQ(message.rfind(path, 0), 0u) << message;
    return message.substr(std::min(message.size(), path.size()));
  }
};

TEST_F(TraceFileTest, BothStylesPlainAndCompressed) {
  const std::string text =
      "***************** properties *****************\n"
      "\"recordcount\"=\"1000\"\n"
      "**********************************************\n"
      "\n"
      "INSERT usertable user6284781860667377211 [ field0=some value ]\n"
      "READ usertable user6284781860667377211 [ <all fields>]\n"
      "READ usertable user6284781860667377211 [ field0 field1 ]\r\n"
      "UPDATE usertable user18446744073709551615 [ field0= x]y = [z ]  ]\n"
      "DELETE usertable user0\n"
      "[OVERALL], RunTime(ms), 1000\n"
      "# comment\n"
      "- something\n"
      "   \n"
      "INSERT user12\n"
      "READ user12 \n"
      "UPDATE user13\n"
      "DELETE user12";
  for (const bool compressed : {false, true}) {
    const Trace trace = Trace::Read(Write(text, compressed));
    struct Expected {
      Op op;
      std::uint64_t key;
      const char* text;
      const char* value;
    };
    const Expected expected[] = {
        {Op::kInsert, 6284781860667377211u, "user6284781860667377211", "some value"},
        {Op::kFind, 6284781860667377211u, "user6284781860667377211", ""},
        {Op::kFind, 6284781860667377211u, "user6284781860667377211", ""},
        {Op::kUpdate, ~std::uint64_t{0}, "user18446744073709551615", " x]y = [z ] "},
        {Op::kErase, 0, "user0", ""},
        {Op::kInsert, 12, "user12", ""},
        {Op::kFind, 12, "user12", ""},
        {Op::kUpdate, 13, "user13", ""},
        {Op::kErase, 12, "user12", ""},
    };
    ASSERT_EQ(trace.lines().size(), std::size(expected));
    for (std::size_t i = 0; i < std::size(expected); ++i) {
      EXPECT_EQ(trace.lines()[i].op, expected[i].op) << i;
      EXPECT_EQ(trace.lines()[i].key, expected[i].key) << i;
      EXPECT_EQ(trace.lines()[i].text, expected[i].text) << i;
      EXPECT_EQ(trace.lines()[i].value, expected[i].value) << i;
    }
    EXPECT_EQ(trace.longest_value(), 12u);
  }
}

TEST_F(TraceFileTest, FieldsOfAValue) {
  const std::pair<const char*, const char*> cases[] = {
      {"[ field0= ]", ""},
      {"[ ]", ""},
      {"[ field0=a field1=b ]", "field0=a field1=b"},
      {"[ field7=a field10=b ]", "field7=a field10=b"},
      {"[ field0=a field=b ]", "a field=b"},      // no number: part of the value
      {"[ field0=a fieldx1=b ]", "a fieldx1=b"},  // another name
      {"[ field0=a field1 ]", "a field1"},        // no '='
      {"[ f=x ]", "x"},
  };
  for (const auto& [fields, value] : cases) {
    const Trace trace = Trace::Read(Write("INSERT usertable user1 " + std::string(fields) + "\n"));
    ASSERT_EQ(trace.lines().size(), 1u);
    EXPECT_EQ(trace.lines()[0].value, value) << fields;
  }
}

TEST_F(TraceFileTest, KeysThatTheirNumbersTellApart) {
  for (const char* text : {"READ 12\nREAD 345\nREAD 0\n", "READ key-12\nREAD key-345\n",
                           "READ user0012\nREAD user0000\nREAD user1234\nREAD user12345\n",
                           "READ größe12\n", "READ key+5\n"}) {
    EXPECT_FALSE(Trace::Read(Write(text)).lines().empty()) << text;
  }
  const std::pair<std::string, const char*> cases[] = {
      {"READ user12\nREAD item12\n", "another prefix"},
      {"READ user12\nREAD 12\n", "another prefix"},
      {"READ user12\nREAD user012\n", "leading zeros"},
      {"READ user012\nREAD user12\n", "leading zeros"},
      {"READ user012\nREAD user0012\n", "leading zeros"},
      {"READ 12\nREAD -12\n", "sign"},
      {"READ 12\nREAD +12\n", "sign"},
      {"READ a12\nREAD a\x1b[2J12\n", "printable"},
      {"READ a12\nREAD \xff"
       "12\n",
       "printable"},
      {"READ 12\nREAD " + std::string(Trace::kMaxKeyBytes, 'k') + "12\n", "longer than 255"},
  };
  for (const auto& [text, reason] : cases) {
    const std::string message = Refused(text);
    EXPECT_EQ(message.rfind(":2: ", 0), 0u) << message;
    EXPECT_NE(message.find(reason), std::string::npos) << message;
    EXPECT_LT(message.size(), 400u);
  }
  // Of two traces that are applied to one store, too.
  const Trace load = Trace::Read(Write("INSERT user1\n"));
  const std::string run = Write("READ item1\n");
  EXPECT_EQ(Trace::Read(run).lines().size(), 1u);
  EXPECT_EQ(ErrorOf([&] { Trace::Read(run, &load); }), ErrorCode::kInvalidArgument);
}

TEST_F(TraceFileTest, LongLinesAndManyLines) {
  std::string text;
  const std::string longest(100'000, 'v');
  for (int i = 0; i < 100; ++i) {
    text += "INSERT usertable user" + std::to_string(i) + " [ field0=" + longest + " ]\n";
  }
  const Trace trace = Trace::Read(Write(text, true));
  ASSERT_EQ(trace.lines().size(), 100u);
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(trace.lines()[i].key, i);
    EXPECT_TRUE(trace.lines()[i].value == longest) << i;
  }
  EXPECT_TRUE(Trace::Read(Write("")).lines().empty());
}

TEST_F(TraceFileTest, UnreadableLinesNameFileAndLine) {
  const std::pair<std::string, const char*> cases[] = {
      {"FETCH 1", "INSERT, READ, UPDATE or DELETE"},
      {"read 1", "INSERT, READ, UPDATE or DELETE"},
      {"SCAN usertable user1 10 [ <all fields>]", "key order"},
      {"READ", "decimal number"},
      {"READ user", "decimal number"},
      {"READ 12x", "decimal number"},
      {"READ user1user2", "decimal number"},
      {"READ 18446744073709551616", "64 bits"},
      {"READ usertable user1", "names its fields"},
      {"READ usertable user1 [ <all fie", "names its fields"},
      {"READ usertable user1 <all fields>", "names its fields"},
      {"INSERT usertable user1", "between"},
      {"INSERT usertable user1 [ field0=cut of", "between"},
      {"INSERT usertable user1 [ field0=x]", "between"},
      {"UPDATE usertable user1 [ x ]", "NAME=VALUE"},
      {"UPDATE usertable user1 [ =x ]", "NAME=VALUE"},
      {"DELETE usertable user1 [ x ]", "DELETE"},
      {"DELETE usertable [ x ]", "decimal number"},
      {std::string("READ 1\0", 7), "NUL"},
      {"INSERT usertable user1 [ field0=" + std::string(Trace::kMaxValueBytes + 1, 'x') + " ]",
       "16777216"},
  };
  for (const auto& [line, reason] : cases) {
    const std::string message = Refused("\nINSERT 1\n" + line + "\nREAD 1\n");
    EXPECT_EQ(message.rfind(":3: ", 0), 0u) << message;
    EXPECT_NE(message.find(reason), std::string::npos) << message;
  }
}

TEST_F(TraceFileTest, UnreadableFiles) {
  EXPECT_EQ(ErrorOf([] { Trace::Read("/nonexistent/trace"); }), ErrorCode::kNotFound);
  EXPECT_EQ(ErrorOf([] { Trace::Read("/"); }), ErrorCode::kIo);
  // Compressed data that is cut off, or has a wrong checksum.
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "READ " + std::to_string(i * 7919) + "\n";
  const std::string path = Write(text, true);
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(Trace::Read(path).lines().size(), 100'000u);
  for (const std::size_t cut : {std::size_t{1}, std::size_t{9}, bytes.size() / 2}) {
    Refused(bytes.substr(0, bytes.size() - cut), ErrorCode::kIo);
  }
  bytes[bytes.size() - 8] ^= 1;
  Refused(bytes, ErrorCode::kIo);
}

/// What a dictionary answers that applies the lines in order.
std::string DictionaryResults(std::map<std::uint64_t, std::string>& dictionary,
                              const Trace& trace) {
  std::string results;
  for (const TraceLine& line : trace.lines()) {
    const auto item = dictionary.find(line.key);
    const bool present = item != dictionary.end();
    std::string word;
    std::string outcome = present ? "ok" : "not-found";
    switch (line.op) {
      case Op::kFind:
        word = "READ";
        if (present) outcome += "\t" + item->second;
        break;
      case Op::kInsert:
        word = "INSERT";
        outcome = present ? "exists" : "ok";
        if (!present) dictionary[line.key] = line.value;
        break;
      case Op::kUpdate:
        word = "UPDATE";
        if (present) item->second = line.value;
        break;
      default:
        word = "DELETE";
        if (present) dictionary.erase(item);
    }
    results += word + "\t" + std::string(line.text) + "\t" + outcome + "\n";
  }
  return results;
}

class ReplayTest : public TraceFileTest {
 protected:
  /// Replays the traces one after the other on a new pool that starts small, at each batch size,
  /// and compares every line and the final contents with the dictionary's.
  void CompareAtAllBatchSizes(const std::vector<const Trace*>& traces) {
    for (const std::uint32_t key_size : {8u, 36u}) CompareAtAllBatchSizes(traces, key_size);
  }
  void CompareAtAllBatchSizes(const std::vector<const Trace*>& traces, std::uint32_t key_size) {
    SCOPED_TRACE(key_size);
    std::map<std::uint64_t, std::string> dictionary;
    std::map<std::uint64_t, std::string> texts;
    std::string expected;
    std::size_t value_size = 1;
    for (const Trace* trace : traces) {
      expected += DictionaryResults(dictionary, *trace);
      value_size = std::max(value_size, trace->longest_value());
      for (const TraceLine& line : trace->lines()) texts[line.key] = line.text;
    }
    for (const std::size_t batch :
         {std::size_t{1}, std::size_t{7}, std::size_t{4096}, std::size_t{1} << 20}) {
      CreateOptions create;
      create.key_size = key_size;
      create.value_size = static_cast<std::uint32_t>(value_size);
      const std::string path = NewPath();
      Store store = Store::Create(path, create, test::TestOpenOptions());
      std::ostringstream results;
      ReplayOptions options;
      options.batch_lines = batch;
      options.results = &results;
      for (const Trace* trace : traces) {
        const PhaseReport report = Replay(store, *trace, options);
        EXPECT_EQ(report.operations, trace->lines().size());
        EXPECT_EQ(report.batches, (trace->lines().size() + batch - 1) / batch);
      }
      EXPECT_TRUE(results.str() == expected)
          << "batch " << batch << FirstDifference(results.str(), expected);
      test::Model model;
      for (const auto& [key, value] : dictionary) {
        std::string padded = value;
        padded.resize(value_size);
        std::string bytes(reinterpret_cast<const char*>(&key), 8);
        if (key_size != 8) bytes = texts[key];
        bytes.resize(key_size);
        model[bytes] = padded;
      }
      test::ExpectContents(store, model);
      store.Close();
      test::ExpectSound(path, dictionary.size());
    }
  }

  static std::string FirstDifference(const std::string& a, const std::string& b) {
    std::istringstream lines_a(a);
    std::istringstream lines_b(b);
    std::string line_a;
    std::string line_b;
    for (int number = 1;; ++number) {
      const bool more_a = static_cast<bool>(std::getline(lines_a, line_a));
      const bool more_b = static_cast<bool>(std::getline(lines_b, line_b));
      if (!more_a && !more_b) return "";
      if (line_a != line_b || more_a != more_b) {
        return ", line " + std::to_string(number) + ": '" + line_a + "', expected '" + line_b + "'";
      }
    }
  }
};

TEST_F(ReplayTest, YcsbTracesEqualADictionary) {
  for (const char* name : {"workloada", "workloadd", "workloadf"}) {
    const Trace load = Trace::Read(DataPath(std::string(name) + ".load.txt.gz"));
    const Trace run = Trace::Read(DataPath(std::string(name) + ".run.txt.gz"));
    CompareAtAllBatchSizes({&load, &run});
  }
}

TEST_F(ReplayTest, YcsbTracesOverShardsEqualADictionary) {
  for (const char* name : {"workloada", "workloadd", "workloadf"}) {
    const Trace load = Trace::Read(DataPath(std::string(name) + ".load.txt.gz"));
    const Trace run = Trace::Read(DataPath(std::string(name) + ".run.txt.gz"));
    std::map<std::uint64_t, std::string> dictionary;
    std::string expected = DictionaryResults(dictionary, load);
    expected += DictionaryResults(dictionary, run);
    for (const std::uint32_t shards : {1u, 2u, 3u, 4u, 7u}) {
      CreateOptions create;
      create.value_size =
          static_cast<std::uint32_t>(std::max(load.longest_value(), run.longest_value()));
      ShardedStore store =
          ShardedStore::Create(NewPath(), create, {.shards = shards}, test::TestOpenOptions());
      std::ostringstream results;
      ReplayOptions options;
      options.results = &results;
      Replay(store, load, options);
      Replay(store, run, options);
      EXPECT_TRUE(results.str() == expected)
          << name << ", " << shards << " shards" << FirstDifference(results.str(), expected);
      EXPECT_EQ(store.Stats().items, dictionary.size());
    }
  }
}

TEST_F(ReplayTest, RandomTraceEqualsADictionary) {
  std::mt19937_64 random(test::TestSeed());
  for (const std::uint64_t keys : {3, 1000}) {
    std::string text;
    for (int i = 0; i < 20'000; ++i) {
      const std::string key = "user" + std::to_string(random() % keys);
      switch (random() % 4) {
        case 0:
          text += "READ usertable " + key + " [ <all fields>]\n";
          break;
        case 1:
          text += "INSERT usertable " + key + " [ field0=" + std::to_string(random()) + " ]\n";
          break;
        case 2:
          text += "UPDATE usertable " + key + " [ field0=" + std::to_string(random() % 99) + " ]\n";
          break;
        default:
          text += "DELETE usertable " + key + "\n";
      }
    }
    const Trace trace = Trace::Read(Write(text));
    CompareAtAllBatchSizes({&trace});
  }
}

TEST_F(ReplayTest, WhatDoesNotFitIsRefusedAndChangesNothing) {
  const Trace trace = Trace::Read(Write("INSERT usertable user1 [ field0=123456789 ]\n"));
  ReplayOptions options;
  CreateOptions create;
  create.key_size = 4;
  Store short_keys = Store::Create(NewPath(), create, test::TestOpenOptions());
  create.key_size = 8;
  create.value_size = 8;
  Store short_values = Store::Create(NewPath(), create, test::TestOpenOptions());
  std::string message;
  for (Store* store : {&short_keys, &short_values}) {
    EXPECT_EQ(ErrorOf([&] { Replay(*store, trace, options); }, &message),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(store->Stats().items, 0u);
  }
  create.value_size = 9;
  Store store = Store::Create(NewPath(), create, test::TestOpenOptions());
  options.batch_lines = 0;
  EXPECT_EQ(ErrorOf([&] { Replay(store, trace, options); }), ErrorCode::kInvalidArgument);
  options.batch_lines = 1;
  std::ofstream closed;
  closed.setstate(std::ios::badbit);
  options.results = &closed;
  EXPECT_EQ(ErrorOf([&] { Replay(store, trace, options); }), ErrorCode::kIo);
}

}  // namespace
}  // namespace gpm::ycsb
