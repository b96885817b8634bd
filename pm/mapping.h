#ifndef GPM_PM_MAPPING_H_
#define GPM_PM_MAPPING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pm/dax_device.h"
#include "pm/medium.h"
#include "pm/persist.h"
#include "pm/room_ahead.h"
#include "pm/tracer.h"

namespace gpm {

class ThreadPool;

/// How a mapping grew.
struct GrowthTimes {
  std::uint64_t growths = 0;  ///< calls of Grow that asked for more than was mapped
  std::uint64_t waits = 0;    ///< of those, for more than was ready
  double wait_seconds = 0;    ///< until there was room
};

/// A file, a DAX device, or anonymous memory, mapped once at an address that never moves while it
/// grows. A device has a length that nobody changes: it is mapped whole, or as far as the maximum
/// says, and neither grows nor shrinks. What is said of files counts for it, too.
///
/// Thread safety: none; the owner serializes. base() is constant, so readers of mapped bytes need
/// no lock. A thread of the mapping makes room ahead, behind what is mapped: it changes nothing
/// that a call tells, but for pool_bytes() and PossibleFileBytes().
///
/// Invariants:
///  1. [base, base + max_bytes) is reserved address space; [base, base + mapped_bytes) of it is
///     mapped. What Grow mapped is zero where nothing wrote and backed by allocated file blocks, so
///     that a store never meets SIGBUS for want of space. (What the file had before may have holes,
///     if somebody copied it sparsely, until Populate was called.)
///  2. A file is locked (flock) from construction to destruction: exclusively, or shared when it is
///     read only. The lock is the process's that made the mapping: in a child that it forked,
///     destruction leaves lock and GPU registration alone, and nothing else may be called.
///  3. Once RegisterGpu was called, every mapped byte is registered with the GPU.
///  4. The file is changed by Grow, Shrink and by stores to the mapping only; and, behind what is
///     mapped, by MakeReady. The end of the mapping takes back what that made and Grow did not
///     take.
class Mapping {
 public:
  static constexpr std::string_view kPinnedPath = "pinned:";

  struct Options {
    /// Address space to reserve, rounded down to pages; 0: the size of the file system, or for
    /// "pinned:" of physical memory, between 64 MiB and 1 TiB.
    std::uint64_t max_bytes = 0;
    bool create = false;         ///< create the file; it must not exist
    unsigned mode = 0644;        ///< permissions of a new file, before the umask
    bool read_only = false;      ///< map for reading what there is, and nothing more
    int memory_node = -1;        ///< of which new pages in memory are taken; -1: of any
    PmTracer* tracer = nullptr;  ///< carries out every access to the bytes mapped; outlives this
  };

  /// Opens or creates the file, locks it and maps what is there (of a new file, nothing). What the
  /// file has of holes, it still has. A file that it creates is removed with the mapping, until
  /// RemoveOnClose(false). A device is there already, and is opened to be created.
  /// @param path a file, a DAX device, or "pinned:" for anonymous host memory (only with create)
  /// @throws Error kNotFound, kExists, kBusy (another holder of the lock), kNoSpace (address
  ///         space), kIo, kInvalidArgument (a directory; max_bytes below the file's size), each
  ///         naming the path
  Mapping(const std::string& path, const Options& options);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::string& path() const { return path_; }
  std::byte* base() const { return base_; }
  std::uint64_t mapped_bytes() const { return mapped_bytes_; }  ///< a multiple of the page size
  std::uint64_t max_bytes() const { return max_bytes_; }
  /// Size of the file without what is ready: mapped_bytes(), or less than a page smaller when it is
  /// no multiple of pages.
  std::uint64_t file_bytes() const { return file_bytes_; }
  /// mapped_bytes(), and what is ready behind them, or is being made so.
  std::uint64_t pool_bytes() const {
    return ahead_ == nullptr ? mapped_bytes_ : ahead_->WantedEnd(mapped_bytes_);
  }
  /// mapped_bytes(), and what is ready behind them.
  std::uint64_t made_bytes() const {
    return ahead_ == nullptr ? mapped_bytes_ : ahead_->ReadyEnd(mapped_bytes_);
  }
  const GrowthTimes& growth_times() const { return growth_times_; }
  /// Where the range ends that was mapped, and registered with a GPU, with this byte, which is.
  std::uint64_t EndOfStep(std::uint64_t offset) const;
  /// How large the file can become, as far as the file system and the limits of this process (not
  /// max_bytes) have room now; the largest number where that is not known.
  std::uint64_t PossibleFileBytes() const;
  /// How large it could become, as its maximum and the medium are.
  std::uint64_t PossibleBytes() const {
    return std::min(max_bytes_, std::max(PossibleFileBytes(), mapped_bytes()));
  }
  /// Why the medium had no room when Grow was last called for more than there was, with the bytes
  /// that were asked for; empty when it had.
  const std::string& want_of_space() const { return want_of_space_; }
  const MediumInfo& medium() const { return medium_; }
  const Persist& persist() const { return persist_; }

