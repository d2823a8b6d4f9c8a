#include "host_line.h"

#include <algorithm>
#include <cmath>

namespace megatronapp::scan {

namespace {

constexpr std::size_t kMost = 64;
constexpr std::int64_t kSpanNs = 60'000'000'000;
// Brackets wider than the narrowest by this factor were disturbed.
constexpr double kWide = 1.5;
// How an event lies within its bracket, over half the bracket's width.
constexpr double kJitter = 0.25;
// Relative speed of the two clocks before it is known.
constexpr double kDriftPrior = 50e-6;

std::int64_t middle(const Bracket& bracket) {
    return bracket.before_ns + (bracket.after_ns - bracket.before_ns) / 2;
}

double half(const Bracket& bracket) {
    return std::max(1.0, static_cast<double>(bracket.after_ns - bracket.before_ns) / 2);
}

}  // namespace

std::int64_t Placed::after(std::int64_t device_ns) const {
    return host_ns + device_ns + std::llround(drift * static_cast<double>(device_ns));
}

Placed HostLine::place(const Bracket& newest) {
    while (!brackets_.empty() &&
           (brackets_.size() >= kMost || newest.device_ns - brackets_.front().device_ns > kSpanNs)) {
        brackets_.pop_front();
    }
    brackets_.push_back(newest);
    double narrowest = half(newest);
    for (const Bracket& bracket : brackets_) {
        narrowest = std::min(narrowest, half(bracket));
    }
    // Weighted least squares of (host - device) over the device's time, both counted from the newest.
    double w = 0, wx = 0, wy = 0, wxx = 1 / (kDriftPrior * kDriftPrior), wxy = 0;
    for (const Bracket& bracket : brackets_) {
        if (half(bracket) > kWide * narrowest) {
            continue;
        }
        const double sigma = kJitter * half(bracket);
        const double weight = 1 / (sigma * sigma);
        const auto x = static_cast<double>(bracket.device_ns - newest.device_ns);
        const double y = static_cast<double>(middle(bracket) - middle(newest)) - x;
        w += weight, wx += weight * x, wy += weight * y, wxx += weight * x * x, wxy += weight * x * y;
    }
    const double determinant = w * wxx - wx * wx;
    const double offset = (wy * wxx - wx * wxy) / determinant;
    if (std::abs(offset) > half(newest)) {
        // Outside of its own bracket: a clock was set, or the machine slept. What was learnt is void.
        brackets_.assign(1, newest);
        return {middle(newest), static_cast<std::int64_t>(half(newest)), 0};
    }
    const double drift = (w * wxy - wx * wy) / determinant;
    return {middle(newest) + std::llround(offset), static_cast<std::int64_t>(narrowest), drift};
}

}  // namespace megatronapp::scan
