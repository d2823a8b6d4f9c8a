// What has ended and was not told yet, with a descriptor that becomes readable when there is something.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "api/operation.h"

namespace megatronapp::rdma {

class Completions {
public:
    Completions();
    ~Completions();
    Completions(const Completions&) = delete;
    Completions& operator=(const Completions&) = delete;

    void add(OperationPtr operation);
    // Somebody waited for it and knows.
    void forget(const OperationPtr& operation);
    std::vector<OperationPtr> drain();
    // The descriptor; what ends costs a system call from now on.
    int announce();

private:
    void loud();
    void quiet();

    int descriptor_;
    bool announced_ = false;
    std::deque<OperationPtr> ended_;  // null: somebody waited for it
    std::uint64_t first_ = 0;         // the number of the front
    std::size_t left_ = 0;            // that are not null
};

}  // namespace megatronapp::rdma
