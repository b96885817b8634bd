#include <fmt/format.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cli/common.h"
#include "cli/pool_files.h"
#include "cli/shown_bytes.h"
#include "gpmstore/error.h"
#include "gpmstore/pool_reader.h"
#include "gpmstore/store.h"
#include "pm/text.h"

namespace gpm::cli {
namespace {

struct ItemArguments {
  std::string pool;
  std::string key;
  std::string value;
  bool hex = false;
};

using Bytes = std::vector<std::byte>;

[[noreturn]] void Refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

/// Bytes of "0x" and an even number of hex digits, or of any other text itself; padded with zeros.
Bytes ParseBytes(const char* what, const std::string& text, std::size_t bytes) {
  Bytes result;
  if (text.starts_with("0x")) {
    if (text.size() % 2 != 0)
      Refuse(fmt::format("{} {}: hex digits come in pairs", what, Quoted(text)));
    for (std::size_t i = 2; i < text.size(); i += 2) {
      unsigned byte = 0;
      const char* const end = text.data() + i + 2;
      if (std::from_chars(text.data() + i, end, byte, 16).ptr != end) {
        Refuse(fmt::format("{} {}: after 0x come hex digits only", what, Quoted(text)));
      }
      result.push_back(static_cast<std::byte>(byte));
    }
  } else {
    for (const char c : text) result.push_back(static_cast<std::byte>(c));
  }
  if (result.size() > bytes) {
    Refuse(fmt::format("the {} has {} bytes, and the pool's have {}", what, result.size(), bytes));
  }
  result.resize(bytes);
  return result;
}

Bytes ParseKey(const std::string& text, std::size_t key_size) {
  if (key_size != 8) return ParseBytes("key", text, key_size);
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) {
    Refuse(
        fmt::format("the key {} must be a decimal number from 0 to 2^64 - 1, as the pool's "
                    "keys have 8 bytes",
                    Quoted(text)));
  }
  Bytes key(sizeof number);
  std::memcpy(key.data(), &number, sizeof number);
  return key;
}

/// The pool of a key, which is open. One operation needs no more than one thread, and no GPU.
struct ItemStore {
  PoolFiles files;
  Bytes key;
  Store store;
};

ItemStore OpenForItem(const ItemArguments& arguments) {
  PoolFiles files(arguments.pool, ShardFolder::Use::kWrite);
  const std::uint32_t key_size = PoolReader(files.paths().front()).key_size();
  Bytes key = ParseKey(arguments.key, key_size);
  OpenOptions options;
  options.executor = ExecutorKind::kCpu;
  options.threads = 1;
  Store store = Store::Open(files.paths()[files.ShardOf(key)], options);
  return {std::move(files), std::move(key), std::move(store)};
}

int NotFound(const ItemArguments& arguments) {
  std::fputs(
      fmt::format("gpmstore: {}: no item has the key {}\n", arguments.pool, Quoted(arguments.key))
          .c_str(),
      stderr);
  return kExitNo;
}

int RunGet(const ItemArguments& arguments) {
  const PoolFiles files(arguments.pool, ShardFolder::Use::kRead);
  const Bytes key = ParseKey(arguments.key, PoolReader(files.paths().front()).key_size());
  const PoolReader pool(files.paths()[files.ShardOf(key)]);
  Bytes value(pool.value_size());
  if (!pool.Get(key, value)) return NotFound(arguments);
  Print((arguments.hex ? HexText(value) : ShownBytes(value)) + "\n");
  return kExitOk;
}

int RunPut(const ItemArguments& arguments) {
  auto [files, key, store] = OpenForItem(arguments);
  const Bytes value = ParseBytes("value", arguments.value, store.value_size());
  Result result = Result::kInvalid;
  store.Upsert(key, value, {&result, 1});
  store.Close();
  if (result == Result::kNoSpace) {
    throw Error(ErrorCode::kNoSpace,
                fmt::format("{}: no room for another item: the medium is full", arguments.pool));
  }
  return kExitOk;
}

int RunDel(const ItemArguments& arguments) {
  auto [files, key, store] = OpenForItem(arguments);
  Result result = Result::kInvalid;
  store.Erase(key, {&result, 1});
  store.Close();
  return result == Result::kNotFound ? NotFound(arguments) : kExitOk;
}

constexpr const char* kKeyHelp =
    "Keys of 8 bytes are unsigned decimal numbers. Longer keys are 0x and hex digits, or text;\n"
    "both are padded with zero bytes at the end.\n\n";

}  // namespace

void AddItemCommands(CLI::App& app, Commands& commands) {
  const auto add = [&](const char* name, const char* description,
                       int (*run)(const ItemArguments&)) {
    CLI::App* command = app.add_subcommand(name, description);
    const auto arguments = std::make_shared<ItemArguments>();
    command->add_option("POOL", arguments->pool, "Pool file, or folder of shards")->required();
    command->add_option("KEY", arguments->key, "Key")->required();
    commands.push_back({command, [arguments, run] { return run(*arguments); }});
    return std::pair(command, arguments);
  };
  {
    const auto [get, arguments] = add("get", "Print the value of a key", RunGet);
    get->add_flag("--hex", arguments->hex, "Print the whole value as 0x and hex digits");
    get->footer(std::string(kKeyHelp) +
                "A value is printed as text, without zero bytes at its end, when all of it is\n"
                "printable UTF-8 and does not begin with 0x, else as 0x and hex digits. put reads\n"
                "both. Exit status 1 when there is no such key.\n\n"
                "Examples:\n  gpmstore get /dev/shm/p 17");
  }
  {
    const auto [put, arguments] = add("put", "Insert or replace the value of a key", RunPut);
    put->add_option("VALUE", arguments->value, "Text, or 0x and hex digits; padded with zero bytes")
        ->required();
    put->footer(
        std::string(kKeyHelp) +
        "The pool must exist (gpmstore create).\n\n"
        "Examples:\n  gpmstore put /dev/shm/p 17 hello\n  gpmstore put /dev/shm/p 18 0xff00");
  }
  {
    const auto [del, arguments] = add("del", "Remove a key", RunDel);
    del->footer(std::string(kKeyHelp) +
                "Exit status 1 when there is no such key.\n\n"
                "Examples:\n  gpmstore del /dev/shm/p 17");
  }
}

}  // namespace gpm::cli
