// What Python calls (megatronapp/nccl/library.py): makes the recorder, and says what NCCL is asked for.
#include <pthread.h>

#include <cstring>
#include <exception>
#include <mutex>

#include "backends/interface.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace megatronapp::nccl {

namespace {

std::mutex making;

void before_fork() {
    making.lock();
    if (Recorder* there = recorder.load(std::memory_order_acquire)) {
        there->lock();
    }
}

void in_parent() {
    if (Recorder* there = recorder.load(std::memory_order_acquire)) {
        there->unlock();
    }
    making.unlock();
}

// The segment has one writer: a child has none until it makes one of its own.
void in_child() {
    if (Recorder* there = recorder.exchange(nullptr, std::memory_order_acq_rel)) {
        there->leave_to_parent();
        there->unlock();
    }
    making.unlock();
}

void watch_forks() {
    static const int once = pthread_atfork(before_fork, in_parent, in_child);
    static_cast<void>(once);
}

}  // namespace

}  // namespace megatronapp::nccl

// The descriptor of the segment, which stays this library's; a second call gives the same one. -1: `error` says why not.
EXPORTED int megatronapp_nccl_open(unsigned long ring_bytes, unsigned lanes, char* error, unsigned long error_bytes) {
    using namespace megatronapp::nccl;
    const std::lock_guard<std::mutex> guard(making);
    try {
        if (recorder.load(std::memory_order_acquire) == nullptr) {
            recorder.store(new Recorder(ring_bytes, lanes), std::memory_order_release);
            watch_forks();
        }
        return recorder.load(std::memory_order_acquire)->descriptor();
    } catch (const std::exception& failure) {
        if (error_bytes != 0) {
            std::strncpy(error, failure.what(), error_bytes - 1);
            error[error_bytes - 1] = '\0';
        }
        return -1;
    }
}

// `mask`: bits of NCCL's events (abi.h); 0: none. Nothing happens before `megatronapp_nccl_open`.
EXPORTED void megatronapp_nccl_ask_for(unsigned mask) {
    using namespace megatronapp::nccl;
    if (Recorder* there = recorder.load(std::memory_order_acquire)) {
        there->set_mask(mask);
    }
}
