#include "core/peer.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "common/clock.h"
#include "core/control.h"
#include "lanes/leftovers.h"

namespace megatronapp::rdma {

Peer::Peer(int rank, const Link& link, const Limits& limits, Listener& listener, UcxWorker* ucx,
           std::shared_ptr<StreamWaits> stream_waits)
    : rank_(rank), limits_(limits), listener_(listener), socket_(link.socket), wire_(*this, link.socket, limits.checksum, limits.chunk_bytes),
      sent_(limits.open_rounds), received_(limits.open_rounds), now_(common::now_ns()), silence_counts_from_ns_(now_) {
    if (link.inbound >= 0) {
        inbound_ = std::make_shared<const Segment>(link.inbound);
        outbound_ = std::make_shared<const Segment>(link.outbound);
        shm_ = std::make_unique<ShmLane>(*this, *inbound_, *outbound_, limits.checksum, limits.chunk_bytes);
    }
    if (link.gpu) {
        events_ = std::make_shared<GpuEvents>();
    }
    if (link.cuda_ipc) {
        cuda_ = std::make_unique<CudaIpcLane>(
            *this, events_, stream_waits, inbound_, outbound_, CudaIpcLane::Sockets{link.own_chunks, link.peer_chunks},
            link.pool_bytes);
    }
    if (!link.ucx_address.empty()) {
        ucx_ = std::make_unique<UcxLane>(*this, *ucx, link.ucx_address);
    }
    if (link.gpu) {
        staged_ = std::make_unique<StagedLane>(*this, host_lane(), events_, stream_waits, cuda_.get());
    }
}

Peer::~Peer() {
    if (staged_ != nullptr && !staged_->settle()) {
        keep_until_settled(std::move(staged_));
    }
    if (cuda_ != nullptr && !cuda_->settle()) {
        keep_until_settled(std::move(cuda_));
    }
}

bool Peer::settled() {
    const bool staged = staged_ == nullptr || staged_->settle();
    return (cuda_ == nullptr || cuda_->settle()) && staged;
}

// ---- operations

Lane& Peer::host_lane() {
    if (shm_ != nullptr) {
        return *shm_;
    }
    return ucx_ != nullptr ? static_cast<Lane&>(*ucx_) : wire_;
}

Lane& Peer::lane_of(const Operation& operation) {
    if (operation.what.memory == Memory::kHost) {
        return host_lane();
    }
    return operation.via == Memory::kCuda ? static_cast<Lane&>(*cuda_) : *staged_;
}

// By which lane a new message of GPU memory goes, as far as is known of its other end.
Memory Peer::lane_memory(const Operation& operation) const {
    const auto pending = peer_send_order_.find(operation.tag);
    const bool from_host = operation.direction == Direction::kReceive && pending != peer_send_order_.end() &&
                           peer_sends_.at(pending->second).what.memory == Memory::kHost;
    return cuda_ != nullptr && !from_host ? Memory::kCuda : Memory::kHost;
}

void Peer::admit(const Operation& operation) {
    if (operation.what.memory == Memory::kCuda && staged_ == nullptr) {
        throw std::runtime_error("no lane moves GPU memory to or from this rank");
    }
    switch ((operation.direction == Direction::kSend ? sent_ : received_).admit(operation.tag)) {
        case Verdict::kNew: return;
        case Verdict::kDuplicate: throw std::invalid_argument("this tag was used already in its round");
        case Verdict::kStale:
            throw std::invalid_argument("its round is older than the " + std::to_string(limits_.open_rounds) +
                                        " newest rounds, which alone may be open (Config.open_rounds)");
    }
}

void Peer::read_readies() {
    if (!lost() && shm_ != nullptr) {
        guarded([this] { shm_->read_mail(); });
    }
}

void Peer::post(const OperationPtr& operation) {
    admit(*operation);
    const bool sends = operation->direction == Direction::kSend;
    operation->buffer = operation->data;
    try {
        if (operation->what.memory == Memory::kCuda) {
            operation->via = lane_memory(*operation);
            events_->enter();
            events_->record(*operation);
        }
        if (!sends) {
            return expect(operation);
        }
        lane_of(*operation).posted(*operation);
    } catch (...) {
        end_lanes(*operation);
        if (operation->event != nullptr) {
            events_->give_back(*operation);
        }
        (sends ? sent_ : received_).forget(operation->tag);
        throw;
    }
    pending_[operation->id] = operation;
    match_or_announce(operation);
}

void Peer::expect(const OperationPtr& receive) {
    Message message = of_kind(MessageKind::kReady, receive->id, receive->tag);
    message.what = receive->what;
    message.via = receive->via;
    lane_of(*receive).expect(receive, message);
    pending_[receive->id] = receive;
    const bool awaited = peer_send_order_.count(receive->tag) != 0;
    drop_pending_send(receive->tag);
    tell(message, awaited || receive->via == Memory::kCuda);  // GPU memory is opened early
}

void Peer::follow(const OperationPtr& operation, void* stream) {
    if (operation->via == Memory::kCuda) {
        cuda_->follow(operation, stream);
    } else {
        staged_->follow(operation, stream);
    }
}

// ---- the end of operations

OperationPtr Peer::receiving(std::uint64_t receive) {
    const auto found = pending_.find(receive);
    const bool waits = found != pending_.end() && found->second->direction == Direction::kReceive;
    return waits ? found->second : OperationPtr{};
}

void Peer::finished(const OperationPtr& operation, Status status, std::string reason) {
    if (!operation->pending()) {
        return;
    }
    if (operation->buffer != operation->data && operation->direction == Direction::kReceive &&
        status == Status::kDone && staged_->lands(operation)) {
        return;
    }
    operation->reason = std::move(reason);
    operation->done_ns = common::now_ns();
    operation->status.store(status, std::memory_order_release);
    end_lanes(*operation);
    pending_.erase(operation->id);
    if (operation->direction == Direction::kSend && !operation->matched) {
        sends_.erase(operation->tag);
    }
    listener_.ended(operation);
    if (operation->direction == Direction::kSend) {
        sent_count_ += status == Status::kDone;
    } else if (status == Status::kDone || status == Status::kCorrupt) {
        ++received_count_;
        ack_close();
    }
}

void Peer::staged(const OperationPtr& receive) {
    if (receive->via == Memory::kCuda) {
        return cuda_->delivered(*receive);
    }
    finished(receive, Status::kDone);
}

void Peer::end_lanes(Operation& operation) {
    if (operation.what.memory == Memory::kHost) {
        return host_lane().ended(operation);
    }
    if (operation.via == Memory::kHost || operation.buffer != operation.data) {
        staged_->ended(operation);
    }
    if (cuda_ != nullptr) {  // it may have begun there
        cuda_->ended(operation);
    }
}

bool Peer::sending() const {
    return std::any_of(pending_.begin(), pending_.end(), [](const auto& entry) {
        return entry.second->direction == Direction::kSend;
    });
}

// ---- progress, life and death

bool Peer::move_lanes() {
    bool moved = false;
    guarded([&] {
        moved |= shm_ != nullptr && shm_->progress();
        moved |= cuda_ != nullptr && cuda_->progress();
        moved |= ucx_ != nullptr && ucx_->progress();
        moved |= staged_ != nullptr && staged_->progress();
        moved |= !queue_.empty() && start_queued();
    });
    return moved && !lost();
}

bool Peer::progress(bool sockets) {
    if (lost()) {
        settled();
        return false;
    }
    bool moved = move_lanes();
    if (sockets || shm_ == nullptr || wire_.has_output()) {
        moved |= wire_.progress();
    }
    if (!wire_.open() && !lost()) {
        hung_up();
    }
    return moved;
}

void Peer::hung_up() {
    while (move_lanes()) {  // what it put into memory before it went is whole
    }
    fail(Status::kPeerLost, departed_ ? "it has closed its engine" : wire_.reason());
}

bool Peer::polled() {
    return (lost() && !settled()) || (!lost() && ((cuda_ != nullptr && cuda_->polled()) || (staged_ != nullptr && staged_->polled())));
}

bool Peer::holds_back() const {
    if (lost() || staged_ == nullptr) {
        return false;
    }
    const auto on_gpu = [](const auto& entry) { return entry.second->what.memory == Memory::kCuda; };
    return staged_->holds_back() || !queue_.empty() ||
           (cuda_ != nullptr && (cuda_->holds_back() || std::any_of(sends_.begin(), sends_.end(), on_gpu)));
}

void Peer::set_sleeping(bool sleeping) {
    if (inbound_ != nullptr) {
        (*inbound_)->sleeping.store(sleeping ? 1 : 0);
    }
}

void Peer::tick(std::int64_t now) {
    now_ = now;
    if (lost()) {
        return;
    }
    if (now - beat_ns_ >= limits_.heartbeat_ns) {
        beat_ns_ = now;
        wire_.post(of_kind(MessageKind::kHeartbeat));
    }
    if (now - std::max(wire_.heard_ns(), silence_counts_from_ns_) > limits_.dead_after_ns) {
        return fail(Status::kPeerLost, "nothing was heard of it: its process is stopped or the network is cut");
    }
    expire(now);
}

void Peer::expire(std::int64_t now) {
    for (const auto& [id, operation] : pending_) {
        if (now > operation->deadline_ns) {
            const OperationPtr late = operation;
            finished(late, Status::kTimedOut);
            return fail(Status::kPeerLost, "a message was not moved before its deadline");
        }
    }
}

void Peer::fail(Status status, const std::string& reason) {
    if (lost()) {
        return;
    }
    lost_ = reason;
    departed_ = departed_ && pending_.empty();
    if (cuda_ != nullptr) {
        cuda_->release();
    }
    if (ucx_ != nullptr) {
        ucx_->release();
    }
    if (staged_ != nullptr) {
        staged_->release();
    }
    std::vector<OperationPtr> open;
    for (const auto& entry : pending_) {
        open.push_back(entry.second);
    }
    for (const OperationPtr& operation : open) {
        finished(operation, status, reason);
    }
    sends_.clear();
    readies_.clear();
    queue_.clear();
    in_flight_.clear();
    peer_sends_.clear();
    peer_send_order_.clear();
    wire_.close(reason);
    listener_.gone(socket_);
}

void Peer::send_close() {
    Message message = of_kind(MessageKind::kClose);
    message.length = sent_count_;
    wire_.post(message);
}

// Once all that it sent is here, by whichever lane: until then it must not go.
void Peer::ack_close() {
    if (departed_ && received_count_ == sent_by_peer_) {
        wire_.post(of_kind(MessageKind::kCloseAck));
    }
}

}  // namespace megatronapp::rdma
