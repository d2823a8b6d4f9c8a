// One collective or message of this rank, from its call until its record is written.
#pragma once

#include <bitset>

#include "api/records.h"

namespace megatronapp::nccl {

constexpr std::size_t kMostChannels = 256;
using Channels = std::bitset<kMostChannels>;

struct Operation {
    Enqueued description{};
    std::uint32_t communicator = 0;  // its slot
    bool launched = false, recorded = false;
    std::uint32_t proxies = 0;  // proxy operations that have begun and not ended
    // The device's, of all channels.
    Channels started, stopped;
    std::uint64_t start_ns = 0, end_ns = 0;
    std::int64_t launched_ns = 0, start_seen_ns = 0, end_seen_ns = 0;
    std::uint64_t waited_ns[4] = {0, 0, 0, 0}, network_bytes = 0, sent_bytes = 0;

    std::uint64_t number() const { return description.number; }

    // Whether it is through as far as is known: NCCL tells of one channel after the other.
    bool through() const {
        if (!launched) {
            return false;
        }
        return description.timed == 0 || (started.any() && started == stopped);
    }

    // Whether nothing more will be said of it.
    bool whole() const {
        return through() && proxies == 0 && (description.timed == 0 || started.count() >= description.channels);
    }

    Completed completed() const {
        return {description.lane, static_cast<std::uint32_t>(stopped.count()), number(), description.at_ns, launched_ns,
                start_seen_ns,    end_seen_ns, start_ns, end_ns, waited_ns[0], waited_ns[1], waited_ns[2],
                waited_ns[3],     network_bytes, sent_bytes};
    }
};

}  // namespace megatronapp::nccl
