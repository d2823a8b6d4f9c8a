#include "cuda.h"

#include <algorithm>
#include <cmath>

#include "common/clock.h"
#include "common/cuda.h"

namespace megatronapp::scan {

using common::check_cuda;
using common::now_ns;

namespace {

constexpr int kSuccess = 0;
constexpr unsigned kDefaultFlags = 0;
constexpr unsigned kNonBlockingStream = 1;
constexpr int kBrackets = 5;
// A reference costs the host some hundred microseconds; for a second the line's slope places what comes after it as well.
constexpr std::int64_t kReferenceAgeNs = 1'000'000'000;

}  // namespace

struct Cuda::Driver {
    int (*context_get)(void**);
    int (*context_set)(void*);
    int (*event_create)(Event*, unsigned);
    int (*event_destroy)(Event);
    int (*event_record)(Event, Stream);
    int (*event_query)(Event);
    int (*event_synchronize)(Event);
    int (*event_elapsed)(float*, Event, Event);
    // Since CUDA 12.8, null before: it only reads the two times, where the older one asks the device as well, which takes
    // ten times as long..
    int (*event_elapsed_v2)(float*, Event, Event);
    int (*stream_create)(Stream*, unsigned);
    int (*stream_destroy)(Stream);

    Driver() {
        const common::Library library = common::open_cuda_driver();
        library.find(context_get, "cuCtxGetCurrent");
        library.find(context_set, "cuCtxSetCurrent");
        library.find(event_create, "cuEventCreate");
        library.find(event_destroy, "cuEventDestroy_v2");
        library.find(event_record, "cuEventRecord");
        library.find(event_query, "cuEventQuery");
        library.find(event_synchronize, "cuEventSynchronize");
        library.find(event_elapsed, "cuEventElapsedTime");
        library.find_or_null(event_elapsed_v2, "cuEventElapsedTime_v2");
        library.find(stream_create, "cuStreamCreate");
        library.find(stream_destroy, "cuStreamDestroy_v2");
    }
};

Cuda::Cuda() : driver_(std::make_unique<Driver>()) {
    check_cuda(driver_->context_get(&context_), "cuCtxGetCurrent");
    if (context_ == nullptr) {
        throw std::runtime_error("no CUDA context is current on this thread");
    }
    check_cuda(driver_->stream_create(&stream_, kNonBlockingStream), "cuStreamCreate");
    check_cuda(driver_->event_create(&reference_.event, kDefaultFlags), "cuEventCreate");
    check_cuda(driver_->event_create(&spare_, kDefaultFlags), "cuEventCreate");
}

Cuda::~Cuda() {
    // Best effort: at the process's end the driver may be gone already, and then so are its objects.
    driver_->event_destroy(reference_.event);
    driver_->event_destroy(spare_);
    driver_->stream_destroy(stream_);
}

Event Cuda::make() const {
    Event event = nullptr;
    return driver_->event_create(&event, kDefaultFlags) == kSuccess ? event : nullptr;
}

void Cuda::destroy(Event event) const { driver_->event_destroy(event); }

bool Cuda::record(Event event, Stream stream) const { return driver_->event_record(event, stream) == kSuccess; }

void Cuda::enter() const { check_cuda(driver_->context_set(context_), "cuCtxSetCurrent"); }

bool Cuda::done(Event event) const {
    const int status = driver_->event_query(event);
    if (status == common::kCudaNotReady) {
        return false;
    }
    check_cuda(status, "cuEventQuery");
    return true;
}

std::optional<std::int64_t> Cuda::elapsed_ns(Event from, Event to) const {
    float milliseconds = 0;
    int status = common::kCudaNotReady;
    if (driver_->event_elapsed_v2 != nullptr) {
        status = driver_->event_elapsed_v2(&milliseconds, from, to);
    }
    if (status == common::kCudaNotReady) {
        status = driver_->event_elapsed(&milliseconds, from, to);
    }
    if (status == common::kCudaNotReady) {
        return std::nullopt;
    }
    check_cuda(status, "cuEventElapsedTime");
    return std::llround(static_cast<double>(milliseconds) * 1e6);
}

std::pair<std::int64_t, std::int64_t> Cuda::bracket(Event event) {
    // The last one recorded stays, so it must be the one that is told. Hence: try until one is as narrow as the
    // narrowest seen, or the tries are used up.
    std::int64_t narrowest = INT64_MAX, before = 0, after = 0;
    for (int i = 0; i < 2 * kBrackets; ++i) {
        before = now_ns();
        check_cuda(driver_->event_record(event, stream_), "cuEventRecord");
        check_cuda(driver_->event_synchronize(event), "cuEventSynchronize");
        after = now_ns();
        if (i >= kBrackets && after - before <= narrowest + narrowest / 8) {
            break;
        }
        narrowest = std::min(narrowest, after - before);
    }
    return {before, after};
}

const Reference& Cuda::reference() {
    const bool first = referenced_at_ns_ == 0;
    if (!first && now_ns() - referenced_at_ns_ < kReferenceAgeNs) {
        return reference_;
    }
    const auto [before, after] = bracket(spare_);
    if (!first) {
        device_ns_ += elapsed_ns(reference_.event, spare_).value();
    }
    referenced_at_ns_ = after;
    std::swap(reference_.event, spare_);
    reference_.placed = line_.place({device_ns_, before, after});
    return reference_;
}

}  // namespace megatronapp::scan