  /// Bytes of the file that have no blocks: of a sparse copy, or of a file that a process made
  /// longer and did not live to fill.
  std::uint64_t HoleBytes() const;

  /// Allocates what is not allocated yet of the file, and where it lives in memory enters all of it
  /// into the page table: no store meets SIGBUS for want of space, and there no batch pays for page
  /// faults.
  /// What Grow maps comes so. REQUIRES: it was not opened read only.
  /// @throws Error kNoSpace (nothing was allocated if it could be foreseen), kIo
  void Populate();

  /// Fills mapped bytes with zeros, and flushes them: durable after the next fence.
  void Zero(Step step, std::uint64_t offset, std::uint64_t bytes) const;

  /// Copies mapped bytes to others, and flushes these, likewise.
  void Copy(Step step, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) const;

  /// Maps at least [0, bytes), rounded up to huge pages, of 2 MiB, where so much fits: what is
  /// ready, and then what is not.
  /// @throws Error kNoSpace (past max_bytes, or the medium is full), kInvalidArgument (read only),
  ///         kIo, kUnsupported (GPU registration); nothing changed then, the file's size included,
  ///         but that what was ready is mapped, and of a large growth with a GPU what could be made
  void Grow(std::uint64_t bytes);

  /// Begins to make [0, bytes) ready for Grow, but no more than doubles what is mapped; returns at
  /// once. Where that can't be done, nothing tells of it: Grow does as if it had not been asked. On
  /// a pool that is traced nothing is made ready.
  /// @param surely all of it will be asked for: then it may more than double
  void MakeReady(std::uint64_t bytes, bool surely = false) noexcept;
  /// RoomAhead::EndWithoutWait: for Grow.
  std::uint64_t EndWithoutWait(std::uint64_t needed, std::uint64_t wanted) const {
    return ahead_ == nullptr ? wanted : ahead_->EndWithoutWait(needed, wanted);
  }
  /// Waits until that has been done, or has failed.
  void AwaitReady() {
    if (ahead_ != nullptr) ahead_->Await();
  }

  /// Gives back what lies behind the first `bytes`, rounded up to huge pages, and what is ready:
  /// the file is cut there. What Grow maps there again holds zeros. REQUIRES: nobody uses it.
  /// @throws Error(kInvalidArgument) read only; kIo, and nothing changed then; kUnsupported, when
  ///         what is left can't be registered with the GPU again, which then sees none of it
  void Shrink(std::uint64_t bytes);

  /// Registers what is mapped, and from now on each step, with the GPU. Idempotent. REQUIRES:
  /// nothing was made ready.
  /// @param device whose context a thread of the mapping uses
  /// @throws Error(kUnsupported) when the medium can't be registered, naming those that can
  void RegisterGpu(int device = 0);

  /// Whether it is a DAX device, which holds what it held before a pool was created there.
  bool is_device() const { return device_.has_value(); }

