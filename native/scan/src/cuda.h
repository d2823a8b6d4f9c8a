// The few functions of the CUDA driver that a recorder needs, opened at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "host_line.h"

namespace megatronapp {

using Event = void*;
using Stream = void*;

struct Reference {
    Event event;
    std::int64_t host_ns;
    std::int64_t error_ns;
};

// Events of one CUDA context. Throws std::runtime_error when the driver refuses.
class Cuda {
public:
    // With the context that is current on the calling thread.
    Cuda();
    ~Cuda();
    Cuda(const Cuda&) = delete;
    Cuda& operator=(const Cuda&) = delete;

    // An event recorded now; null when the driver refuses, which must not end a training run.
    Event record(Stream stream);
    void give_back(Event event) { pool_.push_back(event); }

    // For other threads: makes the context current there.
    void enter() const;
    bool done(Event event) const;
    // Nanoseconds from one event to another, both done.
    std::int64_t elapsed_ns(Event from, Event to) const;
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
    std::vector<Event> pool_;
};

}  // namespace megatronapp
