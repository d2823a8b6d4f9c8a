// Which kind of copy is faster now. Schedulers move ranks between cores, so the distance of these is probed by the traffic
// itself: now and then a chunk is moved by the other kind.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lanes/copy.h"

namespace megatronapp::rdma {

constexpr std::size_t kCachedChunkBytes = 64 << 10;
constexpr std::size_t kStreamingChunkBytes = 256 << 10;

// Chunks from this size on tell what they cost; one that is tried is no longer.
constexpr std::size_t kTimedBytes = kCachedChunkBytes;

class KernelChoice {
public:
    // Of the next chunk that tells its cost.
    Kernel next();
    Kernel preferred() const { return preferred_; }
    std::size_t chunk_bytes(Kernel kernel) const;

    // Both copies of a chunk, in the order in which chunks were asked for: they go on at the same time, so the longer one
    // counts. A kind that wins several trials in a row is preferred from then on: a thread that was interrupted while it
    // copied says little about the copy, and what is tried is compared only with its neighbours, as the next message may
    // come from another cache.
    void record(Kernel kernel, std::size_t bytes, std::int64_t write_ns, std::int64_t read_ns);

private:
    static constexpr unsigned kSeldom = 64;  // chunks from one trial to the next
    static constexpr unsigned kSoon = 4;     // the same, after a trial that was won
    static constexpr unsigned kWins = 3;
    static constexpr double kFaster = 0.9;
    static constexpr double kWeight = 0.25;  // of the newest chunk

    Kernel preferred_ = Kernel::kCached;
    unsigned until_trial_ = kSoon;
    unsigned wins_ = 0;
    double ns_per_byte_ = 0;  // of the preferred kind; 0: not known yet
};

}  // namespace megatronapp::rdma
