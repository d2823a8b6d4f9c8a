#include "lanes/leftovers.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace megatronapp::rdma {

namespace {

// Never destroyed: when the process ends, the driver may be gone before.
struct Leftovers {
    std::mutex mutex;
    std::vector<std::unique_ptr<Lane>> lanes;
};

Leftovers& leftovers() {
    static auto* all = new Leftovers;
    return *all;
}

}  // namespace

void keep_until_settled(std::unique_ptr<Lane> lane) {
    Leftovers& all = leftovers();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.lanes.push_back(std::move(lane));
}

std::size_t end_settled() {
    Leftovers& all = leftovers();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto settled = [](const auto& lane) { return lane->settle(); };
    all.lanes.erase(std::remove_if(all.lanes.begin(), all.lanes.end(), settled), all.lanes.end());
    return all.lanes.size();
}

}  // namespace megatronapp::rdma
