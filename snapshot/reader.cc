#include "snapshot/reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "gpmstore/error.h"
#include "pm/attributes.h"
#include "pm/crc32c.h"
#include "pm/superblock.h"
#include "snapshot/block_buffer.h"
#include "table/hash.h"
#include "table/key_rows.h"
#include "table/layout.h"

namespace gpm {
namespace {

constexpr std::uint64_t kMostThings = std::uint64_t{1} << 38;

/// Takes a block's checksum out of it, which is of the block without it.
BlockHeader TakeHeader(std::byte* block) {
  BlockHeader header;
  std::memcpy(&header, block, sizeof header);
  BlockHeader without = header;
  without.crc = 0;
  std::memcpy(block, &without, sizeof without);
  return header;
}

int OpenForReading(const std::string& path) {
  // O_NONBLOCK: a pipe under this name must give an error, not a wait. Files are not affected.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0) return fd;
  const int error = errno;
  throw Error(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
              fmt::format("{}: can't open: {}", path, std::strerror(error)));
}

}  // namespace

SnapshotFile::SnapshotFile(const std::string& path)
    : path_(path),
      fd_(OpenForReading(path)),
      header_([&] {
        try {
          return ReadHeader();
        } catch (...) {
          close(fd_);
          throw;
        }
      }()),
      layout_(header_) {}

SnapshotFile::~SnapshotFile() { close(fd_); }

void SnapshotFile::Refuse(const std::string& why) const {
  throw Error(ErrorCode::kDamaged, path_ + ": " + why);
}

void SnapshotFile::ReadBytes(std::uint64_t offset, std::uint64_t bytes, std::byte* data) const {
  while (bytes > 0) {
    const ssize_t n = pread(fd_, data, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Error(ErrorCode::kIo, fmt::format("{}: can't read: {}", path_, std::strerror(errno)));
    }
    if (n == 0) Refuse("truncated snapshot");
    data += n;
    bytes -= static_cast<std::uint64_t>(n);
    offset += static_cast<std::uint64_t>(n);
  }
}

SnapshotHeader SnapshotFile::ReadHeader() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("{}: can't open: {}", path_, std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) Refuse("not a snapshot: it is no file");
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  SnapshotHeader header;
  if (bytes < kPageBytes) Refuse("not a snapshot, or truncated: it is too short");
  BlockBuffer page(kPageBytes);
  ReadBytes(0, kPageBytes, page.data());
  std::memcpy(&header, page.data(), sizeof header);
  if (header.magic != kSnapshotMagic) Refuse("not a GPMStore snapshot");
  if (header.version != kSnapshotVersion) {
    Refuse(fmt::format("snapshot of format version {}, this build reads version {}", header.version,
                       kSnapshotVersion));
  }
  SnapshotHeader without = header;
  without.crc = 0;
  std::memcpy(page.data(), &without, sizeof without);
  if (Crc32c(page.data(), kPageBytes) != header.crc) {
    Refuse("damaged snapshot: checksum mismatch of its header");
  }
  std::string defect = ConfigDefect(header.key_size, header.value_size, header.geometry);
  if (defect.empty()) defect = AttributesDefect(header.attributes, header.value_size);
  if (!defect.empty()) Refuse("damaged snapshot: " + defect);
  if (header.range_bits > kMostRangeBits || header.items > kMostThings ||
      header.ranges > kMostThings || header.is_increment() != (header.sequence > 0) ||
      header.is_increment() != (header.base != SnapshotId{}) ||
      (!header.is_increment() && (header.ranges > 0 || header.items != header.total_items))) {
    Refuse("damaged snapshot: its header can't be right");
  }
  const std::uint64_t right = SnapshotLayout(header).file_bytes();
  if (bytes < right) {
    Refuse(fmt::format("truncated snapshot: {} bytes, and it has {}", right, bytes));
  }
  if (bytes > right) {
    Refuse(fmt::format("damaged snapshot: {} bytes follow its end", bytes - right));
  }
  return header;
}

void SnapshotFile::Check(std::uint64_t index, const BlockHeader& header, std::uint32_t crc) const {
  const bool is_footer = index == layout_.blocks();
  const SnapshotLayout::Block block = is_footer ? layout_.Footer() : layout_.At(index);
  if (crc != header.crc || header.snapshot != header_.id || header.index != index ||
      header.kind != block.kind || header.count != block.count) {
    Refuse(fmt::format("damaged snapshot: its block {} of {}", index + 1, layout_.blocks() + 1));
  }
  if (!is_footer && !checksums_.empty() && crc != checksums_[index]) {
    Refuse(fmt::format("damaged snapshot: its block {} is of another", index + 1));
  }
}

void SnapshotFile::ReadFooter() {
  const SnapshotLayout::Block footer = layout_.Footer();
  BlockBuffer buffer(footer.bytes);
  ReadBytes(footer.offset, footer.bytes, buffer.data());
  BlockHeader header = TakeHeader(buffer.data());
  Check(layout_.blocks(), header, Crc32c(buffer.data(), footer.bytes));
  std::vector<std::uint32_t> checksums(layout_.blocks());
  if (!checksums.empty()) {
    std::memcpy(checksums.data(), buffer.data() + kBlockHeaderBytes,
                checksums.size() * sizeof(std::uint32_t));
  }
  checksums_ = std::move(checksums);
}

