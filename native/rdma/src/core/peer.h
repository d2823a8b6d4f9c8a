// Everything between this rank and one other: matching by tag, the lanes, and whether the other still lives.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/window.h"
#include "lanes/cuda_ipc.h"
#include "lanes/gpu_events.h"
#include "lanes/lane.h"
#include "lanes/segment.h"
#include "lanes/send_queue.h"
#include "lanes/shm.h"
#include "lanes/staged.h"
#include "lanes/ucx.h"
#include "lanes/wire.h"

namespace megatronapp::rdma {

// How a peer is reached. Descriptors of memory are -1 where none is shared.
struct Link {
    int socket = -1;
    int inbound = -1;
    int outbound = -1;
    bool cuda_ipc = false;
    int own_chunks = -1;      // cuda_ipc: sockets on which GPU memory is handed over, mine
    int peer_chunks = -1;     // and the peer's
    std::size_t pool_bytes = 0;
    std::string ucx_address;  // empty: not over UCX
    bool gpu = false;         // this rank has one: its memory may go through host memory
};

struct Limits {
    std::int64_t heartbeat_ns;
    std::int64_t dead_after_ns;
    bool checksum;
    std::size_t chunk_bytes;
    std::uint32_t open_rounds;
    std::size_t in_flight_bytes;  // sends that are given to the lanes at once; 0: all
};

// What a peer has to send, for which nothing was posted here.
struct PendingSend {
    int peer = 0;
    std::uint64_t tag = 0;
    Descriptor what;
    std::int64_t since_ns = 0;
};

class Listener {
public:
    virtual ~Listener() = default;
    virtual void ended(const OperationPtr& operation) = 0;
    // The peer has told something for which a thread may wait.
    virtual void wake() = 0;
    // The socket is of no use any more.
    virtual void gone(int descriptor) = 0;
};

class Peer final : public Matcher {
public:
    Peer(int rank, const Link& link, const Limits& limits, Listener& listener, UcxWorker* ucx,
         std::shared_ptr<StreamWaits> stream_waits);
    // What the GPU still has to do with ended messages goes on without it.
    ~Peer() override;

    // What receivers are ready for, of whom some did not wake this rank: before a send is posted.
    void read_readies();
    // Throws std::invalid_argument for a tag that was used, std::runtime_error for memory that no lane can move.
    void post(const OperationPtr& operation);
    // `operation->cancel` and its status tell what became of it, perhaps later.
    void cancel(const OperationPtr& operation);
    // In order of their coming.
    void add_pending_sends(std::vector<PendingSend>& to, std::uint64_t mask, std::uint64_t value) const;
    bool progress(bool sockets);
    void tick(std::int64_t now);
    void fail(Status status, const std::string& reason);
    void send_close();

    bool lost() const { return lost_.has_value(); }
    const std::string& reason() const { return *lost_; }
    // It left by itself, and nothing was open.
    bool departed() const { return departed_; }
    bool close_acked() const { return close_acked_ || lost(); }
    bool idle() const { return pending_.empty(); }
    bool sending() const;
    // Of the sends that its lanes move now; 0 where nothing limits them (Limits::in_flight_bytes).
    std::uint64_t in_flight_bytes();
    bool polled();
    // Sends of GPU memory that the GPU does not know of yet.
    bool holds_back() const;
    int descriptor() const { return wire_.descriptor(); }
    bool has_output() const { return wire_.has_output(); }
    void set_sleeping(bool sleeping);
    void heard_again() { silence_counts_from_ns_ = now_; }
    CudaIpcLane* cuda() { return cuda_.get(); }
    // The stream goes on when the operation of GPU memory is through. Throws Exhausted.
    void follow(const OperationPtr& operation, void* stream);
    // Of a lost peer: whether the GPU is through with all messages.
    bool settled();

    // Matcher
    OperationPtr receiving(std::uint64_t receive) override;
    void finished(const OperationPtr& operation, Status status, std::string reason = {}) override;
    void stopped(const OperationPtr& send) override;
    void staged(const OperationPtr& receive) override;
    void tell(const Message& message) override;
    void ring_doorbell() override;
    void on_control(const Message& message) override;

private:
    void tell(const Message& message, bool urgent);
    Lane& host_lane();
    Lane& lane_of(const Operation& operation);
    Memory lane_memory(const Operation& operation) const;
    void admit(const Operation& operation);
    void expect(const OperationPtr& receive);
    void announce(const OperationPtr& send);
    void match_or_announce(const OperationPtr& send);
    void match(const OperationPtr& send, const Message& ready);
    bool start_queued();
    bool has_room(const Operation& send);
    Stop take_back(const OperationPtr& send);
    void withdraw(const OperationPtr& send);
    void end_lanes(Operation& operation);
    void ready(const Message& message);
    void cancelled_by_peer(const Message& message);
    void not_cancelled(const Message& message);
    void refused(const Message& message);
    void send_pending(const Message& message);
    void drop_pending_send(std::uint64_t tag);
    void stage(const Message& message);
    OperationPtr matched_with(std::uint64_t receive) const;
    bool move_lanes();
    void hung_up();
    void ack_close();
    // A lane that can't go on is the end of this peer, not of the process.
    template <typename Action>
    void guarded(Action action) {
        try {
            action();
        } catch (const std::exception& error) {
            fail(Status::kPeerLost, std::string("its lane can't go on: ") + error.what());
        }
    }
    void expire(std::int64_t now);

    int rank_;
    Limits limits_;
    Listener& listener_;
    std::shared_ptr<const Segment> inbound_, outbound_;
    int socket_;
    Wire wire_;
    std::unique_ptr<ShmLane> shm_;
    std::shared_ptr<GpuEvents> events_;
    std::unique_ptr<CudaIpcLane> cuda_;
    std::unique_ptr<UcxLane> ucx_;
    std::unique_ptr<StagedLane> staged_;

    RoundWindow sent_, received_;
    std::unordered_map<std::uint64_t, OperationPtr> sends_;  // by tag: not matched yet
    struct Ready {
        Message message;
        bool staging = false;  // the receiver was asked for another
    };
    std::unordered_map<std::uint64_t, Ready> readies_;  // by tag: not matched yet
    SendQueue queue_;                                   // matched, not given to their lanes
    std::vector<OperationPtr> in_flight_;               // given to them, where their bytes are limited
    std::map<std::uint64_t, PendingSend> peer_sends_;             // by the order of their coming
    std::unordered_map<std::uint64_t, std::uint64_t> peer_send_order_;  // by tag
    std::uint64_t peer_sends_count_ = 0;
    std::unordered_map<std::uint64_t, OperationPtr> pending_;  // by id: both directions

    std::optional<std::string> lost_;
    bool departed_ = false;
    bool close_acked_ = false;
    std::uint64_t sent_count_ = 0;
    std::uint64_t received_count_ = 0;
    std::uint64_t sent_by_peer_ = 0;  // told in its goodbye
    std::int64_t now_ = 0;
    std::int64_t beat_ns_ = 0;
    std::int64_t silence_counts_from_ns_ = 0;
};

}  // namespace megatronapp::rdma
