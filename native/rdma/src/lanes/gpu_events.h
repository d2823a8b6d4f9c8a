// Events after the work that a message's stream held when it was posted. They are used again: to make one costs more than
// to record it.
#pragma once

#include <utility>
#include <vector>

#include "api/operation.h"
#include "drivers/cuda.h"

namespace megatronapp::rdma {

class GpuEvents {
public:
    // With the context that is current on the calling thread, which must be so in all calls.
    GpuEvents() : driver_(CudaDriver::get()) { check_cuda(driver_.context_get(&context_), "cuCtxGetCurrent"); }
    ~GpuEvents() {
        enter();
        for (void* event : idle_) {
            driver_.event_destroy(event);
        }
    }
    GpuEvents(const GpuEvents&) = delete;
    GpuEvents& operator=(const GpuEvents&) = delete;

    void* context() const { return context_; }
    void enter() const { driver_.context_set(context_); }

    void record(Operation& operation) {
        operation.event = take();
        try {
            check_cuda(driver_.event_record(operation.event, operation.stream), "cuEventRecord");
        } catch (...) {
            give_back(operation);
            throw;
        }
    }
    void give_back(Operation& operation) { give_back(std::exchange(operation.event, nullptr)); }

    void* take() {
        void* event = nullptr;
        if (idle_.empty()) {
            check_cuda(driver_.event_create(&event, CudaDriver::kNoTiming), "cuEventCreate");
            return event;
        }
        event = idle_.back();
        idle_.pop_back();
        return event;
    }
    void give_back(void* event) {
        if (event != nullptr) {
            idle_.push_back(event);
        }
    }
    bool reached(void* event) const { return driver_.event_query(event) != CudaDriver::kNotReady; }

private:
    const CudaDriver& driver_;
    void* context_ = nullptr;
    std::vector<void*> idle_;
};

}  // namespace megatronapp::rdma
