// The few functions of the CUDA driver that a recorder needs, opened at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "host_line.h"

namespace megatronapp::scan {

using Event = void*;
using Stream = void*;

struct Reference {
    Event event;
    Placed placed;
};

// Events of one CUDA context. Throws std::runtime_error when the driver refuses. `make`, `destroy` and `record` are for
// any thread of the context, all else for one side thread that has entered it.
class Cuda {
public:
    // With the context that is current on the calling thread.
    Cuda();
    ~Cuda();
    Cuda(const Cuda&) = delete;
    Cuda& operator=(const Cuda&) = delete;

    // Null, or false, when the driver refuses, which must not end a training run.
    Event make() const;
    void destroy(Event event) const;
    bool record(Event event, Stream stream) const;

    // Makes the context current on the calling thread.
    void enter() const;
    bool done(Event event) const;
    // Nanoseconds from one event, which is done, to another; nothing when that one is not.
    std::optional<std::int64_t> elapsed_ns(Event from, Event to) const;
    // A recent event, placed on the host's clock. Where the last one is old, records another on a stream of its own and
    // waits for it.
    const Reference& reference();

private:
    // Host times around an event that is recorded anew until the bracket is as narrow as it gets.
    std::pair<std::int64_t, std::int64_t> bracket(Event event);

    struct Driver;
    std::unique_ptr<Driver> driver_;
    void* context_ = nullptr;
    Stream stream_ = nullptr;
    // The newest one's device time counts from the one before it, whose event is spare from then on.
    Reference reference_{};
    Event spare_ = nullptr;
    std::int64_t device_ns_ = 0, referenced_at_ns_ = 0;
    HostLine line_;
};

}  // namespace megatronapp::scan
