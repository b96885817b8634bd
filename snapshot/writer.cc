#include "snapshot/writer.h"

#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "pm/crc32c.h"
#include "pm/random_id.h"
#include "snapshot/block_buffer.h"

namespace gpm {
namespace {

/// Puts the block header in front, zeros behind, and the checksum in. @return the checksum
std::uint32_t Seal(const SnapshotId& id, std::uint64_t index, const SnapshotLayout::Block& block,
                   std::uint64_t payload, std::byte* data) {
  BlockHeader header{id, index, block.count, block.kind, 0};
  std::memset(data, 0, kBlockHeaderBytes);
  std::memcpy(data, &header, sizeof header);
  std::memset(data + kBlockHeaderBytes + payload, 0, block.bytes - kBlockHeaderBytes - payload);
  header.crc = Crc32c(data, block.bytes);
  std::memcpy(data, &header, sizeof header);
  return header.crc;
}

}  // namespace

SnapshotId NewSnapshotId() {
  SnapshotId id = NewId();
  id[0] |= 1;  // never zeros
  return id;
}

void SnapshotWriter::Write(SnapshotHeader header, const SnapshotSource& source,
                           ThreadPool& threads) {
  const SnapshotLayout layout(header);
  std::vector<std::uint32_t> crcs(layout.blocks());
  BlockBuffer page(kPageBytes);
  std::memset(page.data(), 0, kPageBytes);
  header.crc = 0;
  std::memcpy(page.data(), &header, sizeof header);
  header.crc = Crc32c(page.data(), kPageBytes);
  std::memcpy(page.data(), &header, sizeof header);
  file_.Expect(layout.file_bytes(), threads);
  file_.Write(page.data(), kPageBytes, 0);

  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&](std::size_t) {
    std::optional<BlockBuffer> buffer;
    for (std::uint64_t i = 0; !failed && (i = next++) < layout.blocks();) {
      const SnapshotLayout::Block block = layout.At(i);
      std::byte* const mapped = file_.Mapped(block.bytes, block.offset);
      if (mapped == nullptr && !buffer) buffer.emplace(layout.block_bytes());
      std::byte* const data = mapped != nullptr ? mapped : buffer->data();
      std::byte* const things = data + kBlockHeaderBytes;
      std::uint64_t payload = block.count * sizeof(std::uint32_t);
      if (block.kind == BlockKind::kRanges) {
        source.CopyRanges(block.first, block.count, things);
      } else {
        const std::uint64_t keys = block.count * header.key_size;
        source.CopyItems(block.first, block.count, things, things + keys);
        payload = keys + block.count * header.value_size;
      }
      crcs[i] = Seal(header.id, i, block, payload, data);
      if (mapped == nullptr) file_.Write(data, block.bytes, block.offset);
    }
  };
  threads.Run(threads.threads(), [&](std::size_t part) {
    try {
      work(part);
    } catch (...) {
      failed = true;
      throw;
    }
  });

  const SnapshotLayout::Block footer = layout.Footer();
  BlockBuffer buffer(footer.bytes);
  const std::uint64_t payload = crcs.size() * sizeof(std::uint32_t);
  if (payload > 0) std::memcpy(buffer.data() + kBlockHeaderBytes, crcs.data(), payload);
  Seal(header.id, layout.blocks(), footer, payload, buffer.data());
  file_.Write(buffer.data(), footer.bytes, footer.offset);
  bytes_ = layout.file_bytes();
}

std::uint64_t SnapshotWriter::Finish() {
  file_.Finish();
  return bytes_;
}

}  // namespace gpm
