#include "cli/crash_child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <exception>
#include <filesystem>
#include <thread>

#include "engine/store.h"
#include "pm/error.h"

namespace gpm::cli {
namespace {

static_assert(sizeof(CrashRecord) <= PIPE_BUF);

[[noreturn]] void ThrowErrno(const char* what, int error) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(error)));
}

void Report(const CrashRecord& record) {
  if (write(STDOUT_FILENO, &record, sizeof record) != sizeof record) {
    ThrowErrno("the record of a batch can't be written", errno);
  }
}

/// A thread of the child, with the arrays of its batches.
class BatchRunner {
 public:
  BatchRunner(const CrashRound& round, unsigned thread)
      : round_(round), thread_(thread), next_batch_(0) {}

  void Run(Store& store) {
    CrashRecord record;
    record.thread = thread_;
    record.batch = next_batch_++;
    const CrashBatch made = MakeCrashBatch(round_, thread_, record.batch);
    const Batch batch = Fill(made, CrashItems(store.key_size(), store.value_size()));
    record.kind = CrashRecord::Kind::kStarting;
    Report(record);
    store.Apply(batch);
    CrashDigest digest;
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (results_[i] == Result::kNoSpace) {
        throw Error(ErrorCode::kNoSpace,
                    "crash-test: the pool's medium is full; choose another place for it");
      }
      const bool found = made.operations[i].op == Op::kFind && results_[i] == Result::kOk;
      digest.Add(results_[i], batch.found.subspan(i * store.value_size(),
                                                  found ? store.value_size() : std::size_t{0}));
    }
    record.kind = CrashRecord::Kind::kAcknowledged;
    record.digest[0] = digest.sum();
    record.digest[1] = digest.weighted();
    Report(record);
  }

 private:
  Batch Fill(const CrashBatch& made, const CrashItems& items) {
    const std::size_t n = made.operations.size();
    ops_.resize(n);
    keys_.resize(n * items.key_size());
    values_.resize(n * items.value_size());
    found_.resize(n * items.value_size());
    results_.assign(n, Result::kInvalid);
    for (std::size_t i = 0; i < n; ++i) {
      const CrashOperation& operation = made.operations[i];
      ops_[i] = operation.op;
      items.PutKey(operation.key, &keys_[i * items.key_size()]);
      items.PutValue(operation.key, operation.version, &values_[i * items.value_size()]);
    }
    Batch batch;
    batch.op = ops_[0];
    if (!made.one_kind) batch.ops = ops_;
    batch.keys = keys_;
    batch.values = values_;
    batch.found = found_;
    batch.results = results_;
    return batch;
  }

  CrashRound round_;
  unsigned thread_;
  std::uint64_t next_batch_;
  std::vector<Op> ops_;
  std::vector<std::byte> keys_;
  std::vector<std::byte> values_;
  std::vector<std::byte> found_;
  std::vector<Result> results_;
};

Store CreateOrOpen(const CrashChildPlan& plan) {
  OpenOptions open;
  open.executor = plan.executor;
  CrashRecord record;
  if (!std::filesystem::exists(plan.pool)) {
    Report(record);
    return Store::Create(plan.pool, plan.create, open);
  }
  record.kind = CrashRecord::Kind::kOpening;
  Report(record);
  return Store::Open(plan.pool, open);
}

/// Every runner runs `batches`, each on a thread of its own. @throws what the first failure threw
void RunSession(Store& store, std::vector<BatchRunner>& runners, std::uint64_t batches) {
  std::vector<std::exception_ptr> errors(runners.size());
  std::atomic<bool> failed = false;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < runners.size(); ++t) {
    threads.emplace_back([&, t] {
      try {
        for (std::uint64_t b = 0; b < batches && !failed; ++b) runners[t].Run(store);
      } catch (...) {
        errors[t] = std::current_exception();
        failed = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

void RunCrashChild(const CrashChildPlan& plan) {
  // A parent that has ended already shows as a pipe that nobody reads.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) ThrowErrno("prctl", errno);
  std::vector<BatchRunner> runners;
  for (unsigned t = 0; t < plan.round.threads; ++t) runners.emplace_back(plan.round, t);
  for (;;) {
    Store store = CreateOrOpen(plan);
    const RecoveryStats recovery = store.Stats().recovery;
    CrashRecord record;
    record.kind = CrashRecord::Kind::kOpened;
    record.slots_cleared = recovery.insert_slots_cleared;
    record.resizes_continued = recovery.resize_continued ? 1 : 0;
    Report(record);
    if (plan.session_batches > 0) RunSession(store, runners, plan.session_batches);
    record = CrashRecord{};
    record.kind = CrashRecord::Kind::kClosing;
    Report(record);
    store.Close();
  }
}

CrashChild::CrashChild(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) ThrowErrno("pipe", errno);
  pipe_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  const int error =
      posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(pipe_);
    ThrowErrno("the process to be killed can't be started", error);
  }
}

CrashChild::~CrashChild() {
  Kill();
  close(pipe_);
}

int CrashChild::Kill() {
  if (process_ < 0) return status_;
  kill(process_, SIGKILL);
  while (Read(Clock::time_point::max())) {
  }
  while (waitpid(process_, &status_, 0) < 0 && errno == EINTR) {
  }
  process_ = -1;
  return status_;
}

bool CrashChild::Read(Clock::time_point deadline) {
  pollfd readable{pipe_, POLLIN, 0};
  int ready = 0;
  do {
    timespec wait{};
    const bool limited = deadline != Clock::time_point::max();
    if (limited) {
      // The time is asked even when records come without a pause.
      const std::chrono::nanoseconds left = deadline - Clock::now();
      if (left.count() <= 0) return false;
      wait.tv_sec = static_cast<time_t>(left / std::chrono::seconds(1));
      wait.tv_nsec = (left % std::chrono::seconds(1)).count();
    }
    ready = ppoll(&readable, 1, limited ? &wait : nullptr, nullptr);
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return false;
  CrashRecord record;
  if (read(pipe_, &record, sizeof record) != sizeof record) return false;  // the child has ended
  records_.push_back(record);
  return true;
}

}  // namespace gpm::cli
