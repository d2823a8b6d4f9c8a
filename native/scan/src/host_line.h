// Where the device's clock stands on the host's: a line through the last reference events.
#pragma once

#include <cstdint>
#include <deque>

namespace megatronapp::scan {

// One reference event: the device's time of it, and the host's before its enqueue and after its completion was seen.
struct Bracket {
    std::int64_t device_ns;
    std::int64_t before_ns;
    std::int64_t after_ns;
};

// An event on the host's clock: its time, half the width of the narrowest bracket used, and by how much the host's clock
// runs faster than the device's.
struct Placed {
    std::int64_t host_ns;
    std::int64_t error_ns;
    double drift;

    // Host time of what the device passes so much later (or earlier).
    std::int64_t after(std::int64_t device_ns) const;
};

// A single bracket tells the host time of its event to a few microseconds, which wander from step to step. The two
// clocks run evenly, so a line through many brackets tells it better. See HostLine in the scan plug-in, which this
// mirrors.
class HostLine {
public:
    // Takes the newest bracket, and places its event.
    Placed place(const Bracket& newest);

private:
    std::deque<Bracket> brackets_;
};

}  // namespace megatronapp::scan
