#include "snapshot/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <sstream>
#include <utility>

#include "gpmstore/error.h"
#include "pm/crc32c.h"
#include "pm/random_id.h"
#include "snapshot/block_buffer.h"
#include "snapshot/new_file.h"
#include "snapshot/reader.h"

namespace gpm {
namespace {

constexpr const char* kManifest = "/MANIFEST";
constexpr const char* kNewManifest = "/MANIFEST.new";
/// Beyond these a number in a file's name is nobody's who keeps snapshots.
constexpr std::uint64_t kLastChain = 1'000'000'000;
constexpr std::uint64_t kLastPlace = 9999;
constexpr std::string_view kFirstLine = "GPMStore snapshots, version 1\n";

bool ParseHex(const std::string& text, SnapshotId* id) {
  if (text.size() != 2 * id->size()) return false;
  for (std::size_t i = 0; i < id->size(); ++i) {
    unsigned byte = 0;
    if (std::sscanf(text.c_str() + 2 * i, "%2x", &byte) != 1) return false;
    (*id)[i] = static_cast<std::uint8_t>(byte);
  }
  return HexOf(*id) == text;
}

/// What a file's name says.
struct Name {
  std::uint64_t chain = 0;
  std::uint64_t place = 0;
  std::string rest;  ///< behind ".snap"
};

std::optional<Name> ParseName(const std::string& file) {
  unsigned long long chain = 0;
  unsigned long long place = 0;
  int end = 0;
  if (std::sscanf(file.c_str(), "%llu-%llu.snap%n", &chain, &place, &end) != 2 || end == 0) {
    return {};
  }
  if (chain > kLastChain || place > kLastPlace) return {};
  Name name{chain, place, file.substr(static_cast<std::size_t>(end))};
  if (file != fmt::format("{:06}-{:04}.snap{}", chain, place, name.rest)) return {};
  return name;
}

/// The pool that a snapshot was taken of. @return false: its file does not say
bool ReadPool(const std::string& file, SnapshotId* pool) {
  try {
    *pool = SnapshotFile(file).header().pool;
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Whether there is a whole snapshot under this name, all bytes of which are right.
bool IsWhole(const std::string& path) {
  try {
    SnapshotFile file(path);
    file.ReadFooter();
    BlockBuffer block(file.layout().block_bytes());
    for (std::uint64_t i = 0; i < file.layout().blocks(); ++i) file.Read(i, block.data());
    return !file.header().is_increment();
  } catch (const Error&) {
    return false;
  }
}

std::string LastLine(const std::string& text) {
  return fmt::format("crc {:08x}\n", Crc32c(text.data(), text.size()));
}

}  // namespace

SnapshotFolder::SnapshotFolder(const std::string& path) : path_(AbsolutePath(path)) {
  made_ = mkdir(path_.c_str(), 0777) == 0;
  if (!made_ && errno != EEXIST) ThrowFileError(path, "make", errno);
  try {
    fd_ = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd_ < 0) ThrowFileError(path, "open", errno);
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) ThrowFileError(path, "lock", errno);
      throw Error(ErrorCode::kBusy, path + ": another store keeps its snapshots there");
    }
    ReadManifest();
    ReadNames();
  } catch (...) {
    if (made_) rmdir(path_.c_str());
    LetGo();
    throw;
  }
}

SnapshotFolder::~SnapshotFolder() {
  if (made_ && fd_ >= 0 && getpid() == process_) rmdir(path_.c_str());
  LetGo();
}

void SnapshotFolder::LetGo() noexcept {
  if (fd_ < 0) return;
  // Closing alone would not, while a child of a fork still has it open.
  if (getpid() == process_) flock(fd_, LOCK_UN);
  close(std::exchange(fd_, -1));
}

std::string SnapshotFolder::FileOf(std::uint64_t chain, std::uint64_t place) const {
  return fmt::format("{}/{:06}-{:04}.snap", path_, chain, place);
}

std::vector<std::string> SnapshotFolder::Files(const Chain& chain) const {
  std::vector<std::string> files;
  for (std::uint64_t i = 0; i < chain.files; ++i) files.push_back(FileOf(chain.number, i));
  return files;
}

bool SnapshotFolder::IsOf(const SnapshotId& pool) const {
  return std::find(pools_.begin(), pools_.end(), pool) != pools_.end();
}

void SnapshotFolder::ReadManifest() {
  std::string text;
  try {
    if (!ReadWholeFile(path_ + kManifest, &text)) return;
    const std::size_t last = text.rfind("crc ");
    bool whole = last != std::string::npos && text.starts_with(kFirstLine) &&
                 text.substr(last) == LastLine(text.substr(0, last));
    std::istringstream words(whole ? text.substr(kFirstLine.size(), last - kFirstLine.size()) : "");
    for (std::string word, id; whole && words >> word;) {
      SnapshotId pool{};
      if (word == "pool") {
        whole = words >> id && ParseHex(id, &pool);
        if (whole) pools_.push_back(pool);
      } else if (word == "chain") {
        Chain chain;
        whole = static_cast<bool>(words >> chain.number >> word >> chain.files);
        if (whole) chains_.push_back(chain);
      } else if (word == "saved") {
        whole = words >> id >> saved_.sequence && ParseHex(id, &saved_.pool);
      } else {
        whole = false;
      }
    }
    if (whole) return;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo && error.code() != ErrorCode::kDamaged) throw;
    warnings_.push_back(error.what());
  }
  pools_.clear();
  chains_.clear();
  saved_ = {};
  warnings_.push_back(path_ + kManifest + ": damaged; what is in the folder says what there is");
}

