#ifndef GPM_SNAPSHOT_READER_H_
#define GPM_SNAPSHOT_READER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "snapshot/format.h"

namespace gpm {

/// A snapshot's file, for reading. What is wrong with it is Error(kDamaged), which names it.
///
/// Thread safety: const members from any thread.
class SnapshotFile {
 public:
  /// Reads the header, and looks whether the file is as long as that says.
  /// @throws Error kNotFound, kDamaged, kIo
  explicit SnapshotFile(const std::string& path);
  ~SnapshotFile();
  SnapshotFile(const SnapshotFile&) = delete;
  SnapshotFile& operator=(const SnapshotFile&) = delete;

  const std::string& path() const { return path_; }
  const SnapshotHeader& header() const { return header_; }
  const SnapshotLayout& layout() const { return layout_; }

  /// Reads the footer, by which blocks are checked from then on. REQUIRES: nobody reads.
  /// @throws Error kDamaged, kIo; std::bad_alloc
  void ReadFooter();

  /// Reads a block and checks it. @param data room for it @return what follows its header
  /// @throws Error kDamaged, kIo
  const std::byte* Read(std::uint64_t index, std::byte* data) const;
  /// The same of a block of items, of which keys and values go each to a place of their own.
  void ReadItems(std::uint64_t index, std::byte* keys, std::byte* values) const;

 private:
  void ReadBytes(std::uint64_t offset, std::uint64_t bytes, std::byte* data) const;
  /// @param header as it was read @param crc of the block with that field 0
  void Check(std::uint64_t index, const BlockHeader& header, std::uint32_t crc) const;
  SnapshotHeader ReadHeader() const;
  [[noreturn]] void Refuse(const std::string& why) const;

  const std::string path_;
  const int fd_;
  const SnapshotHeader header_;
  const SnapshotLayout layout_;
  std::vector<std::uint32_t> checksums_;  ///< of its blocks, once the footer was read
};

/// Files of which the first is a whole snapshot, and each other an increment on the one before.
/// Together they hold the items of the newest instant: those of a file, but for those whose range
/// changed later.
///
/// Thread safety: const members from any thread.
class SnapshotChain {
 public:
  /// Checks all of every file but its items, which are checked when they are read.
  /// @throws Error kNotFound, kDamaged, kIo; std::bad_alloc
  explicit SnapshotChain(std::span<const std::string> paths);
  /// The beginning of a chain: up to the first file that is missing, damaged or not in its place.
  /// @param why if that is not all of it, set to what is wrong @throws Error kIo; std::bad_alloc
  SnapshotChain(std::span<const std::string> paths, std::string* why);

  const SnapshotHeader& newest() const { return files_.back()->header(); }
  std::size_t files() const { return files_.size(); }
  const SnapshotFile& file(std::size_t i) const { return *files_[i]; }
  /// Whether an item with this key in file i is one of the newest instant.
  bool Counts(std::size_t i, const std::byte* key) const;

 private:
  /// Adds a file, if it is in its place.
  void Add(const std::string& path);
  void CheckPlace(const SnapshotFile& file) const;
  /// Reads footer and ranges.
  void ReadIndex(std::size_t i);

  std::vector<std::unique_ptr<SnapshotFile>> files_;
  std::vector<std::vector<bool>> changed_;  ///< of each file, by range
};

}  // namespace gpm

#endif  // GPM_SNAPSHOT_READER_H_
