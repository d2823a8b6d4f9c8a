#include "cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "clock.h"

namespace megatronapp {

namespace {

constexpr int kSuccess = 0;
constexpr int kNotReady = 600;
constexpr unsigned kDefaultFlags = 0;
constexpr unsigned kNonBlockingStream = 1;
constexpr int kBrackets = 5;
constexpr std::size_t kFirstEvents = 4096;

void check(int status, const char* what) {
    if (status != kSuccess) {
        throw std::runtime_error(std::string(what) + " failed with CUDA driver error " + std::to_string(status));
    }
}

}  // namespace

struct Cuda::Driver {
    void* library = nullptr;
    int (*context_get)(void**) = nullptr;
    int (*context_set)(void*) = nullptr;
    int (*event_create)(Event*, unsigned) = nullptr;
    int (*event_destroy)(Event) = nullptr;
    int (*event_record)(Event, Stream) = nullptr;
    int (*event_query)(Event) = nullptr;
    int (*event_synchronize)(Event) = nullptr;
    int (*event_elapsed)(float*, Event, Event) = nullptr;
    int (*stream_create)(Stream*, unsigned) = nullptr;
    int (*stream_destroy)(Stream) = nullptr;

    Driver() : library(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
        if (library == nullptr) {
            throw std::runtime_error("no CUDA driver: libcuda.so.1 can't be opened");
        }
        find(context_get, "cuCtxGetCurrent");
        find(context_set, "cuCtxSetCurrent");
        find(event_create, "cuEventCreate");
        find(event_destroy, "cuEventDestroy_v2");
        find(event_record, "cuEventRecord");
        find(event_query, "cuEventQuery");
        find(event_synchronize, "cuEventSynchronize");
        find(event_elapsed, "cuEventElapsedTime");
        find(stream_create, "cuStreamCreate");
        find(stream_destroy, "cuStreamDestroy_v2");
    }

    template <typename Function>
    void find(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(library, name));
        if (function == nullptr) {
            throw std::runtime_error(std::string("the CUDA driver has no ") + name);
        }
    }
};

Cuda::Cuda() : driver_(std::make_unique<Driver>()) {
    check(driver_->context_get(&context_), "cuCtxGetCurrent");
    if (context_ == nullptr) {
        throw std::runtime_error("no CUDA context is current on this thread");
    }
    check(driver_->stream_create(&stream_, kNonBlockingStream), "cuStreamCreate");
    check(driver_->event_create(&reference_, kDefaultFlags), "cuEventCreate");
    check(driver_->event_create(&reference_before_, kDefaultFlags), "cuEventCreate");
    for (std::size_t i = 0; i < kFirstEvents; ++i) {
        Event event = nullptr;
        check(driver_->event_create(&event, kDefaultFlags), "cuEventCreate");
        pool_.push_back(event);
    }
}

Cuda::~Cuda() {
    // Best effort: at the process's end the driver may be gone already, and then so are its objects.
    for (Event event : pool_) {
        driver_->event_destroy(event);
    }
    driver_->event_destroy(reference_);
    driver_->event_destroy(reference_before_);
    driver_->stream_destroy(stream_);
}

Event Cuda::record(Stream stream) {
    Event event = nullptr;
    if (!pool_.empty()) {
        event = pool_.back();
        pool_.pop_back();
    } else if (driver_->event_create(&event, kDefaultFlags) != kSuccess) {
        return nullptr;
    }
    if (driver_->event_record(event, stream) != kSuccess) {
        pool_.push_back(event);
        return nullptr;
    }
    return event;
}

void Cuda::enter() const { check(driver_->context_set(context_), "cuCtxSetCurrent"); }

bool Cuda::done(Event event) const {
    const int status = driver_->event_query(event);
    if (status == kNotReady) {
        return false;
    }
    check(status, "cuEventQuery");
    return true;
}

std::int64_t Cuda::elapsed_ns(Event from, Event to) const {
    float milliseconds = 0;
    check(driver_->event_elapsed(&milliseconds, from, to), "cuEventElapsedTime");
    return std::llround(static_cast<double>(milliseconds) * 1e6);
}

std::pair<std::int64_t, std::int64_t> Cuda::bracket(Event event) {
    // The last one recorded stays, so it must be the one that is told. Hence: try until one is as narrow as the
    // narrowest seen, or the tries are used up.
    std::int64_t narrowest = INT64_MAX, before = 0, after = 0;
    for (int i = 0; i < 2 * kBrackets; ++i) {
        before = now_ns();
        check(driver_->event_record(event, stream_), "cuEventRecord");
        check(driver_->event_synchronize(event), "cuEventSynchronize");
        after = now_ns();
        if (i >= kBrackets && after - before <= narrowest + narrowest / 8) {
            break;
        }
        narrowest = std::min(narrowest, after - before);
    }
    return {before, after};
}

Reference Cuda::reference() {
    std::swap(reference_, reference_before_);
    const auto [before, after] = bracket(reference_);
    if (referenced_) {
        device_ns_ += elapsed_ns(reference_before_, reference_);
    }
    referenced_ = true;
    const auto [host_ns, error_ns] = line_.place({device_ns_, before, after});
    return {reference_, host_ns, error_ns};
}

}  // namespace megatronapp
