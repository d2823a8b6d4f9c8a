#include "core/completions.h"

#include <cerrno>
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
    operation->completion = first_ + ended_.size();
    ended_.push_back(std::move(operation));
    if (++left_ == 1) {
        loud();
    }
}

int Completions::announce() {
    if (!announced_) {
        announced_ = true;
        if (left_ != 0) {
            loud();
        }
    }
    return descriptor_;
}

void Completions::forget(const OperationPtr& operation) {
    const std::uint64_t place = operation->completion - first_;
    if (operation->completion < first_ || place >= ended_.size() || ended_[place] != operation) {
        return;
    }
    ended_[place].reset();
    while (!ended_.empty() && ended_.front() == nullptr) {
        ended_.pop_front();
        ++first_;
    }
    if (--left_ == 0) {
        quiet();
    }
}

std::vector<OperationPtr> Completions::drain() {
    std::vector<OperationPtr> all;
    all.reserve(left_);
    for (OperationPtr& each : ended_) {
        if (each != nullptr) {
            all.push_back(std::move(each));
        }
    }
    first_ += ended_.size();
    ended_.clear();
    if (left_ != 0) {
        left_ = 0;
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
