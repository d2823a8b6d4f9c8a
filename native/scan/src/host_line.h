// Where the device's clock stands on the host's: a line through the last reference events.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

namespace megatronapp::scan {

// One reference event: the device's time of it, and the host's before its enqueue and after its completion was seen.
struct Bracket {
    std::int64_t device_ns;
    std::int64_t before_ns;
    std::int64_t after_ns;
};

// A single bracket tells the host time of its event to a few microseconds, which wander from step to step. The two
// clocks run evenly, so a line through many brackets tells it better. See HostLine in the scan plug-in, which this
// mirrors.
class HostLine {
public:
    // Takes the newest bracket; returns the host time of its event and half the width of the narrowest one used.
    std::pair<std::int64_t, std::int64_t> place(const Bracket& newest);

private:
    std::deque<Bracket> brackets_;
};

}  // namespace megatronapp::scan
