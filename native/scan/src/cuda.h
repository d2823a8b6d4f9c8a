// The few functions of the CUDA driver that a recorder needs, opened at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace megatronapp {

using Event = void*;
using Stream = void*;

struct Reference {
    Event event;
    std::int64_t host_ns;   // middle of the bracket around the event
    std::int64_t error_ns;  // half its width
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
    // Records an event on a stream of its own and waits for it; the narrowest bracket of several.
    Reference reference();

private:
    struct Driver;
    std::unique_ptr<Driver> driver_;
    void* context_ = nullptr;
    Stream stream_ = nullptr;
    Event reference_ = nullptr;
    std::vector<Event> pool_;
};

}  // namespace megatronapp
