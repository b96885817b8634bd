#ifndef GPM_PM_DRIVER_TURNS_H_
#define GPM_PM_DRIVER_TURNS_H_

#include <condition_variable>
#include <cstdint>

#include "pm/mutex.h"

namespace gpm {

/// Turns at the driver of the GPUs, between those who ask it for many short things and those who
/// ask it for one that takes long.
///
/// The driver has a lock of the process, which registering memory holds for some 25 us a MB. Who
/// launches a kernel meanwhile waits, and is likely to meet the next registration at the next
/// launch: beside registrations of 16 MB, one after the other, a batch of twelve launches takes 4.7
/// ms instead of 0.06 (on an H100). When who launches has a turn for all of them, it takes 0.4.
///
/// So any number of threads are *launching* at a time, and one is *registering* while nobody
/// launches. Neither starves: a registration lets those go first that began to wait before the last
/// one ended, and those who come when one waits come after it.
///
/// Who is launching waits for nothing but the driver (Break), and for no lock that is held by who
/// registers. A turn within a turn of the same thread is part of it.
///
/// Thread safety: any thread.
class DriverTurns {
 public:
  /// Those of this process.
  static DriverTurns& Here();

  /// Launches, while it lives, undisturbed.
  class Launching {
   public:
    explicit Launching(DriverTurns& turns = Here()) : turns_(turns) { turns_.BeginLaunching(); }
    ~Launching() { turns_.EndLaunching(); }
    Launching(const Launching&) = delete;
    Launching& operator=(const Launching&) = delete;

   private:
    DriverTurns& turns_;
  };

  /// Lets others go while it lives, where its thread has turns to launch: it waits for something.
  class Break {
   public:
    explicit Break(DriverTurns& turns = Here());
    ~Break();
    Break(const Break&) = delete;
    Break& operator=(const Break&) = delete;

   private:
    DriverTurns& turns_;
    const int depth_;
  };

  /// Registers, while it lives, and disturbs nobody.
  class Registering {
   public:
    explicit Registering(DriverTurns& turns = Here());
    ~Registering();
    Registering(const Registering&) = delete;
    Registering& operator=(const Registering&) = delete;

   private:
    DriverTurns& turns_;
    const bool is_part_;  ///< of a turn of this thread
  };

 private:
  void BeginLaunching();
  void EndLaunching();

  Mutex mutex_;
  std::condition_variable changed_;
  int launching_ GPM_GUARDED_BY(mutex_) = 0;
  bool registering_ GPM_GUARDED_BY(mutex_) = false;
  int wants_to_register_ GPM_GUARDED_BY(mutex_) = 0;
  int wants_to_launch_ GPM_GUARDED_BY(mutex_) = 0;
  std::uint64_t registrations_ GPM_GUARDED_BY(mutex_) = 0;  ///< that have ended
  /// Of those who want to launch, those that waited when the last registration ended.
  int first_ GPM_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpm

#endif  // GPM_PM_DRIVER_TURNS_H_
