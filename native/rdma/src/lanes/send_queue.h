// Matched sends in the order in which they are to go: the higher priority first; of one priority small messages before
// large ones, for which nobody would notice the difference, then as they were posted. A lane asks for the front before
// each piece, so that a message that comes later may overtake one that is under way.
#pragma once

#include <algorithm>
#include <deque>
#include <tuple>

#include "api/operation.h"

namespace megatronapp::rdma {

class SendQueue {
public:
    static constexpr std::uint64_t kSmallBytes = 64 << 10;

    bool empty() const { return sends_.empty(); }
    const OperationPtr& front() const { return sends_.front(); }
    void pop_front() { sends_.pop_front(); }
    void clear() { sends_.clear(); }

    void push(OperationPtr send) {
        const auto place = std::upper_bound(sends_.begin(), sends_.end(), send, goes_before);
        sends_.insert(place, std::move(send));
    }

    // Whether it was there.
    bool remove(const OperationPtr& send) {
        const auto found = std::find(sends_.begin(), sends_.end(), send);
        if (found == sends_.end()) {
            return false;
        }
        sends_.erase(found);
        return true;
    }

private:
    static bool goes_before(const OperationPtr& one, const OperationPtr& other) {
        const auto place = [](const Operation& send) {
            return std::make_tuple(-static_cast<std::int64_t>(send.priority), send.what.bytes > kSmallBytes, send.id);
        };
        return place(*one) < place(*other);
    }

    std::deque<OperationPtr> sends_;
};

}  // namespace megatronapp::rdma