  /// Says whether the file goes with this mapping, while it is still locked: true for a new file
  /// until its creator says that it is complete. A device stays, with zeros where the superblocks
  /// were.
  void RemoveOnClose(bool remove) { remove_on_close_ = remove; }

  /// Growth in whole huge pages ends here: beyond, nothing is made that is not needed.
  void SetSoftMax(std::uint64_t bytes) { soft_max_ = bytes; }

  /// The file has another name now. Waits for room that is being made ready: errors name the file.
  void SetPath(const std::string& path) {
    AwaitReady();
    path_ = path;
  }
  /// Whether the file that is open is the one with this name.
  bool IsAt(const std::string& path) const noexcept;

 private:
  void OpenFile(const Options& options);
  /// Of a device that is open. @return bytes of it that are used
  std::uint64_t DeviceBytes(const Options& options) const;
  void DetectMedium();
  void Reserve(std::uint64_t max_bytes);
  /// Of a reserved range that has nothing mapped yet.
  void ChooseMemory(int node);
  /// Extends the file and maps a step behind its end, which the GPU does not see yet, or leaves
  /// everything as it was. Changes no field: a thread that makes room ahead calls it, too.
  /// @param file_end of the file before @param threads that populate it, at most
  void FillStep(std::uint64_t file_end, const MappedStep& step, std::uint64_t threads,
                ThreadPool* workers) const;
  void RegisterStep(const MappedStep& step) const;
  /// Leaves nothing of what FillStep did, of one step or of several.
  void Discard(std::uint64_t file_end, const MappedStep& step) const noexcept;
  void AllocateFile(std::uint64_t file_end, std::uint64_t end) const;
  /// Bytes that the file system has left; the largest number where it has no limit.
  std::uint64_t AvailableBytes() const;
  /// (As in AllocateFile, what can be foreseen is not tried.) @throws Error(kNoSpace)
  void RequireRoomForHoles() const;
  /// Allocates all blocks of a file that does not live in memory.
  void FillHoles() const;
  void MapStep(const MappedStep& step, bool populate, std::uint64_t threads,
               ThreadPool* workers) const;
  /// What is mapped ends here from now on, with the steps.
  void SetEnd(std::uint64_t end);
  void SetMapped(std::uint64_t end);
  /// Where growth ends that so many bytes are needed for.
  std::uint64_t GrownEnd(std::uint64_t bytes) const;
  /// As Grow, of what is not ready.
  void Extend(std::uint64_t bytes);
  /// Back to what Reserve left there.
  void Unmap(std::uint64_t offset, std::uint64_t bytes) const;
  void DropReady() noexcept;
  /// Calls write(part) for parts of mapped bytes, and flushes them.
  template <class Write>
  void WriteInParts(Step step, std::uint64_t offset, std::uint64_t bytes, const Write& write) const;
  /// By several threads, since one zeroes about 1.6 GB/s. @param workers whose they are (InParts)
  void Populate(const MappedStep& step, bool make_huge, std::uint64_t threads,
                ThreadPool* workers) const;
  bool InMemory() const { return anonymous_ || medium_.medium == Medium::kTmpfs; }
  void Release() noexcept;

  const int process_;  ///< that made it
  std::string path_;
  bool read_only_ = false;
  bool anonymous_ = false;
  std::optional<DaxDevice> device_;
  bool remove_on_close_ = false;
  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t max_bytes_ = 0;
  std::uint64_t soft_max_ = ~std::uint64_t{0};
  std::uint64_t mapped_bytes_ = 0;
  std::uint64_t file_bytes_ = 0;
  std::string want_of_space_;
  bool gpu_registered_ = false;
  int gpu_device_ = 0;
  std::vector<MappedStep> steps_;  ///< mapped ranges, in order; each is one GPU registration
  GrowthTimes growth_times_;
  std::unique_ptr<RoomAhead> ahead_;  ///< once MakeReady was called
  MediumInfo medium_;
  Persist persist_;
};

}  // namespace gpm

#endif  // GPM_PM_MAPPING_H_
