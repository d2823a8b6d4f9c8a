// The recorder behind all versions of NCCL's interface. It writes two records of each operation, when it is enqueued and
// when it is through, and keeps the lanes. NCCL calls from the training's threads and from its own; a lock lets one of them
// in at a time, which makes the segment's writer one. Nothing here waits for anybody else, and nothing throws once it is
// made, but for std::bad_alloc.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "common/ring.h"
#include "common/segment.h"
#include "core/communicator.h"
#include "core/handle.h"
#include "core/operation.h"

namespace megatronapp::nccl {

// In the order of Operation::waited_ns.
enum class Wait : std::uint32_t { kGpu = 0, kPeer = 1, kNetwork = 2, kData = 3, kNothing = 4 };

struct Call {
    Direction direction = Direction::kNone;
    std::int32_t peer = kNobody, root = kNobody;
    std::uint64_t sequence = 0, count = 0;
    std::uint32_t channels = 0;
    bool timed = true;  // NCCL tells of its channels, where it is asked to
    const char *operation = nullptr, *type = nullptr, *algorithm = nullptr, *protocol = nullptr;
};

class Recorder {
public:
    static constexpr std::uint32_t kCommunicators = 1024, kOperations = 16384, kSteps = 8192;

    // Throws as common::Segment.
    Recorder(std::size_t ring_bytes, std::uint32_t lanes);

    int descriptor() const { return segment_.descriptor(); }
    // Before a fork, in the parent after it, and in the child, whose calls go nowhere.
    void lock() { mutex_.lock(); }
    void unlock() { mutex_.unlock(); }
    void leave_to_parent() { segment_.leave_to_parent(); }

    // What NCCL is asked to tell of, bits of abi::Event.
    void set_mask(std::uint32_t mask);

    Handle add_communicator(
        std::uint64_t hash, const char* name, std::int32_t ranks, std::int32_t rank, int* mask);
    void close_communicator(Handle communicator);

    // All of them: nothing happens for a handle that is not there.
    Handle enqueue(Handle communicator, const Call& call);
    void end_launch(Handle operation);
    Handle start_channel(Handle operation, std::uint32_t channel, std::uint64_t at_ns);
    void stop_channel(Handle channel, std::uint64_t at_ns);
    Handle start_proxy_operation(Handle operation);
    void end_proxy_operation(Handle proxy_operation);
    Handle start_step(Handle proxy_operation);
    void enter(Handle step, Wait wait, std::uint64_t bytes);
    void end_step(Handle step);

private:
    struct Step {
        Handle operation;
        Wait wait = Wait::kNothing;
        std::int64_t since_ns = 0;
        std::uint64_t bytes = 0;
        bool sends = false;
    };

    std::uint32_t lane_of(Communicator& communicator, const Call& call);
    void leave_wait(Step& step, std::int64_t now_ns);
    void progress(std::uint32_t index);
    void release_old(OpenLane& lane, std::uint64_t completed);
    void record_end(std::uint32_t index);
    template <typename Record>
    void write(common::RecordKind kind, const Record& record);

    std::mutex mutex_;
    common::Segment segment_;
    common::RingWriter ring_;
    Lanes lanes_;
    std::uint32_t mask_ = 0;
    std::vector<OpenLane> open_;
    Slots<Communicator> communicators_{kCommunicators};
    Slots<Operation> operations_{kOperations};
    Slots<Step> steps_{kSteps};
};

}  // namespace megatronapp::nccl
