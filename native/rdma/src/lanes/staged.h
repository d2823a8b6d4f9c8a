// GPU memory through page-locked host memory, over the lane of host memory: between hosts, and where the other end's
// tensor is not on a GPU.
//
// A tensor is copied into a buffer of the pool once its producer is done, sent, and copied out of the receiver's buffer.
// The copy out of a sender's tensor is given to the GPU when the send is posted, behind its producer. The copy into a
// receiver's is given to the stream that waits for it, behind a flag that this host writes when the bytes are there; only
// where no stream waits, when they are there. So no call of the driver is needed to end what a stream waits for: the
// driver may take none, while the program waits in it for that very stream.
//
// The pool's buffers are the engine's own, and a message's alone until it has ended and the GPU is through with it. A
// message that ends before that keeps its buffer, and `in_use` keeps its tensor; the lane outlives its engine then
// (lanes/leftovers.h). Where a network card may write into a buffer after that (its peer was given up), the pool is never
// freed.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "drivers/cuda.h"
#include "lanes/cuda_ipc.h"
#include "lanes/gpu_events.h"
#include "lanes/lane.h"
#include "lanes/stream_flags.h"
#include "lanes/stream_waits.h"

namespace megatronapp::rdma {

// Host memory that the copy engine reaches, kept for the next message.
class StagingPool {
public:
    explicit StagingPool(const CudaDriver& driver) : driver_(driver) {}
    ~StagingPool();
    StagingPool(const StagingPool&) = delete;
    StagingPool& operator=(const StagingPool&) = delete;

    // Throws std::runtime_error when there is no memory for it.
    char* take(std::size_t bytes);
    void give_back(char* memory);

private:
    static constexpr std::size_t kLeastBytes = 1 << 20;
    struct Buffer {
        char* memory;
        std::size_t bytes;
        bool in_use;
    };
    const CudaDriver& driver_;
    std::vector<Buffer> buffers_;
};

class StagedLane final : public Lane {
public:
    // Over `host`, which outlives it, as does `cuda` where there is one; with the events' context.
    StagedLane(Matcher& core, Lane& host, std::shared_ptr<GpuEvents> events, std::shared_ptr<StreamWaits> stream_waits,
               CudaIpcLane* cuda);
    ~StagedLane() override;

    const char* name() const override { return "staged"; }
    void posted(Operation& send) override;
    void expect(const OperationPtr& receive, Message& message) override;
    void start(const OperationPtr& send, const Message& ready) override;
    bool progress() override;
    bool polled() const override { return !moving_.empty() || !late_.empty(); }
    bool settle() override;
    void release() override { abandoned_ = host_.writes_late() && !staged_.empty(); }
    void ended(Operation& operation) override;
    Stop stop(const OperationPtr& send) override;
    bool held_up(const Operation& send) const override;

    // The `cuda` lane expects this receive, but it comes from host memory: into the lane's place for it.
    void bring(const OperationPtr& receive, Message& message);
    // The stream goes on when the operation is through. Throws Exhausted when streams wait for too many.
    void follow(const OperationPtr& operation, void* stream);
    // The host's lane has brought it: it ends when it is in the GPU's memory. False: it is there already.
    bool lands(const OperationPtr& receive);
    // Sends whose copy the GPU does not know of.
    bool holds_back() const;

private:
    enum class Where { kUnderWay, kDue, kCopying, kThere };
    // An operation between the GPU's memory and the host's.
    struct Staging {
        Operation* operation;  // ends before this does
        CudaAddress device;
        char* host;
        Where where;
        bool brought = false;     // for the `cuda` lane
        bool queued = false;      // the copy is given to a stream, which then writes the operation's flag
        void* copied = nullptr;   // event
        OperationPtr matched = {};  // a send, before it is copied
    };

    Staging& stage(Operation& operation, CudaAddress device, Where where);
    OperationFlags& flags();
    void* side_stream(void* producer);
    void queue_send(Staging& staging, void* stream);
    void queue_receive(Staging& staging, void* stream);
    bool may_be_left(const Staging& staging) const;
    bool may_copy(const Staging& staging) const;
    bool copied(const Staging& staging) const;
    void write(const Flag& flag, void* stream);
    void wait(const Flag& flag, void* stream);
    bool advance(Staging& staging);
    void there(Staging& staging);
    void enter() const { events_->enter(); }

    Matcher& core_;
    Lane& host_;
    const CudaDriver& driver_;
    std::shared_ptr<GpuEvents> events_;
    std::shared_ptr<StreamWaits> stream_waits_;
    CudaIpcLane* cuda_;
    void* stream_ = nullptr;
    bool abandoned_ = false;
    std::unique_ptr<StagingPool> pool_;
    std::optional<OperationFlags> flags_;  // once a stream waits
    std::unordered_map<std::uint64_t, Staging> staged_;  // by the operation's id
    std::vector<std::uint64_t> moving_;  // those that are due or copied
    std::unordered_map<void*, void*> side_streams_;  // by the producers' streams: what one produces comes in its order
    struct Late {
        OperationPtr operation;
        char* host;
    };
    std::vector<Late> late_;  // have ended before the GPU was through with them
};

}  // namespace megatronapp::rdma
