// The side thread of a recorder: waits until the device has passed a step's marks, places their times on the host's
// clock, and writes the step into the ring; and completes operations whose mark the device has passed. It asks the
// device every now and then and never waits in it, but for its own reference events; it never takes Python's lock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "chunk.h"
#include "common/ring.h"
#include "cuda.h"
#include "frontiers.h"

namespace megatronapp::scan {

class Resolver {
public:
    // `recycle` takes back a chunk whose marks are all done; `lose` is told of spans that did not reach the ring; `polled`
    // is called at each poll of a device. `cuda` may be null; it, `frontiers` and what `ring` writes to live longer.
    Resolver(
        common::RingWriter ring, Cuda* cuda, Frontiers& frontiers, std::function<void(std::unique_ptr<Chunk>)> recycle,
        std::function<void(std::uint64_t)> lose, std::function<void()> polled);
    // Leaves out what the device has not done. Waits for the thread: see `ended`.
    ~Resolver();

    // Gives the chunk back where it can't be taken: nobody would write it any more.
    std::unique_ptr<Chunk> put(std::unique_ptr<Chunk> chunk);
    // Complete an operation when the device has passed an event of a chunk that is not recycled.
    void watch(Stream stream, Event event, std::uint32_t track, std::uint64_t ticket);
    // Complete those that can be; for `recycle`.
    void poll_watches();
    // Writes what the device has done by then, and ends the thread. False: something was left out.
    bool close(double timeout_seconds);
    // False after a close: the thread is stuck in the driver.
    bool ended();

    // Around a fork. A child has no thread, and its handle must not be joined.
    std::mutex& mutex() { return mutex_; }
    void abandon_thread() { thread_.release(), ended_ = true; }

private:
    struct Watch {
        Event event;
        std::uint32_t track;
        std::uint64_t ticket;
    };
    struct WatchedStream {
        Stream stream;
        std::deque<Watch> watches;  // the device passes them in this order
    };

    void run();
    // False: it is over.
    bool wait_for_work();
    void work();
    Chunk* front();
    // False: the device has not passed all of its marks.
    bool resolve(Chunk& chunk);
    bool ready(const Chunk& chunk) const;
    bool place(Chunk& chunk);
    void write(const Chunk& chunk);
    void write_rows(const Chunk& chunk, std::size_t first, std::size_t count);
    void take_watches();
    void poll_stream(WatchedStream& watched);
    void tell_poll();

    common::RingWriter ring_;
    Cuda* cuda_;
    Frontiers& frontiers_;
    std::function<void(std::unique_ptr<Chunk>)> recycle_;
    std::function<void(std::uint64_t)> lose_;
    std::function<void()> polled_;

    // The thread's own.
    std::vector<std::int64_t> times_;  // of the chunk that is being written, one per mark
    std::vector<WatchedStream> watched_;
    bool device_failed_ = false;  // it answers no more: what is recorded by its clock is lost

    std::mutex mutex_;  // guards the following
    std::condition_variable changed_, over_;
    std::deque<std::unique_ptr<Chunk>> chunks_;
    std::vector<std::pair<Stream, Watch>> incoming_;
    bool closing_ = false, stopping_ = false, ended_ = false;
    std::unique_ptr<std::thread> thread_;
};

}  // namespace megatronapp::scan
