// GPU memory on one host: the sender's copy engine writes into a block of the receiver's, in stream order.
//
// The sender's copy waits for the work that fills the buffer and, where the block is still in use, for the receiver's
// `ready`; it copies and writes `done`, for which a stream of the receiver waits, copies the block into the program's
// tensor ("landing") and writes `landed`. No host waits. All flags are in host memory that both processes and both GPUs see,
// so that a host can poll them, and can let a stream go whose peer died. Who may write where: lanes/gpu_memory.h.
//
// Streams can't be stopped. Where a message ends before the GPU is done with it (abort, a lost peer), its flags are written
// by the host, so that the streams go on, and `in_use` stays until they are through: so long the program's tensor is kept
// (megatronapp/rdma/keepalive.py), and so long this lane is, also after its engine (lanes/leftovers.h).
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "drivers/cuda.h"
#include "lanes/gpu_events.h"
#include "lanes/gpu_memory.h"
#include "lanes/lane.h"
#include "lanes/segment.h"
#include "lanes/stream_flags.h"
#include "lanes/stream_waits.h"

namespace megatronapp::rdma {

class CudaIpcLane final : public Lane {
public:
    struct Sockets {
        int own;   // on which this rank hands over its memory
        int peer;  // on which the peer does
    };
    // With the events' context. The descriptors stay the caller's.
    CudaIpcLane(Matcher& core, std::shared_ptr<GpuEvents> events, std::shared_ptr<StreamWaits> stream_waits,
                std::shared_ptr<const Segment> inbound, std::shared_ptr<const Segment> outbound,
                const Sockets& sockets, std::size_t pool_bytes);
    // Waits for the GPU unless it has settled.
    ~CudaIpcLane() override;

    const char* name() const override { return "cuda_ipc"; }
    void expect(const OperationPtr& receive, Message& message) override;
    void start(const OperationPtr& send, const Message& ready) override;
    Stop stop(const OperationPtr& send) override;
    bool held_up(const Operation& send) const override { return !events_->reached(send.event); }
    bool progress() override;
    bool polled() const override { return !receives_.empty() || !waiting_.empty() || !moving_.empty(); }
    void release() override;
    void ended(Operation& operation) override;

    // The stream goes on when the operation is through. Throws Exhausted when too many sends are waited for that the GPU
    // does not know of.
    void follow(const OperationPtr& operation, void* stream);
    // Where the bytes of a receive land first, for who brings them from host memory; none: it has no bytes.
    CudaAddress block_of(const Operation& receive) const;
    // Nothing is copied out of that place any more.
    bool may_write(const Operation& receive) const;
    // They are there.
    void delivered(const Operation& receive);
    // The peer is ready in a block: its chunk is opened now.
    void announced(const Message& ready);
    // The peer uses this chunk no more.
    void chunk_ended(std::uint64_t chunk);
    // Matched, but not given to the GPU.
    bool holds_back() const { return !waiting_.empty(); }
    void set_pool_limit(std::size_t bytes) { pool_.set_limit(bytes); }
    bool settle() override;

private:
    struct Matched {
        OperationPtr send;
        CudaAddress to = 0;
        std::size_t slot = 0;
        std::uint32_t value = 0;
        Flag ready;
        std::uint64_t receive_stream = 0;
    };
    // One of a few streams, so that a message that waits on the GPU does not hold up another.
    struct CopyStream {
        void* stream = nullptr;
        Matched last;  // launched while it might not run yet; no send: none such
        bool blocked() const { return last.send != nullptr && last.send->pending(); }
    };
    struct Receive {
        OperationPtr operation;
        std::size_t slot = 0;
        Block* block = nullptr;  // none: of no bytes
        std::uint32_t value = 0;  // of `done` when all has come
        Flag passed;              // the stream has written `ready`; no flag: the host did
        bool landing = false;     // is given to a stream
    };

    void enter() const { events_->enter(); }
    void wait(const Flag& flag, void* stream);
    void prepare(Receive& receive, Message& message);
    void forget(Receive& receive);
    void release_place(Receive& receive);
    void land(Receive& receive, void* stream);
    bool untouched(const Receive& receive) const;
    bool progress_receives();
    bool progress_sends();
    void tell_ended_chunks();
    bool try_launch(const Matched& matched);
    void copy_pieces(const Matched& matched, void* stream);
    CopyStream* stream_for(const Matched& matched, bool runs_at_once);
    static bool comes_after(const Matched& matched, const Matched& earlier);

    Matcher& core_;
    const CudaDriver& driver_;
    std::shared_ptr<GpuEvents> events_;
    std::shared_ptr<StreamWaits> stream_waits_;
    std::shared_ptr<const Segment> inbound_, outbound_;
    MappedFlags in_, out_;
    OperationFlags sent_;
    OwnFlags landed_;
    FlagSlots receive_slots_;
    std::array<std::uint32_t, kFlagSlots> values_{};  // of the inbound flags: they count up, and are never reset
    ReceivePool pool_;
    PeerChunks peer_chunks_;
    std::vector<CopyStream> streams_;
    void* landing_stream_ = nullptr;
    std::size_t next_stream_ = 0;
    std::map<std::uint64_t, Receive> receives_;  // by the operation's id, also those that ended before the GPU
    std::deque<Matched> waiting_;                // started, not launched
    std::vector<Matched> launched_;              // kept to let their streams go
    std::vector<OperationPtr> moving_;
    std::vector<OperationPtr> failed_sends_;     // that the GPU may still read
};

}  // namespace megatronapp::rdma
