// Fields that one writer changes together and others read without ever holding it up: a number that is odd while the
// writer is at work. A reader's copy counts when the number was even, and the same before and after.
//
// The fields themselves are relaxed atomics, since reading one that is being written is no error here; the fences order
// them against the number.
#pragma once

#include <atomic>
#include <cstdint>

namespace megatronapp::common {

using Sequence = std::atomic<std::uint64_t>;

// One writer at a time: the caller sees to it.
template <typename Function>
void write_locked(Sequence& sequence, Function write) {
    const std::uint64_t before = sequence.load(std::memory_order_relaxed);
    sequence.store(before + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    write();
    sequence.store(before + 2, std::memory_order_release);
}

// Whether one of `tries` copies was whole. A writer that died at work leaves the number odd.
template <typename Function>
bool read_locked(const Sequence& sequence, int tries, Function copy) {
    for (; tries > 0; --tries) {
        const std::uint64_t before = sequence.load(std::memory_order_acquire);
        if (before % 2 != 0) {
            continue;
        }
        copy();
        std::atomic_thread_fence(std::memory_order_acquire);
        if (sequence.load(std::memory_order_relaxed) == before) {
            return true;
        }
    }
    return false;
}

}  // namespace megatronapp::common
