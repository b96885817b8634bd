#ifndef GPM_YCSB_HELD_RECORDS_H_
#define GPM_YCSB_HELD_RECORDS_H_

#include <cstdint>
#include <string>

#include "ycsb/target.h"
#include "ycsb/workload.h"

namespace gpm::ycsb {

/// Looks up a sample of the records that a workload works on in a store that it has not loaded:
/// figures of operations that find nothing, or of inserts of what is there, are not the workload's.
///
/// @return why the workload can't be run on what the store holds, or nothing
/// @throws as Store::Find
std::string MissingRecords(Target store, const WorkloadSpec& spec);

}  // namespace gpm::ycsb

#endif  // GPM_YCSB_HELD_RECORDS_H_
