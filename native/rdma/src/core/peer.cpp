#include "core/peer.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "common/clock.h"
#include "lanes/leftovers.h"

namespace megatronapp::rdma {

namespace {

Message of_kind(MessageKind kind, std::uint64_t receive = 0, std::uint64_t tag = 0) {
    Message message;
    message.kind = kind;
    message.receive = receive;
    message.tag = tag;
    return message;
}

}  // namespace

Peer::Peer(int rank, const Link& link, const Limits& limits, Listener& listener, UcxWorker* ucx)
    : rank_(rank), limits_(limits), listener_(listener), socket_(link.socket), wire_(*this, link.socket, limits.checksum, limits.chunk_bytes),
      now_(common::now_ns()), silence_counts_from_ns_(now_) {
    if (link.inbound >= 0) {
        inbound_ = std::make_shared<const Segment>(link.inbound);
        outbound_ = std::make_shared<const Segment>(link.outbound);
        shm_ = std::make_unique<ShmLane>(*this, *inbound_, *outbound_, limits.checksum, limits.chunk_bytes);
    }
    if (link.cuda_ipc) {
        cuda_ = std::make_unique<CudaIpcLane>(
            *this, inbound_, outbound_, CudaIpcLane::Sockets{link.own_chunks, link.peer_chunks}, link.pool_bytes);
    }
    if (!link.ucx_address.empty()) {
        ucx_ = std::make_unique<UcxLane>(*this, *ucx, link.ucx_address);
    }
    if (link.staged) {
        staged_ = std::make_unique<StagedLane>(*this, host_lane());
    }
}

Peer::~Peer() {
    if (!settled()) {
        keep_until_settled(std::move(cuda_));
    }
}

// ---- operations

Lane& Peer::host_lane() {
    if (shm_ != nullptr) {
        return *shm_;
    }
    return ucx_ != nullptr ? static_cast<Lane&>(*ucx_) : wire_;
}

Lane* Peer::lane_for(Memory memory) {
    if (memory == Memory::kHost) {
        return &host_lane();
    }
    return cuda_ != nullptr ? static_cast<Lane*>(cuda_.get()) : staged_.get();
}

void Peer::post(const OperationPtr& operation) {
    const bool sends = operation->direction == Direction::kSend;
    Lane* lane = lane_for(operation->what.memory);
    if (lane == nullptr) {
        throw std::runtime_error("no lane moves GPU memory to or from this rank");
    }
    RoundWindow& window = sends ? sent_ : received_;
    const Verdict verdict = window.admit(operation->tag);
    if (verdict == Verdict::kDuplicate) {
        throw std::invalid_argument("this tag was used already in its round");
    }
    if (verdict == Verdict::kStale) {
        throw std::invalid_argument("its round is older than the two newest rounds, which alone may be open");
    }
    try {
        if (sends) {
            lane->posted(*operation);
        } else {
            Message message = of_kind(MessageKind::kReady, operation->id, operation->tag);
            message.what = operation->what;
            lane->expect(operation, message);
            pending_[operation->id] = operation;
            return tell(message);
        }
    } catch (...) {
        window.forget(operation->tag);
        throw;
    }
    pending_[operation->id] = operation;
    const auto found = readies_.find(operation->tag);
    if (found == readies_.end()) {
        sends_[operation->tag] = operation;
        return;
    }
    const Message message = found->second;
    readies_.erase(found);
    match(operation, message);
}

void Peer::match(const OperationPtr& send, const Message& ready) {
    if (!(send->what == ready.what)) {
        Message refusal = of_kind(MessageKind::kRefused, ready.receive, ready.tag);
        refusal.what = send->what;
        tell(refusal);
        send->other = ready.what;
        return finished(send, Status::kMismatch);
    }
    send->receive = ready.receive;
    send->matched = true;
    guarded([&] { lane_for(send->what.memory)->start(send, ready); });
}

void Peer::cancel(const OperationPtr& operation) {
    if (!operation->pending() || operation->matched) {
        return;
    }
    if (operation->direction == Direction::kReceive) {
        return tell(of_kind(MessageKind::kCancel, operation->id, operation->tag));
    }
    sent_.forget(operation->tag);
    finished(operation, Status::kCancelled);
}

OperationPtr Peer::receiving(std::uint64_t receive) {
    const auto found = pending_.find(receive);
    const bool waits = found != pending_.end() && found->second->direction == Direction::kReceive;
    return waits ? found->second : OperationPtr{};
}

void Peer::finished(const OperationPtr& operation, Status status, std::string reason) {
    if (!operation->pending()) {
        return;
    }
    const bool staged = staged_ != nullptr && operation->what.memory == Memory::kCuda;
    if (staged && operation->direction == Direction::kReceive && status == Status::kDone && staged_->lands(operation)) {
        return;
    }
    operation->reason = std::move(reason);
    operation->done_ns = common::now_ns();
    operation->status.store(status, std::memory_order_release);
    lane_for(operation->what.memory)->ended(*operation);
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

bool Peer::sending() const {
    return std::any_of(pending_.begin(), pending_.end(), [](const auto& entry) {
        return entry.second->direction == Direction::kSend;
    });
}

// ---- messages of the cores

void Peer::tell(const Message& message) {
    if (shm_ != nullptr) {
        shm_->post(message);
    } else {
        wire_.post(message);
    }
}

void Peer::ring_doorbell() {
    if ((*outbound_)->sleeping.load() != 0 && (*outbound_)->sleeping.exchange(0) != 0) {
        wire_.post(of_kind(MessageKind::kDoorbell));
    }
}

void Peer::on_control(const Message& message) {
    if (lost()) {
        return;
    }
    switch (message.kind) {
        case MessageKind::kReady: return ready(message);
        case MessageKind::kRefused: return refused(message);
        case MessageKind::kCancel: return cancelled_by_peer(message);
        case MessageKind::kCancelled:
            received_.forget(message.tag);
            if (const OperationPtr receive = receiving(message.receive)) {
                finished(receive, Status::kCancelled);
            }
            return;
        case MessageKind::kClose:
            departed_ = true;
            sent_by_peer_ = message.length;
            return ack_close();
        case MessageKind::kCloseAck: close_acked_ = true; return;
        case MessageKind::kChunkEnded:
            if (cuda_ != nullptr) {
                cuda_->chunk_ended(message.receive);
            }
            return;
        case MessageKind::kDoorbell:
        case MessageKind::kHeartbeat:
        case MessageKind::kData: return;
    }
    wire_.close("it does not keep to the protocol");
}

void Peer::ready(const Message& message) {
    if (cuda_ != nullptr && message.what.memory == Memory::kCuda) {
        guarded([&] { cuda_->announced(message); });
        if (lost()) {
            return;
        }
    }
    const auto found = sends_.find(message.tag);
    if (found != sends_.end()) {
        const OperationPtr send = found->second;
        sends_.erase(found);
        match(send, message);
    } else if (!readies_.emplace(message.tag, message).second) {
        wire_.close("it was ready twice for one tag");
    }
}

void Peer::refused(const Message& message) {
    if (const OperationPtr receive = receiving(message.receive)) {
        receive->other = message.what;
        finished(receive, Status::kMismatch);
    }
}

void Peer::cancelled_by_peer(const Message& message) {
    const auto found = readies_.find(message.tag);
    if (found != readies_.end() && found->second.receive == message.receive) {
        readies_.erase(found);
        tell(of_kind(MessageKind::kCancelled, message.receive, message.tag));
    }
}

// ---- progress, life and death

// A lane that can't go on is the end of this peer, not of the process.
template <typename Action>
void Peer::guarded(Action action) {
    try {
        action();
    } catch (const std::exception& error) {
        fail(Status::kPeerLost, std::string("its lane can't go on: ") + error.what());
    }
}

bool Peer::move_lanes() {
    bool moved = false;
    guarded([&] {
        moved |= shm_ != nullptr && shm_->progress();
        moved |= cuda_ != nullptr && cuda_->progress();
        moved |= ucx_ != nullptr && ucx_->progress();
        moved |= staged_ != nullptr && staged_->progress();
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
    const auto unmatched = [](const auto& entry) { return entry.second->what.memory == Memory::kCuda; };
    if (lost()) {
        return false;
    }
    return (staged_ != nullptr && staged_->holds_back()) ||
           (cuda_ != nullptr && (cuda_->holds_back() || std::any_of(sends_.begin(), sends_.end(), unmatched)));
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
