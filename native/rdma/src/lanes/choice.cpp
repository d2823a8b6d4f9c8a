#include "lanes/choice.h"

#include <algorithm>

namespace megatronapp::rdma {

namespace {

Kernel other_than(Kernel kernel) { return kernel == Kernel::kCached ? Kernel::kStreaming : Kernel::kCached; }

}  // namespace

Kernel KernelChoice::next() {
    if (until_trial_ > 0) {
        --until_trial_;
        return preferred_;
    }
    until_trial_ = wins_ > 0 ? kSoon : kSeldom;
    return other_than(preferred_);
}

std::size_t KernelChoice::chunk_bytes(Kernel kernel) const {
    return kernel == Kernel::kStreaming && kernel == preferred_ ? kStreamingChunkBytes : kCachedChunkBytes;
}

void KernelChoice::record(Kernel kernel, std::size_t bytes, std::int64_t write_ns, std::int64_t read_ns) {
    const double cost =
        static_cast<double>(std::max<std::int64_t>({write_ns, read_ns, 1})) / static_cast<double>(bytes);
    if (kernel == preferred_) {
        ns_per_byte_ = ns_per_byte_ == 0 ? cost : ns_per_byte_ + kWeight * (std::min(cost, 2 * ns_per_byte_) - ns_per_byte_);
        return;
    }
    if (ns_per_byte_ == 0) {
        return;
    }
    wins_ = cost < kFaster * ns_per_byte_ ? wins_ + 1 : 0;
    if (wins_ == 0) {
        return;
    }
    until_trial_ = std::min(until_trial_, kSoon);
    if (wins_ == kWins) {
        preferred_ = kernel;
        wins_ = 0;
        ns_per_byte_ = 0;
    }
}

}  // namespace megatronapp::rdma
