#pragma once

#include <cstdint>
#include <ctime>

namespace megatronapp {

inline std::int64_t read_clock(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

inline std::int64_t now_ns() { return read_clock(CLOCK_MONOTONIC); }
inline std::int64_t thread_cpu_ns() { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace megatronapp
