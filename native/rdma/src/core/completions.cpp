#include "core/completions.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <sys/eventfd.h>
#include <system_error>
#include <unistd.h>

namespace megatronapp::rdma {

Completions::Completions() : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (descriptor_ < 0) {
        throw std::system_error(errno, std::generic_category(), "eventfd");
    }
}

Completions::~Completions() { close(descriptor_); }

void Completions::add(OperationPtr operation) {
    ended_.push_back(std::move(operation));
    if (ended_.size() == 1) {
        loud();
    }
}

int Completions::announce() {
    if (!announced_) {
        announced_ = true;
        if (!ended_.empty()) {
            loud();
        }
    }
    return descriptor_;
}

void Completions::forget(const OperationPtr& operation) {
    const auto found = std::find(ended_.rbegin(), ended_.rend(), operation);  // mostly it has ended just now
    if (found != ended_.rend()) {
        ended_.erase(std::prev(found.base()));
        if (ended_.empty()) {
            quiet();
        }
    }
}

std::vector<OperationPtr> Completions::drain() {
    std::vector<OperationPtr> all(ended_.begin(), ended_.end());
    if (!ended_.empty()) {
        ended_.clear();
        quiet();
    }
    return all;
}

void Completions::loud() {
    if (announced_) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = write(descriptor_, &one, sizeof one);
    }
}

void Completions::quiet() {
    if (announced_) {
        std::uint64_t count;
        [[maybe_unused]] const auto got = read(descriptor_, &count, sizeof count);
    }
}

}  // namespace megatronapp::rdma
