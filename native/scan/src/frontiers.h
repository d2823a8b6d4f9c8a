// Progress of each communicator and each directed pair: what was enqueued, started and completed, and which messages are
// open. Kept here, told in the segment. All methods are for any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "common/layout.h"

namespace megatronapp::scan {

class Frontiers {
public:
    Frontiers(common::FrontiersHeader& header, common::FrontierEntry* entries, std::uint32_t most)
        : header_(header), entries_(entries), most_(most) {}

    // Index of the entry of a communicator (peer -1) or directed pair. Beyond the table's end it is counted, not told.
    std::uint32_t track(std::uint32_t communicator, std::int32_t peer, bool sending);
    // Throws std::out_of_range for no such track, as all below. Returns the operation's ticket.
    std::uint64_t enqueue(std::uint32_t track, std::int32_t operation, std::uint64_t step, std::uint64_t message);
    void started(std::uint32_t track);
    // In whatever order; `completed` moves past all that have, in order. A ticket that is not open changes nothing.
    void complete(std::uint32_t track, std::uint64_t ticket);
    // Throws as `enqueue` does.
    void check(std::uint32_t track);

    // Around a fork: nobody is inside.
    std::mutex& mutex() { return mutex_; }

private:
    struct Open {
        std::uint64_t ticket, step, message;
        std::int64_t posted_at_ns;
        std::int32_t operation;
    };
    struct Track {
        std::uint32_t communicator;
        std::int32_t peer;
        bool sending;
        std::uint64_t enqueued = 0, started = 0, completed = 0;
        std::int64_t enqueued_at_ns = 0, completed_at_ns = 0;
        std::deque<Open> open;  // oldest first
        Open newest{};          // that was enqueued
    };

    Track& at(std::uint32_t index);
    void publish(std::uint32_t index);

    common::FrontiersHeader& header_;
    common::FrontierEntry* entries_;
    std::uint32_t most_;
    std::mutex mutex_;
    std::vector<Track> tracks_;
};

}  // namespace megatronapp::scan
