// How far each communicator has come, and each pair of ranks in each direction: the table that a reader finds when the
// rank is stuck or dead. Its entries are written under the recorder's lock, by whoever has it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "api/records.h"

namespace megatronapp::nccl {

struct LaneOwner {
    std::uint64_t communicator;
    std::string name;
    std::int32_t ranks, rank, peer;
    Direction direction;
};

class Lanes {
public:
    Lanes(LanesHeader& header, Lane* entries, std::uint32_t size) : header_(header), entries_(entries), size_(size) {}

    // Its index; `size()` when all entries are taken.
    std::uint32_t add(const LaneOwner& owner);
    std::uint32_t size() const { return size_; }

    void enqueue(const Enqueued& operation);
    void start(std::uint32_t lane, std::uint64_t number, std::int64_t at_ns);
    // Also of all before it: a communicator's operations, and a pair's messages, run in order. `oldest`: null when nothing
    // is left.
    void complete(std::uint32_t lane, std::uint64_t number, std::int64_t at_ns, const Enqueued* oldest);
    std::uint64_t completed(std::uint32_t lane) const {
        return entries_[lane].completed.load(std::memory_order_relaxed);
    }
    void lose(std::uint32_t lane);
    void lose_without_lane() { header_.without_lane.fetch_add(1, std::memory_order_relaxed); }
    void close(std::uint32_t lane);
    void switch_on();
    void set_mask(std::uint32_t mask) { header_.mask.store(mask, std::memory_order_relaxed); }

private:
    LanesHeader& header_;
    Lane* entries_;
    std::uint32_t size_, used_ = 0;
};

}  // namespace megatronapp::nccl