const std::byte* SnapshotFile::Read(std::uint64_t index, std::byte* data) const {
  const SnapshotLayout::Block block = layout_.At(index);
  ReadBytes(block.offset, block.bytes, data);
  const BlockHeader header = TakeHeader(data);
  Check(index, header, Crc32c(data, block.bytes));
  return data + kBlockHeaderBytes;
}

void SnapshotFile::ReadItems(std::uint64_t index, std::byte* keys, std::byte* values) const {
  const SnapshotLayout::Block block = layout_.At(index);
  std::uint64_t at = block.offset;
  std::uint32_t crc = 0;
  const auto read = [&](std::uint64_t bytes, std::byte* data) {
    ReadBytes(at, bytes, data);
    at += bytes;
  };
  std::byte edge[kPageBytes];  // the block's header, and then what is behind its items
  read(kBlockHeaderBytes, edge);
  const BlockHeader header = TakeHeader(edge);
  crc = Crc32c(edge, kBlockHeaderBytes);
  // (What was just read is still in the CPU's cache, if it is not too much.)
  constexpr std::uint64_t kPart = std::uint64_t{256} << 10;
  const auto read_rows = [&](std::uint64_t bytes, std::byte* rows) {
    for (std::uint64_t done = 0; done < bytes; done += kPart) {
      const std::uint64_t n = std::min(kPart, bytes - done);
      read(n, rows + done);
      crc = Crc32c(rows + done, n, crc);
    }
  };
  read_rows(block.count * header_.key_size, keys);
  read_rows(block.count * header_.value_size, values);
  const std::uint64_t behind = block.offset + block.bytes - at;
  read(behind, edge);
  Check(index, header, Crc32c(edge, behind, crc));
}

SnapshotChain::SnapshotChain(std::span<const std::string> paths) {
  if (paths.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "no snapshot to restore: name a whole one at least");
  }
  for (const std::string& path : paths) Add(path);
  changed_.resize(files_.size());
  for (std::size_t i = 0; i < files_.size(); ++i) ReadIndex(i);
}

SnapshotChain::SnapshotChain(std::span<const std::string> paths, std::string* why) {
  const auto is_whole = [&](const auto& look) {
    try {
      look();
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDamaged && error.code() != ErrorCode::kNotFound) throw;
      *why = error.what();
      return false;
    }
  };
  for (const std::string& path : paths) {
    if (!is_whole([&] { Add(path); })) break;
  }
  changed_.resize(files_.size());
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (is_whole([&] { ReadIndex(i); })) continue;
    files_.resize(i);
    changed_.resize(i);
  }
}

void SnapshotChain::Add(const std::string& path) {
  auto file = std::make_unique<SnapshotFile>(path);
  CheckPlace(*file);
  files_.push_back(std::move(file));
}

void SnapshotChain::CheckPlace(const SnapshotFile& file) const {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kDamaged, file.path() + ": " + why);
  };
  const SnapshotHeader& header = file.header();
  if (files_.empty()) {
    if (!header.is_increment()) return;
    refuse("an increment; a chain begins with a whole snapshot, and has each after its base");
  }
  const SnapshotHeader& whole = files_.front()->header();
  const SnapshotHeader& before = files_.back()->header();
  if (!header.is_increment()) refuse("a whole snapshot, which follows no other");
  if (header.pool != whole.pool) {
    refuse(fmt::format("a snapshot of another pool than {}", files_.front()->path()));
  }
  if (header.base != before.id || header.sequence != before.sequence + 1) {
    refuse(fmt::format("no increment on {}: its base is another snapshot, of this chain or another",
                       files_.back()->path()));
  }
  if (!AreAlike(header, whole)) {
    refuse("damaged snapshot: its pool's sizes or hashes are not those of its base");
  }
  std::uint64_t items = header.items;
  for (const auto& file_before : files_) items += file_before->header().items;
  if (header.total_items > items) {
    refuse(fmt::format("damaged snapshot: it says {} items, and no more than {} are there",
                       header.total_items, items));
  }
}

void SnapshotChain::ReadIndex(std::size_t i) {
  files_[i]->ReadFooter();
  const SnapshotFile& file = *files_[i];
  if (!file.header().is_increment()) return;
  std::vector<bool>& changed = changed_[i];
  changed.resize(std::uint64_t{1} << file.header().range_bits);
  BlockBuffer data(kBlockBytes);
  for (std::uint64_t block = 0; block < file.layout().range_blocks(); ++block) {
    const std::byte* const ranges = file.Read(block, data.data());
    for (std::uint64_t k = 0; k < file.layout().At(block).count; ++k) {
      std::uint32_t range = 0;
      std::memcpy(&range, ranges + k * sizeof range, sizeof range);
      if (range >= changed.size()) {
        throw Error(ErrorCode::kDamaged, file.path() + ": damaged snapshot: its ranges");
      }
      changed[range] = true;
    }
  }
}

bool SnapshotChain::Counts(std::size_t i, const std::byte* key) const {
  if (i + 1 == files_.size()) return true;
  const SnapshotHeader& header = files_[i]->header();
  KeyBuffer words;
  PadKey(key, header.key_size, words.words);
  const std::uint64_t hash = HashKey(header.hash_seed, words.words, KeyWords(header.key_size)).h;
  for (std::size_t later = i + 1; later < files_.size(); ++later) {
    if (changed_[later][hash >> (64 - files_[later]->header().range_bits)]) return false;
  }
  return true;
}

}  // namespace gpm
