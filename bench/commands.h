#ifndef GPM_BENCH_COMMANDS_H_
#define GPM_BENCH_COMMANDS_H_

namespace CLI {
class App;
}

namespace gpm::bench {

/// The subcommands. Each adds itself, with its options, to the program and runs when it is chosen.
/// Their callbacks throw gpm::Error.

/// `cpu`: our store on the cpu executor against another container, on the same operations in the
/// same process, taking turns.
void AddCpuCommand(CLI::App& program);

/// `peers`: our store against the published tables in bench/peers, each written from its paper, on
/// the same operations in the same process.
void AddPeersCommand(CLI::App& program);

/// `workloads`: throughput and latency of our store over batch sizes, beside their bound.
void AddWorkloadsCommand(CLI::App& program);

/// `paper`: what a figure of GPHash's evaluation shows, of our store.
void AddPaperCommand(CLI::App& program);

/// `user`: a workload from a cold start with default options, as users meet it, beside `workloads`.
void AddUserCommand(CLI::App& program);

/// `ablation`: the same for a store with no accelerators, and with one more at each step.
void AddAblationCommand(CLI::App& program);

/// `recovery`: how long opening a pool and a resize take, beside their bound.
void AddRecoveryCommand(CLI::App& program);

/// `elastic`: how a store grows and shrinks (DyHash's dynamic workload).
void AddElasticCommand(CLI::App& program);

/// `cache`: what the bucket cache gives and what it costs.
void AddCacheCommand(CLI::App& program);

/// `snapshot`: snapshots beside batches, an increment, and restoring them.
void AddSnapshotCommand(CLI::App& program);

/// `find-or-insert`: FindOrInsert beside a find and an insert of what it did not find.
void AddFindOrInsertCommand(CLI::App& program);

/// `capacity`: stores that keep a number of items, by each policy.
void AddCapacityCommand(CLI::App& program);

/// `search`: searches by attributes, with and without an index, and beside writes.
void AddSearchCommand(CLI::App& program);

/// `scale`: a store over several ranks, each with a shard.
void AddScaleCommand(CLI::App& program);

/// `sweep`: kinds of operations over patterns of keys and sizes of batches.
void AddSweepCommand(CLI::App& program);

/// `roofline`: what the machine itself can do, which is what bounds any store.
void AddRooflineCommand(CLI::App& program);

}  // namespace gpm::bench

#endif  // GPM_BENCH_COMMANDS_H_
