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
    std::int64_t host_ns;
    std::int64_t error_ns;
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
    // Records an event on a stream of its own, waits for it, and places it on the host's clock.
    Reference reference();

private:
    // Host times around an event that is recorded anew until the bracket is as narrow as it gets.
    std::pair<std::int64_t, std::int64_t> bracket(Event event);

    struct Driver;
    std::unique_ptr<Driver> driver_;
    void* context_ = nullptr;
    Stream stream_ = nullptr;
    // The newest reference and the one before it, which its device time counts from.
    Event reference_ = nullptr, reference_before_ = nullptr;
    std::int64_t device_ns_ = 0;
    bool referenced_ = false;
    HostLine line_;
};

}  // namespace megatronapp::scan
