// A communicator of this process: its lanes, and what numbers its collectives.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/lanes.h"

namespace megatronapp::nccl {

// NCCL numbers the operations of each function by themselves, and goes on counting while nobody records. The sum over all
// functions numbers those of a communicator; after a pause it is right again once each function was seen.
class CollectiveNumbers {
public:
    // From 1.
    std::uint64_t next(const std::string& function, std::uint64_t sequence) {
        std::uint64_t& seen = seen_[function];
        if (sequence + 1 > seen) {
            sum_ += sequence + 1 - seen;
            seen = sequence + 1;
        }
        return newest_ = std::max(newest_ + 1, sum_);
    }

private:
    std::map<std::string, std::uint64_t> seen_;
    std::uint64_t sum_ = 0, newest_ = 0;
};

struct Communicator {
    std::uint64_t hash = 0;
    std::string name;
    std::int32_t ranks = 0, rank = 0;
    int* mask = nullptr;  // NCCL's, of what it tells; it may be one for all communicators
    CollectiveNumbers numbers;
    std::map<std::pair<std::int32_t, Direction>, std::uint32_t> lanes;  // by peer
};

// What this process alone knows of a lane.
struct OpenLane {
    std::deque<std::uint32_t> open;  // slots of operations, in order of their numbers
    std::uint64_t messages = 0;
};

}  // namespace megatronapp::nccl
