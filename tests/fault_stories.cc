#include "tests/fault_stories.h"

#include "engine/store_impl.h"
#include "tests/fault_injection.h"

namespace gpm::test {
namespace {

constexpr std::uint64_t kAmpleBytes = std::uint64_t{64} << 20;

TestBatch Operations(const FaultSession& session, Op op, std::uint64_t first, std::uint64_t count,
                     std::uint64_t tag = 0) {
  TestBatch batch = session.NewBatch();
  for (std::uint64_t key = first; key < first + count; ++key) batch.Add(op, key, key + tag);
  return batch;
}

}  // namespace

TestBatch MixedOperations(const FaultSession& session, std::uint64_t keys, std::uint64_t count) {
  TestBatch batch = session.NewBatch();
  for (std::uint64_t i = 0; i < count; ++i) {
    batch.Add(static_cast<Op>(Mix(i) % kOpKinds), Mix(i + count) % keys, i);
  }
  return batch;
}

void Insert(FaultSession& session, std::uint64_t first, std::uint64_t count) {
  TestBatch batch = Operations(session, Op::kInsert, first, count);
  session.Apply(batch, Op::kInsert);
}

namespace {

void Grow(FaultSession& session) {
  session.Open();
  Insert(session, 1000, 3000);
  TestBatch erases = Operations(session, Op::kErase, 500, 2500);
  session.Apply(erases, Op::kErase);
  TestBatch mixed = MixedOperations(session, 6000, 4000);
  session.ApplyAsync(mixed);
  session.Close();
}

constexpr Story kStories[] = {
    {"Create", Before::kNothing, kAmpleBytes,
     [](FaultSession& session) {
       session.Create(500);
       Insert(session, 0, 100);
       session.Close();
     }},
    {"BulkLoad", Before::kNothing, kAmpleBytes,
     [](FaultSession& session) {
       session.Create(500);
       TestBatch items = Operations(session, Op::kInsert, 0, 4200);
       session.BulkLoad(items);
       TestBatch more = Operations(session, Op::kInsert, 4000, 400);
       session.BulkLoad(more);
       session.Close();
     }},
    {"OpenClosed", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       session.Close();
     }},
    {"OpenCrashed", Before::kCrashed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       Insert(session, 10000, 50);
       session.Close();
     }},
    {"OpenResizing", Before::kResizing, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       session.Close();
     }},
    {"Batches", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       for (const Op op : {Op::kFind, Op::kInsert, Op::kUpdate, Op::kErase, Op::kUpsert}) {
         TestBatch batch = Operations(session, op, kLoaded - 200, 400, 7);
         session.Apply(batch, op);
       }
       TestBatch mixed = MixedOperations(session, 2 * kLoaded, 500);
       session.Apply(mixed);
       TestBatch small = MixedOperations(session, 50, 20);
       session.ApplyAsync(small);
       session.Close();
     }},
    {"Growth", Before::kClosed, kAmpleBytes, [](FaultSession& session) { Grow(session); }},
    {"GrowthBesideBatches", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.ComposeNoLevels();
       Grow(session);
     }},
    {"CacheLoadings", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       for (int round = 0; round < 2; ++round) {
         session.Do([&] { session.store().RefreshCache().Wait(); });
         TestBatch mixed = MixedOperations(session, kLoaded, 300);
         session.Apply(mixed);
         TestBatch finds = Operations(session, Op::kFind, 0, kLoaded);
         session.Apply(finds, Op::kFind);
       }
       session.Close();
     }},
    {"ReserveAndVisit", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       session.Do([&] { session.store().Reserve(4000); }, false);
       session.Do([&] { session.store().ForEach([](auto, auto) {}); });
       session.Do([&] { session.store().Stats(); });
       session.Close();
     }},
    {"LevelInPlaceOfCells", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       Insert(session, 1000, 9000);
       TestBatch erases = Operations(session, Op::kErase, 1000, 8900);
       session.Apply(erases, Op::kErase);
       session.Do([&] { session.store().Reserve(14000); });
       Insert(session, 1000, 500);
       session.Close();
     }},
    {"ReserveAndInsert", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       session.Do([&] { session.store().Reserve(8000); });
       Insert(session, 1000, 500);
       session.Close();
     }},
    {"Compact", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       Insert(session, 1000, 5000);
       TestBatch erases = Operations(session, Op::kErase, 0, 5500);
       session.Apply(erases, Op::kErase);
       session.Compact();
       Insert(session, 0, 900);
       session.Compact();
       session.Close();
     }},
    {"Snapshots", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       session.Snapshot();
       TestBatch mixed = MixedOperations(session, kLoaded, 200);
       session.Apply(mixed);
       session.Snapshot();
       Insert(session, 1000, 300);
       session.Snapshot();
       session.Restore();
       session.Close();
     }},
    {"SnapshotsWithoutLinks", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       const NoLinks no_links;
       session.Open();
       session.Snapshot();
       Insert(session, 1000, 50);
       session.Snapshot();
       Insert(session, 1100, 50);
       session.Snapshot(true);
       session.Restore();
       session.Close();
     }},
    {"KeptSnapshots", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.KeepSnapshots();
       session.Open();
       session.Keep();
       Insert(session, 1000, 50);
       session.Keep();
       session.Close();
       session.LoseAndRestore();
       Insert(session, 2000, 20);
       session.Close();
     }},
    {"RoomAhead", Before::kNothing, kAmpleBytes,
     [](FaultSession& session) {
       // Nearly all that a small pool has mapped, so that its next level lies beyond that.
       const FaultShape& shape = session.shape();
       const std::uint64_t item_bytes = 20 + (shape.key_size > 8 ? shape.key_size : 0) +
                                        (shape.value_size > 8 ? shape.value_size : 0);
       const std::uint64_t capacity = (std::uint64_t{3} << 19) / item_bytes;
       session.Create(capacity);
       Insert(session, 0, capacity / 4);  // four more such batches, and it would be full
       session.Do([&] { session.store().impl()->AwaitReadyRoom(); });
       TestBatch more = Operations(session, Op::kUpsert, capacity / 4, 500);
       session.Apply(more, Op::kUpsert);
       session.Do([&] { session.store().Reserve(capacity * 3 / 2); });
       TestBatch updates = Operations(session, Op::kUpdate, 0, capacity / 4, 1);
       session.Apply(updates, Op::kUpdate);
       session.Compact();
       session.Close();
     }},
    {"CloseWithWork", Before::kClosed, kAmpleBytes,
     [](FaultSession& session) {
       session.Open();
       TestBatch pending = Operations(session, Op::kInsert, 1000, 1200);
       session.Close(pending);
     }},
    {"FullPool", Before::kClosed, std::uint64_t{384} << 10,
     [](FaultSession& session) {
       session.ExpectFull();
       session.Open();
       TestBatch inserts = Operations(session, Op::kInsert, 1000, 7000);
       session.Apply(inserts, Op::kInsert);
       TestBatch updates = Operations(session, Op::kUpdate, 0, 500, 9);
       session.Apply(updates, Op::kUpdate);
       TestBatch erases = Operations(session, Op::kErase, 0, 300);
       session.Apply(erases, Op::kErase);
       Insert(session, 0, 300);
       session.Close();
     }},
};

}  // namespace

std::span<const Story> Stories() { return kStories; }

}  // namespace gpm::test
