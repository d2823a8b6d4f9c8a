// Spans and marks of one rank. Knows nothing of Python; see the protocol Recorder of the scan plug-in for the meaning.
//
// Threads that record only append to the chunk of the step that runs, under a lock that nobody holds for longer than an
// append. A step's end hands the chunk to the resolver (resolver.h), a thread of its own that writes it into the ring
// when the device has passed all of its marks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chunk.h"
#include "common/ring.h"
#include "common/segment.h"
#include "frontiers.h"
#include "resolver.h"

namespace megatronapp::scan {

struct Operation {
    std::uint32_t communicator;
    std::int32_t peer;
    std::int64_t sequence;
    std::int64_t bytes;
    std::uint8_t stream;
    MarkId issued;
    std::int64_t message;
};

struct ControlWord {
    std::uint64_t serial;
    std::uint32_t enabled, interval, continuous, granularity;
};

class Recorder {
public:
    // Tells the raw stream that is current on the calling thread. May take the interpreter's lock: never called under
    // this class's own.
    using CurrentStream = std::function<Stream()>;

    // For the training thread. Throws as Segment does, and std::invalid_argument.
    Recorder(
        std::string on_host, std::string blocking, std::unique_ptr<Cuda> cuda, CurrentStream current_stream,
        std::size_t ring_bytes, std::size_t bulk_bytes = 0);
    ~Recorder();

    // -- spans --
    void context(std::int32_t microbatch, std::int16_t chunk);
    void begin(std::uint8_t name, MarkId at);
    MarkId end() { return end_work(0, 0); }
    MarkId end_work(std::int64_t tokens, std::int64_t length_squares);
    MarkId end_operation(const Operation& operation);
    MarkId cancel();
    void restart();
    void switch_to(int close, std::int16_t layer, int open_first, int open_second);
    void add(std::uint8_t name, std::int64_t begin_ns, std::int64_t end_ns, std::int64_t cpu_ns);
    void add_operation(
        std::uint8_t name, MarkId begin, MarkId end, const Operation& operation, std::int32_t microbatch,
        std::int16_t chunk);
    MarkId mark();
    bool done(MarkId mark);
    std::pair<int, std::int64_t> innermost();
    std::size_t depth();
    std::size_t names() const { return on_host_.size(); }
    std::int64_t marks() const { return static_cast<std::int64_t>(state_.marks.load(std::memory_order_relaxed)); }

    // Hands over what has ended, and forgets what is open.
    void end_step(const common::StepEnd& end);

    // A frame for the bulk ring. Its copying holds up nothing but another frame. Throws std::logic_error without such a
    // ring, std::length_error for a frame that is too large.
    void write_frame(std::string_view descriptor, std::string_view payload);

    // -- frontiers --
    Frontiers& frontiers() { return frontiers_; }
    void complete_at(std::uint32_t track, std::uint64_t ticket, MarkId mark);

    // -- state --
    void set_step(std::int64_t step);
    void set_phase(std::uint32_t phase);
    void set_closing();
    void set_memory(std::uint64_t allocated, std::uint64_t reserved, std::uint64_t peak, std::uint64_t total);
    ControlWord control();
    int descriptor() const { return segment_.descriptor(); }
    // Whether all was written by then. Afterwards nothing is.
    bool close(double timeout_seconds) { return resolver_.close(timeout_seconds); }
    // False after a close: its thread is stuck in the driver, and it must not be destroyed.
    bool ended() { return resolver_.ended(); }

    // -- around a fork; the child has no resolver, and its segment is its own --
    void before_fork();
    void after_fork_in_parent();
    void after_fork_in_child();

private:
    struct Open {
        std::uint8_t name;
        std::uint8_t blocked;
        std::uint32_t first;
        MarkId begin;
        std::int64_t begin_ns;
    };

    Mark take_mark(bool on_host, Stream stream);
    MarkId append(const Mark& mark);
    // What a mark of this name needs to know before the lock is taken.
    Stream stream_for(int name) const { return cuda_ && !(name >= 0 && on_host_[name]) ? current_stream_() : nullptr; }
    int innermost_name() const;
    // A mark's place in this chunk; one of an earlier chunk is gone, and `otherwise` stands in.
    std::uint32_t local(MarkId mark, std::uint32_t otherwise) const;
    Open pop();
    void push(std::uint8_t name, MarkId begin);
    void tell_activity();
    // The innermost span ends at a new mark, and the rest of its row is filled in.
    template <typename Fill>
    MarkId end_innermost(MarkId issued, Fill fill_row);
    Row& close(const Open& open, MarkId end, MarkId issued);
    Row& append_row(const Row& row);
    // Null: its step is resolved, or it is the host's.
    const Mark* pending(MarkId mark) const;
    std::unique_ptr<Chunk> seal(const common::StepEnd& end);
    void recycle(std::unique_ptr<Chunk> chunk);
    void forget(const Chunk& chunk);
    void reuse(std::unique_ptr<Chunk> chunk);
    void lose(std::uint64_t spans);
    void tell_unpassed_mark();
    std::int64_t oldest_unpassed_mark_ns();
    template <typename Write>
    void write_state(Write write);

    std::string on_host_, blocking_;
    common::Segment segment_;
    common::State& state_;
    Frontiers frontiers_;
    std::unique_ptr<Cuda> cuda_;
    CurrentStream current_stream_;

    // The resolver's thread's own.
    std::uint64_t seen_marks_ = 0;
    int polls_ = 0;  // since it has seen them first

    std::mutex bulk_mutex_;  // guards the following
    std::optional<common::RingWriter> bulk_;

    // Guards all of the following.
    std::mutex mutex_;
    std::unique_ptr<Chunk> chunk_now_;
    std::vector<std::unique_ptr<Chunk>> spare_;
    // Those not yet resolved. The marks of all others are done.
    std::vector<const Chunk*> sealed_;
    std::vector<Event> events_;
    std::vector<Open> open_;
    Row beyond_{};
    std::uint8_t blocked_ = 0;
    std::int32_t microbatch_ = -1;
    std::int16_t chunk_ = -1;
    ControlWord control_{};

    Resolver resolver_;
};

}  // namespace megatronapp::scan