void SnapshotFolder::ReadNames() {
  const bool has_manifest = !pools_.empty();
  for (const std::string& file : NamesIn(path_)) {
    const std::optional<Name> name = ParseName(file);
    if (!name) continue;
    last_number_ = std::max(last_number_, name->chain);
    if (!name->rest.empty()) continue;
    auto chain = std::find_if(chains_.begin(), chains_.end(),
                              [&](const Chain& c) { return c.number == name->chain; });
    if (chain == chains_.end()) chain = chains_.insert(chain, Chain{name->chain, 0});
    chain->files = std::max(chain->files, name->place + 1);
  }
  std::sort(chains_.begin(), chains_.end(),
            [](const Chain& a, const Chain& b) { return a.number < b.number; });
  if (!chains_.empty()) last_number_ = std::max(last_number_, chains_.back().number);
  if (has_manifest) return;
  for (const Chain& chain : chains_) {
    SnapshotId pool{};
    if (ReadPool(FileOf(chain.number, 0), &pool) && !IsOf(pool)) pools_.push_back(pool);
  }
}

void SnapshotFolder::RemovePartialFiles() noexcept {
  try {
    for (const std::string& file : NamesIn(path_)) {
      const std::optional<Name> name = ParseName(file);
      if (name && name->rest.starts_with(".partial-")) RemoveFile(path_ + "/" + file);
    }
  } catch (const std::exception&) {  // they take room, and nothing else
  }
}

void SnapshotFolder::WriteManifest(std::size_t first_chain) {
  std::string text(kFirstLine);
  for (const SnapshotId& pool : pools_) text += fmt::format("pool {}\n", HexOf(pool));
  for (std::size_t i = first_chain; i < chains_.size(); ++i) {
    text += fmt::format("chain {} files {}\n", chains_[i].number, chains_[i].files);
  }
  if (saved_ != Saved{}) text += fmt::format("saved {} {}\n", HexOf(saved_.pool), saved_.sequence);
  ReplaceFile(path_ + kManifest, path_ + kNewManifest, text + LastLine(text));
}

void SnapshotFolder::Admit(const SnapshotId& pool) {
  if (IsOf(pool)) return;
  // Of those before, the last one counts still: the new one may not get its name.
  constexpr std::size_t kMost = 4;
  std::vector<SnapshotId> before = pools_;
  if (pools_.size() == kMost) pools_.erase(pools_.begin());
  pools_.push_back(pool);
  try {
    WriteManifest(0);
  } catch (...) {
    pools_ = std::move(before);
    throw;
  }
}

std::string SnapshotFolder::NextFile(bool begins_chain) {
  chains_.reserve(chains_.size() + 1);
  if (begins_chain) return FileOf(last_number_ + 1, 0);
  return FileOf(chains_.back().number, chains_.back().files);
}

void SnapshotFolder::Add(bool begins_chain, std::uint64_t keep) {
  if (begins_chain) {
    chains_.push_back({++last_number_, 1});
  } else {
    ++chains_.back().files;
  }
  KeepNewest(keep);
}

void SnapshotFolder::Trim(std::uint64_t keep) {
  if (chains_.size() > keep && IsWhole(FileOf(chains_.back().number, 0))) KeepNewest(keep);
}

void SnapshotFolder::KeepNewest(std::uint64_t keep) {
  const bool too_many = chains_.size() > keep;
  bool is_written = false;
  try {
    WriteManifest(too_many ? chains_.size() - keep : 0);
    is_written = true;
  } catch (const Error& error) {  // those that are too old may have the room that it wants
    if (!too_many || error.code() != ErrorCode::kNoSpace) throw;
  }
  while (chains_.size() > keep) {
    Chain& oldest = chains_.front();
    for (; oldest.files > 0; --oldest.files) RemoveFile(FileOf(oldest.number, oldest.files - 1));
    chains_.erase(chains_.begin());
  }
  if (!is_written) WriteManifest(0);
}

void SnapshotFolder::SetSaved(const Saved& saved) {
  saved_ = saved;
  WriteManifest(0);
}

void SnapshotFolder::SetAside(const Chain& chain, std::uint64_t place) {
  for (std::uint64_t i = chain.files; i-- > place;) {
    const std::string file = FileOf(chain.number, i);
    if (std::rename(file.c_str(), (file + ".damaged").c_str()) != 0 && errno != ENOENT) {
      ThrowFileError(file, "rename", errno);
    }
  }
  const auto mine = std::find_if(chains_.begin(), chains_.end(),
                                 [&](const Chain& c) { return c.number == chain.number; });
  mine->files = place;
  if (place == 0) chains_.erase(mine);
  WriteManifest(0);
}

std::unique_ptr<SnapshotFolder> EmptyFolder(const SnapshotSchedule& schedule) {
  if (schedule.path.empty()) return nullptr;
  auto folder = std::make_unique<SnapshotFolder>(schedule.path);
  if (folder->chains().empty()) return folder;
  throw Error(
      ErrorCode::kExists,
      schedule.path + ": has snapshots already; restore from them, or name an empty folder");
}

}  // namespace gpm
