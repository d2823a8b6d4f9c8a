// How often to look for what nobody announces: the end of a GPU's work, while this host is idle.
#pragma once

#include <algorithm>
#include <cstdint>

namespace megatronapp::rdma {

constexpr std::int64_t kShortestPauseNs = 20'000;
constexpr std::int64_t kLongestPauseNs = 1'000'000;
constexpr std::int64_t kIdleShare = 64;

// In proportion to how long nothing has moved: what comes then is noticed after a small share of that time, and who waits
// for long costs little.
inline std::int64_t pause_between_looks_ns(std::int64_t idle_ns) {
    return std::clamp(idle_ns / kIdleShare, kShortestPauseNs, kLongestPauseNs);
}

}  // namespace megatronapp::rdma
