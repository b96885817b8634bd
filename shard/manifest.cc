#include "shard/manifest.h"

#include <fmt/format.h>

#include <cstdio>

#include "gpmstore/error.h"
#include "pm/crc32c.h"

namespace gpm {
namespace {

constexpr std::uint32_t kVersion = 1;

}  // namespace

std::string PoolFileName(std::uint64_t generation, std::uint32_t shard) {
  return fmt::format("{:06}-{:04}.pool", generation, shard);
}

bool IsPoolFileName(const std::string& name) {
  unsigned long long generation = 0;
  unsigned shard = 0;
  return std::sscanf(name.c_str(), "%llu-%u.pool", &generation, &shard) == 2 &&
         name == PoolFileName(generation, shard);
}

// (Written and read by hand: objects of a JSON library end the process when memory is short.)

std::string ToText(const Manifest& manifest) {
  std::string text = fmt::format(
      "{{\n  \"gpmstore_shards_version\": {},\n  \"uuid\": \"{}\",\n  \"hash_seed\": [{}, {}],\n"
      "  \"key_size\": {},\n  \"value_size\": {},\n  \"generation\": {},\n  \"shards\": {},\n"
      "  \"pools\": [\n",
      kVersion, manifest.uuid, manifest.hash_seed[0], manifest.hash_seed[1], manifest.key_size,
      manifest.value_size, manifest.generation, manifest.shards());
  for (std::uint32_t i = 0; i < manifest.shards(); ++i) {
    const Manifest::PoolFile& pool = manifest.pools[i];
    text += fmt::format("    {{\"file\": \"{}\", \"uuid\": \"{}\"}}{}\n", pool.file, pool.uuid,
                        i + 1 < manifest.shards() ? "," : "");
  }
  text += "  ],\n";
  return text + fmt::format("  \"crc32c\": {}\n}}\n", Crc32c(text.data(), text.size()));
}

Manifest ParseManifest(const std::string& text, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kDamaged, fmt::format("{}: {}", path, why));
  };
  unsigned version = 0;
  if (std::sscanf(text.c_str(), " { \"gpmstore_shards_version\": %u", &version) != 1) {
    refuse("damaged, or no manifest of a store's shards");
  }
  if (version != kVersion) {
    refuse(fmt::format("of version {}; this build reads version {}", version, kVersion));
  }
  Manifest manifest;
  unsigned long long seed[2] = {};
  unsigned long long generation = 0;
  char uuid[33] = "";
  unsigned shards = 0;
  int at = 0;
  std::sscanf(text.c_str(),
              " { \"gpmstore_shards_version\": %*u, \"uuid\": \"%32[0-9a-f]\", \"hash_seed\": "
              "[%llu, %llu], \"key_size\": %u, \"value_size\": %u, \"generation\": %llu, "
              "\"shards\": %u, \"pools\": [ %n",
              uuid, &seed[0], &seed[1], &manifest.key_size, &manifest.value_size, &generation,
              &shards, &at);
  if (at == 0) refuse("damaged");
  if (shards == 0 || shards > kMaxShards) refuse(fmt::format("damaged: it names {} pools", shards));
  manifest.uuid = uuid;
  manifest.hash_seed = {seed[0], seed[1]};
  manifest.generation = generation;
  for (std::uint32_t i = 0; i < shards; ++i) {
    char file[65] = "";
    int bytes = 0;
    std::sscanf(text.c_str() + at, " {\"file\": \"%64[^\"]\", \"uuid\": \"%32[0-9a-f]\"} %n", file,
                uuid, &bytes);
    if (bytes == 0) refuse("damaged");
    if (file != PoolFileName(generation, i)) {
      refuse(fmt::format("damaged: the file of shard {} can't have the name it says", i));
    }
    manifest.pools.push_back({file, uuid});
    at += bytes;
    if (text[static_cast<std::size_t>(at)] == ',') ++at;
  }
  if (text != ToText(manifest)) refuse("damaged: its checksum is not that of its contents");
  return manifest;
}

void RequireShards(const std::string& path, const Manifest& manifest, std::uint32_t shards) {
  if (shards == 0 || shards == manifest.shards()) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: the store has {} shards, not {}; `gpmstore reshard` divides it anew",
                          path, manifest.shards(), shards));
}

}  // namespace gpm
