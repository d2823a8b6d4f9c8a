// The clocks of a rank. CLOCK_MONOTONIC is the one that everything of one host is placed on.
#pragma once

#include <cstdint>
#include <ctime>

namespace megatronapp::common {

inline std::int64_t read_clock(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

inline std::int64_t now_ns() { return read_clock(CLOCK_MONOTONIC); }
inline std::int64_t thread_cpu_ns() { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

inline std::int64_t seconds_to_ns(double seconds) { return static_cast<std::int64_t>(seconds * 1e9); }

}  // namespace megatronapp::common
